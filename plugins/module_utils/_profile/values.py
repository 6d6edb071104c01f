# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the values of a profile mean, whose keys are in profiles/schema/profile.yml: models, mounts, and what the collection adds to every profile. Pure.

It imports little, because every playbook begins with it.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

# The fewest steps to a first boot: an image and weights that are downloaded, both pinned (docs/reference/profiles.md).
DEFAULT_PROFILE = "b12x-fp8-1m"

# Arguments that the collection writes itself, and the placeholder that puts them at a source's place in the order.
PLACEHOLDERS = {
    "served-model-name": "{served_names}",
    "host": "{host}",
    "port": "{port}",
    "tensor-parallel-size": "{ranks}",
    "distributed-executor-backend": "{executor}",
    "nnodes": "{ranks}",
    "node-rank": "{rank}",
    "master-addr": "{master_addr}",
    "master-port": "{master_port}",
    "headless": "{headless}",
}

SIZE = r"\d+[bkmgBKMG][bB]?"
# vLLM reads the key from VLLM_API_KEY; a key in a profile would end in compose files, process lists and logs.
SECRET_ARGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}


def human_int(value: object) -> int | None:
    """Read a count as vLLM does: 200000, "200000", "200k" (1000), "512K" (1024), "1M", "1m"; None when it is not one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", value.strip()) if isinstance(value, str) else None
    if not match:
        return None
    number, unit = match.groups()
    if "." in number and (not unit or unit.isupper()):
        return None
    factor = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[unit]
    return int(float(number) * factor) if "." in number else int(number) * factor


def store_mount(profile: Mapping[str, Any]) -> str | None:
    """Return the container path where ``{model_store}`` itself is mounted, or None."""
    mounts = (volume.split(":") for volume in profile["container"]["volumes"])
    return next((str(parts[1]) for parts in mounts if parts[0] == "{model_store}" and len(parts) > 1), None)


def group_fault(profile: Mapping[str, Any], size: int) -> str:
    """Return why a serving group of this many ranks cannot run a profile; empty if it can."""
    name, args, limits = profile["name"], profile["engine"]["args"], profile["ranks"]
    if size < limits["min"] or (limits["max"] is not None and size > limits["max"]):
        more = " or more" if limits["max"] is None else "" if limits["max"] == limits["min"] else f" to {limits['max']}"
        wanted = f"{limits['min']}{more}"
        remedy = "add hosts to the group" if size < limits["min"] else "remove hosts from the group"
        ranks = "rank" if wanted == "1" else "ranks"
        return f"profile {name} is made for {wanted} {ranks}, but the serving group has {size}: {remedy} or choose another profile"
    literal = args.get("tensor-parallel-size")
    tensor = size if literal in (None, PLACEHOLDERS["tensor-parallel-size"]) else human_int(literal)
    pipeline, data = (human_int(args.get(key, 1)) for key in ("pipeline-parallel-size", "data-parallel-size"))
    if None in (tensor, pipeline, data):
        return ""  # vLLM checks the value
    world = (tensor or 1) * (pipeline or 1)
    if world == size or data != 1:
        return ""
    return (
        f"profile {name}: tensor-parallel-size {tensor} x pipeline-parallel-size {pipeline} is {world}, but the serving group has {size} nodes "
        "with one GPU each: make them equal"
    )


def port_fault(profile: Mapping[str, Any], ssh_port: Any) -> tuple[str, str]:
    """Return the key of a port that two use on the head, and the sentence; empty if each port has one user."""
    engine = profile["engine"]
    ports = [("SSH (ansible_port)", "", ssh_port), ("the API", "engine.api.port", engine["api"]["port"]),
             ("the ranks' rendezvous", "engine.master_port", engine["master_port"])]  # fmt: skip
    if engine["executor"] == "ray":
        ports.append(("Ray", "engine.ray.port", engine["ray"]["port"]))
    seen: dict[int, str] = {}
    for user, key, port in ports:
        if int(port) in seen:
            return key, f"port {int(port)} is used by {seen[int(port)]} and by {user} ({key})"
        seen[int(port)] = f"{user} ({key})" if key else user
    return "", ""


# --- The models of a profile: the one that is served, and the drafter, a model of its own that ``speculative-config`` names; and the mounts of a rank, with
# those through which its engine could change the weights that the next boot loads.

DRAFTER_FLAG = "speculative-config"
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
        if _flag(key) == DRAFTER_FLAG:
            name = str(key).partition(".")[2]
            out.update({name: value} if name else _table(value))
    return out


def drafter_path(args: Any) -> str:
    """Return the model that the speculative configuration names; empty if it names none."""
    config = speculation(args)
    model = config.get("model")
    return "" if not isinstance(model, str) or {model, config.get("method")} & set(WITHOUT_MODEL) else model.rstrip("/")


def models_of(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the model and the drafter of a resolved profile."""
    return [profile["model"], *([profile["drafter"]] if profile["drafter"] else [])]


