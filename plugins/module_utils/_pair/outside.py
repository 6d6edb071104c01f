# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What an agent reports outside of its group: metrics for the textfile collector of node_exporter, and events to a hook or a webhook.

A notice that fails is one sentence and changes nothing else.
"""

from __future__ import annotations

import contextlib
import glob
import http.client
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Union
from urllib.parse import unquote, urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LATE, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import stamp
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import GIB_KB
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import CAUSES

FILE_SECONDS = 15.0
#: The role monitoring makes this folder, and its node_exporter reads it.
FOLDER = "/var/lib/gb10-cluster/metrics"
KINDS = ("fault", "recovered", "settled", "head_lost", "head_back")


def log(text: str) -> None:
    """Write a line to the journal."""
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()


class Outside:
    """The reports of one node."""

    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any], folder: str, shown: Callable[[], dict[str, Any]]) -> None:
        """`shown` returns the state of the watch, empty on a worker."""
        self.group, self.rank, self.hosts = str(config["group"]), int(config["rank"]), list(config["hosts"])
        self.host = str(self.hosts[self.rank])
        self.settings, self.folder, self._shown = settings, folder, shown
        self._written, self._silent = -1e9, False
        self._problem = ""
        self.failed: dict[str, Any] = {}  # how many notices have failed since the agent's start, and the last failure
        self.warn: Callable[[str], None] = lambda _text: None  # takes each failure that is a new one
        self._lock, self._known = threading.Lock(), set[str]()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Pass an event to the hook and the webhook, without waiting for them."""
        if event.get("kind") in KINDS and (self.settings["hook"] or self.settings["webhook"]):
            threading.Thread(target=self._tell, args=({**event, "group": self.group, "host": self.host},), daemon=True, name="gb10-hook").start()

    def _tell(self, event: dict[str, Any]) -> None:
        for problem in notify(self.settings, event):
            log(problem)
            with self._lock:
                self.failed = {"count": int(self.failed.get("count") or 0) + 1, "at": stamp(time.time()), "text": problem}
                new = problem not in self._known
                self._known.add(problem)
            if new:
                self.warn(f"{self.group}: a notice has failed, and those that follow may fail too. {problem} Correct vllm_tp2_watch, or its receiver.")

    def sampled(self, sample: Mapping[str, Any], asked_at: float) -> None:
        """Take a reading of this rank; `asked_at` is when the head asked last, negative if it did not since this agent's start."""
        now = time.monotonic()
        if self.rank and asked_at >= 0:
            self._judge_head(now - asked_at)
        path = self._path()
        if path and now - self._written >= FILE_SECONDS:
            self._written = now
            rails = [{**rail, "errors": rail_errors(rail["interface"])} for rail in sample.get("rails") or []]
            more = {"rails": rails, "floor_kib": float(self.settings["memory_floor_gib"]) * GIB_KB}
            self._write(path, render(self.group, self.rank, self.host, self._shown(), {**sample, **more}))

    def _judge_head(self, silent: float) -> None:
        """Report that the head is gone, or back. A rank that was stopped on request expects no head."""
        gone = silent >= float(self.settings["head_seconds"]) and not node.stopped_of(self.folder)
        if gone == self._silent:
            return
        self._silent = gone
        head = self.hosts[0]
        text = f"{self.group}: the head {head} has not asked {self.host} for {silent:.0f} s" if gone else f"{self.group}: the head {head} is back"
        log(f"{text}.")
        self.tell({"kind": "head_lost" if gone else "head_back", "cause": "node_lost", "text": text, "at": stamp(time.time())})

    def withdraw(self) -> None:
        """Remove the metrics that an earlier agent has written: without a watch nothing renews them."""
        with contextlib.suppress(OSError):
            os.unlink(self._path())

    def _path(self) -> str:
        """Return the file of metrics, empty without a folder for it."""
        folder = self.settings["textfile"] or (FOLDER if os.path.isdir(FOLDER) else "")
        return os.path.join(folder, f"gb10_{self.group}.prom") if folder else ""

    def _write(self, path: str, text: str) -> None:
        """Replace the file of metrics. A folder that cannot be written is reported once in the journal."""
        try:
            write_atomically(path, text, 0o644)
            self._problem = ""
        except OSError as error:
            problem = f"The metrics cannot be written to {path}: {error.strerror}."
            if problem != self._problem:
                log(problem)
            self._problem = problem


