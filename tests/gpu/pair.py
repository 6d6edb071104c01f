"""The pair of lab/gpu as its owner has it, and what a row of this folder leaves behind: its result and the logs of both ranks."""

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from acceptance.commands import SERVING, Places, tags
from acceptance.owner import INSTANCE, REPO, Owner, wait_for

ROOT = Path(os.environ.get("GPU_LAB") or "/gpu-lab")
KEPT = ROOT / "results"
#: Another profile than that of lab/gpu: the rows are tried on the container lab, without a GPU.
PROFILE = os.environ.get("GPU_LAB_PROFILE") or "lab-gpu"
GPU = PROFILE == "lab-gpu"
NODE = f"gb10-lab{INSTANCE}-"
ONLY_SERVING = tags(SERVING)
#: A boot that fails is the outcome: it is not tried again, and no other release takes its place.
ONE_ATTEMPT: dict[str, Any] = {"rollback": False, "attempts": 1, "restart": True}
#: What shared/samples/*/expected.json has of a log, by expressions of our own: the recordings test the parser.
FACTS = {
    "kv_tokens": r"KV cache size: ([\d,]+) tokens", "context": r"Maximum concurrency for ([\d,]+) tokens",
    "max_concurrency": r"tokens per request: ([\d.]+)x", "available_gib_min": r"Available KV cache memory: ([\d.]+) GiB",
}  # fmt: skip


def facts_of(log: str, classes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the expected facts of a log. `classes`: it has failed, and any of them is right."""
    figures = {name: json.loads(match[1].replace(",", "")) for name, pattern in FACTS.items() if (match := re.search(pattern, log))}
    version = re.search(r"\(v(\d+\.\d+\.\d+)", log)
    return {**({"state": ["failed"], "class": list(classes)} if classes else {}), **({"version": version[1]} if version else {}), **figures}


def row_of(item: pytest.Item) -> str:
    """Return the name of a row: that of its parameter, or of its test."""
    return str(item.callspec.id) if hasattr(item, "callspec") else item.name.removeprefix("test_").replace("_", " ")


@dataclass
class Row:
    """What a row has measured. The result of one that held is there for ever; that of one that failed has another name, and is replaced."""

    name: str
    part: str
    results: Path = KEPT
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.results / f"{re.sub(r'[^a-z0-9]+', '-', self.name.lower())}.json"

    def write(self, failure: str) -> None:
        self.results.mkdir(parents=True, exist_ok=True)
        failed = self.path.with_suffix(".failed.json")
        failed.unlink(missing_ok=True)
        facts = {"row": self.name, "part": self.part, "ok": not failure, "failure": failure[-3000:], **self.facts}
        (failed if failure else self.path).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def record(self, rank: int, log: str, classes: tuple[str, ...] = (), what: str = "") -> None:
        """Keep the log of a rank with its expected facts. `what`: of which boot, if the row has several."""
        path, name = self.results / "recordings/expected.json", f"{self.path.stem}{what}.rank{rank}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(name).write_text(log, encoding="utf-8")
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**known, name: facts_of(log, classes)}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        self.facts.setdefault("logs", []).append(name)


class Pair(Owner):
    """An owner of the pair on two GPUs."""

    def __init__(self, folder: Path) -> None:
        if not GPU:
            return super().__init__(folder, PROFILE)
        self.folder, self.places, self.inventory = folder, Places(), folder / "mine"
        shutil.copytree(REPO / "inventories/gpu-lab", self.inventory)
        self.inventory_file("group_vars/gb10.yml", lambda text: f"{text}\ngb10_receipts: {KEPT}/receipts\ngb10_evidence: {KEPT}/evidence\n")
        self.model = str(self.variables()["gb10_profiles"][PROFILE]["model"]["served_names"][0])
        return None

    def smi(self, query: str) -> list[str]:
        """Return what nvidia-smi reports on each node."""
        line = f"nvidia-smi --query-gpu={query} --format=csv,noheader"
        return [self.on(node, line, check=False).strip() for node in self.nodes] if GPU else ["no GPU"]

    def follow(self, since: int | None = None) -> dict[str, Any]:
        """Return the events after a number, and the number of the last one."""
        line = f"gb10 follow {'' if since is None else f'--since {since}'} 2>/dev/null"
        return dict(json.loads(self.on(1, line, check=False) or '{"events": [], "next": 0}'))

    def read(self, path: str) -> dict[str, Any]:
        """Return a JSON file of the head; empty if it is not there."""
        return dict(json.loads(self.on(1, f"cat {path} 2>/dev/null || true") or "{}"))

    def changed(self, **changes: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a run with a profile that changes parts of ours."""
        own = {"extends": PROFILE, "summary": "Ours, changed by a row", **changes}
        return {"profile": "changed", "profiles": {**self.variables()["gb10_profiles"], "changed": own}}


class Logs:
    """The logs of both ranks, followed from their first line, so that they are here after the containers are gone."""

    def __init__(self, pair: Pair, now: bool = False) -> None:
        """Follow the containers that come, or with `now` those that run."""
        self.key, self.files, self.processes = pair.key(), list[Path](), list[subprocess.Popen[bytes]]()
        for node in pair.nodes:
            state = pair.container(node)
            old = "" if now or state is None else str(state["Id"])
            find = f"docker ps -aq --no-trunc --filter name=^/{pair.places.container(node - 1)}$ --filter status=running --filter status=exited"
            line = f"for i in $(seq 3000); do id=$({find}); [ -n \"$id\" ] && [ \"$id\" != '{old}' ] && exec docker logs -f $id 2>&1; sleep 0.1; done"
            self.files.append(pair.folder / f"log-{time.monotonic_ns()}")
            with self.files[-1].open("wb") as out:
                self.processes.append(subprocess.Popen(["docker", "exec", f"{NODE}{node}", "sh", "-c", line], stdout=out, stderr=out))

    def text(self, rank: int) -> str:
        """Return what a rank has printed so far, without the key of the API."""
        text = self.files[rank].read_text(encoding="utf-8", errors="replace")
        return text.replace(self.key, "API-KEY") if self.key else text

    def keep(self, row: Row, classes: tuple[str, ...] = (), rank: int | None = None, what: str = "") -> None:
        """Record the logs of a row. `classes` belong to the log of `rank`, or to both."""
        wait_for(lambda: all(process.poll() is not None for process in self.processes), 3)
        for number, process in enumerate(self.processes):
            process.kill()
            if text := self.text(number):
                row.record(number, text, classes if rank in (None, number) else (), what)
