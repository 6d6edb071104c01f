# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The models of a profile: the one that is served, and the drafter, a model of its own that ``speculative-config`` names; and the mounts of a rank,
with those through which its engine could change the weights that the next boot loads. Pure.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

FLAG = "speculative-config"
#: Methods of vLLM (vllm/config/speculative.py) that load no model. ``model`` repeats the method, or names a class.
WITHOUT_MODEL = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class")


def _flag(key: Any) -> str:
    """Return the flag of a key of engine.args, without what follows a dot."""
    return str(key).partition(".")[0].replace("_", "-")


def _table(value: Any) -> dict[str, Any]:
    """Return a speculative configuration that is a mapping, or JSON; empty for another value."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def speculation(args: Any) -> dict[str, Any]:
    """Return the speculative configuration of engine.args, which can be a mapping, JSON, or keys with a dot; empty without one."""
    out: dict[str, Any] = {}
    for key, value in args.items() if isinstance(args, Mapping) else ():
        if _flag(key) == FLAG:
            name = str(key).partition(".")[2]
            out.update({name: value} if name else _table(value))
    return out


def drafter_path(args: Any) -> str:
    """Return the model that the speculative configuration names; empty if it names none."""
    config = speculation(args)
    model = config.get("model")
    return "" if not isinstance(model, str) or {model, config.get("method")} & set(WITHOUT_MODEL) else model.rstrip("/")


def all_of(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the model and the drafter of a resolved profile."""
    return [profile["model"], *([profile["drafter"]] if profile["drafter"] else [])]


