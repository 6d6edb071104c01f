"""What the compile caches save on two GPUs."""

import re
import subprocess
from typing import Any

from gpu.pair import NODE, ONLY_SERVING, Logs, Pair, Row


def boot(pair: Pair, row: Row, what: str, **settings: Any) -> str:
    """Boot a shape of this row's own, record what each rank has compiled, and return its cache folder, the same on both nodes."""
    logs = Logs(pair)
    run = pair.run("bring up", *ONLY_SERVING, requests=24, **settings).passed()
    logs.keep(row, what=f"-{len(row.facts.get('boots', []))}")
    cache = str(pair.read(pair.places.release)["caches"][0])
    spent = [re.findall(r"torch\.compile took ([\d.]+) s", logs.text(node - 1)) for node in pair.nodes]
    figures = {"boot": what, "seconds": pair.read(pair.places.receipt)["seconds"], "run": round(run.seconds, 1)}
    figures |= {"compile": [each[-1] if each else "-" for each in spent], "mib": [int(pair.on(node, f"du -sm {cache}").split()[0]) for node in pair.nodes]}
    row.facts.setdefault("boots", []).append(figures)
    pair.on_node("stop").passed()
    return cache


def test_compile_caches(known: Pair, row: Row) -> None:
    """The last boot finds on the worker what the head has compiled: a copy by hand, as someone might do it to save the wait."""
    boot(known, row, "cold")
    boot(known, row, "second")
    cache = boot(known, row, "another release of the same shape", extra_environment={"GPU_LAB_ROW": "1"})
    known.on(2, f"rm -rf {cache}/*")
    subprocess.run(f"docker exec {NODE}1 tar -C {cache} -c . | docker exec -i {NODE}2 tar -C {cache} -x", shell=True, check=True, timeout=60)
    boot(known, row, "the worker has the head's copy", extra_environment={"GPU_LAB_ROW": "1"})
