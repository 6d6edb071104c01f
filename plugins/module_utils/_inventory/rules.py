# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what the values of variables may be beyond their type: ranges, patterns and words, in one table, and the contents of mappings.

Pure: values in, sentences out. Values are templated and of the right type (see types.type_faults). Standard library only.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stages import STAGES
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import CLASSES, HIGHEST_KB
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import HIGHEST_FLOOR_PERCENT
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.types import is_secret, shown, type_faults
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.checks import CHECKS

Found = list[tuple[tuple["str | int", ...], str]]


class Rule(NamedTuple):
    """What a value may be: a number in a range, a text of a pattern, one of some words. ``says`` ends the sentence "expected ...".

    Of a list or a mapping every entry is judged. A number on the edge of the range is in it, with ``above`` the lowest is not.
    """

    says: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    pattern: str = ""
    words: tuple[str, ...] = ()
    address: bool = False
    whole: bool = False

    def fits(self, value: Any) -> bool:
        """Tell whether one value is allowed."""
        text = str(value).strip()
        if text in self.words:
            return True
        if self.pattern:
            return re.fullmatch(self.pattern, text) is not None
        if self.address:
            return _is_interface(text)
        if self.low == -math.inf and self.high == math.inf:
            return False
        try:
            number = float(text)
        except ValueError:
            return False
        return self.low <= number <= self.high and not (self.above and number == self.low) and (number.is_integer() or not self.whole)


def _is_interface(text: str) -> bool:
    """Tell whether a text is an address that a host can have, with its prefix."""
    try:
        found = ipaddress.IPv4Interface(text)
    except ValueError:
        return False
    edges = () if found.network.prefixlen > 30 else (found.network.network_address, found.network.broadcast_address)
    return "/" in text and found.ip not in edges


def _whole(low: int, high: float = math.inf, *words: str) -> Rule:
    says = f"a whole number from {low} {'on' if high == math.inf else f'to {high:g}'}"
    return Rule("".join(f"{word}, " for word in words[:-1]) + (f"{words[-1]} or {says}" if words else says), low, high, words=words, whole=True)


_POSITIVE = Rule("a number above 0", 0, above=True)
_FROM_ZERO = Rule("a number from 0 on", 0)
_SHARE = "a share of the memory, from 0 to 1, such as 0.7"
_PATH = Rule("an absolute path, such as /srv/models; a home folder has to be written out", pattern=r"/.*")
_SIZE = Rule("a size such as 50m or 1g", pattern=r"(?=.*[1-9])\d+(?:\.\d+)?(?:[kKmMgGtT]i?)?[bB]?")
_LIMIT = Rule(
    "unlimited, a number of bytes such as 8388608, a size such as 64m, or leave",
    pattern=r"(?i:leave|unlimited|infinity|-1|0*[1-9]\d*\s*[kmgt]?(?:i?b)?)",
)
_PORT_OR_ANY = Rule("a port from 1 to 65535, or 0 for any that is free", 0, 65535)
_IDENTITY = Rule("a number from 0 on, or -1", -1)