def arguments(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine.args with the drafter's revision, which is to the drafter what ``--revision`` is to the model."""
    args, drafter = dict(profile["engine"]["args"]), profile["drafter"]
    if not drafter or not drafter["revision"] or "revision" in speculation(args):
        return args
    whole = next((key for key, value in args.items() if key.replace("_", "-") == FLAG and value), "")
    return {**args, **({whole: {**_table(args[whole]), "revision": drafter["revision"]}} if whole else {f"{FLAG}.revision": drafter["revision"]})}


def derive(model: dict[str, Any], mount: str | None) -> None:
    """Fill the layout of a model and its path below the model store, which the container sees at `mount`."""
    path = model["path"]
    if model["layout"] is None:
        model["layout"] = "directory" if path.startswith("/") else "hub"
    if model["relative_path"] is None:
        if model["layout"] == "hub":
            model["relative_path"] = "hub/models--" + model["id"].replace("/", "--")
        elif mount is not None and (path + "/").startswith(mount.rstrip("/") + "/"):
            model["relative_path"] = path[len(mount.rstrip("/")) :].strip("/")


def check_drafter(profile: Mapping[str, Any], note: Any) -> None:
    """Refuse a drafter that no role would bring to the ranks, or that the engine does not load or see."""
    args, drafter = profile["engine"]["args"], profile["drafter"]
    named = drafter_path(args)
    if named not in ("", *(model["path"].rstrip("/") for model in all_of(profile))):
        key = next(key for key in args if _flag(key) == FLAG)
        name = "/".join(named.strip("/").split("/")[-2:])
        note(
            f"engine.args.{key}",
            f"names the model {named!r}, which is neither model.path nor drafter.path, so no role brings it to the ranks; "
            f"add drafter: {{id: {name}, revision: <commit>, path: {named}}}, or correct the two paths",
        )
    elif drafter and named != drafter["path"].rstrip("/"):
        note(
            "drafter.path",
            f"is {drafter['path']!r}, which speculative-config does not name; set engine.args.{FLAG}: {{model: {drafter['path']}, ...}}, or drafter: null",
        )
    volumes = [volume.split(":") for volume in profile["container"]["volumes"]]
    seen = drafter and any((posixpath.normpath(drafter["path"]) + "/").startswith(parts[1].rstrip("/") + "/") for parts in volumes)
    if drafter and drafter["layout"] == "directory" and not (seen and drafter["relative_path"]):
        note(
            "drafter.path",
            f"is {drafter['path']!r}, which is not below a mount of the model store, so the container does not see the files that the role weights brings; "
            'mount "{model_store}:/models:ro" in container.volumes, and write a path below /models',
        )


def weights_gib(profile: Mapping[str, Any], ranks: int) -> float | None:
    """Return the weights on each rank, GiB: the plan's figure, with the drafter if the boot of the plan ran without one."""
    plan, drafter = profile["plan"], profile["drafter"]
    measured, size = plan["weights_gib_per_rank"], (drafter or {}).get("size_gib")
    if measured is None or not size or not plan["at"] or drafter_path(plan["at"]):
        return None if measured is None else float(measured)
    parts = speculation(profile["engine"]["args"]).get("draft_tensor_parallel_size")
    return float(measured) + float(size) / (parts if isinstance(parts, int) and parts > 0 else ranks)


def disk_gib(profile: Mapping[str, Any]) -> float:
    """Return the size of all models on the disk, GiB; 0 if that of the served one is not known."""
    size = profile["model"]["size_gib"]
    return round(float(size + ((profile["drafter"] or {}).get("size_gib") or 0)), 2) if size else 0.0


def on_node(profile: Mapping[str, Any], store: str) -> list[str]:
    """Return the volumes of a profile with the model store of a node."""
    return [volume.replace("{model_store}", store.rstrip("/") or "/") for volume in profile["container"]["volumes"]]


def _clean(path: str) -> str:
    """Return an absolute path as Docker reads it, without '.', '..' and repeated slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _covers(folder: str, path: str) -> bool:
    return (path + "/").startswith(folder.rstrip("/") + "/")


def writable_weights(profile: Mapping[str, Any], store: str) -> list[str]:
    """Return a sentence with the key of the profile for each volume through which the engine can change the weights.

    Such a volume is writable and mounts the model store, a folder above it, or a folder that contains a model or is a part of it.
    Folders of ``container.cache_dirs`` may be writable. Docker Compose ignores a mode that it does not know, so only ``ro`` is read-only.
    """
    volumes = [[*volume.split(":"), ""] for volume in on_node(profile, store)]
    mounts = [(_clean(host), _clean(there), modes.split(",")) for host, there, modes, *_rest in volumes]
    protected = [_clean(store)]
    for model in all_of(profile):
        if model["relative_path"]:
            protected.append(_clean(f"{store}/{model['relative_path']}"))
        if model["path"].startswith("/"):
            path = _clean(model["path"])
            seen = [(len(there), host, there) for host, there, _modes in mounts if _covers(there, path)]
            protected += [_clean(host + path[len(there.rstrip("/")) :]) for _length, host, there in [max(seen)]] if seen else []
    caches = [_clean(cache.replace("{model_store}", store)) for cache in profile["container"]["cache_dirs"]]
    out = []
    for index, (host, there, modes) in enumerate(mounts):
        if "ro" in modes and "rw" not in modes:
            continue
        if any(_covers(host, each) for each in protected) or (any(_covers(each, host) for each in protected[1:]) and host not in caches):
            written = profile["container"]["volumes"][index]
            source, target = written.split(":")[:2]
            out.append(
                f"profile {profile['name']}: container.volumes[{index}] is {written!r}, which lets the engine change the weights below {host}, "
                f"expected a read-only mount. Write '{source}:{target}:ro' and mount what the engine writes into apart, such as "
                f"'{{model_store}}/vllm-cache:{there.rstrip('/')}/vllm-cache', or set vllm_tp2_weights_writable: true"
            )
    return out


def tools(profile: Mapping[str, Any], store: str) -> list[str]:
    """Return the read-only volumes of a profile that hold neither a model nor anything else of the model store: programs, and patches of them."""
    out, paths = [], [_clean(each["path"]) for each in all_of(profile) if each["path"].startswith("/")]
    for volume in on_node(profile, store):
        host, there, modes = [*volume.split(":"), ""][:3]
        of_store = _covers(_clean(store), _clean(host)) or _covers(_clean(host), _clean(store))
        if "ro" in modes.split(",") and not of_store and not any(_covers(_clean(there), each) for each in paths):
            out.append(volume)
    return out