#: Below /sys/class/net/INTERFACE. Counters that stay where they are on a healthy direct cable.
_ERRORS = (
    "carrier_down_count", "statistics/rx_crc_errors",
    *(f"device/infiniband/*/ports/*/counters/{name}" for name in ("symbol_error", "link_downed", "port_rcv_errors")),
    *(f"device/infiniband/*/ports/*/hw_counters/{name}" for name in ("packet_seq_err", "out_of_sequence", "local_ack_timeout_err")),
)  # fmt: skip


def rail_errors(interface: str, root: str = "/sys/class/net") -> dict[str, int]:
    """Return the counters of link errors of an interface and its RDMA device; one that the driver does not have is missing."""
    out: dict[str, int] = {}
    for path in [each for pattern in _ERRORS if interface for each in glob.glob(f"{root}/{glob.escape(interface)}/{pattern}")]:
        text = node.text_of(path).strip()
        if text.isdigit():
            out[os.path.basename(path)] = out.get(os.path.basename(path), 0) + int(text)
    return out


_Row = tuple[dict[str, str], Union[int, float, None]]

#: Name of a metric -> type and description.
METRICS = {
    "gb10_group_serving": ("gauge", "1 if the agent of the head sees that the group serves, else 0."),
    "gb10_restarts_total": ("counter", "Restarts of the group by the agent, by cause."),
    "gb10_unserved_seconds_total": ("counter", "Seconds in which the group should have served and did not."),
    "gb10_canary_tokens_per_second": ("gauge", "Speed of the last short decode while nothing else ran."),
    "gb10_rank_running": ("gauge", "1 if a container of the rank is running, else 0."),
    "gb10_memory_available_bytes": ("gauge", "MemAvailable of the node."),
    "gb10_memory_floor_bytes": ("gauge", "The rank stops itself if less memory is available."),
    "gb10_swap_used_bytes": ("gauge", "Used swap of the node."),
    "gb10_gpu_power_watts": ("gauge", "Power of the GPU."),
    "gb10_gpu_utilization_ratio": ("gauge", "Utilization of the GPU, 0 to 1."),
    "gb10_gpu_clock_hertz": ("gauge", "Clock of the GPU's processors."),
    "gb10_gpu_clock_max_hertz": ("gauge", "The highest clock that the GPU supports."),
    "gb10_gpu_temperature_celsius": ("gauge", "Temperature of the GPU."),
    "gb10_rail_up": ("gauge", "1 if the rail has a link, else 0."),
    "gb10_rail_mtu_bytes": ("gauge", "MTU of the rail."),
    "gb10_rail_errors_total": ("counter", "Errors of the rail's link, by counter of the kernel."),
}
#: The figures of a GPU in a sample, in their order: metric and unit.
_GPU = (
    ("gb10_gpu_power_watts", 1), ("gb10_gpu_utilization_ratio", 0.01), ("gb10_gpu_clock_hertz", 1e6), ("gb10_gpu_clock_max_hertz", 1e6),
    ("gb10_gpu_temperature_celsius", 1),
)  # fmt: skip


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, value in labels.items()}
    return ",".join(f'{key}="{value}"' for key, value in escaped.items())


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _rows(state: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, list[_Row]]:
    """Return the values of each metric with the labels in addition to those of the group or rank."""
    memory, gpus = sample.get("memory") or {}, list(enumerate(sample.get("gpus") or []))
    swap = [memory[key] for key in ("swap_total_kib", "swap_free_kib") if key in memory]
    # Two rails without an interface must not be one series: node_exporter would drop the whole file.
    rails = [{**rail, "interface": rail["interface"] or rail.get("address", "")} for rail in sample.get("rails") or []]
    rows: dict[str, list[_Row]] = {
        "gb10_rank_running": [({}, int(any(box["running"] for box in sample["containers"])))] if "containers" in sample else [],
        "gb10_memory_available_bytes": [({}, _scaled(memory.get("available_kib"), 1024))],
        "gb10_memory_floor_bytes": [({}, _scaled(sample.get("floor_kib"), 1024))],
        "gb10_swap_used_bytes": [({}, (swap[0] - swap[1]) * 1024)] if len(swap) == 2 else [],
        **{name: [({"gpu": str(index)}, _scaled(each[at], factor)) for index, each in gpus if at < len(each)] for at, (name, factor) in enumerate(_GPU)},
        "gb10_rail_up": [({"interface": rail["interface"]}, int(rail["up"])) for rail in rails],
        "gb10_rail_mtu_bytes": [({"interface": rail["interface"]}, rail.get("mtu")) for rail in rails],
        "gb10_rail_errors_total": [
            ({"interface": rail["interface"], "counter": name}, count) for rail in rails for name, count in (rail.get("errors") or {}).items()
        ],
    }
    if state:
        rows["gb10_group_serving"] = [({}, int(state.get("state") == "serving"))]
        # A counter begins with 0: Prometheus does not see the growth of one that appears with 1.
        counts = {**dict.fromkeys(CAUSES, 0), **(state.get("restarts") or {})}
        rows["gb10_restarts_total"] = [({"cause": cause}, count) for cause, count in sorted(counts.items())]
        rows["gb10_unserved_seconds_total"] = [({}, state.get("unserved_seconds", 0))]
        rows["gb10_canary_tokens_per_second"] = [({}, state.get("canary_tok_s"))]
    return rows


