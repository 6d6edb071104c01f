# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: a profile that is made of a recipe: image, engine, environment, model store. Controller only.

A field that the profile does not have is named: with what to do if the owner has to do something, else in a list. Nothing is lost without its name.
A secret is named, and its value is nowhere.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret, redact, without
from ansible_collections.gb10.cluster.plugins.module_utils._profile import values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import FABRIC_ENV
from ansible_collections.gb10.cluster.plugins.plugin_utils import recipe_source as source
from ansible_collections.gb10.cluster.plugins.plugin_utils.recipe_source import Around, Engine, RecipeError, items, mapping, pairs, program_of, text_of, unset

DOCKER = "script with docker run"
EUGR = "https://github.com/eugr/spark-vllm-docker"
MOST_ENTRIES = 5000
STORE, CACHE = "{model_store}", "{model_store}/vllm-cache"
SHORTEST = 8  # characters of a secret that is looked for within other values
HIDDEN = "is or contains a secret, and a profile must not: set it in vllm_tp2_secret_env (an API key in vllm_tp2_api_key)"
ONE_NODE = "the recipe is for one node: the profile serves the model on two nodes with tensor-parallel-size 2. Compare its other arguments"
ROLE_ENV = (
    *FABRIC_ENV, "NODE_RANK", "HEADLESS", "MASTER_ADDR", "MASTER_PORT", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE",
)  # fmt: skip
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
# Keys that a rule takes, or names by itself.
TAKEN = ("image", "command", "entrypoint", "environment", "env_file", "volumes", "shm_size", "mem_limit", "ulimits")
RECIPE_KEYS = (
    "model", "runtime", "name", "description", "mods", "command", "container", "defaults", "env", "model_revision", "executor_config", "metadata", "min_nodes",
    "max_nodes", "cluster_only",
)  # fmt: skip
# Arguments that name a file or another model, which the user has to copy to the nodes.
FILE_FLAGS = ("config", "chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "tokenizer", "hf-config-path", "lora-modules", "logits-processors")
FILE = re.compile(r"(?:/workspace/|/tmp/)\S*|[\w./~-]*\.(?:jinja2?|py|json|ya?ml|so|txt|patch|sh)")
POOLING = re.compile(r"(?i)embed|rerank|pooling|classif|reward|score|transcription|colbert|colpali|(?:^|[-_/])(?:bge|e5|gte)-")


# --- The words of an engine

SHORT_FLAGS = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "ep": "enable-expert-parallel", "cc": "compilation-config",
    "sc": "speculative-config", "q": "quantization", "n": "nnodes", "r": "node-rank", "dcp": "decode-context-parallel-size", "ac": "attention-config",
    "pcp": "prefill-context-parallel-size", "asc": "api-server-count", "dpl": "data-parallel-size-local", "dpr": "data-parallel-start-rank",
}  # fmt: skip
# Flags that never take a value, so what follows is not one.
BARE = re.compile(r"(?:no-)?(?:enable|disable|async|trust|enforce|headless|language-model-only|skip-mm|calculate-kv)(?!.*-(?:size|config|backend))[\w-]*")


def _is_flag(word: str) -> bool:
    """Tell whether a word is the name of an argument and not a negative number."""
    return bool(re.match(r"--[A-Za-z]|-[A-Za-z]", word))


def _only_unset(word: str) -> list[str]:
    """Return the names of the variables without a value that a word consists of; empty if it has anything else."""
    return [name for name in unset(word) if not re.sub(r"\$\{[^{}]*\}", "", word)]


def _value(text: str) -> Any:
    """Return a JSON object as a mapping, and digits as a number. One with null stays a text: null in a profile removes a key."""
    if text.startswith("{") and not re.search(r"[:,\[]\s*null\b", text):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return int(text) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text) else text


