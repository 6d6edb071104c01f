# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: values of one host that are valid alone and not together. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host import sysctl
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import HostError
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.value_types import TRUE
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import is_list, value_of

_SYSCTL = ("dirty_ratio", "dirty_background_ratio", "overcommit_memory", "vfs_cache_pressure", "watermark_boost_factor", "watermark_scale_factor")
_LOW, _HIGH = "roce_bandwidth_hotplug_low_gbps", "roce_bandwidth_hotplug_high_gbps"


def faults(values: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (variable, sentence) of each. Values of a wrong type are reported by the rules and make no fault here."""
    chosen = {name: values[name] if values.get(name) is not None else spec.get("default") for name, spec in specs.items()}
    return [each for each in (_kernel_settings(chosen), _bandwidth(chosen), _interfaces(chosen, values), _keys(values), _open_api(values)) if each[1]]


def _kernel_settings(chosen: Mapping[str, Any]) -> tuple[str, str]:
    extra = chosen.get("sysctl_settings")
    settings = {f"vm.{name}": chosen.get(f"sysctl_{name}", sysctl.LEAVE) for name in _SYSCTL}
    if not all(str(value).isdigit() or value == sysctl.LEAVE for value in settings.values()):
        return "", ""
    try:
        sysctl.desired(settings, sysctl.LEAVE, "", extra if isinstance(extra, Mapping) else {})
    except HostError as error:
        key, _space, text = str(error).partition(" ")
        return key, text.rstrip(".")
    return "", ""


def _keys(values: Mapping[str, Any]) -> tuple[str, str]:
    own, environment = values.get("vllm_tp2_api_key"), values.get("vllm_tp2_secret_env")
    other = environment.get("VLLM_API_KEY") if isinstance(environment, Mapping) else None
    differ = own and other and str(own) != str(other)
    return "vllm_tp2_api_key", "is not the key that vllm_tp2_secret_env has as VLLM_API_KEY; remove one of them" if differ else ""


def _open_api(values: Mapping[str, Any]) -> tuple[str, str]:
    """An API that is open and has a key: the owner has to choose."""
    own, environment = values.get("vllm_tp2_api_key"), values.get("vllm_tp2_secret_env")
    other = environment.get("VLLM_API_KEY") if isinstance(environment, Mapping) else None
    is_open = str(values.get("vllm_tp2_api_open") or "no").lower() in TRUE and (own or other)
    where = "vllm_tp2_api_key" if own else "VLLM_API_KEY in vllm_tp2_secret_env"
    return "vllm_tp2_api_open", f"is true, and {where} sets a key; remove one of them" if is_open else ""


def _bandwidth(chosen: Mapping[str, Any]) -> tuple[str, str]:
    try:
        low, high = float(chosen[_LOW]), float(chosen[_HIGH])
    except (KeyError, TypeError, ValueError):
        return "", ""
    return _LOW, f"is {low:g}, expected less than {_HIGH} ({high:g})" if low >= high else ""


def _interfaces(chosen: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, str]:
    given: Any = chosen.get("roce_interfaces")
    cidrs: Any = value_of(values, "gb10_fabric_cidrs")
    if not is_list(given) or not is_list(cidrs) or len(given) in (0, len(cidrs)):
        return "", ""
    return "roce_interfaces", f"has {len(given)} interfaces, expected {len(cidrs)}: one for each network in gb10_fabric_cidrs, or none to find them"
