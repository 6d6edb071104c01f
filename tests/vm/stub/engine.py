# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for one rank of vLLM where the real one does not fit: the guests of the VM lab.

    python3 engine.py serve MODEL [--node-rank N --headless --master-addr A --master-port P --port P --max-model-len N --served-model-name NAME]

It prints the log lines of a boot that the collection's parser reads, spread over SECONDS (the file `seconds` next to this one, 20 without it).
The ranks need each other as the real ones do: the head listens on the master port and a worker connects. Each step of the head, also each
completion, waits for the worker. A rank that loses its peer prints why and ends with exit code 1. Each rank has an engine process, which does
nothing: a rank whose engine process is dead or stopped takes no further step, as on two real GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NoReturn

VERSION = "0.32.0"
TOKENS = 262144
PROMPT, ANSWER = "The capital of France is", " Paris."
DEFAULT_SECONDS = 20.0


class Rank:
    """One rank: its arguments, its log, its peer."""

    def __init__(self, words: argparse.Namespace) -> None:
        self.words = words
        self.seconds = seconds()
        self.worker = words.node_rank > 0
        self.main = f"({'MainProcess' if self.worker else 'APIServer'} pid={os.getpid()})"
        self.child = f"(Worker_TP{words.node_rank} pid={os.getpid() + 2})"
        self.core = f"(EngineCore pid={os.getpid() + 1})"
        self.peer: socket.socket | None = None
        self.echoes = threading.Semaphore(0)
        self.step = threading.Lock()
        self.held: set[int] = set()  # the threads of the requests that run
        self.tokens = 0
        self.engine = self.fork()

    def fork(self) -> int:
        """Start the engine process and return its process id. It stays in the process table after its end, since nothing waits for it."""
        number = os.fork()
        if number == 0:
            with open("/proc/self/comm", "w", encoding="ascii") as name:
                name.write(f"VLLM::Worker_TP{self.words.node_rank}" if self.worker else "VLLM::EngineCore")
            while True:
                signal.pause()
        return number

    def works(self) -> None:
        """Wait for the engine process; for ever if it is dead."""
        while True:
            with open(f"/proc/{self.engine}/stat", encoding="ascii") as handle:
                if handle.read().rpartition(")")[2].split()[0] in "RSD":
                    return
            time.sleep(0.2)

    def log(self, process: str, text: str, place: str = "stub.py:1") -> None:
        """Print a log line as vLLM's logger does."""
        print(f"{process} INFO {time.strftime('%m-%d %H:%M:%S')} [{place}] {text}", flush=True)

    def spend(self, share: float) -> None:
        """Wait for a share of the boot's time, and for the peer."""
        time.sleep(share * self.seconds)
        self.together()

    def together(self) -> None:
        """Wait for the worker, if this is the head: without all ranks nothing is computed."""
        if not self.worker and self.peer is not None:
            with self.step:
                self.works()
                self.peer.sendall(b".")
                self.echoes.acquire()

    def compute(self) -> None:
        """Take a step for a request, and count it."""
        self.held.add(threading.get_ident())
        self.together()
        self.tokens += 3
        self.held.discard(threading.get_ident())

    def figures(self) -> dict[str, int]:
        """Return the figures of /metrics."""
        running = {"num_requests_running": len(self.held), "num_requests_waiting": 0}
        return {**running, "generation_tokens_total": self.tokens, "prompt_tokens_total": 2 * self.tokens}

    def boot(self) -> None:
        """Print the boot."""
        words = self.words
        if not self.worker:
            self.log(self.main, f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {VERSION}", "api_utils.py:347")
            arguments = {"model_tag": words.model, "max_model_len": words.max_model_len, "nnodes": 2, "master_addr": words.master_addr}
            self.log(self.main, f"non-default args: {arguments}", "api_utils.py:286")
        self.log(self.main, "Resolved architecture: StubForCausalLM", "model.py:733")
        self.log(self.main, f"Using max model len {words.max_model_len}", "model.py:2152")
        if self.worker:
            where = f"{words.master_addr}:{words.master_port}"
            self.log(self.main, f"Launching vLLM (v{VERSION}) headless multiproc executor, with head node address {where} for torch.distributed.")
        else:
            self.log(self.core, f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{words.model}', max_seq_len={words.max_model_len}")
        method = f"distributed_init_method=tcp://{words.master_addr}:{words.master_port} backend=gloo"
        self.log(self.child, f"world_size=2 rank={words.node_rank} local_rank=0 {method}", "parallel_state.py:1906")
        self.meet()
        self.spend(0.1)
        self.log(self.child, f"rank {words.node_rank} in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank {words.node_rank}, EP rank N/A")
        self.log(self.child, f"Starting to load model {words.model}...", "cpu_model_runner.py:68")
        for part in range(5):
            print(f"Loading safetensors checkpoint shards: {part * 25:3d}% Completed | {part}/4 [00:00<00:00,  1.00it/s]", flush=True)
            self.spend(0.15)
        self.log(self.child, "Loading weights took 0.01 seconds", "default_loader.py:501")
        self.log(self.child, "Available KV cache memory: 0.06 GiB", "gpu_worker.py:509")
        if not self.worker:
            size = (
                f"CPU KV cache size: {TOKENS:,} tokens, Maximum concurrency for {words.max_model_len:,} tokens per request: {TOKENS / words.max_model_len:.2f}x"
            )
            self.log(self.core, size, "kv_cache_utils.py:2327")
            self.spend(0.15)
            self.log(self.core, "init engine (profile, create kv cache, warmup model) took 0.45 s", "core.py:402")
            self.log(self.main, f"Starting vLLM server on http://0.0.0.0:{words.port}", "entry.py:140")

    def meet(self) -> None:
        """Wait for the peer, and watch the connection from then on."""
        address = (self.words.master_addr, self.words.master_port)
        if self.worker:
            while self.peer is None:
                try:
                    self.peer = socket.create_connection(address, timeout=5)
                except OSError:
                    time.sleep(0.5)
        else:
            listener = socket.create_server(address)
            self.peer, _address = listener.accept()
            listener.close()
        # A node that was switched off sends nothing: the kernel finds out.
        self.peer.settimeout(None)
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 6)):
            self.peer.setsockopt(socket.IPPROTO_TCP, option, value)
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """Answer the head or take the worker's answers; end this rank if its peer goes away."""
        assert self.peer is not None
        other = "head" if self.worker else "worker"
        why = f"Connection closed by peer [{self.words.master_addr}]:{self.words.master_port}"
        try:
            while byte := self.peer.recv(1):
                if self.worker:
                    self.works()
                    self.peer.sendall(byte)
                else:
                    self.echoes.release()
        except OSError as error:
            why = f"{why} ({error.strerror})"
        stamp = time.strftime("%m-%d %H:%M:%S")
        print(f"{self.child} ERROR {stamp} [stub.py:2] RuntimeError: {other} lost: {why}", flush=True)
        os._exit(1)


