# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rank of the stub: its processes, its connection to the other rank, its boot and its steps."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import threading
import time

from . import faults, replay

#: KV pool of one GiB of VLLM_CPU_KVCACHE_SPACE, and of the recorded GPU pair.
TOKENS_PER_GIB = 4194304
CUDA_TOKENS = 2506112
TOKEN_SECONDS = 0.005


class PeerLostError(Exception):
    """The other rank is gone."""


class Rank:
    """A rank that boots, meets the other one, and takes steps with it as two real ranks do."""

    def __init__(self, words: argparse.Namespace) -> None:
        self.words = words
        self.number: int = words.node_rank
        self.recording = os.environ.get("STUB_RECORDING") or "cpu"
        self.worker = self.number > 0
        self.peer: socket.socket | None = None
        self.lost = ""
        self.serves = False
        self.echoes = threading.Semaphore(0)
        self.step = threading.Lock()
        self.engine = self._fork()
        threading.Thread(target=self._obey, daemon=True).start()

    @property
    def pool(self) -> int:
        """The KV pool in tokens."""
        return CUDA_TOKENS if self.recording == "cuda" else int(TOKENS_PER_GIB * float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 1))

    def faults(self) -> dict[str, str]:
        """Return the faults of this rank."""
        return faults.of_rank(self.number)

    def _fork(self) -> int:
        """Start the engine process and return its process id. It stays in the process table after its end, since nothing waits for it."""
        number = os.fork()
        if number == 0:
            with open("/proc/self/comm", "w", encoding="ascii") as name:
                name.write(f"VLLM::Worker_TP{self.number}" if self.worker else "VLLM::EngineCore")
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                signal.pause()
        return number

    def _obey(self) -> None:
        """Do at once what the fault file asks of a rank that runs."""
        while True:
            found = self.faults()
            if found.get("die") == "":
                self.die()
            if "stop" in found:
                os.kill(self.engine, signal.SIGSTOP)
            time.sleep(0.2)

    def die(self) -> None:
        """End as a killed rank does. The first process of a container cannot kill itself, so it ends with the exit code of SIGKILL."""
        os.kill(self.engine, signal.SIGKILL)
        os._exit(137)

    def works(self) -> None:
        """Wait for the engine process; for ever if it is dead or stopped, as a collective does."""
        while True:
            with open(f"/proc/{self.engine}/stat", encoding="ascii") as handle:
                if handle.read().rpartition(")")[2].split()[0] in "RSD":
                    return
            time.sleep(0.2)

    def boot(self) -> None:
        """Print the boot, and meet the other rank on the way."""
        words, found = self.words, self.faults()
        if "print" in found:
            print(found["print"], flush=True)
        models = [words.model, words.speculative_config.get("model") or words.model]
        name = self.recording if "lack" not in found and all(os.path.exists(f"{model}/config.json") for model in models) else "missing"
        name = "corrupt" if "corrupt" in found or (name == self.recording and _truncated(words.model)) else name
        rdma = self.recording == "cuda" and "tcp" not in found
        values = replay.Boot(words.model, words.served_model_name, words.max_model_len, self.pool, words.master_addr, words.master_port, rdma)
        for line in replay.lines(name, self.number, values, faults.boot_seconds()):
            time.sleep(line.pause)
            if line.phase:
                self._phase(line.phase)
            print(line.text, flush=True)
            if line.phase == "rendezvous" and self.peer is None:
                self._meet()
            elif self.lost:
                self._end_with_peer()
        if name != self.recording:
            os._exit(1)
        self.serves = True

    def _phase(self, phase: str) -> None:
        """Obey the fault file at the begin of a phase. A head listens when its worker is ready."""
        if phase == "listen":
            try:
                self.together()
            except PeerLostError:
                self._end_with_peer()
        found = self.faults()
        if found.get("die") == phase:
            self.die()
        while found.get("hang") == phase:
            time.sleep(0.2)
            found = self.faults()

    def _meet(self) -> None:
        """Wait for the other rank, and watch the connection from then on."""
        address = (self.words.master_addr, self.words.master_port)
        if self.worker:
            while self.peer is None:
                try:
                    self.peer = socket.create_connection(address, timeout=5)
                except OSError:
                    time.sleep(0.2)
        else:
            with socket.create_server(address) as listener:
                self.peer, _address = listener.accept()
        # A node that was switched off sends nothing: the kernel finds out.
        self.peer.settimeout(None)
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 6)):
            self.peer.setsockopt(socket.IPPROTO_TCP, option, value)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Answer the head or take the worker's answers, until the other rank goes away. A rank that serves notices it at its next step only."""
        assert self.peer is not None
        why = f"Connection closed by peer [{self.words.master_addr}]:{self.words.master_port}"
        try:
            while byte := self.peer.recv(1):
                if self.worker:
                    while not self.serves:  # the head is not ready before its worker is
                        time.sleep(0.05)
                    self.works()
                    self.peer.sendall(byte)
                else:
                    self.echoes.release()
        except OSError as error:
            why = f"{why} ({error.strerror})"
        self.lost = why
        self.echoes.release()
        if not self.serves and not self.worker:
            self._end_with_peer()

    def _end_with_peer(self) -> None:
        """End a boot whose other rank is gone."""
        print(self.complaint(), flush=True)
        os._exit(1)

    def complaint(self) -> str:
        """Return the log line of a rank that lost the other one."""
        process = f"(Worker_TP{self.number} pid={self.engine})"
        other = "head" if self.worker else "worker"
        return f"{process} ERROR {time.strftime('%m-%d %H:%M:%S')} [multiproc_executor.py:990] RuntimeError: {other} lost: {self.lost}"

    def together(self) -> None:
        """Take a step on all ranks: without all of them nothing is computed."""
        if self.worker or self.peer is None:
            return
        with self.step:
            self.works()
            if self.lost:
                raise PeerLostError(self.lost)
            try:
                self.peer.sendall(b".")
            except OSError as error:
                self.lost = self.lost or str(error.strerror)
                raise PeerLostError(self.lost) from error
            self.echoes.acquire()
            if self.lost:
                raise PeerLostError(self.lost)

    def token(self) -> None:
        """Compute one token."""
        found = self.faults()
        while "wedge" in found or found.get("hang") == "":
            time.sleep(0.2)
            found = self.faults()
        time.sleep(float(found.get("slow") or TOKEN_SECONDS))
        self.together()


def _truncated(model: str) -> bool:
    """Return whether the shard of the model is shorter than in its header."""
    path = f"{model}/model.safetensors"
    try:
        with open(path, "rb") as handle:
            size = struct.unpack("<Q", handle.read(8))[0]
            header = json.loads(handle.read(size))
        ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
        return os.path.getsize(path) < 8 + int(size) + max(ends)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, struct.error):
        return True