def arguments(words: list[str]) -> tuple[dict[str, Any], list[str], list[tuple[str, str]]]:
    """Return the arguments by flag without dashes (one without a value is true), stray words, and (field, reason) of what is not an argument."""
    args: dict[str, Any] = {}
    stray: list[str] = []
    left: list[tuple[str, str]] = []
    index = 0
    if "--" in words:
        raise RecipeError("the command has the word --, after which nothing is an argument. Remove it")
    while index < len(words):
        word, index = words[index], index + 1
        if not _is_flag(word):
            names = _only_unset(word)
            left += [(f"command: ${{{name}}}", "more arguments, which have no value here") for name in names]
            stray += [] if names else [word]
            continue
        name, sign, value = word.lstrip("-").partition("=")
        head, dot, tail = name.partition(".")
        if not word.startswith("--") and head not in SHORT_FLAGS:
            raise RecipeError(f"the argument -{name} is short, and its long form is not known here. Write it as --NAME")
        head = (head if word.startswith("--") else SHORT_FLAGS[head]).replace("_", "-")
        flag, given = head + dot + tail, [value] if sign else []
        while not sign and index < len(words) and not _is_flag(words[index]) and (not BARE.fullmatch(flag) or words[index].lower() in ("true", "false")):
            if given and _only_unset(words[index]):
                break
            given.append(words[index])
            index += 1
        left += [(f"--{flag}", "is given twice: the last value counts")] if flag in args else []
        args[flag] = True if not given else _value(given[0]) if len(given) == 1 else given
    return args, stray, left


# --- The profile