def drafter_arguments(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine.args with the drafter's revision, which is to the drafter what ``--revision`` is to the model."""
    args, drafter = dict(profile["engine"]["args"]), profile["drafter"]
    if not drafter or not drafter["revision"] or "revision" in speculation(args):
        return args
    whole = next((key for key, value in args.items() if key.replace("_", "-") == DRAFTER_FLAG and value), "")
    return {**args, **({whole: {**_table(args[whole]), "revision": drafter["revision"]}} if whole else {f"{DRAFTER_FLAG}.revision": drafter["revision"]})}


def derive_model(model: dict[str, Any], mount: str | None) -> None:
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
    if named not in ("", *(model["path"].rstrip("/") for model in models_of(profile))):
        key = next(key for key in args if _flag(key) == DRAFTER_FLAG)
        name = "/".join(named.strip("/").split("/")[-2:])
        note(
            f"engine.args.{key}",
            f"names the model {named!r}, which is neither model.path nor drafter.path, so no role brings it to the ranks; "
            f"add drafter: {{id: {name}, revision: <commit>, path: {named}}}, or correct the two paths",
        )
    elif drafter and named != drafter["path"].rstrip("/"):
        note(
            "drafter.path",
            f"is {drafter['path']!r}, which speculative-config does not name; set "
            f"engine.args.{DRAFTER_FLAG}: {{model: {drafter['path']}, ...}}, or drafter: null",
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


def volumes_on_node(profile: Mapping[str, Any], store: str) -> list[str]:
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
    volumes = [[*volume.split(":"), ""] for volume in volumes_on_node(profile, store)]
    mounts = [(_clean(host), _clean(there), modes.split(",")) for host, there, modes, *_rest in volumes]
    protected = [_clean(store)]
    for model in models_of(profile):
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


def tool_volumes(profile: Mapping[str, Any], store: str) -> list[str]:
    """Return the read-only volumes of a profile that hold neither a model nor anything else of the model store: programs, and patches of them."""
    out, paths = [], [_clean(each["path"]) for each in models_of(profile) if each["path"].startswith("/")]
    for volume in volumes_on_node(profile, store):
        host, there, modes = [*volume.split(":"), ""][:3]
        of_store = _covers(_clean(store), _clean(host)) or _covers(_clean(host), _clean(store))
        if "ro" in modes.split(",") and not of_store and not any(_covers(_clean(there), each) for each in paths):
            out.append(volume)
    return out


# --- What the collection adds to every profile: a compile cache on the node for each image and shape, vLLM's own time limits, and where NCCL prints.
# A cache folder is mounted from ``<cache dir>-<key>``. Another image or another shape has another folder, so that a stale artifact is never read and a
# rollback finds its warm cache. The key is a part of a path that no container can write.

#: Variables of compile caches: the folder below the mounted cache (empty: the cache itself), and where the variable is read.
CACHE_VARIABLES: dict[str, tuple[str, str]] = {
    "VLLM_CACHE_ROOT": ("", "vLLM, vllm/envs.py: torch.compile artifacts, FlashInfer autotune results, class of the model"),
    "TRITON_CACHE_DIR": ("triton", "Triton, python/triton/knobs.py; with AOT compilation vLLM does not set it"),
    "TORCHINDUCTOR_CACHE_DIR": ("inductor", "PyTorch, torch/_inductor/runtime/cache_dir_utils.py; vLLM replaces it while it compiles the model"),
    "TILELANG_CACHE_DIR": ("tilelang", "TileLang, tilelang/env.py"),
    "FLASHINFER_WORKSPACE_BASE": ("flashinfer", "FlashInfer, flashinfer/jit/env.py; FLASHINFER_JIT_DIR is derived from it and is not a variable"),
    "CUTE_DSL_CACHE_DIR": ("cute", "CUTLASS CuTe DSL"),
    "B12X_CUTE_COMPILE_CACHE_DIR": ("b12x", "B12X (FujitsuPolycom/sparkring#185)"),
    "DG_JIT_CACHE_DIR": ("deep_gemm", "DeepGEMM; without the folder it keeps no kernel (vllm-project/vllm#39913)"),
    "CUDA_CACHE_PATH": ("cuda", "CUDA driver: what it compiles from PTX"),
}
#: vLLM's own limits, vllm/envs.py, in seconds: the phases of ``launch.phase_seconds`` that are added up, vLLM's default, and what the limit ends.
#: A kernel that is compiled during a request took longer than 300 s on a pair (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#65).
TIME_LIMITS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "VLLM_ENGINE_READY_TIMEOUT_S": (("rendezvous", "load", "init"), 600, "the start of the engine"),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": (("init",), 300, "one step of the model on all ranks, also if it compiles a kernel"),
}
#: Added to a profile that sets NCCL_DEBUG. NCCL buffers standard output by block, so that the last lines of an engine that hangs would not be in its log.
#: It opens this file with "w" in each process, buffers it by line, and keeps standard output if it cannot. The streams of a container are pipes of the
#: container's user: another user than root can open them, and no process truncates what another one has printed.
NCCL_LOG = {"NCCL_DEBUG_FILE": "/dev/stderr"}
#: Arguments that change no kernel: addresses, names, parsing and sampling of requests, the size of the pool. Any other one changes the key.
NOT_IN_KEY = (
    "served-model-name", "host", "port", "master-addr", "master-port", "node-rank", "headless", "api-key", "distributed-executor-backend",
    "tool-call-parser", "enable-auto-tool-choice", "reasoning-parser", "reasoning-config", "chat-template", "chat-template-content-format",
    "default-chat-template-kwargs", "generation-config", "override-generation-config", "tokenizer-mode", "enable-prefix-caching",
    "gpu-memory-utilization", "kv-cache-memory-bytes", "kv-cache-memory", "num-gpu-blocks-override", "load-format", "safetensors-load-strategy",
    "model-loader-extra-config", "seed", "revision", "disable-log-requests", "enable-log-requests", "disable-log-stats", "enable-force-include-usage",
)  # fmt: skip
#: Variables that can change a kernel begin so.
SHAPING = ("VLLM_", "B12X_", "TORCH", "PYTORCH_", "TRITON_", "TILELANG_", "FLASHINFER_", "CUTE_", "DG_", "CUDA_")
NOT_SHAPING = ("VLLM_HOST_IP", "VLLM_API_KEY", "VLLM_LOGGING_", "VLLM_NO_USAGE_STATS", "VLLM_CPU_KVCACHE_SPACE", *CACHE_VARIABLES, *TIME_LIMITS)


def _shaping(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in env.items() if name.startswith(SHAPING) and not name.startswith(NOT_SHAPING)}


def cache_key(profile: Mapping[str, Any], size: int, image: str, extra_env: Mapping[str, Any]) -> str:
    """Return the key of a group's compile cache: 12 hexadecimal digits of image, model, number of ranks, arguments and variables.

    It is the same on all ranks, unless the user's environment differs between them.
    """
    args = {flag: value for flag, value in profile["engine"]["args"].items() if flag not in NOT_IN_KEY and value not in (None, False)}
    env = [_shaping(table) for table in (profile["env"], profile["head_env"], profile["worker_env"], extra_env)]
    model = [profile["model"]["id"], profile["model"]["path"], profile["model"]["revision"]]
    drafter = [[profile["drafter"][name] for name in ("id", "path", "revision")]] if profile["drafter"] else []
    content = json.dumps([image, model, size, args, env, *drafter], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def with_cache_key(path: str, caches: list[str], name: str) -> str:
    """Return a path on the node that is a cache or below one, with the key: ``<cache>-<key>``. Others stay as they are."""
    for cache in sorted(caches, key=len, reverse=True):
        if (path + "/").startswith(cache + "/"):
            return f"{cache}-{name}{path[len(cache) :]}"
    return path


def cache_place(profile: Mapping[str, Any]) -> str:
    """Return where the first compile cache is in the container; empty if it is not mounted, or read-only."""
    for cache in profile["container"]["cache_dirs"]:
        for volume in profile["container"]["volumes"]:
            host, there, *modes = volume.split(":")
            if host.rstrip("/") == cache.rstrip("/") and "ro" not in ",".join(modes).split(","):
                return str(there.rstrip("/"))
    return ""


def added_environment(profile: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the collection adds. A profile that sets one of them, also to null, keeps its own."""
    where, seconds = cache_place(profile), profile["launch"]["phase_seconds"]
    added = {name: f"{where}/{folder}".rstrip("/") for name, (folder, _source) in CACHE_VARIABLES.items() if where}
    added.update({name: str(sum(seconds[phase] for phase in phases)) for name, (phases, _default, _ends) in TIME_LIMITS.items()})
    own = {*profile["env"], *profile["head_env"], *profile["worker_env"]}
    if "NCCL_DEBUG" in own and profile["engine"]["executor"] != "ray":  # Ray gives its workers log files, which "w" would truncate
        added.update(NCCL_LOG)
    return {name: value for name, value in added.items() if name not in own}
