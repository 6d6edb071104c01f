# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the picture of the page of the role monitoring: a real Prometheus reads an invented pair, and headless Chromium shows its page (6 minutes)."""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

from ansible_collections.gb10.cluster.plugins.module_utils._pair import outside  # noqa: E402  the paths are set above
from browser import Browser  # noqa: E402
from monitoring_role import ROLE, program, rendered  # noqa: E402

HEIGHT = 1660
SECONDS = 330.0  # the rates of the page are those of five minutes
LISTEN = "127.0.0.1:9499"
#: What an engine counts in a second, by the end of its name in vLLM, and what it shows.
COUNTED = (
    ("generation_tokens_total", 25.5), ("prompt_tokens_total", 140), ("prefix_cache_queries_total", 140), ("prefix_cache_hits_total", 80),
    ("spec_decode_num_draft_tokens_total", 27), ("spec_decode_num_accepted_tokens_total", 12.3),
    ("request_time_per_output_token_seconds_sum", 0.00263), ("request_time_per_output_token_seconds_count", 0.1),
)  # fmt: skip
SHOWN = {"num_requests_running": 1, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.1459}
BUCKETS = {"0.5": 0.03, "0.75": 0.08, "1.0": 0.1, "+Inf": 0.1}


def engine(age: float) -> str:
    """Return /metrics of an engine of this age in seconds."""
    rows = [f'vllm:{name}{{engine="0"}} {value}' for name, value in SHOWN.items()]
    rows += [f'vllm:{name}{{engine="0"}} {each * age}' for name, each in COUNTED]
    rows += [f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{bound}"}} {each * age}' for bound, each in BUCKETS.items()]
    return "\n".join(rows) + "\n"


def node(rank: int, age: float) -> str:
    """Return /metrics of a node. The second rail of the second one has no link."""
    memory = {"available_kib": 9.8e6 - rank * 6.2e5, "swap_total_kib": 16 << 20, "swap_free_kib": 16 << 20}
    rails = [{"interface": name, "up": not rank or name == "enp1s0f0np0", "errors": {"symbol_error": 0}} for name in ("enp1s0f0np0", "enP2p1s0f0np0")]
    gpus = [(43.93 - rank * 0.91, 96, 2418, 3003, 66 + rank)]
    sample = {"containers": [{"running": True}], "memory": memory, "floor_kib": 3 << 19, "gpus": gpus, "rails": rails}
    state = {} if rank else {"state": "serving", "canary_tok_s": 38.2}
    return outside.render("pair1", rank, f"spark-{rank + 1}", state, sample) + "\n".join((
        f'node_cpu_seconds_total{{mode="idle",cpu="0"}} {age * (0.47 - rank * 0.07)}', f"node_time_seconds {time.time()}",
        f'node_textfile_mtime_seconds{{file="gb10_pair1.prom"}} {time.time()}\n',
    ))  # fmt: skip


def serve(page: Callable[[float], str]) -> str:
    """Serve a page of metrics, and return its address."""
    begin = time.time()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page(time.time() - begin + 3600).encode())

        def log_message(self, *_args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


def page_of(folder: Path) -> str:
    """Return the page of Prometheus with all figures and the alert. Fails if one is missing."""
    targets = [
        {"node": serve(lambda age, rank=rank: node(rank, age)), "engine": "" if rank else serve(engine),  # type: ignore[misc]
         "labels": {"group": "pair1", "host": f"spark-{rank + 1}"}} for rank in (0, 1)
    ]  # fmt: skip
    config = rendered("prometheus.yml.j2", __monitoring_etc=folder, __monitoring_targets=targets, monitoring_alertmanagers=[]).replace("15s", "1s")
    for name, text in (("prometheus.yml", config), ("gb10.html", rendered("gb10.html.j2")), ("rules.yml", (ROLE / "files/rules.yml").read_text("utf-8"))):
        (folder / name).write_text(text, encoding="utf-8")
    words = [program("prometheus", folder), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=error"]
    words += [f"--web.console.templates={folder}", f"--web.console.libraries={folder}", f"--web.listen-address={LISTEN}"]
    with subprocess.Popen(words) as prometheus:
        try:
            time.sleep(SECONDS)
            connection = http.client.HTTPConnection(LISTEN, timeout=30)
            connection.request("GET", "/consoles/gb10.html")
            page = connection.getresponse().read().decode()
        finally:
            prometheus.terminate()
    assert "RailDown" in page, page
    assert "no data" not in page, page
    return page


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as work:
        page, browser = page_of(Path(work)), Browser(Path(work))
        console, asked = browser.open(page)
        assert (console, asked) == ([], [])
        browser.screenshot(page, ROOT / "docs/images/monitoring.png", HEIGHT)


if __name__ == "__main__":
    main()
