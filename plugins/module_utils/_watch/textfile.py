# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Metrics of a rank in the text format of Prometheus, for the textfile collector of node_exporter. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

_Row = tuple[dict[str, str], Union[int, float, None]]

#: Name of a metric -> type and description.
_METRICS = {
    "gb10_group_serving": ("gauge", "1 if the agent of the head sees that the group serves, else 0."),
    "gb10_restarts_total": ("counter", "Restarts of the group by the agent, by cause."),
    "gb10_unserved_seconds_total": ("counter", "Seconds in which the group should have served and did not."),
    "gb10_rank_running": ("gauge", "1 if a container of the rank is running, else 0."),
    "gb10_memory_available_bytes": ("gauge", "MemAvailable of the node."),
    "gb10_swap_used_bytes": ("gauge", "Used swap of the node."),
    "gb10_gpu_power_watts": ("gauge", "Power of the GPU."),
    "gb10_gpu_utilization_ratio": ("gauge", "Utilization of the GPU, 0 to 1."),
    "gb10_rail_up": ("gauge", "1 if the rail has a link, else 0."),
    "gb10_rail_mtu_bytes": ("gauge", "MTU of the rail."),
}


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, value in labels.items()}
    return ",".join(f'{key}="{value}"' for key, value in escaped.items())


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _rows(state: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, list[_Row]]:
    """Return the values of each metric with the labels in addition to those of the group or rank."""
    memory, gpus, rails = sample.get("memory") or {}, list(enumerate(sample.get("gpus") or [])), sample.get("rails") or []
    rows: dict[str, list[_Row]] = {
        "gb10_rank_running": [({}, int(any(box["running"] for box in sample["containers"])))] if "containers" in sample else [],
        "gb10_memory_available_bytes": [({}, _scaled(memory.get("available_kib"), 1024))],
        "gb10_swap_used_bytes": [({}, _scaled(memory.get("swap_used_kib"), 1024))],
        "gb10_gpu_power_watts": [({"gpu": str(index)}, power) for index, (power, _percent) in gpus],
        "gb10_gpu_utilization_ratio": [({"gpu": str(index)}, _scaled(percent, 0.01)) for index, (_power, percent) in gpus],
        "gb10_rail_up": [({"interface": rail["interface"]}, int(rail["up"])) for rail in rails],
        "gb10_rail_mtu_bytes": [({"interface": rail["interface"]}, rail.get("mtu")) for rail in rails],
    }
    if state:
        rows["gb10_group_serving"] = [({}, int(state.get("state") == "serving"))]
        rows["gb10_restarts_total"] = [({"cause": cause}, count) for cause, count in sorted((state.get("restarts") or {}).items())]
        rows["gb10_unserved_seconds_total"] = [({}, state.get("unserved_seconds", 0))]
    return rows


def render(group: str, rank: int, host: str, state: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    """Return the metrics of one rank. A metric without a known value is left out.

    state: `watch` of `gb10 call state` on the head; empty on a worker, which has no metrics of the group.
    sample: containers, memory, gpus (power in W, utilization in percent) and rails as the sampler reads them; without a key it is not known.
    """
    rows, lines = _rows(state, sample), []
    for name, (kind, text) in _METRICS.items():
        of_group = name in ("gb10_group_serving", "gb10_restarts_total", "gb10_unserved_seconds_total")
        base = {"group": group} if of_group else {"group": group, "rank": str(rank), "host": host}
        known = [({**base, **labels}, value) for labels, value in rows.get(name, []) if value is not None]
        if known:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{_labels(labels)}}} {value:.15g}" for labels, value in known]
    return "".join(line + "\n" for line in lines)
