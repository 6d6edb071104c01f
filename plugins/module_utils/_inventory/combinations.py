# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: values of one host that are valid alone and not together. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._inventory.value_types import TRUE
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import is_list, value_of


def faults(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (variable, sentence) of each. Values of a wrong type are reported by the rules and make no fault here."""
    own, environment = values.get("vllm_tp2_api_key"), values.get("vllm_tp2_secret_env")
    other = environment.get("VLLM_API_KEY") if isinstance(environment, Mapping) else None
    if own and other and str(own) != str(other):
        yield "vllm_tp2_api_key", "is not the key that vllm_tp2_secret_env has as VLLM_API_KEY; remove one of them"
    if str(values.get("vllm_tp2_api_open") or "no").lower() in TRUE and (own or other):
        where = "vllm_tp2_api_key" if own else "VLLM_API_KEY in vllm_tp2_secret_env"
        yield "vllm_tp2_api_open", f"is true, and {where} sets a key; remove one of them"
    given, cidrs = values.get("roce_interfaces"), value_of(values, "gb10_fabric_cidrs")
    if is_list(given) and is_list(cidrs) and len(given or ()) not in (0, len(cidrs)):
        text = f"has {len(given or ())} interfaces, expected {len(cidrs)}: one for each network in gb10_fabric_cidrs, or none to find them"
        yield "roce_interfaces", text
