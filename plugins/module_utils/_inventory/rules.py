# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what the values of variables may be beyond their type: ranges, patterns and words, in one table, and environments.

Pure, standard library only. Values are templated. No sentence contains the value of a secret.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import STAGES
from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import IDS
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import BUILD_ARGUMENT, KINDS, Found, is_list, is_secret, shown, type_faults
from ansible_collections.gb10.cluster.plugins.module_utils._node import images
from ansible_collections.gb10.cluster.plugins.module_utils._node.parse import numbers
from ansible_collections.gb10.cluster.plugins.module_utils._node.readahead import HIGHEST_KB
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import HIGHEST_FLOOR_PERCENT
from ansible_collections.gb10.cluster.plugins.module_utils._node.tuning import LEAST_SECONDS, MOST_SECONDS, PANIC_MOST_SECONDS


class Rule(NamedTuple):
    """What a value may be, and each entry of a list or a mapping. ``expected`` ends the sentence "expected ...". ``words`` are for the hint.

    Spaces at the ends of a value do not count, unless the rule is ``exact``.
    """

    expected: str
    fits: Callable[[str], bool]
    words: tuple[str, ...] = ()
    exact: bool = False


def _is_interface(text: str) -> bool:
    try:
        found = ipaddress.IPv4Interface(text)
    except ValueError:
        return False
    edges = () if found.network.prefixlen > 30 else (found.network.network_address, found.network.broadcast_address)
    return "/" in text and found.ip not in edges


def _number(expected: str, low: float, high: float = math.inf, *, above: bool = False, whole: bool = False, words: tuple[str, ...] = ()) -> Rule:
    """Return the rule of a range with its edges; with ``above``, without the lowest."""

    def fits(text: str) -> bool:
        try:
            number = float(text)
        except ValueError:
            return text in words
        return low <= number <= high and not (above and number == low) and (number.is_integer() or not whole)

    return Rule(expected, fits, words)


def _whole(low: int, high: float = math.inf, *words: str) -> Rule:
    expected = f"a whole number from {low}" + ("" if high == math.inf else f" to {high}")
    if words:
        expected = f"{', '.join(words)} or {expected}"
    return _number(expected, low, high, whole=True, words=words)


def _pattern(expected: str, pattern: str, exact: bool = False) -> Rule:
    return Rule(expected, lambda text: re.fullmatch(pattern, text) is not None, exact=exact)


def _is_endpoint(text: str) -> bool:
    return re.fullmatch(r"(?:https?://[^\s/@]+(?:/\S*)?)?", text) is not None and not holds_secret("endpoint", text)


def _words(expected: str, words: Iterable[str]) -> Rule:
    """Return the rule of known words. `expected` names them all only if they are few."""
    known = tuple(words)
    return Rule(f"{expected}, one of {', '.join(known)}" if len(known) <= 20 else expected, known.__contains__, known)