def slug(text: str) -> str:
    """Return a name for a profile."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60].strip("-.")


def need(where: str, text: str) -> str:
    """Return the text. Raise RecipeError if a variable in it has no value."""
    for name, message in unset(text).items():
        remedy = f"Add {name}=VALUE to .env next to a Compose file, or give a file of such lines with -e env_file=FILE"
        raise RecipeError(f"{where} takes the variable {name}, which has no value{f' ({message})' if message else ''}. {remedy}")
    return text


def convert(data: Any, around: Around, service: str = "") -> Imported:
    """Return the profile that a recipe describes, not checked yet.

    :param data: the content of the recipe's YAML file, or anything else if it is the text of another file.
    :param around: what is around it.
    :param service: the service or container, if it has several.
    :raises RecipeError: another format, another engine than vLLM, or something that is not data.
    """
    pending: list[Any] = [data]  # aliases of YAML can make a small file large
    for each in pending:
        pending += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
        if len(pending) > MOST_ENTRIES:
            raise RecipeError(f"it has more than {MOST_ENTRIES} entries")
    around.secrets.update(source.secrets_of(around.env))
    kind = source.kind_of(data) if isinstance(data, Mapping) else DOCKER
    if kind in (source.COMPOSE, DOCKER):
        out = _service(kind, data, around, service)
    elif not kind:
        raise RecipeError("it has neither services (Docker Compose) nor model or command (sparkrun, eugr/spark-vllm-docker)")
    elif data.get("include"):
        raise RecipeError(f"it is a change of the recipe {text_of(data['include'])}, which is not read. Import what `sparkrun export recipe` prints")
    else:
        out = _recipe(data, kind, around)
    return out.closed()


def _recipe(data: Mapping[str, Any], kind: str, around: Around) -> Imported:
    """Return the profile of a recipe of sparkrun or of eugr/spark-vllm-docker."""
    model, defaults, runtime, metadata = text_of(data.get("model")), mapping(data, "defaults"), text_of(data.get("runtime")), mapping(data, "metadata")
    if runtime and "vllm" not in runtime:
        raise RecipeError(f"runtime is {runtime!r}, and the collection serves vLLM only. Import a recipe for vLLM")
    around.secrets.update(source.secrets_of(defaults))
    box, used = source.recipe_box(data, around)
    name = text_of(data.get("name")) or model
    out = Imported(kind, posixpath.basename(name), text_of(data.get("description") or metadata.get("description") or name))
    engine = source.engine_of("engine", box, around, around.env)
    served = text_of(defaults.get("served_model_name"))
    if served and "eugr" not in kind and "--served-model-name" not in engine.words:
        engine.words = [*engine.words, "--served-model-name", served]  # as sparkrun does
        used.add("served_model_name")
    out.secrets = source.secrets_of(around.env, mapping(data, "env"), defaults, engine.environment, engine.script.values)
    out.take(engine, model)
    for index, each in enumerate(map(text_of, items(data.get("mods")))):
        folder, path = around.mod(each), each if each.startswith(("mods/", "@")) else f"mods/{each}"
        if folder:
            out.profile["image"].setdefault("mods", []).append({"path": folder})
            continue
        lines = f"{{repository: {EUGR}, commit: THE 40 DIGITS OF ITS COMMIT, path: {path}}}"
        out.note(f"mods[{index}] {each}", f"import the recipe from a checkout of its repository, or add to image.mods: {lines}")
    out.left += [f"defaults.{key}" for key in defaults if key not in used]
    if runtime == "vllm-ray":
        out.profile["engine"]["executor"] = "ray"
    if data.get("model_revision"):
        out.profile["model"]["revision"] = text_of(data["model_revision"])
    ranks, most = out.profile["ranks"], values.human_int(data.get("max_nodes")) or 0
    ranks["min"] = max(values.human_int(data.get("min_nodes")) or 1, ranks["min"])
    ranks.update({"max": most} if most > 1 else {})
    out.leave({**data, **metadata}, *RECIPE_KEYS)
    out.leave(mapping(data, "executor_config"), "shm_size", "memory_limit", "entrypoint")
    return out


def _service(kind: str, data: Any, around: Around, wanted: str) -> Imported:
    """Return the profile of a service of a Compose file, or of a container that a script starts."""
    if kind == DOCKER:
        boxes, script = source.docker_runs(around)
        around, project, left = replace(around, env={**around.env, **script.values}), "", [f"command: {words[0]}" for words, _own in script.commands]
    else:
        boxes = {str(name): source.expanded(box, around.env) for name, box in mapping(data, "services").items() if isinstance(box, Mapping)}
        project = text_of(data.get("name")) or around.folder.resolve().name
        left = [str(key) for key in data if key not in ("services", "volumes", "name")]
    engine = source.chosen(boxes, wanted, around)
    name = engine.name
    out = Imported(kind, project if project and name in ("vllm", "head") else name, "")
    out.secrets = source.secrets_of(around.env, engine.environment, engine.script.values)
    if engine.shell and not engine.script.exported:
        out.profile["engine"]["shell"] = engine.shell
    out.take(engine)
    model = out.profile["model"]["id"]
    out.profile["summary"] = f"{model}, from the service {name} of a Docker Compose file" if kind == source.COMPOSE else f"{model}, from docker run"
    out.left += [f"services.{each}" for each in boxes if each != name] + left
    out.leave(engine.box, *TAKEN, *out.profile["container"])
    return out


def _volume(volume: Any) -> tuple[str, str]:
    """Return the source and the path in the container of a volume."""
    text = text_of(volume)
    if isinstance(volume, Mapping) or ("=" in text and "," in text):  # --mount type=bind,source=/a,target=/b,readonly
        parts = pairs(volume if isinstance(volume, Mapping) else text.split(","))
        found, target = (next((parts[key] for key in keys if parts.get(key)), "") for keys in (("source", "src"), ("target", "destination", "dst")))
    else:
        found, target = [*text.split(":"), ""][:2]
    return text_of(found), text_of(target or found).rstrip("/") or "/"


@dataclass
class Imported:
    """A profile, (field, what to do) of what it does not have, and the other fields that it does not have."""

    kind: str
    name: str
    summary: str
    left: list[str] = field(default_factory=list)
    unmapped: list[tuple[str, str]] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)  # values, which must be nowhere
    profile: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = slug(self.name)
        self.profile = {
            "summary": self.summary, "sources": [], "notes": ["Not run by the authors of gb10.cluster."], "deviations": [],
            "ranks": {}, "image": {}, "model": {}, "engine": {"executor": "mp", "args": {}}, "env": {}, "container": {}, "gate": {"transport": "rdma"},
        }  # fmt: skip

    def note(self, where: str, why: str) -> None:
        """List a field that the profile does not have."""
        self.unmapped.append((where, why))

    def leave(self, given: Mapping[str, Any], *taken: str) -> None:
        """List the keys of a table that no rule has taken. The collection decides them, or a profile has none."""
        self.left += [str(key) for key, value in given.items() if str(key) not in taken and value not in (None, {}, [])]

    def closed(self) -> Imported:
        """Return the profile without secrets."""
        known = {value for value in self.secrets if len(value) >= SHORTEST}
        line = redact(" ".join(self.profile["summary"].split()), known)
        self.profile = {**without(self.profile, known), "summary": line if len(line) <= 200 else line[:197] + "..."}
        self.left = list(dict.fromkeys(redact(" ".join(each.split()), known) for each in self.left))
        self.unmapped = [(redact(" ".join(name.split()), known), redact(" ".join(text.split()), known)) for name, text in dict(self.unmapped).items()]
        return self

    def hides(self, key: str, value: Any) -> bool:
        """Tell whether a field is a secret or contains one."""
        text = text_of(value)
        return holds_secret(key, text or "x") or any(secret in text for secret in self.secrets if len(secret) >= SHORTEST)

    def take(self, engine: Engine, model: str = "") -> None:
        """Take a container and how it starts its engine."""
        self._set_image(text_of(engine.box.get("image")))
        if engine.box.get("entrypoint") is not None:
            self.profile["engine"]["entrypoint"] = []
        self._set_environment(engine.environment)
        self._set_environment(engine.script.exported)
        # The words of other commands can contain anything, so only the first is named.
        for words in engine.others:
            for key in words[1:] if words[0] == "unset" else ():
                self.profile["env"].pop(key, None)
            self.left.append(f"command: {slug(posixpath.basename(redact(words[0], self.secrets))) or 'a command'}")
        if "PATH" in self.profile["env"]:
            self.note("env.PATH", "env.PATH replaces the PATH of the image, which is not known. Compare with the image")
        if any(words[:2] == ["ray", "start"] for words in engine.others):
            self.profile["engine"]["executor"] = "ray"
        self._set_engine(engine.words, model)
        self._set_box(engine.box)
        self._set_store([(f"volumes[{at}]", *_volume(each)) for at, each in enumerate(items(engine.box.get("volumes")))])

    def _set_image(self, text: str) -> None:
        """Take the image. One with a slash in its name is in a registry, one without is built or loaded."""
        reference, at, digest = need("image", text).partition("@")
        if not reference:
            raise RecipeError("the image is missing, expected its name. Add image: NAME to the service, or container: NAME to the recipe")
        if "://" in text or "/" in digest:  # user:password@registry/name
            raise RecipeError("image is an address, expected the name of an image without https:// and without a login")
        self.profile["image"].update(reference=reference, **({"digest": digest} if at else {}), pull="/" in reference)
        if "/" not in reference:
            why = "no registry has it by this name: build or load it on each node, or write images/NAME/Dockerfile and set image.build: NAME"
            self.note(f"image {reference}", why)

    def _set_environment(self, table: Mapping[str, Any]) -> None:
        """Take an environment, but for secrets, for what the role decides and for what differs between the nodes."""
        for key, value in table.items():
            where, text = f"env.{key}", text_of(value)
            if self.hides(str(key), text):
                self.note(where, HIDDEN)
            elif key in ROLE_ENV or (key in OFFLINE and text in ("", "0")) or (key == "NCCL_DEBUG" and text in ("WARN", "VERSION", "")):
                self.left.append(where)  # the gate reads the transport, which NCCL names at level INFO
            elif value is None or unset(text):
                self.note(where, f"{text} has no value here: set env.{key}, or head_env and worker_env if the nodes differ".lstrip())
            elif re.fullmatch(r"(?!0\.0\.0\.0|127\.)\d+\.\d+\.\d+\.\d+", text) or re.fullmatch(r"(?:.*_)?RANK", str(key)):
                self.note(where, f"{text} is that of one node: set it in head_env and worker_env if the engine needs it")
            else:
                self.profile["env"][str(key)] = text
            if key == "MASTER_PORT" and text.isdigit():
                self.profile["engine"]["master_port"] = int(text)

    def _set_box(self, box: Mapping[str, Any]) -> None:
        """Take the container's limits."""
        container, limits = self.profile["container"], mapping(mapping(mapping(box, "deploy"), "resources"), "limits")
        for where, key, value in (("shm_size", "shm_size", box.get("shm_size")), ("mem_limit", "memory", box.get("mem_limit") or limits.get("memory"))):
            if re.fullmatch(values.SIZE, text_of(value)):
                container[key] = text_of(value)
            elif value is not None:
                self.note(where, f"its value is not a size that container.{key} takes, such as 16g")
        if re.fullmatch(r"\d+(?:ms|s|m)", text_of(box.get("stop_grace_period"))):
            container["stop_grace_period"] = text_of(box["stop_grace_period"])
        for key, value in pairs(box.get("ulimits")).items():
            limit = text_of(value.get("soft") if isinstance(value, Mapping) else value).partition(":")[0]
            if key in ("memlock", "stack", "nofile") and re.fullmatch(r"-1|\d+", limit):
                container[key] = int(limit)
            else:
                self.left.append(f"ulimits.{key}")

    def _set_engine(self, words: list[str], model: str) -> None:
        """Split the engine's command into the keys of a profile."""
        engine, at = self.profile["engine"], program_of(words) or int(words[:1] == ["serve"])
        rest = words[at:]
        if words[:at] != ["vllm", "serve"]:
            engine["command"] = words[:at]
        positional = rest.pop(0) if rest and not _is_flag(rest[0]) else ""
        args, stray, left = arguments(rest)
        self.unmapped += left
        if stray and not positional:
            positional = stray.pop(0)
        if stray:
            raise RecipeError(f"the command has the word {stray[0]} that belongs to no argument, expected --NAME VALUE. Write it with its argument")
        path = need("the model", positional or text_of(args.pop("model", "")) or model)
        if not path:
            raise RecipeError("the recipe names no model, expected model, or a model in the command. Add it")
        if not positional:
            engine["positional_model"] = False
        name = model if model and not model.startswith("/") else posixpath.basename(path.rstrip("/")) if path.startswith("/") else path
        self.profile["model"].update(id=name, path=path)
        pools = next((text for text in (name, *(text_of(args.get(flag)) for flag in ("task", "runner", "convert"))) if POOLING.search(text)), "")
        if pools:
            raise RecipeError(f"{pools} is for pooling (embeddings, rerankers) or speech, and the collection serves models that generate text")
        for flag, value in args.items():
            self._set_argument(flag, value)
        self._set_ranks(args)
        drafter, spec = values.drafter_path(engine["args"]), values.speculation(engine["args"])
        if drafter not in ("", path.rstrip("/")):
            self.profile["drafter"] = {"id": posixpath.basename(drafter) if drafter.startswith("/") else drafter, "path": drafter}
            self.profile["drafter"].update({"revision": text_of(spec["revision"])} if spec.get("revision") else {})

    def _set_argument(self, flag: str, value: Any) -> None:
        engine, where, text = self.profile["engine"], f"--{flag}", text_of(value)
        if flag in values.SECRET_ARGS or self.hides(flag, value):
            self.note(where, HIDDEN)
            return
        if flag in ("nnodes", "node-rank", "master-addr", "headless", "download-dir") or (flag == "master-port" and unset(text)):
            self.left.append(where)
            engine["args"].update({flag: values.PLACEHOLDERS[flag]} if flag not in ("download-dir", "master-port") else {})
            return
        need(where, text)
        if flag == "revision":
            self.profile["model"]["revision"] = text
            return
        if flag == "served-model-name":
            self.profile["model"]["served_names"] = [text_of(each) for each in items(value)]
        elif flag in ("host", "port"):
            engine.setdefault("api", {})[flag] = value if flag == "port" else text
        elif flag == "master-port":
            engine["master_port"] = value
        elif flag == "distributed-executor-backend":
            engine["executor"] = "ray" if text == "ray" else "mp"
            self.left += [] if text in ("ray", "mp") else [f"{where} {text}"]
        engine["args"][flag] = values.PLACEHOLDERS.get(flag, value)

    def _set_ranks(self, args: Mapping[str, Any]) -> None:
        tensor, pipeline, data = (values.human_int(args.get(f"{kind}-parallel-size", 1)) or 1 for kind in ("tensor", "pipeline", "data"))
        if data > 1:
            raise RecipeError(f"--data-parallel-size is {data}, expected 1: the collection joins nodes by tensor and pipeline parallelism. Use -tp instead")
        if pipeline > 1:
            self.profile["engine"]["args"]["tensor-parallel-size"] = tensor
        if tensor * pipeline == 1:
            self.note(f"--tensor-parallel-size {tensor}", ONE_NODE)
        self.profile["ranks"]["min"] = max(2, tensor * pipeline, values.human_int(args.get("nnodes", 1)) or 1)

    def _set_store(self, volumes: list[tuple[str, str, str]]) -> None:
        """Mount the model store read-only where the recipe mounts its models, and the compile caches apart.

        :param volumes: (field, source, path in the container) of each mount.
        """
        env, path, box = self.profile["env"], self.profile["model"]["path"], self.profile["container"]
        given, targets = set(env), [target for _where, _source, target in volumes]
        home = env.get("HF_HOME") or next((target for target in targets if "huggingface" in target), "/root/.cache/huggingface")
        models = [path, *([self.profile["drafter"]["path"]] if "drafter" in self.profile else [])]
        if path.startswith("/"):
            above = [target for target in targets if path.startswith(target.rstrip("/") + "/")]
            home = max(above, key=len) if above else posixpath.dirname(path.rstrip("/"))
            common = posixpath.commonpath([each for each in models if each.startswith("/")])
            home = home if common in models or all(each.startswith(home + "/") for each in models if each.startswith("/")) else common
        else:
            env.setdefault("HF_HOME", home)
        cache = env.setdefault("VLLM_CACHE_ROOT", "/root/.cache/vllm" if "/root/.cache/vllm" in targets or home == "/" else f"{home}/vllm-cache")
        # A mount below a read-only one needs a folder of its name there.
        on_node = f"{STORE}/{cache[len(home) + 1 :]}" if home != "/" and cache.startswith(home + "/") else CACHE
        env.setdefault("HF_MODULES_CACHE", f"{cache}/modules")
        own = [f"{STORE}:{home}:ro"] if home != "/" else []
        for key in ("model", "drafter") if home == "/" else ():  # a folder at the top, such as /model
            top = self.profile.get(key, {}).get("path", "").rstrip("/")
            if top.startswith("/"):
                folder = next((each for _where, each, target in volumes if target == top and not unset(each)), top)
                self.profile[key]["relative_path"] = posixpath.basename(folder.rstrip("/"))
                own.append(f"{STORE}/{self.profile[key]['relative_path']}:{top}:ro")
        box.update(volumes=[*own, f"{on_node}:{cache}"], cache_dirs=[on_node])
        keys = ["container.volumes", "container.cache_dirs", *(f"env.{key}" for key in env if key not in given), "gate.transport"]
        why = "The container reads the weights below gb10_model_store and cannot change them. Compile caches and the model's Python modules are apart."
        self.profile["deviations"] = [{"keys": keys, "original": None, "why": why}]
        for volume in volumes:
            self._set_volume(*volume, home, cache, models)
        self._list_files([volume.split(":")[1] for volume in box["volumes"][1:]])

    def _set_volume(self, where: str, on_node: str, target: str, home: str, cache: str, models: list[str]) -> None:
        box = self.profile["container"]
        if target in (home, cache, *(each.rstrip("/") for each in models)) or home.startswith(target.rstrip("/") + "/"):
            self.left.append(f"{where} {target}")  # the model store, or the compile caches in it
        elif re.search(r"cache|/\.triton|/\.nv\b|flashinfer|tilelang|inductor", target) and not target.startswith(home + "/"):
            folder = f"{STORE}/{slug(target)}"
            box["volumes"].append(f"{folder}:{target}")
            box["cache_dirs"].append(folder)
        else:
            self.note(f"{where} {target}", f"the nodes do not have {on_node}, so bring it into the image, or copy it and add it to container.volumes")

    def _list_files(self, mounted: list[str]) -> None:
        """List the files and models that the engine needs and the profile does not bring."""
        args, model = self.profile["engine"]["args"], self.profile["model"]["path"]
        named = [(f"--{flag}", text_of(each), flag in FILE_FLAGS) for flag, value in args.items() for each in items(value)]
        for where, text, is_file in [*named, *((f"env.{key}", value, False) for key, value in self.profile["env"].items())]:
            there = text == model or "{%" in text or any(f"{text}/".startswith(each.rstrip("/") + "/") for each in mounted)
            if not there and (is_file or FILE.fullmatch(text)):
                self.note(f"file {text} ({where})", "the profile does not bring it: it must be in the image, made by a mod (image.mods), or in the model store")