def render(group: str, rank: int, host: str, state: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    """Return the metrics of one rank. A metric without a known value is left out.

    state: `watch` of `gb10 call state` on the head; empty on a worker, which has no metrics of the group.
    sample: containers, memory, gpus and rails as the sampler reads them, errors of each rail, floor_kib; without a key it is not known.
    """
    rows, lines = _rows(state, sample), []
    for name, (kind, text) in METRICS.items():
        of_group = name in ("gb10_group_serving", "gb10_restarts_total", "gb10_unserved_seconds_total", "gb10_canary_tokens_per_second")
        base = {"group": group} if of_group else {"group": group, "rank": str(rank), "host": host}
        known = [({**base, **labels}, value) for labels, value in rows.get(name, []) if value is not None]
        if known:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{_labels(labels)}}} {value:.15g}" for labels, value in known]
    return "".join(line + "\n" for line in lines)


HOOK_SECONDS = 10.0
WEBHOOK_SECONDS = 5.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the event, or the token in the URL, to another place: it is an error."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def post_json(url: str, body: bytes) -> int:
    """Send a POST request and return the HTTP status. Raises OSError, http.client.HTTPException and ValueError.

    A user in the URL is a bearer token, as ansible.eda.webhook expects it.
    """
    parts = urlsplit(url)
    token, _at, place = parts.netloc.rpartition("@")
    headers = {"Content-Type": "application/json", "User-Agent": "gb10-agent"}
    if token:
        headers["Authorization"] = f"Bearer {unquote(token)}"
    # The caller has checked the scheme.
    request = urllib.request.Request(parts._replace(netloc=place).geturl(), body, headers)  # noqa: S310
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=WEBHOOK_SECONDS) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def notify(settings: Mapping[str, Any], event: Mapping[str, Any]) -> list[str]:
    """Send an event to the hook and to the webhook that are set. Return a sentence for each that failed."""
    text = json.dumps(event, sort_keys=True, default=str)
    failed = [_run_hook(settings["hook"], event, text) if settings.get("hook") else ""]
    failed.append(_post(settings["webhook"], text.encode()) if settings.get("webhook") else "")
    return [sentence for sentence in failed if sentence]


def _run_hook(words: Sequence[str], event: Mapping[str, Any], text: str) -> str:
    env = {f"GB10_{key.upper()}": str(event.get(key, "")).replace("\0", "") for key in ("kind", "cause", "group", "text")}
    code, _out, error = run_command(words, HOOK_SECONDS, env=env, stdin=text, discard=True)
    if code == 0:
        return ""
    # Arguments of the command can be secrets.
    reason = f"it did not end within {HOOK_SECONDS:g} s" if code == LATE and error else error or f"it ended with code {code}"
    return f"The hook {words[0]} failed: {reason}."


def _post(url: str, body: bytes) -> str:
    """Return why the webhook did not take the event. Path and user of the URL can be secrets, also in the messages of the libraries."""
    try:
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "The webhook is not a valid URL."
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "The webhook is not an http or https URL."
    found: list[str] = []
    # A timeout of the socket does not bound the name lookup, nor a reply in small pieces.
    thread = threading.Thread(target=lambda: found.append(_reason(url, body)), daemon=True)
    thread.start()
    thread.join(WEBHOOK_SECONDS)
    reason = found[0] if found else f"it did not answer within {WEBHOOK_SECONDS:g} s"
    return f"The webhook at {place} failed: {reason}." if reason else ""


def _reason(url: str, body: bytes) -> str:
    try:
        status = post_json(url, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)
        return str(getattr(cause, "strerror", None) or type(cause).__name__)
    return "" if 200 <= status < 300 else f"HTTP {status}"