# Variable -> what its value may be. What is not here may be all that its type allows.
RULES: dict[str, Rule] = {
    "gb10_fabric_first": _whole(1, 254),
    "gb10_model_store": _PATH,
    "gb10_rank": _whole(0),
    # docker
    "docker_compose_minimum": Rule("a version such as 2.18, in quotes", pattern=r"\d+(?:\.\d+)*"),
    "docker_log_max_file": _whole(1),
    "docker_log_max_size": _SIZE,
    "docker_memlock": _LIMIT,
    "docker_stack": _LIMIT,
    "docker_start_timeout": _whole(1),
    # image
    "image_caches": _PATH,
    "image_digest": Rule("sha256: and 64 hexadecimal digits, or an empty text for any", pattern=r"sha256:[0-9a-f]{64}", words=("",)),
    "image_keep": _whole(0),
    "image_model_store": _PATH,
    "image_port": _PORT_OR_ANY,
    "image_timeout": _whole(1),
    # preflight
    "preflight_clock_skew_seconds": _FROM_ZERO,
    "preflight_free_gib": _FROM_ZERO,
    "preflight_ignore": Rule(f"a check's ID, one of {', '.join(CHECKS)}", words=tuple(CHECKS)),
    "preflight_image_gib": _FROM_ZERO,
    "preflight_model_gib": _FROM_ZERO,
    "preflight_model_store": _PATH,
    # readahead
    "readahead_classes": Rule(f"one of {', '.join(CLASSES)}", words=tuple(CLASSES)),
    "readahead_guard_floor_gib": _POSITIVE,
    "readahead_guard_interval": _POSITIVE,
    "readahead_load_kb": _whole(0, HIGHEST_KB),
    "readahead_mounts": _PATH,
    "readahead_restore_after": Rule("60 seconds or more", 60),
    "readahead_steady_kb": _whole(0, HIGHEST_KB),
    # roce
    "roce_addresses": Rule("an IPv4 address of a host with its prefix, such as 192.168.200.11/24", address=True),
    "roce_bandwidth_hotplug_high_gbps": _FROM_ZERO,
    "roce_bandwidth_hotplug_low_gbps": _FROM_ZERO,
    "roce_bandwidth_iterations": _whole(0),
    "roce_bandwidth_port": Rule("a port from 1 to 65535", 1, 65535),
    "roce_bandwidth_rail_gbps": _FROM_ZERO,
    "roce_bandwidth_seconds": _whole(1),
    "roce_confirm_seconds": Rule("15 seconds or more, in which the controller can come back", 15),
    "roce_min_speed_mbps": _whole(0),
    "roce_mtu": Rule("1280 to 9978 bytes: 9000 on a direct cable, 1500 where a switch carries no more", 1280, 9978),
    "roce_ping_seconds": _whole(1),
    # sysctl
    "sysctl_dirty_background_ratio": _whole(0, 100, "leave"),
    "sysctl_dirty_ratio": _whole(0, 100, "leave"),
    "sysctl_lru_gen_min_ttl_ms": _whole(0, math.inf, "leave"),
    "sysctl_min_free_kbytes": _whole(1, math.inf, "auto", "leave"),
    "sysctl_min_free_kbytes_119": _whole(1),
    "sysctl_min_free_kbytes_121": _whole(1),
    "sysctl_min_free_percent_other": Rule(f"a number above 0, at most {HIGHEST_FLOOR_PERCENT}", 0, HIGHEST_FLOOR_PERCENT, above=True),
    "sysctl_overcommit_memory": _whole(0, 2, "leave"),
    "sysctl_swappiness": _whole(0, 200, "auto", "leave"),
    "sysctl_vfs_cache_pressure": _whole(0, math.inf, "leave"),
    "sysctl_watermark_boost_factor": _whole(0, math.inf, "leave"),
    "sysctl_watermark_scale_factor": _whole(1, 3000, "leave"),
    # vllm_tp2
    "vllm_tp2_completion_timeout": _whole(1),
    "vllm_tp2_context": _whole(1),
    "vllm_tp2_directory": _PATH,
    "vllm_tp2_gpu_memory_utilization": Rule("a share of the memory, above 0 and at most 1, such as 0.8", 0, 1, above=True),
    "vllm_tp2_keep_releases": _whole(1),
    "vllm_tp2_log_max_file": _whole(1),
    "vllm_tp2_log_max_size": _SIZE,
    "vllm_tp2_max_num_seqs": _whole(1),
    "vllm_tp2_memlock": Rule("unlimited, or a number of bytes such as 8388608", pattern=r"unlimited|infinity|-1|0*[1-9]\d*"),
    "vllm_tp2_model_store": _PATH,
    "vllm_tp2_phase_seconds": _whole(1),
    "vllm_tp2_stack": Rule("a number of bytes such as 67108864, or -1 for unlimited", pattern=r"-1|0*[1-9]\d*"),
    "vllm_tp2_timeout": _whole(1),
    "vllm_tp2_wait_available": Rule(_SHARE, 0, 1),
    "vllm_tp2_wait_seconds": _whole(0),
    # weights
    "weights_download_timeout": _whole(1),
    "weights_hf_endpoint": Rule("a URL such as https://hub.example.org", pattern=r"https?://\S+", words=("",)),
    "weights_model_store": _PATH,
    "weights_owner": _IDENTITY,
    "weights_owner_group": _IDENTITY,
    "weights_path": _PATH,
    "weights_port": _PORT_OR_ANY,
    "weights_reserve_gib": _FROM_ZERO,
    "weights_streams": _whole(1),
    "weights_timeout": _whole(1),
}

# Variables that name the host whose files are the measure.
SOURCES = {"image_source": "auto", "weights_source": "auto"}


# Variables that are lists of mappings -> the keys of one, as options of a spec; a type alone cannot say them.
ENTRIES: dict[str, dict[str, dict[str, Any]]] = {
    "preflight_known_versions": {
        "component": {"type": "str", "required": True, "choices": ["driver", "kernel", "firmware_cx7"]},
        "match": {"type": "str"},
        "below": {"type": "str"},
        "line": {"type": "str"},
        "unless": {"type": "list", "elements": "str"},
        "also": {"type": "dict"},
        "severity": {"type": "str", "required": True, "choices": ["error", "warning", "info"]},
        "matters": {"type": "str", "required": True},
        "remedy": {"type": "str", "required": True},
        "source": {"type": "str"},
        "id": {"type": "str"},
    },
    "vllm_tp2_sanity_prompts": {
        "prompt": {"type": "str", "required": True},
        "expect": {"type": "str"},
        "chat": {"type": "bool"},
        "max_tokens": {"type": "int"},
        "body": {"type": "dict"},
    },
}

# Mappings -> the keys that they may have; what nobody reads would change nothing, in silence.
KEYS = {"vllm_tp2_phase_seconds": (*(stage for stage in STAGES if stage != "ready"), "total")}

