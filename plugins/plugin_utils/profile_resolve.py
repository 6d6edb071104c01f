# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: resolve a profile: follow ``extends``, merge the layers, check the result.

A profile is plain data: a mapping as read from ``profiles/<name>.yml`` or from the inventory's ``gb10_profiles``. Controller only.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean, nearest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import PRACTICAL
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE, human_int, store_mount
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_check import check
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError, shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.recipe_source import kind_of

# Keys that a resolved profile has besides those of the schema. ``defaults`` has the paths of what :func:`_pair_defaults` set; a shipped one has none.
ADDED = ("name", "lineage", "defaults")
# Keys that the profile lookup adds to ``image`` of a profile with mods.
OF_MODS = ("base", "layer")
# Keys of a recipe at its top, which a profile has not, and keys that only a profile has there.
RECIPE_KEYS = frozenset(("services", "command", "defaults", "runtime", "recipe_version"))
PROFILE_KEYS = frozenset(("extends", "summary", "image", "engine", "gate"))
# A changed argument makes these inherited bounds of the gate meaningless. The bounds of the layer itself always count.
INVALIDATED_BOUNDS = (
    ("max-model-len", ("concurrency",)),
    ("gpu-memory-utilization", ("effective_tokens.max", "concurrency.max")),
    ("kv-cache-dtype", ("effective_tokens", "concurrency")),
)
OF_ONE_MODEL = ("plan", "published")
# These describe the image of one name.
OF_ONE_IMAGE = ("digest", "size_gib", "download_gib", "build_minutes", "build", "mods")
# What every pair needs. A profile of the user with no shipped one below it gets these, unless one of its layers sets them, to null as well.
PAIR_ENV = {
    "UCX_MEM_MMAP_HOOK_MODE": "none",  # GanyX19: without this pair each request leaks about 14 MB
    "UCX_RCACHE_MAX_UNRELEASED": "1024",
    "NCCL_IB_DISABLE": "0",  # the Aiden thread and 11_p's thread: RDMA, also if the image turns it off
    "NCCL_NVLS_ENABLE": "0",  # a GB10 has no NVLink, and NCCL 2.30.4 hangs while a pair loads experts (github.com/NVIDIA/nccl/issues/2167)
    "NCCL_DEBUG": "INFO",  # NCCL names its transport at this level alone, and the gate reads it
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
}
OFFLINE_ENV = {"HF_HUB_OFFLINE": "1"}  # the role weights proves the weights before a start
# tonyd2wild sets both switches. Only the tokenizer of this family is known to read them; another model keeps its own default.
THINKING = {"thinking": False, "enable_thinking": False}
THINKING_FAMILY = "deepseek_v4"
THINKING_FLAG = "default-chat-template-kwargs"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``over`` into ``base``: mappings key by key, null removes a key, everything else replaces. Order is kept."""
    out = dict(base)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
            continue
        plain = str(key) if isinstance(key, str) else key  # without Ansible's tags
        if isinstance(value, Mapping):
            inner = out.get(key)
            out[plain] = merge(inner if isinstance(inner, Mapping) else {}, value)
        else:
            out[plain] = list(value) if isinstance(value, (list, tuple)) else value
    return out


def _layers(name: str, shipped: Mapping[str, Any], users: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Return (name, raw profile, whether it is the user's) from the root of ``extends`` down to ``name``."""
    out: list[tuple[str, Mapping[str, Any], bool]] = []
    seen: list[tuple[str, bool]] = []
    current, allow_user, child = name, True, ""
    while True:
        from_user = allow_user and current in users
        if not from_user and current not in shipped:
            if current == child:
                remedy = "Name another one, or leave extends out"
                raise ProfileError(f"profile {current}: extends names the profile itself, and no shipped profile has this name. {remedy}")
            known = sorted(set(shipped) | set(users))
            what = f"profile {child}: extends is {current!r}, which" if child else f"gb10_profile: {current!r}"
            hint = f"; known are: {', '.join(known)} (a profile of your own goes into gb10_profiles, or as a file into gb10_profiles_directory)"
            raise ProfileError(f"{what} is not a known profile{did_you_mean(current, known) or hint}")
        if (current, from_user) in seen:
            loop = [entry[0] for entry in seen[seen.index((current, from_user)) :]] + [current]
            raise ProfileError(f"profile {name}: extends is a circular reference ({' -> '.join(loop)}). Remove extends from one of them")
        seen.append((current, from_user))
        raw = users[current] if from_user else shipped[current]
        if not isinstance(raw, Mapping):
            raise ProfileError(f"profile {current}: is {shown(raw)}, expected a mapping")
        kind = kind_of(raw) if RECIPE_KEYS.intersection(raw) and not PROFILE_KEYS.intersection(raw) else ""
        if kind:
            remedy = "move it to a file elsewhere, and make a profile of it with ansible-playbook playbooks/import.yml -e recipe=FILE"
            raise ProfileError(f"profile {current}: is a {kind}, expected a profile; {remedy}")
        near = "" if "extends" in raw else nearest("extends", raw, 0.8)
        if near:  # what the profile would inherit is missing too
            raise ProfileError(f"profile {current}: {near} is not a key of a profile; did you mean extends?")
        out.append((current, raw, from_user))
        parent = raw.get("extends")
        if parent is not None and not isinstance(parent, str):
            raise ProfileError(f"profile {current}: extends is {shown(parent)}, expected a profile's name")
        if parent is None and from_user and current in shipped:
            parent = current  # a user's profile with a shipped name changes the shipped one
        if parent is None:
            return out[::-1]
        # Shipped profiles build on shipped ones only; a user's profile that extends its own name means the shipped one.
        allow_user = from_user and parent != current
        child, current = current, str(parent)