_SECONDS = _number("a whole number from 1, in seconds, such as 2700 for 45 minutes", 1, whole=True)
_DURATION = _pattern("a duration such as 30s or 1m30s", r"(?:\d+(?:\.\d+)?(?:us|ms|s|m|h))+")
_PAGES = Rule(f"a multiple of 4 from 0 to {HIGHEST_KB}", lambda text: _whole(0, HIGHEST_KB).fits(text) and float(text) % 4 == 0)
CONTROL = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
# Mounted into a container: no part "..", none of what Docker reads as a separator, and not a folder that the system needs for itself.
_SYSTEM = r"/+(?:(?:bin|boot|dev(?!/+shm/+[^/])|etc|lib(?:x?32|64)?|proc|run|sbin|sys)(?:/|$)|(?:home|opt|root|tmp|usr|var)/*$)"
_STORE = _pattern(
    "an absolute path such as /srv/models, outside the system's own folders, without '..', ':', '$' and a space at an end; "
    "write the path of a home directory in full",
    rf"(?!.*/\.\.(?:/|$))(?!(?:/+\.?)+$)(?!{_SYSTEM})/+[^/:${CONTROL}][^:${CONTROL}]*(?<! )",
    exact=True,
)
_BELOW_ROOT = rf"(?!.*/\.\.(?:/|$))/+[^/${CONTROL}][^${CONTROL}]*"
_SIZE = _pattern("a size such as 50m or 1g", r"(?=.*[1-9])\d+(?:\.\d+)?(?:[kKmMgGtT]i?)?[bB]?")
_LIMIT = _pattern(
    "unlimited, a number of bytes such as 8388608, a size such as 64m, or leave",
    r"(?i:leave|unlimited|infinity|-1|0*[1-9]\d*\s*[kmgt]?(?:i?b)?)",
)
_IMAGE = _pattern(images.PINNED, rf"{images.IMAGE}(?:@sha256:[0-9a-f]{{64}})?")
LABEL = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_PORT_OR_ANY = _number("a port from 1 to 65535, or 0 for any free port", 0, 65535)
# The largest floor that the role accepts on a node of 128 GB, the largest that is sold.
HIGHEST_FLOOR_KB = 128_000_000 * HIGHEST_FLOOR_PERCENT // 100

# Variable -> what its value may be, where a wrong one costs a boot or hurts a node; `name.key` is a key of a mapping.
# Other variables may have all values of their type.
RULES: dict[str, Rule] = {
    "gb10_fabric_first": _whole(1, 254),
    "gb10_model_store": _STORE,
    **dict.fromkeys(("docker_log_max_size", "vllm_tp2_log_max_size"), _SIZE),
    **dict.fromkeys(("docker_log_max_file", "vllm_tp2_log_max_file"), _whole(1)),
    "docker_memlock": _LIMIT,
    **dict.fromkeys(("image_reference", "weights_download_image"), _IMAGE),
    **dict.fromkeys(("image_port", "weights_port"), _PORT_OR_ANY),
    **dict.fromkeys(("monitoring_port", "monitoring_exporter_port", "monitoring_grafana_port"), _whole(1, 65535)),
    "monitoring_retention": _pattern("a duration such as 30d or 12h", r"\d{1,6}[smhdwy]"),
    "preflight_ignore": _words("the ID of a check of roles/preflight/README.md, such as clock_skew", IDS),
    **dict.fromkeys(("readahead_load_kb", "readahead_steady_kb"), _PAGES),
    # roce
    "roce_addresses": Rule("an IPv4 address of a host with its prefix, such as 192.168.200.11/24", _is_interface),
    "roce_confirm_seconds": _number("15 seconds or more, in which the controller can reconnect", 15),
    "roce_interfaces": _pattern("the name of a network interface, such as enp1s0f0np0", r"[A-Za-z0-9_.-]{1,15}"),
    "roce_mtu": _number("1280 to 9978 bytes: 9000 on a direct cable, 1500 if the switch carries no more", 1280, 9978),
    # sysctl
    **dict.fromkeys(("sysctl_dirty_background_ratio", "sysctl_dirty_ratio"), _whole(0, 100, "leave")),
    "sysctl_lru_gen_min_ttl_ms": _whole(0, 10000, "leave"),  # a higher value kills programs that only pause
    "sysctl_min_free_kbytes": _whole(1, HIGHEST_FLOOR_KB, "auto", "leave"),
    "sysctl_overcommit_memory": _whole(0, 2, "leave"),
    "sysctl_reboot_on_panic": _whole(1, PANIC_MOST_SECONDS, "leave"),
    "sysctl_swappiness": _whole(0, 200, "auto", "leave"),
    "sysctl_watchdog_seconds": _whole(LEAST_SECONDS, MOST_SECONDS, "leave"),
    # vllm_tp2
    **dict.fromkeys(("vllm_tp2_attempts", "vllm_tp2_context", "vllm_tp2_keep_releases", "vllm_tp2_max_num_seqs"), _whole(1)),
    "vllm_tp2_directory": _pattern("an absolute path below /, without '..' and '$', such as /opt/gb10-cluster/vllm_tp2", _BELOW_ROOT),
    "evidence_compare": _pattern("a name of letters, digits, dots, dashes and underscores, such as before, or empty", rf"(?:{LABEL})?"),
    "evidence_label": _pattern("a name of letters, digits, dots, dashes and underscores, such as before", LABEL),
    "vllm_tp2_gpu_memory_utilization": _number("a share of the memory, above 0 and at most 1, such as 0.8", 0, 1, above=True),
    **{f"vllm_tp2_healthcheck.{key}": _DURATION for key in ("interval", "start_interval", "start_period", "timeout")},
    "vllm_tp2_healthcheck.retries": _whole(1),
    "since": _pattern("a duration such as 90s, 10m, 2h or 1d", r"\d{1,9}(?:\.\d{1,9})?[smhd]"),
    "vllm_tp2_memlock": _pattern("unlimited, or a number of bytes such as 8388608", r"unlimited|infinity|-1|0*[1-9]\d*"),
    **dict.fromkeys(("vllm_tp2_completion_timeout", "vllm_tp2_phase_seconds", "vllm_tp2_timeout", "weights_timeout"), _SECONDS),
    **dict.fromkeys(("sanity_concurrency", "smoke_requests"), _whole(1, 1024)),
    "rollback_release": _pattern("a release of status.yml such as 4f0c1d2e3f40, or empty", r"(?:[A-Za-z0-9][A-Za-z0-9_-]{0,63})?"),
    "vllm_tp2_stack": _pattern("a number of bytes such as 67108864, or -1 for unlimited", r"-1|0*[1-9]\d*"),
    "vllm_tp2_wait_available": _number("a share of the memory, from 0 to 1, such as 0.7", 0, 1),
    # weights
    "weights_hf_endpoint": Rule("a URL without a user, a password and a key, such as https://hub.example.org", _is_endpoint),
    "weights_path": _pattern("the absolute path of the model's folder, such as /srv/models/deepseek-ai/DeepSeek-V4-Flash", _BELOW_ROOT),
}

