# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command: `vllm serve MODEL ...`, with the arguments that the profiles of the labs use."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from http.server import ThreadingHTTPServer
from typing import NoReturn

from .api import Api
from .rank import Rank


def arguments() -> argparse.Namespace:
    """Read the arguments; another one is refused as vLLM does."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--node-rank", type=int, default=int(os.environ.get("NODE_RANK") or 0))
    parser.add_argument("--nnodes", type=int, default=2)
    parser.add_argument("--master-addr", default=os.environ.get("MASTER_ADDR") or "127.0.0.1")
    parser.add_argument("--master-port", type=int, default=int(os.environ.get("MASTER_PORT") or 29501))
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104  the default of vLLM
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--served-model-name", default="stub")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--api-key")
    parser.add_argument("--speculative-config", type=json.loads, default={})
    for flag in ("--headless", "--enforce-eager"):
        parser.add_argument(flag, action="store_true")
    for option in ("--tensor-parallel-size", "--distributed-executor-backend", "--gpu-memory-utilization", "--seed"):
        parser.add_argument(option)
    return parser.parse_args()


def stop(_number: int, _frame: object) -> NoReturn:
    """End as vLLM does on SIGTERM."""
    print(f"(APIServer pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [launcher.py:110] Shutting down FastAPI HTTP server.", flush=True)
    os._exit(143)


def main() -> None:
    """Boot, then serve or wait."""
    words = arguments()
    signal.signal(signal.SIGTERM, stop)
    # A port that is taken ends vLLM before it loads anything.
    server = None if words.node_rank else ThreadingHTTPServer((words.host, words.port), Api, bind_and_activate=False)
    if server is not None:
        server.daemon_threads, server.request_queue_size = True, 128
        server.server_bind()
    rank = Rank(words)
    rank.boot()
    if server is None:
        while True:
            signal.pause()
    Api.rank, Api.slots = rank, threading.Semaphore(words.max_num_seqs)
    server.server_activate()
    server.serve_forever()


if __name__ == "__main__":
    main()