def _at(tree: Any, *path: str) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _add_layer(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a layer into a profile, without what belongs to another model or image, and the inherited bounds that the layer's arguments invalidate.

    An inherited drafter is removed with the arguments that name it.
    """
    out = dict(base)
    model = _at(base, "model", "id")
    if model is not None and _at(layer, "model", "id") not in (None, model):
        out = {key: value for key, value in out.items() if key not in OF_ONE_MODEL}
    image, over = _at(base, "image"), _at(layer, "image")
    if isinstance(image, Mapping) and _at(over, "reference") not in (None, image.get("reference")):
        out["image"] = {key: value for key, value in image.items() if key not in OF_ONE_IMAGE}
    for flag, bounds in INVALIDATED_BOUNDS:
        before, after = _at(base, "engine", "args", flag), _at(layer, "engine", "args", flag)
        if before is None or after is None or before == after:
            continue
        for bound in bounds:
            key, _dot, limit = bound.partition(".")
            if _at(out, "gate", key) is not None:
                out["gate"] = merge(out["gate"], {key: {limit: None} if limit else None})
    out = merge(out, layer)
    before, after = (values.drafter_path(_at(each, "engine", "args")) for each in (base, out))
    if "drafter" not in layer and before != after and _at(base, "drafter", "path") == before:
        out.pop("drafter", None)
    return out


def resolve(name: str, shipped: Mapping[str, Any], users: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the complete, checked profile ``name``.

    :param shipped: the collection's profiles, name to raw mapping.
    :param users: the inventory's ``gb10_profiles``; one with a shipped name changes the shipped one.
    :returns: every key of the schema, ``name``, ``lineage`` (names from the root to this one), and ``defaults`` of a profile without a shipped one
        below it.
    :raises ProfileError: an unknown name, a circular reference in ``extends``, an unknown key, a wrong type, a contradiction.
    """
    users = {} if users is None else users
    if not isinstance(users, Mapping):
        raise ProfileError(
            f"gb10_profiles is {shown(users)}, expected a mapping of profile names to profiles, such as {{mine: {{extends: {DEFAULT_PROFILE}}}}}"
        )
    numbers = [key for key in users if not isinstance(key, str)]
    if numbers:
        raise ProfileError(f"gb10_profiles has the key {numbers[0]}, expected a string: write it in quotes")
    raw: dict[str, Any] = {}
    layers = _layers(name, shipped, users)
    for _label, layer, from_user in layers:
        raw = _add_layer(raw, {key: value for key, value in layer.items() if key != "extends"})
        if not from_user:
            raw = _with_own_limit(raw)
    lineage = [label for label, _same in groupby(label for label, _layer, _from_user in layers)]
    profile = {"name": name, "lineage": lineage, **check(name, raw)}
    if all(from_user for _label, _layer, from_user in layers):
        profile["defaults"] = _pair_defaults(profile, [layer for _label, layer, _from_user in layers])
    return profile


def _with_own_limit(raw: dict[str, Any]) -> dict[str, Any]:
    """Let a shipped profile serve at its own utilization, which is that of its source, and no profile on top of it at more."""
    try:
        own = float(str(_at(raw, "engine", "args", "gpu-memory-utilization")))
    except ValueError:
        return raw
    limit = _at(raw, "plan", "utilization_limit")
    return merge(raw, {"plan": {"utilization_limit": own}}) if own > (PRACTICAL if limit is None else limit) else raw


def _pair_defaults(profile: dict[str, Any], layers: list[Mapping[str, Any]]) -> list[str]:
    """Set what every pair needs where no layer names it. Return the keys that were set, as paths."""
    named = {key for layer in layers for table in ("env", "head_env", "worker_env") for key in _at(layer, table) or {}}
    flags = {str(key).replace("_", "-").partition(".")[0] for layer in layers for key in _at(layer, "engine", "args") or {}}
    args = profile["engine"]["args"]
    managed = profile["model"]["relative_path"] and store_mount(profile)  # the container reads what the role weights proves
    wanted = {**PAIR_ENV, **(OFFLINE_ENV if managed else {})}
    added = {key: value for key, value in wanted.items() if key not in named}
    profile["env"] = {**profile["env"], **added}
    out = [f"env.{key}" for key in added]
    if THINKING_FLAG not in flags and THINKING_FAMILY in (args.get("tokenizer-mode"), args.get("reasoning-parser")):
        args[THINKING_FLAG] = dict(THINKING)
        out.append(f"engine.args.{THINKING_FLAG}")
    return out


def adjusted(profile: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved ``profile`` with one more layer on it, checked again, as if a profile extended it.

    What was derived from an argument (the gate's context, for one) follows the layer's argument.

    :raises ProfileError: as :func:`resolve` does.
    """
    base = merge({}, {key: value for key, value in profile.items() if key not in ADDED})
    of_mods = {key: profile["image"][key] for key in OF_MODS if base["image"].pop(key, None)}
    args, gate = base["engine"].get("args", {}), base["gate"]
    method = values.speculation(args).get("method")
    for key, value in (("context", human_int(args.get("max-model-len"))), ("kv_cache_dtype", args.get("kv-cache-dtype")), ("speculative_method", method)):
        if value is not None and gate.get(key) == value:
            del gate[key]
    checked = check(str(profile["name"]), _add_layer(base, layer))
    checked["image"].update(of_mods)
    return {**{key: profile[key] for key in ADDED if key in profile}, **checked}
