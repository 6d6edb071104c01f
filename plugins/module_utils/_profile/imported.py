# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile that is made of a recipe, with what became of each leaf of the recipe: image, engine, environment, model store. Pure.

Each leaf ends in one of three lists: mapped to a key of the profile, set by the collection, or not mapped with the reason. What no rule has read is
added to the last list by `Imported.close`, so nothing is lost. A secret is named, and its value is nowhere.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import holds_secret, redact, without
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import FABRIC_ENV
from ansible_collections.gb10.cluster.plugins.module_utils._profile.script import RecipeError, Script, Text, marks, one_line, shown_marks
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import SIZE

HUB = "/root/.cache/huggingface"
STORE, CACHE = "{model_store}", "{model_store}/vllm-cache"
SHORTEST = 8  # characters of a secret that is looked for within other values
HIDDEN = "is or contains a secret, and a profile must not: set it in vllm_tp2_secret_env (an API key in vllm_tp2_api_key)"
RANK = "the role sets it for each rank"
SETS = "the role sets it"
INFORMS = "informs only"
NO_KEY = "a profile has no key for it"
HOST_MOUNT = "a mount of the host: add it to container.volumes if the engine needs it"
ROLE_ENV = dict.fromkeys((*FABRIC_ENV, "NODE_RANK", "HEADLESS", "MASTER_ADDR", "MASTER_PORT"), RANK)
HUB_ENV = dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"), "HF_HOME and the model store decide")
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "the role weights proves the weights before a start, so nothing is looked up")
# Keys of a container whose place the role has taken, and why other keys are not mapped.
ROLE_KEYS = (
    "network_mode", "gpus", "deploy", "runtime", "restart", "container_name", "hostname", "logging", "healthcheck", "labels", "pull_policy", "ipc",
    "network", "networks", "tty", "stdin_open", "interactive", "init", "detach", "rm", "auto_remove", "restart_policy", "gpu_access_mode",
)  # fmt: skip
REASONS = {
    "privileged": "the role drops all capabilities but IPC_LOCK",
    "cap_add": "the role drops all capabilities but IPC_LOCK: container.cap_add has more",
    "security_opt": "the role sets no-new-privileges",
    "build_args": "arguments of its build script: build the image with them, or write them into images/NAME/Dockerfile and set image.build: NAME",
    "builder": "the tool that builds the image: see image.build",
    "builder_config": "the tool that builds the image: see image.build",
    "metadata": "informs only, but for a description",
    "pre_exec": "commands in the container before the start: put them into a folder with run.sh, and name it in image.mods",
    "post_exec": "commands in the container after the start",
    "post_commands": "commands on the controller after the start",
    "benchmark": "use playbooks/smoke.yml and sanity.yml",
    "runtime_cache": "the profile's container.cache_dirs",
    "working_dir": "the image decides, and relative paths of the arguments start there",
    "user": "the image decides",
    "depends_on": "another service, which the profile does not start",
    "include": "another file: import it by itself for its services",
    "profiles": "only names when Compose starts the service",
    **dict.fromkeys(("recipe_version", "sparkrun_version", "runtime_version", "version", "maintainer", "stop_after_post"), INFORMS),
}
# Arguments that name a file or another model, which the user has to copy to the nodes.
FILE_FLAGS = ("chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "tokenizer", "hf-config-path", "lora-modules", "logits-processors")
FILE = re.compile(r"(?:/workspace/|/tmp/)\S*|[\w./~-]*\.(?:jinja2?|py|json|ya?ml|so|txt|patch|sh)")


def text_of(value: Any) -> str:
    """Return a value of YAML as an environment or a command line has it."""
    if isinstance(value, (dict, list)):
        return json.dumps(typed(value))
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def typed(value: Any) -> Any:
    """Return a structure of YAML with the numbers and booleans that its file has without quotes."""
    if isinstance(value, Mapping):
        return {str(key): typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    if isinstance(value, Text) and value.plain:
        if re.fullmatch(r"(?i)true|false", value):
            return value.lower() == "true"
        if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:[eE][-+]?\d+)?", value):
            return json.loads(value)
    return str(value) if isinstance(value, Text) else value


def is_true(value: Any) -> bool:
    """Tell whether a value of YAML means yes."""
    return text_of(value).lower() in ("true", "yes", "on", "1")


def slug(text: str) -> str:
    """Return a name for a profile."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60].strip("-.")


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of a recipe, empty if it has none."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RecipeError(f"{key} is not a mapping, expected names and values")
    return value


def items(value: Any) -> list[Any]:
    """Return a list of a recipe; a single value is a list of one."""
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def leaves(data: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each value that is not empty."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from leaves(value, f"{path}[{index}]")
    elif path and data not in (None, {}, []):
        yield path


@dataclass
class Imported:
    """A profile and what became of each leaf of the input: (field, key of the profile or reason)."""

    kind: str
    name: str
    profile: dict[str, Any] = field(default_factory=dict)
    mapped: list[tuple[str, str]] = field(default_factory=list)
    decided: list[tuple[str, str]] = field(default_factory=list)
    unmapped: list[tuple[str, str]] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)  # values, which must be nowhere

    def close(self, data: Mapping[str, Any]) -> None:
        """List each leaf of the input that no list has yet, and remove secrets and marks."""
        listed = {name.split(" ")[0] for each in (self.mapped, self.decided, self.unmapped) for name, _text in each}

        def covered(leaf: str) -> bool:
            return leaf in listed or any(leaf.startswith((f"{each}.", f"{each}[")) for each in listed)

        for leaf in leaves(data):
            top = re.split(r"[.\[]", leaf)[0]
            if covered(leaf):
                continue
            whole = not any(each.startswith((f"{top}.", f"{top}[")) for each in listed)
            name = top if whole else leaf
            reason = SETS if top in ROLE_KEYS else INFORMS if top.startswith("x-") else REASONS.get(top, NO_KEY)
            (self.decided if top in ROLE_KEYS else self.unmapped).append((name, reason))
            listed.add(name)
        for each in (self.mapped, self.decided, self.unmapped):
            each[:] = [(one_line(shown_marks(name)), one_line(shown_marks(text))) for name, text in dict(each).items()]
        known = {value for value in self.secrets if len(value) >= SHORTEST}
        self.profile = without(self.profile, known)
        for each in (self.mapped, self.decided, self.unmapped):
            each[:] = [(redact(name, known), redact(text, known)) for name, text in each]

    def hides(self, key: str, value: Any) -> bool:
        """Tell whether a field is a secret or contains one."""
        text = text_of(value)
        return holds_secret(key, text or "x") or any(secret in text for secret in self.secrets if len(secret) >= SHORTEST)

    def collect_secrets(self, values: Mapping[str, Any]) -> None:
        """Remember the secrets of an environment, so that no other field carries them."""
        self.secrets |= {text_of(value) for key, value in values.items() if value and holds_secret(str(key), value)}

    def set_environment(self, source: str, values: Mapping[str, Any], table: str = "env") -> None:
        """Take an environment, but for secrets, for what the role decides and for what differs between the nodes."""
        for key, value in values.items():
            where, text = f"{source}.{key}", text_of(value)
            reason = ROLE_ENV.get(str(key)) or HUB_ENV.get(str(key)) or ("" if text not in ("", "0") else OFFLINE.get(str(key), ""))
            if key == "NCCL_DEBUG" and text in ("WARN", "VERSION", ""):
                reason = "NCCL names its transport at level INFO, and the gate reads it: the collection's default is INFO"
            address = re.fullmatch(r"(?!0\.0\.0\.0|127\.)\d+\.\d+\.\d+\.\d+", text) or re.fullmatch(r"(?:.*_)?RANK", str(key))
            if self.hides(str(key), text):
                self.unmapped.append((where, HIDDEN))
            elif reason:
                self.decided.append((where, reason))
            elif value is None:
                self.unmapped.append((where, "its value comes from the environment of the host"))
            elif marks(text):
                self.unmapped.append((where, f"{shown_marks(text)} has no value here: set env.{key}, or head_env and worker_env if the nodes differ"))
            elif address and table == "env":
                self.unmapped.append((where, f"{text} is that of one node: set it in head_env and worker_env if the engine needs it"))
            else:
                self.profile.setdefault(table, {})[str(key)] = text
                self.mapped.append((where, f"{table}.{key}"))
            if key == "MASTER_PORT" and text.isdigit():
                self.profile["engine"]["master_port"] = int(text)

    def list_script(self, script: Script) -> None:
        """Take what a script does next to the engine's command. The words of other commands can contain anything, so only the first is named."""
        self.set_environment("command: export", script.exported)
        for key in script.exported:
            if key.endswith("PATH") and key in self.profile["env"]:
                self.unmapped.append((f"command: export.{key} (the image's own {key})", f"it is not known: env.{key} replaces it. Compare with the image"))
        why = "a command next to the engine: put what the engine needs into the image"
        self.unmapped += [(f"command: {slug(posixpath.basename(each[0])) or 'a command'}", why) for each in script.others if not _harmless(each)]
        for each in filter(_harmless, script.others):
            ray = each[0] == "ray"
            self.decided.append((f"command: {' '.join(each) if ray else each[0]}", "the role starts Ray" if ray else "the profile needs it not"))
        self.decided += [(f"command: > {target}", "the container's log has what the engine prints") for target in script.redirections if target != "1"]
        long = [each for each in script.comments if " --" in each]
        self.unmapped += [(f"command: {one_line(each)[:60]}", "a comment of the script") for each in long]
        self.unmapped += [(f"command: unset {key}", "the engine gets no such variable") for key in script.removed]


def _harmless(words: list[str]) -> bool:
    return words[:2] == ["ray", "start"] or words[0] in ("set", "ulimit", "trap", "wait", "true", ":", "echo", "printf", "sleep", "sync", "tee", "cd")


def new_import(kind: str, name: str, summary: str) -> Imported:
    """Return a profile without what only the recipe knows."""
    line = one_line(summary)
    return Imported(kind, slug(name), {
        "summary": line if len(line) <= 200 else line[:197] + "...", "sources": [], "notes": ["Not run by the authors of gb10.cluster."], "deviations": [],
        "ranks": {}, "image": {}, "model": {}, "engine": {"executor": "mp", "args": {}}, "env": {}, "container": {}, "gate": {"transport": "rdma"},
    })  # fmt: skip


def need(where: str, text: str) -> str:
    """Return the text. Raise RecipeError if a variable in it has no value."""
    for name, message in marks(text).items():
        more = f" ({message})" if message else ""
        remedy = f"Add {name}=VALUE to .env next to the recipe, or give the file with -e env_file=FILE"
        raise RecipeError(f"{where} takes the variable {name}, which has no value{more}. {remedy}")
    return text


def set_image(out: Imported, source: str, text: str) -> None:
    """Take the image. One with a slash in its name is in a registry, one without is built or loaded."""
    reference, at, digest = need(source, text).partition("@")
    if not reference:
        raise RecipeError(f"{source} is missing, expected the name of an image")
    if "://" in text or "/" in digest:  # user:password@registry/name
        raise RecipeError(f"{source} is an address, expected the name of an image without https:// and without a login")
    out.profile["image"].update(reference=reference, **({"digest": digest} if at else {}), pull="/" in reference)
    out.mapped.append((source, "image.reference"))
    if "/" not in reference:
        why = "no registry has it by this name: build or load it on each node, or write images/NAME/Dockerfile and set image.build: NAME"
        out.unmapped.append((f"{source} {reference}", why))


def set_size(out: Imported, source: str, key: str, value: Any) -> None:
    """Set a size of the container, if it is one."""
    if re.fullmatch(SIZE, text_of(value)):
        out.profile["container"][key] = text_of(value)
        out.mapped.append((source, f"container.{key}"))
    elif value is not None:
        out.unmapped.append((source, f"its value is not a size that container.{key} takes, such as 16g"))


def set_store(out: Imported, volumes: list[tuple[str, str, str, bool]]) -> None:
    """Mount the model store read-only where the recipe mounts its models, and the compile caches apart.

    :param volumes: (field, source, path in the container, whether it is read-only) of each mount.
    """
    env, path, box = out.profile["env"], out.profile["model"]["path"], out.profile["container"]
    given, targets = set(env), [target for _where, _source, target, _ro in volumes]
    home = env.get("HF_HOME") or next((target for target in targets if "huggingface" in target), HUB)
    models = [path, *([out.profile["drafter"]["path"]] if "drafter" in out.profile else [])]
    if path.startswith("/"):
        above = [target for target in targets if path.startswith(target.rstrip("/") + "/")]
        home = max(above, key=len) if above else posixpath.dirname(path.rstrip("/"))
        common = posixpath.commonpath([each for each in models if each.startswith("/")])
        home = home if all(each.startswith(home + "/") for each in models if each.startswith("/")) else common if common not in models else home
    else:
        env.setdefault("HF_HOME", home)
    cache = env.setdefault("VLLM_CACHE_ROOT", "/root/.cache/vllm" if "/root/.cache/vllm" in targets or home == "/" else f"{home}/vllm-cache")
    # A mount below a read-only one needs a folder of its name there.
    on_node = f"{STORE}/{cache[len(home) + 1 :]}" if home != "/" and cache.startswith(home + "/") else CACHE
    env.setdefault("HF_MODULES_CACHE", f"{cache}/modules")
    own = [(f"{STORE}:{home}:ro")] if home != "/" else []
    for key in ("model", "drafter") if home == "/" else ():  # a folder at the top, such as /model
        given_path = out.profile.get(key, {}).get("path", "")
        if given_path.startswith("/"):
            source = next((source for _where, source, target, _ro in volumes if target == given_path.rstrip("/") and not marks(source)), given_path)
            out.profile[key]["relative_path"] = posixpath.basename(source.rstrip("/"))
            own.append(f"{STORE}/{out.profile[key]['relative_path']}:{given_path.rstrip('/')}:ro")
    box.update(volumes=[*own, f"{on_node}:{cache}"], cache_dirs=[on_node])
    keys = ["container.volumes", "container.cache_dirs", *(f"env.{key}" for key in env if key not in given), "gate.transport"]
    why = "The container reads the weights below gb10_model_store and cannot change them. It writes its compile caches and the model's Python modules apart."
    out.profile["deviations"] = [{"keys": keys, "original": None, "why": why}]
    texts = [text_of(each) for table in (out.profile["engine"]["args"], env) for each in table.values()]
    for where, source, target, _ro in volumes:
        named = bool(source) and not source.startswith((".", "/", "~", "\ue000"))
        if target in (home, *(each.rstrip("/") for each in models)) or home.startswith(target.rstrip("/") + "/"):
            out.mapped.append((where, "container.volumes: gb10_model_store, read-only"))
        elif target == cache:
            out.mapped.append((where, "container.volumes: the compile caches below gb10_model_store"))
        elif re.search(r"cache|/\.triton|/\.nv\b|flashinfer|tilelang|inductor", target) and not target.startswith(home + "/"):
            folder = f"{STORE}/{slug(target)}"
            box["volumes"].append(f"{folder}:{target}")
            box["cache_dirs"].append(folder)
            out.mapped.append((where, "container.cache_dirs"))
        elif source.startswith("/") and not marks(source) and any(target in text for text in texts):
            box["volumes"].append(f"{source}:{target}:ro")
            out.mapped.append((where, f"container.volumes, read-only: {source} must be on each node"))
        elif not named:
            near = "a file of the recipe's folder, which the nodes do not have: bring it into the image, or copy it and add a volume"
            out.unmapped.append((f"{where} {target}", near if source.startswith((".", "\ue000PWD")) else HOST_MOUNT))
        if named:
            why = "a volume of Docker, whose content is not taken over: the profile mounts folders of the nodes"
            out.unmapped.append((f"{where} {source} (named volume)", why))
    _list_files(out, home, [volume.split(":")[1] for volume in box["volumes"][1:]])


def _list_files(out: Imported, home: str, mounted: list[str]) -> None:
    """List the files and models that the engine needs and the profile does not bring."""
    args, model = out.profile["engine"]["args"], out.profile["model"]["path"]
    named = [(f"--{flag}", text_of(each)) for flag in FILE_FLAGS for each in items(args.get(flag)) if text_of(each) != model and "{%" not in text_of(each)]
    named += [(f"env.{key}", value) for key, value in out.profile["env"].items() if FILE.fullmatch(value)]
    named += [(f"--{flag}", text_of(each)) for flag, value in args.items() if flag not in FILE_FLAGS for each in items(value) if FILE.fullmatch(text_of(each))]
    for where, text in named:
        if any(text.startswith(each.rstrip("/") + "/") or text == each for each in mounted):
            continue
        with_mods = "mods" in out.profile["image"] or any(each.startswith("mods") for each, _why in out.unmapped)
        mods = " (a mod of the recipe may make it: see image.mods)" if with_mods else ""
        below = f"it must be below gb10_model_store on each node, because {home} is mounted from there" if text.startswith(home + "/") else ""
        other = "it must be downloaded into gb10_model_store as well" if where == "--tokenizer" and not text.startswith("/") else ""
        out.unmapped.append((f"file {text} ({where})", below or other or f"the profile does not bring it: it must be in the image{mods}"))
