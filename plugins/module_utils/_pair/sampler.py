# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What one rank observes of itself every two seconds, and how it protects its node from a lack of memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, gpu, node
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import GIB_KB
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import RELEASE_LABEL

INTERVAL = 2.0
QUICK = 0.5  # while the memory is short or falls fast, and after a change of an engine process
GPU_SECONDS = 4.0
ADDRESS_SECONDS = 15.0
DROP_SECONDS = 10.0
FALL_LEVEL = 2.0  # times memory_drop_gib: below it a fast fall counts
FAR = 4.0  # times memory_fall_seconds: a fall that gets low within them is read more often
KERNEL_LINES = 20
KERNEL_BYTES = 64 << 10

Run = Callable[..., tuple[int, str, str]]


class Sampler:
    """The observation of one rank. `take` reads once; `run` reads until `close`."""

    def __init__(
        self, group: str, folder: str, settings: Mapping[str, Any], run: Run, *, docker_socket: str = docker_api.DEFAULT_SOCKET, root: str = "/",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`folder` is the group's folder, `settings` are those of _pair.rules."""
        self.group, self.folder, self.settings = group, folder, settings
        self.changed: Callable[[dict[str, Any]], None] | None = None  # called after each reading
        self.report: Callable[[str], None] = lambda _text: None  # takes one line for the journal
        self._run, self._socket, self._root, self._clock = run, docker_socket, root, clock
        self._release = ""
        self._news = threading.Condition()
        self._number, self._key = 0, ""
        self._sample: dict[str, Any] = {}
        self._fault, self._fault_since = "", 0.0
        self._gpus: list[list[float | None]] = []
        self._gpu_at = self._address_at = self._dropped_at = -1e9
        self._smi = shutil.which("nvidia-smi") if root == "/" else None
        self._addresses: dict[str, str] = {}
        self._kernel: deque[dict[str, str]] = deque(maxlen=KERNEL_LINES)
        self._kmsg = self._open_kmsg()
        self._memory_stop, self._memory_stop_of, self._short = "", "", 0
        self._available: tuple[float, float] | None = None  # when memory was read last, and the GiB that were available
        self._ended = threading.Event()

    # --- for the rank's verbs

    def wait(self, release: str, known: int, seconds: float) -> dict[str, Any]:
        """Return the last reading as soon as it is newer than `known`, at the latest after so many seconds."""
        self._release = release or self._release
        with self._news:
            self._news.wait_for(lambda: self._number != known and bool(self._sample), seconds)
            return dict(self._sample)

    def run(self) -> None:
        """Read until close() is called."""
        while not self._ended.is_set():
            pause = INTERVAL
            try:
                pause = self.take()
            except Exception as error:  # noqa: BLE001  the next reading may succeed, and the rank's verbs go on
                self.report(f"The watch of this rank failed: {type(error).__name__}: {error}")
            self._ended.wait(pause)

    def close(self) -> None:
        """End run()."""
        self._ended.set()
        if self._kmsg is not None:
            os.close(self._kmsg)
            self._kmsg = None

    # --- one reading

    def take(self) -> float:
        """Read once, and protect the memory. Return the seconds until the next reading."""
        now = self._clock()
        containers, error = self._containers()
        seen = self._processes(containers)
        if seen["fault"] != self._fault:
            self._fault, self._fault_since = seen["fault"], now
        memory = docker_api.memory_of(node.text_of(self._path("proc/meminfo")))
        short = self._protect(containers, memory, now)
        self._read_kernel()
        sample = {
            "containers": containers, "engine_error": error, "engine_id": self._engine_id(),
            "fault": self._fault, "fault_seconds": round(now - self._fault_since, 1) if self._fault else 0.0,
            "cpu_seconds": seen.get("cpu_seconds", 0.0), "memory": memory, "memory_stop": self._memory_stop, "gpus": self._read_gpus(now),
            "rails": self._rails(now), "kernel": list(self._kernel),
        }  # fmt: skip
        self._publish(sample)
        if self.changed:
            self.changed(self._sample)
        confirms = bool(self._fault) and now - self._fault_since < 2 * QUICK
        return QUICK if short or confirms else INTERVAL

    def _publish(self, sample: dict[str, Any]) -> None:
        """Keep a reading. It counts as news if anything but its figures has changed."""
        states = [(each["id"], each["status"], each["exit_code"]) for each in sample["containers"]]
        late = self._fault and sample["fault_seconds"] >= float(self.settings["stopped_seconds"])
        kernel = len(sample["kernel"]) and sample["kernel"][-1]
        key = json.dumps([states, sample["engine_error"], sample["fault"], late, sample["memory_stop"], sample["rails"], kernel], default=str)
        with self._news:
            if key != self._key:
                self._key, self._number = key, self._number + 1
            self._sample = {**sample, "n": self._number}
            self._news.notify_all()

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _containers(self) -> tuple[list[dict[str, Any]], str]:
        try:
            return list(node.containers_of(self.group, self._socket)), ""
        except docker_api.DockerError as error:
            return [], str(error)

    def _engine_id(self) -> str:
        """Return what changes when the Docker Engine starts: the time of its PID file; empty if it has none."""
        try:
            return str(os.stat(self._path("run/docker.pid")).st_mtime_ns)
        except OSError:
            return ""

    def _processes(self, containers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        running = [each for each in containers if each["running"]]
        if not running:
            return {"fault": "", "cpu_seconds": 0.0}
        release = str((running[0].get("labels") or {}).get(RELEASE_LABEL) or "")
        receipt = node.read_json(os.path.join(self.folder, "releases", release, "receipt.json")) if release else {}
        seen = node.look_at_processes(running, receipt, self._path("proc"))
        if seen["fault"] and seen["fault"] != self._fault and "dead" in seen["fault"]:
            time.sleep(QUICK)  # a child that has ended is an entry of the table until its parent asks for it
            seen = node.look_at_processes(running, receipt, self._path("proc"))
        return seen

    def _read_gpus(self, now: float) -> list[list[float | None]]:
        if self._smi and now - self._gpu_at >= GPU_SECONDS:
            self._gpu_at = now
            code, out, _err = self._run([self._smi, *gpu.WATCHED], 5.0)
            self._gpus = gpu.watched(out) if code == 0 else []
        return self._gpus

    # --- rails

    def _rails(self, now: float) -> list[dict[str, Any]]:
        """Return interface, link and MTU of each rail of the release. An address without an interface has an empty name."""
        manifest = node.read_json(os.path.join(self.folder, "releases", self._release, "release.json")) if self._release else {}
        fabric = manifest.get("fabric")
        wanted = [str(each).partition("/")[0] for each in (fabric.get("addresses") or [])] if isinstance(fabric, dict) else []
        if not wanted:
            return []
        if now - self._address_at >= ADDRESS_SECONDS or any(not self._addresses.get(each) for each in wanted):
            self._address_at = now
            self._addresses = self._read_addresses()
        out = []
        for address in wanted:
            name = self._addresses.get(address, "")
            base = self._path(f"sys/class/net/{name}")
            up = bool(name) and node.text_of(f"{base}/carrier").strip() == "1"
            mtu = node.text_of(f"{base}/mtu").strip() if name else ""
            out.append({"address": address, "interface": name, "up": up, "mtu": int(mtu) if mtu.isdigit() else 0})
        return out

    def _read_addresses(self) -> dict[str, str]:
        code, out, _err = self._run(["ip", "-json", "address", "show"], 5.0)
        found: dict[str, str] = {}
        with contextlib.suppress(ValueError, TypeError, KeyError):
            for interface in loads(out) if code == 0 else []:
                for entry in interface.get("addr_info") or []:
                    found[str(entry["local"])] = str(interface["ifname"])
        return found

    # --- kernel log

    def _open_kmsg(self) -> int | None:
        """Open the kernel log behind its last record; None where a node has none, as in a container."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path("dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(descriptor, 0, os.SEEK_END)
            return descriptor
        return None

    def _read_kernel(self) -> None:
        taken = 0
        while self._kmsg is not None and taken < KERNEL_BYTES:
            try:
                record = os.read(self._kmsg, 8192)
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError:
                return
            if not record:
                return
            taken += len(record)
            found = catalogue.classify_kernel(record.decode("utf-8", "replace").partition(";")[2].partition("\n")[0])
            if found is not None:
                self._kernel.append({"at": text.stamp(time.time()), "kind": found[0], "text": found[1]})

    # --- memory

    def _ahead(self, available: float, now: float) -> float:
        """Return the GiB that are available `memory_fall_seconds` from now if the memory falls on as it did since the last reading."""
        before, self._available = self._available or (now, available), (now, available)
        rate = max(0.0, before[1] - available) / max(now - before[0], 0.1)
        return available - rate * float(self.settings["memory_fall_seconds"])

    def _protect(self, containers: Sequence[dict[str, Any]], memory: Mapping[str, int], now: float) -> bool:
        """Drop the page cache below the first limit, stop this rank below the second. Return whether the memory is or gets short.

        Memory that falls fast is low before its level is: at the present rate it would be below the second limit within `memory_fall_seconds`. Two
        readings in a row have to show it, near the first limit: the KV cache of a boot is allocated in one step, and leaves more than that.
        """
        running = [str(each["name"]) for each in containers if each["running"]]
        if self._memory_stop and running and str(containers[0]["id"]) != self._memory_stop_of:
            self._memory_stop = ""
        available = memory.get("available_kib", 0) / GIB_KB
        drop, floor = float(self.settings["memory_drop_gib"]), float(self.settings["memory_floor_gib"])
        if not memory.get("total_kib"):
            self._short = 0
            return False
        ahead = self._ahead(available, now)
        falls = ahead < floor and available < FALL_LEVEL * drop
        if available >= drop and not falls:
            self._short = 0
            return available - FAR * (available - ahead) < floor
        if available < drop and now - self._dropped_at >= DROP_SECONDS:
            self._dropped_at = now
            with contextlib.suppress(OSError), open(self._path("proc/sys/vm/drop_caches"), "w", encoding="ascii") as handle:
                handle.write("3\n")
            self.report(f"{available:.1f} GiB of memory are available: the page cache was dropped.")
        self._short = self._short + 1 if available < floor or falls else 0
        if self._short >= 2 and running:  # the first reading after the cache was dropped
            self._memory_stop_of = str(containers[0]["id"])
            soon = "" if available < floor else f" within {self.settings['memory_fall_seconds']:g} s, as fast as they fell"
            self._memory_stop = f"{available:.1f} GiB of memory were available, less than {floor:g} GiB{soon}, so the rank has stopped itself"
            self.report(f"{self._memory_stop}.")
            if self._sample:  # the head learns the cause before another rank ends for lack of this one
                self._publish({**self._sample, "memory": memory, "memory_stop": self._memory_stop})
            for each in containers if self._root == "/" else ():  # the CLI takes seconds that the node may not have
                if each["running"] and each["pid"] > 1:
                    with contextlib.suppress(OSError):
                        os.kill(each["pid"], signal.SIGKILL)
            self._run(["docker", "kill", *running], 20.0, None, {"DOCKER_HOST": f"unix://{self._socket}"})
            self._short = 0
        return True