# Mappings -> the keys that they may have; other keys have no effect.
KEYS: dict[str, tuple[str, ...]] = {
    "vllm_tp2_healthcheck": ("disable", "interval", "retries", "start_interval", "start_period", "test", "timeout"),
    "validate_memory": ("total_kib", "available_kib"),
    "vllm_tp2_phase_seconds": (*(stage for stage in STAGES if stage != "ready"), "total"),
}

# Mappings of environment variables; a null removes a variable.
ENVIRONMENTS = ("vllm_tp2_extra_env", "vllm_tp2_fabric_env", "vllm_tp2_secret_env")
# Variables with a value of its own for each rank.
OF_RANK = ("NODE_RANK", "HEADLESS", "MASTER_ADDR", "MASTER_PORT")
# Secrets that are sent in a header of HTTP.
SENT = ("VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# Variables that are stored with the secrets of the environment.
STORED = dict(zip(("vllm_tp2_api_key", "weights_hf_token"), ("VLLM_API_KEY", "HF_TOKEN")))
# Variable of the environment -> why it must not be an empty string.
NOT_EMPTY = {"NCCL_IB_GID_INDEX": "NCCL reads an empty string as index 0 and hangs; write the index, such as 3, or null for no index"}


def faults(name: str, value: Any, spec: Mapping[str, Any]) -> Found:
    """Return ``(way to the part, sentence)`` for everything that is wrong with a value: by its type, else by the rules of this module."""
    found = type_faults(name, value, spec)
    if name in RULES and spec.get("type") in ("int", "float"):  # a range is more exact than a type
        kind, expected = KINDS[spec["type"]].one, RULES[name].expected
        found = [(path, text.replace(f"expected {kind}", f"expected {expected if kind in expected else f'{kind}: {expected}'}")) for path, text in found]
    wrong = {path[:1] for path, _text in found}
    if () in wrong or value is None:
        return found
    return found + [(path, text) for path, text in _value_faults(name, value, is_secret(name, spec)) if path[:1] not in wrong]


def _value_faults(name: str, value: Any, hide: bool) -> Found:
    if name in ENVIRONMENTS:
        return _environment_faults(value, secret=name == "vllm_tp2_secret_env")
    if name == "image_build_args":
        return [((str(key),), f"{shown(key)} {BUILD_ARGUMENT}") for key, each in value.items() if holds_secret(str(key), each)]
    if name in STORED:
        return [((), text.partition(" ")[2]) for _path, text in _environment_faults({STORED[name]: value}, secret=True)]
    if name == "preflight_known_versions":
        given = [(at, str(each.get("match") or each.get("below") or "")) for at, each in enumerate(value) if isinstance(each, Mapping)]
        return [((at,), f"entry {at + 1} has no version, expected one with numbers in match or below") for at, text in given if not numbers(text)]
    found: Found = []
    parts: list[tuple[tuple[str | int, ...], str, Any]] = [((), "", value)]
    if isinstance(value, Mapping):
        known = KEYS.get(name, value)
        found = [
            ((str(key),), f"has the key {shown(key)}, expected one of {', '.join(map(str, known))}{did_you_mean(key, known)}")
            for key in value
            if key not in known
        ]
        parts = [((str(key),), f"{key} ", each) for key, each in value.items() if key in known]
    elif is_list(value):
        parts = [((index,), f"entry {index + 1} ", each) for index, each in enumerate(value)]
    for path, what, each in parts:
        rule = RULES.get(".".join([name, *map(str, path)]), RULES.get(name))
        text = str(each) if rule and rule.exact else str(each).strip(" ")  # a line end is a fault
        if rule and each is not None and not rule.fits(text):
            found.append((path, f"{what}is {shown(each, hide)}, expected {rule.expected}{did_you_mean(text, rule.words) if not hide else ''}"))
    return found


def _environment_faults(value: Mapping[str, Any], secret: bool) -> Found:
    """Names and values that an environment file cannot contain."""
    found: Found = []
    for key, each in value.items():
        name, text = str(key), ""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # A name in the mapping of secrets can be a secret at the wrong place.
            text = f"has {'a key' if secret else f'the key {shown(name)}'}, expected the name of an environment variable (letters, digits, _)"
        elif isinstance(each, Mapping) or is_list(each):
            text = f"{name} is {shown(each)}, expected a string or a number"
        elif name in OF_RANK and each is not None:
            text = f"{name} is set for each rank by the collection, and a rank with another's value does not start; remove it"
        elif secret and re.fullmatch(r"\$(?:\w+|\{\w+\})", str(each)):
            text = f"{name} is the name of a shell variable, which is not expanded here; write \"{{{{ lookup('env', 'NAME') }}}}\", or encrypt the value"
        elif isinstance(each, str) and each.lstrip().startswith("$ANSIBLE_VAULT;"):
            text = f"{name} is an encrypted text that Ansible does not decrypt; write !vault before the |"
        elif isinstance(each, str) and re.search(r"[\n\r\0]", each):
            text = f"{name} contains a line end, which an environment file cannot contain; write it on one line, without | or >"
        elif secret and isinstance(each, str) and bounded.env_problem(each):
            text = f"{name} {bounded.env_problem(each)}, which the environment file of the secrets cannot contain; choose another value"
        elif secret and name in SENT and isinstance(each, str) and each and not re.fullmatch(r"[!-~]+", each):
            text = f"{name} contains a space or a character that is not ASCII, and no HTTP client can send it; choose letters and digits"
        elif not secret and holds_secret(name, each):
            place = "vllm_tp2_api_key" if name == "VLLM_API_KEY" else "vllm_tp2_secret_env"
            text = f"{name} looks like a secret, and its value would be readable in the Compose file; set it in {place}"
        elif name in NOT_EMPTY and each is not None and not str(each).strip():
            text = f"{name} is empty: {NOT_EMPTY[name]}"
        if text:
            found.append(((name,), text))
    return found
