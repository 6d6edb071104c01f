# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile that is made of a recipe: image, engine, environment, model store. Pure.

A field that the profile does not have is named: with what to do if the owner has to do something, else in a list. Nothing is lost without its name.
A secret is named, and its value is nowhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret, redact, without
from ansible_collections.gb10.cluster.plugins.module_utils._profile import containers, values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import FABRIC_ENV
from ansible_collections.gb10.cluster.plugins.module_utils._profile.containers import Around, Engine, items, mapping, pairs, text_of
from ansible_collections.gb10.cluster.plugins.module_utils._profile.shell import RecipeError, arguments, is_flag, one_line, other_engine, program_of, unset

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
TAKEN = ("image", "command", "entrypoint", "environment", "env_file", "volumes", "shm_size", "mem_limit", "ulimits", "devices", "deploy")
RECIPE_KEYS = (
    "model", "runtime", "name", "description", "mods", "command", "container", "defaults", "env", "model_revision", "executor_config", "metadata", "min_nodes",
    "max_nodes", "cluster_only",
)  # fmt: skip
# Arguments that name a file or another model, which the user has to copy to the nodes.
FILE_FLAGS = ("chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "tokenizer", "hf-config-path", "lora-modules", "logits-processors")
FILE = re.compile(r"(?:/workspace/|/tmp/)\S*|[\w./~-]*\.(?:jinja2?|py|json|ya?ml|so|txt|patch|sh)")
POOLING = re.compile(r"embed\w*|rerank\w*|score|classify|classification|reward|pooling|transcription")
POOLING_NAME = re.compile(r"(?i)embed|rerank|colbert|colpali|(?:^|[-_])(?:bge|e5|gte)-")


def slug(text: str) -> str:
    """Return a name for a profile."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60].strip("-.")


def need(where: str, text: str) -> str:
    """Return the text. Raise RecipeError if a variable in it has no value."""
    for name, message in unset(text).items():
        remedy = f"Add {name}=VALUE to .env next to a Compose file, or give a file of such lines with -e env_file=FILE"
        raise RecipeError(f"{where} takes the variable {name}, which has no value{f' ({message})' if message else ''}. {remedy}")
    return text


def convert(data: Any, around: Around | None = None, service: str = "") -> Imported:
    """Return the profile that a recipe describes, not checked yet.

    :param data: the content of the recipe's YAML file, or anything else if it is the text of another file.
    :param around: what is around it.
    :param service: the service or container, if it has several.
    :raises RecipeError: another format, another engine than vLLM, or something that is not data.
    """
    around = around or Around()
    if not isinstance(data, Mapping):
        return _docker_run(around, service)
    pending: list[Any] = [data]  # aliases of YAML can make a small file large
    for each in pending:
        pending += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
        if len(pending) > MOST_ENTRIES:
            raise RecipeError(f"it has more than {MOST_ENTRIES} entries")
    kind = values.kind_of(data)
    if kind == values.COMPOSE:
        return _compose(data, around, service)
    if data.get("include"):
        raise RecipeError(f"it is a change of the recipe {text_of(data['include'])}, which is not read. Import what `sparkrun export recipe` prints")
    if kind:
        return _recipe(data, kind, around)
    raise RecipeError("it has neither services (Docker Compose) nor model or command (sparkrun, eugr/spark-vllm-docker)")


def _recipe(data: Mapping[str, Any], kind: str, around: Around) -> Imported:
    """Return the profile of a recipe of sparkrun or of eugr/spark-vllm-docker."""
    model, defaults, runtime = text_of(data.get("model")), mapping(data, "defaults"), text_of(data.get("runtime"))
    metadata, settings = dict(mapping(data, "metadata")), dict(mapping(data, "executor_config"))
    if runtime and "vllm" not in runtime:
        raise RecipeError(f"runtime is {runtime!r} ({other_engine(runtime) or runtime}), and the collection serves vLLM only. Import a recipe for vLLM")
    name = text_of(data.get("name")) or model
    out = Imported(kind, posixpath.basename(name), text_of(data.get("description") or metadata.pop("description", "") or name))
    out.collect_secrets({**around.env, **mapping(data, "env"), **defaults})
    out.set_image("container", text_of(data.get("container")))
    for index, each in enumerate(map(text_of, items(data.get("mods")))):
        folder, path = around.mod(each), each if each.startswith(("mods/", "@")) else f"mods/{each}"
        if folder:
            out.profile["image"].setdefault("mods", []).append({"path": folder})
            continue
        lines = f"{{repository: {EUGR}, commit: THE 40 DIGITS OF ITS COMMIT, path: {path}}}"
        out.note(f"mods[{index}] {each}", f"import the recipe from a checkout of its repository, or add to image.mods: {lines}")
    box, used = containers.recipe_box(data, around)
    engine = containers.engine_of("engine", {"engine": box}, around, around.env)
    engine.words = containers.with_defaults(engine.words, data, "eugr" in kind, used)
    for key in defaults:
        if out.hides(str(key), defaults[key]):
            out.note(f"defaults.{key}", HIDDEN)
        elif key not in used:
            out.left.append(f"defaults.{key}")
    out.set_environment("env", box["environment"])
    out.list_script(engine)
    out.set_engine(engine.words, model)
    if runtime == "vllm-ray":
        out.profile["engine"]["executor"] = "ray"
    if data.get("model_revision"):
        out.profile["model"]["revision"] = text_of(data["model_revision"])
    out.set_size("executor_config.shm_size", "shm_size", settings.pop("shm_size", None))
    out.set_size("executor_config.memory_limit", "memory", settings.pop("memory_limit", None))
    if "entrypoint" in settings and not settings.pop("entrypoint"):
        out.profile["engine"]["entrypoint"] = []
    ranks, most = out.profile["ranks"], values.human_int(data.get("max_nodes")) or 0
    together = text_of(data.get("cluster_only")).lower() in ("true", "yes", "on", "1")
    ranks["min"] = max(values.human_int(data.get("min_nodes")) or 1, 2 if together else 1, ranks["min"])
    ranks.update({"max": most} if most > 1 else {})
    out.set_store([])
    out.list_env(around)
    out.leave({**data, **settings, **metadata}, *RECIPE_KEYS)
    return out.closed()


def _compose(data: Mapping[str, Any], around: Around, wanted: str) -> Imported:
    """Return the profile of a service of a Compose file."""
    boxes = {str(name): containers.expanded(box, around.env) for name, box in mapping(data, "services").items() if isinstance(box, Mapping)}
    out = _of_box(values.COMPOSE, text_of(data.get("name")) or around.folder, boxes, around, wanted)
    out.leave({**data, **{f"volumes: {name}": name for name in mapping(data, "volumes")}}, "services", "volumes", "name")
    out.list_env(around)
    return out.closed()


def _docker_run(around: Around, wanted: str) -> Imported:
    """Return the profile of a script, or of a text, that starts a container."""
    boxes, script, others, lines = containers.docker_runs(around.source, around.env)
    out = _of_box(DOCKER, around.folder, boxes, replace(around, env={**around.env, **script.values}), wanted)
    out.left += [f"command: {' '.join(words[:2])}" for words in others] + ([f"{lines} other lines of the text"] if lines else [])
    out.list_env(around)
    return out.closed()


def _of_box(kind: str, project: str, boxes: Mapping[str, Mapping[str, Any]], around: Around, wanted: str) -> Imported:
    """Return the profile of the container that runs vLLM."""
    engine = containers.engine_of(containers.chosen(boxes, wanted), boxes, around)
    box, image = engine.box, text_of(engine.box.get("image"))
    out = Imported(kind, project if kind == values.COMPOSE and project and engine.name in ("vllm", "head") else engine.name, "")
    for table in (around.env, engine.environment, engine.script.values):
        out.collect_secrets(table)
    if not image and box.get("build"):
        image = f"{re.sub(r'[^a-z0-9_-]', '', project.lower()) or 'recipe'}-{engine.name}"
        out.note("image", f"the service has build and no image: Compose names it {image}. Build it on each node by that name, or see build")
    out.set_image("image", image)
    if box.get("entrypoint") is not None:
        out.profile["engine"]["entrypoint"] = []
    if engine.shell and not engine.script.exported:
        out.profile["engine"]["shell"] = engine.shell
    out.set_environment("environment", engine.environment)
    out.list_script(engine)
    out.set_engine(engine.words, "", image, box.get("entrypoint") is not None)
    model = out.profile["model"]["id"]
    out.profile["summary"] = f"{model}, from the service {engine.name} of a Docker Compose file" if kind == values.COMPOSE else f"{model}, from docker run"
    out.set_box(box)
    out.set_store([_volume(index, each) for index, each in enumerate(items(box.get("volumes")))])
    out.left += [f"services.{name}" for name in boxes if name != engine.name]
    out.leave(box, *TAKEN, *out.profile["container"])
    return out


def _volume(index: int, volume: Any) -> tuple[str, str, str]:
    """Return (field, source, path in the container) of a volume."""
    text = text_of(volume)
    if isinstance(volume, Mapping) or ("=" in text and "," in text):  # --mount type=bind,source=/a,target=/b,readonly
        parts = pairs(volume if isinstance(volume, Mapping) else text.split(","))
        source, target = (next((text_of(parts[key]) for key in keys if parts.get(key)), "") for keys in (("source", "src"), ("target", "destination", "dst")))
    else:
        source, target = text.split(":")[:2] if ":" in text else ("", text)
    return f"volumes[{index}]", source, target.rstrip("/") or "/"


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
        line = one_line(self.summary)
        self.name = slug(self.name)
        self.profile = {
            "summary": line if len(line) <= 200 else line[:197] + "...", "sources": [], "notes": ["Not run by the authors of gb10.cluster."], "deviations": [],
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
        self.profile = without(self.profile, known)
        self.left = list(dict.fromkeys(redact(one_line(each), known) for each in self.left))
        self.unmapped = [(redact(one_line(name), known), redact(one_line(text), known)) for name, text in dict(self.unmapped).items()]
        return self

    def hides(self, key: str, value: Any) -> bool:
        """Tell whether a field is a secret or contains one."""
        text = text_of(value)
        return holds_secret(key, text or "x") or any(secret in text for secret in self.secrets if len(secret) >= SHORTEST)

    def collect_secrets(self, table: Mapping[str, Any]) -> None:
        """Remember the secrets of an environment, so that no other field carries them."""
        self.secrets |= {text_of(value) for key, value in table.items() if value and holds_secret(str(key), value)}

    def set_environment(self, source: str, table: Mapping[str, Any]) -> None:
        """Take an environment, but for secrets, for what the role decides and for what differs between the nodes."""
        for key, value in table.items():
            where, text = f"{source}.{key}", text_of(value)
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

    def list_env(self, around: Around) -> None:
        """List what of a .env is not in the profile."""
        for key, value in around.env.items():
            if self.hides(key, value):
                self.note(f".env {key}", HIDDEN)
            elif not (key in self.profile["env"] or re.search(rf"\$\{{?{re.escape(key)}\b", around.source)):  # it can be an env_file too
                self.left.append(f".env {key}")

    def list_script(self, engine: Engine) -> None:
        """Take what a script does next to the engine's command. The words of other commands can contain anything, so only the first is named."""
        self.profile["engine"]["executor"] = "ray" if any(words[:2] == ["ray", "start"] for words in engine.others) else "mp"
        self.set_environment("command: export", engine.script.exported)
        for words in engine.others:
            for key in words[1:] if words[0] == "unset" else ():
                self.profile["env"].pop(key, None)
            self.left.append(f"command: {slug(posixpath.basename(words[0])) or 'a command'}")
        if "PATH" in self.profile["env"]:
            self.note("command: export.PATH", "env.PATH replaces the PATH of the image, which is not known. Compare with the image")

    def set_image(self, source: str, text: str) -> None:
        """Take the image. One with a slash in its name is in a registry, one without is built or loaded."""
        reference, at, digest = need(source, text).partition("@")
        if not reference:
            raise RecipeError(f"{source} is missing, expected the name of an image")
        if "://" in text or "/" in digest:  # user:password@registry/name
            raise RecipeError(f"{source} is an address, expected the name of an image without https:// and without a login")
        self.profile["image"].update(reference=reference, **({"digest": digest} if at else {}), pull="/" in reference)
        if "/" not in reference:
            why = "no registry has it by this name: build or load it on each node, or write images/NAME/Dockerfile and set image.build: NAME"
            self.note(f"{source} {reference}", why)

    def set_size(self, source: str, key: str, value: Any) -> None:
        """Set a size of the container, if it is one."""
        if re.fullmatch(values.SIZE, text_of(value)):
            self.profile["container"][key] = text_of(value)
        elif value is not None:
            self.note(source, f"its value is not a size that container.{key} takes, such as 16g")

    def set_box(self, box: Mapping[str, Any]) -> None:
        """Take the container's limits."""
        deploy = mapping(box, "deploy")
        limits = mapping(mapping(deploy, "resources"), "limits")
        self.set_size("shm_size", "shm_size", box.get("shm_size"))
        self.set_size("mem_limit", "memory", box.get("mem_limit", limits.get("memory")))
        self.left += [f"deploy.{key}" for key in deploy if key != "resources"] + [f"deploy.resources.limits.{key}" for key in limits if key != "memory"]
        if re.fullmatch(r"\d+(?:ms|s|m)", text_of(box.get("stop_grace_period"))):
            self.profile["container"]["stop_grace_period"] = text_of(box["stop_grace_period"])
        for key, value in pairs(box.get("ulimits")).items():
            limit = text_of(value.get("soft") if isinstance(value, Mapping) else value).partition(":")[0]
            if key in ("memlock", "stack", "nofile") and re.fullmatch(r"-1|\d+", limit):
                self.profile["container"][key] = int(limit)
            else:
                self.left.append(f"ulimits.{key}")
        self.left += [f"devices: {text_of(device)}" for device in items(box.get("devices"))]

    def set_engine(self, words: list[str], model: str = "", image: str = "", own_entrypoint: bool = False) -> None:
        """Split the engine's command into the keys of a profile."""
        engine, at, of_vllm = self.profile["engine"], program_of(words), "vllm" in image and not own_entrypoint
        at = at or int(words[:1] == ["serve"] and of_vllm)
        if not at and not (of_vllm and words and (words[0].startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+|/[\w./-]+", words[0]))):
            other = other_engine(" ".join(words[:3]), image)
            first = f"it starts {other or words[0]}" if words else "it is empty"
            raise RecipeError(f"the command does not start vLLM, {first}, expected 'vllm serve MODEL' with arguments. The collection serves vLLM only")
        rest = words[at:]
        operator = next((word for word in rest if word in ("&&", "||", ";", "|", ">", "&")), "")
        if operator:
            raise RecipeError(f"the command has {operator} without a shell, which would be an argument of vLLM. Write it as a list: [bash, -c, COMMAND]")
        if words[:at] != ["vllm", "serve"]:
            engine["command"] = words[:at]
        positional = rest.pop(0) if rest and not is_flag(rest[0]) else ""
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
        pools = next((f"--{flag} {text_of(args[flag])}" for flag in ("task", "runner", "convert") if POOLING.fullmatch(text_of(args.get(flag)))), "")
        if pools or any("pooler" in flag for flag in args) or POOLING_NAME.search(posixpath.basename(name)):
            raise RecipeError(f"{pools or name} is for pooling (embeddings, rerankers) or speech, and the collection serves models that generate text")
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
        if flag == "config":
            raise RecipeError(f"--config {text} has arguments in another file, which is not read. Write them into the command")
        if flag in ("port", "master-port") and not isinstance(value, int):
            raise RecipeError(f"{where} is {text!r}, expected a port")
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

    def set_store(self, volumes: list[tuple[str, str, str]]) -> None:
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
                source = next((source for _where, source, target in volumes if target == top and not unset(source)), top)
                self.profile[key]["relative_path"] = posixpath.basename(source.rstrip("/"))
                own.append(f"{STORE}/{self.profile[key]['relative_path']}:{top}:ro")
        box.update(volumes=[*own, f"{on_node}:{cache}"], cache_dirs=[on_node])
        keys = ["container.volumes", "container.cache_dirs", *(f"env.{key}" for key in env if key not in given), "gate.transport"]
        why = "The container reads the weights below gb10_model_store and cannot change them. Compile caches and the model's Python modules are apart."
        self.profile["deviations"] = [{"keys": keys, "original": None, "why": why}]
        for volume in volumes:
            self._set_volume(*volume, home, cache, models)
        self._list_files([volume.split(":")[1] for volume in box["volumes"][1:]])

    def _set_volume(self, where: str, source: str, target: str, home: str, cache: str, models: list[str]) -> None:
        box, tables = self.profile["container"], (self.profile["engine"]["args"], self.profile["env"])
        if target in (home, cache, *(each.rstrip("/") for each in models)) or home.startswith(target.rstrip("/") + "/"):
            self.left.append(f"{where} {target}")  # the model store, or the compile caches in it
        elif re.search(r"cache|/\.triton|/\.nv\b|flashinfer|tilelang|inductor", target) and not target.startswith(home + "/"):
            folder = f"{STORE}/{slug(target)}"
            box["volumes"].append(f"{folder}:{target}")
            box["cache_dirs"].append(folder)
        elif source.startswith("/") and not unset(source) and any(target in text_of(each) for table in tables for each in table.values()):
            box["volumes"].append(f"{source}:{target}:ro")
            self.note(f"{where} {target}", f"it is mounted read-only, and {source} must be on each node")
        else:
            self.note(f"{where} {target}", f"the nodes do not have {source}: bring it into the image, or copy it and add it to container.volumes")

    def _list_files(self, mounted: list[str]) -> None:
        """List the files and models that the engine needs and the profile does not bring."""
        args, model = self.profile["engine"]["args"], self.profile["model"]["path"]
        named = [(f"--{flag}", text_of(each), flag in FILE_FLAGS) for flag, value in args.items() for each in items(value)]
        for where, text, is_file in [*named, *((f"env.{key}", value, False) for key, value in self.profile["env"].items())]:
            there = text == model or "{%" in text or any(f"{text}/".startswith(each.rstrip("/") + "/") for each in mounted)
            if not there and (is_file or FILE.fullmatch(text)):
                self.note(f"file {text} ({where})", "the profile does not bring it: it must be in the image, made by a mod (image.mods), or in the model store")