# Mappings of environment variables; a null takes a variable away.
ENVIRONMENTS = ("vllm_tp2_extra_env", "vllm_tp2_secret_env")
# Variable of the environment -> why it must not be an empty text.
NOT_EMPTY = {"NCCL_IB_GID_INDEX": "NCCL reads an empty text as index 0 and hangs; write the index, such as 3, or null for none"}


def _environment_faults(value: Any, secret: bool) -> Found:
    """Names and values that an environment cannot carry."""
    found: Found = []
    for key, each in value.items() if isinstance(value, Mapping) else ():
        name, path = str(key), (str(key),)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # Not shown where a value is a secret: what stands in the wrong place may be one.
            found.append((path, f"has {'a key' if secret else f'the key {shown(name)}'}, expected the name of an environment variable (letters, digits, _)"))
        elif isinstance(each, Mapping) or (isinstance(each, Sequence) and not isinstance(each, str)):
            found.append((path, f"{name} is {shown(each)}, expected a text or a number"))
        elif isinstance(each, str) and re.search(r"[\n\r\0]", each):
            found.append((path, f"{name} holds a line end, which an environment file cannot carry; write it on one line, and not with | or >"))
        elif secret and isinstance(each, str) and "'" in each:
            found.append((path, f"{name} holds a single quote, which the environment file of the secrets cannot carry; choose another value"))
        elif name in NOT_EMPTY and each is not None and not str(each).strip():
            found.append((path, f"{name} is empty: {NOT_EMPTY[name]}"))
    return found


def _entry_faults(name: str, value: Any, passed: Container[Any]) -> Found:
    """What the single entries need beyond their keys, save those to pass over."""
    found: Found = []
    for index, entry in enumerate(value):
        if index in passed:
            continue
        what = f"entry {index + 1}"
        if name == "vllm_tp2_sanity_prompts":
            if not isinstance(entry["prompt"], str) or not entry["prompt"].strip():
                found.append(((index, "prompt"), f"{what} prompt is {shown(entry['prompt'])}, expected what to ask, as a text"))
            if entry.get("max_tokens") is not None and int(float(entry["max_tokens"])) < 1:
                found.append(((index, "max_tokens"), f"{what} max_tokens is {shown(entry['max_tokens'])}, expected a whole number from 1 on"))
        elif not (entry.get("match") or entry.get("below")):
            found.append(((index,), f"{what} has neither match nor below, expected one of them"))
    return found


def with_entries(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a variable's spec with the keys of its entries, where :data:`ENTRIES` knows them."""
    return {**spec, "options": ENTRIES[name]} if name in ENTRIES else dict(spec)


def faults(name: str, value: Any, spec: Mapping[str, Any]) -> Found:
    """Return ``(path below the variable, sentence)`` for all that is wrong with a value: by its type, and where that is right by these rules."""
    found = type_faults(name, value, spec)
    if any(not path for path, _text in found):
        return found
    passed = {path[0] for path, _text in found}
    return found + [(path, text) for path, text in value_faults(name, value, spec, passed) if not path or path[0] not in passed]


def value_faults(name: str, value: Any, spec: Mapping[str, Any] | None = None, passed: Container[Any] = ()) -> Found:
    """Return what a value of the right type may not be. Empty (null) is the default, and fine.

    :param passed: entries that are of a wrong type.
    """
    if name in ENVIRONMENTS:
        return _environment_faults(value, name == "vllm_tp2_secret_env")
    if name == "vllm_tp2_api_key":  # it goes where the secrets of the environment go
        return [((), text.partition(" ")[2]) for _path, text in _environment_faults({"VLLM_API_KEY": value}, secret=True)]
    if name in ENTRIES:
        return _entry_faults(name, value or [], passed)
    rule = RULES.get(name)
    if rule is None or value is None:
        return []
    hide = is_secret(name, spec)
    found: Found = []
    if isinstance(value, Mapping):
        known = KEYS.get(name, value)
        says = ", ".join(map(str, known))
        found = [((str(key),), f"has the key {shown(key)}, expected one of {says}{did_you_mean(key, known)}") for key in value if key not in known]
        parts: list[tuple[tuple[str | int, ...], str, Any]] = [((str(key),), f"{key} ", each) for key, each in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        parts = [((index,), f"entry {index + 1} ", each) for index, each in enumerate(value)]
    else:
        parts = [((), "", value)]
    return found + [
        (path, f"{what}is {shown(each, hide)}, expected {rule.says}{_hint(each, rule, hide)}") for path, what, each in parts if not rule.fits(each)
    ]


def _hint(value: Any, rule: Rule, hide: bool) -> str:
    return did_you_mean(value, rule.words) if rule.words and not hide else ""


def source_fault(name: str, value: Any, members: Iterable[str]) -> str:
    """Return a sentence where a source is no host of its serving group, else an empty string."""
    hosts = list(members)
    allowed = SOURCES[name]
    if str(value) == allowed or str(value) in hosts:
        return ""
    return f"is {shown(value)}, expected {allowed} or a host of the serving group: {', '.join(hosts)}{did_you_mean(value, [allowed, *hosts])}"
