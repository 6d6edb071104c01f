# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read what doctor.yml judges of a node while it runs: kernel logs of two boots, power and temperatures, the newest boot log in the evidence.

Reads only. Each command is bounded in time and bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import kernel
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.command import LATE, Run
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory_facts import container_reason

Record = dict[str, Any]

SECONDS = 15.0  # of one command
LINES = 20_000  # of the kernel log of one boot
EVIDENCE_BYTES = 16 << 20
ZONES = 64
MISSING = 127
NO_BOOT: Record = {"label": "", "file": "", "state": "", "stage": None, "failure": None}
QUERY = ("--query-gpu=temperature.gpu,power.draw,utilization.gpu,clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits")
#: By itself: one field that the driver does not know fails the whole query. Drivers from 535 on accept this older name, too.
REASONS = ("--query-gpu=clocks_throttle_reasons.active", "--format=csv,noheader")
_FIELDS = ("temperature_c", "power_w", "utilization", "sm_mhz", "max_mhz")
_SECTION = re.compile(r"^== container .{1,200}: log$", re.MULTILINE)


def kernel_logs(run: Run) -> Record:
    """Return the faults of this boot and of the one before, and for each log that cannot be read why."""
    out: Record = {"events": [], "skipped": {}, "unclean": ""}
    for boot, name in ((0, "this boot"), (-1, "the previous boot")):
        words = ["journalctl", "--quiet", "--no-pager", f"--boot={boot}"]
        code, text, error = run([*words, "--dmesg", f"--lines={LINES}", "--output=short-iso"], timeout=SECONDS)
        if code or not text.strip():
            reason = {MISSING: "journalctl is not installed", LATE: "journalctl did not end in time"}.get(code, "")
            out["skipped"][name] = reason or (error.strip().splitlines() or ["the journal has no kernel messages of it"])[0][:200]
            continue
        out["events"] += kernel.summarize(text, boot)
        if boot:
            code, tail, _error = run([*words, "--lines=100", "--output=short-iso"], timeout=SECONDS)
            if code == 0 and tail.strip() and not kernel.ended_by_shutdown(tail):
                out["unclean"] = tail.strip().splitlines()[-1].split(" ", 1)[0][:40]
    return out


def _figure(field: str) -> float | None:
    """Return a figure; None for one that the driver does not report ([N/A])."""
    return float(field) if re.fullmatch(r"-?\d{1,7}(?:\.\d{1,4})?", field) else None


def gpus(text: str, reasons: str) -> list[Record]:
    """Return the GPUs in the output of nvidia-smi with QUERY, each with its reasons. A message of the driver is not a GPU."""
    bits = [int(line.strip(), 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", line.strip()) else 0 for line in reasons.splitlines()]
    found: list[Record] = []
    for row in gpu.rows(text, len(_FIELDS)):
        figures = [_figure(field) for field in row]
        if any(figure is not None for figure in figures):
            found.append({**dict(zip(_FIELDS, figures)), "reasons": bits[len(found)] if len(found) < len(bits) else 0})
    return found


def zone(name: str, temperature: str, trips: Mapping[str, str]) -> Record | None:
    """Return a thermal zone of /sys/class/thermal in °C; None if it has no temperature. `trips` are the temperatures of its trip points by type."""
    now = _figure(temperature.strip())
    critical = _figure(trips.get("critical", "").strip())
    return None if now is None else {"name": name.strip()[:40], "temperature_c": now / 1000, "critical_c": critical / 1000 if critical else None}


def temperatures(node: Node) -> list[Record]:
    """Return the thermal zones of the kernel."""
    found = []
    for folder in node.glob("/sys/class/thermal/thermal_zone*")[:ZONES]:
        trips = {(node.read(path) or "").strip(): node.read(path[: -len("type")] + "temp") or "" for path in node.glob(f"{folder}/trip_point_*_type")}
        found.append(zone(node.read(f"{folder}/type") or "", node.read(f"{folder}/temp") or "", trips))
    return [each for each in found if each is not None]


def gpu_power(run: Run) -> tuple[list[Record], str]:
    """Return the GPUs, and why there are none."""
    code, text, error = run(["nvidia-smi", *QUERY], timeout=SECONDS)
    if code:
        reason = {MISSING: "nvidia-smi is not installed", LATE: "nvidia-smi did not answer in time"}.get(code)
        return [], reason or f"nvidia-smi: {(text.strip() or error.strip() or f'exit code {code}').splitlines()[0][:200]}"
    code, reasons, _error = run(["nvidia-smi", *REASONS], timeout=SECONDS)
    found = gpus(text, reasons if code == 0 else "")
    return found, "" if found else "nvidia-smi lists no GPU"


def kept_boot_log(place: str) -> Record:
    """Return state and failure of the boot log in the newest evidence of a folder; the label is empty without any."""
    try:
        with os.scandir(place) as entries:
            labels = [(entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        label = max(labels)[1]
        files = [(name, bounded.text(os.path.join(place, label, name), EVIDENCE_BYTES)) for name in sorted(os.listdir(os.path.join(place, label)))[:8]]
    except (OSError, ValueError):
        return dict(NO_BOOT)
    for name, text in files:
        section = _SECTION.search(text)
        if section:
            facts = parse(text[section.end() + 1 :].partition("\n\n== ")[0])
            return {"label": label, "file": os.path.join(place, label, name), **{key: facts[key] for key in ("state", "stage", "failure")}}
    return dict(NO_BOOT)


def gather(node: Node, run: Run, evidence: str) -> Record:
    """Return `health` of the module vllm_rank_info; `evidence` is the folder of the evidence."""
    container = container_reason(node)
    if container:
        reason = f"a container ({container}) has the kernel of its host"
        logs: Record = {"events": [], "skipped": {"this boot": reason, "the previous boot": reason}, "unclean": ""}
    else:
        logs = kernel_logs(run)
    found, error = gpu_power(run)
    return {"kernel": logs, "gpus": found, "gpu_error": error, "zones": [] if container else temperatures(node), "boot": kept_boot_log(evidence)}