class Api(BaseHTTPRequestHandler):
    """The head's API."""

    rank: Rank
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer what the gate and status ask."""
        words = self.rank.words
        blocks = f'kv_cache_max_concurrency="{TOKENS / words.max_model_len}",kv_cache_size_tokens="{TOKENS}"'
        pages = {
            "/health": "",
            "/version": json.dumps({"version": VERSION}),
            "/v1/models": json.dumps({"object": "list", "data": [{"id": words.served_model_name, "object": "model", "max_model_len": words.max_model_len}]}),
            "/metrics": f'vllm:cache_config_info{{engine="0",{blocks}}} 1.0\n'
            + "".join(f'vllm:{name}{{engine="0"}} {float(value)}\n' for name, value in self.rank.figures().items()),
        }
        self.reply(pages.get(self.path))

    def do_POST(self) -> None:
        """Complete."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path != "/v1/completions":
            self.reply(None)
            return
        self.rank.compute()
        text = ANSWER if body.get("prompt") == PROMPT else " one"
        usage = {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        self.reply(json.dumps({"object": "text_completion", "model": self.rank.words.served_model_name, "choices": [choice], "usage": usage}))

    def reply(self, text: str | None) -> None:
        """Send a page; 404 without one."""
        data = (text or "").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name of the base class
        """Print an access line as uvicorn does."""
        print(f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {args[1] if len(args) > 1 else 200} OK', flush=True)


def seconds() -> float:
    """Return how long a boot lasts."""
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "control", "seconds"), encoding="ascii") as handle:
            return float(handle.read())
    except (OSError, ValueError):
        return DEFAULT_SECONDS


def arguments() -> argparse.Namespace:
    """Read the arguments that matter; vLLM has many more."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--node-rank", type=int, default=int(os.environ.get("NODE_RANK") or 0))
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--master-addr", default=os.environ.get("MASTER_ADDR") or "127.0.0.1")
    parser.add_argument("--master-port", type=int, default=int(os.environ.get("MASTER_PORT") or 29501))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=512)
    parser.add_argument("--served-model-name", default="stub")
    return parser.parse_known_args()[0]


def stop(_number: int, _frame: object) -> NoReturn:
    """End as vLLM does on SIGTERM."""
    print(f"(APIServer pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [stub.py:3] Shutting down", flush=True)
    os._exit(143)


def main() -> None:
    """Boot, then serve or wait."""
    signal.signal(signal.SIGTERM, stop)
    rank = Rank(arguments())
    rank.boot()
    if rank.worker:
        while True:
            signal.pause()
    Api.rank = rank
    server = ThreadingHTTPServer(("0.0.0.0", rank.words.port), Api)
    print(f"INFO:     Started server process [{os.getpid()}]", flush=True)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
