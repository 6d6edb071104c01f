# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile that is made of a recipe: image, engine, environment, model store. Pure.

A field that the profile does not have is in one of two lists: set by the collection, or not mapped with the reason. Rules take a key out of the input, and
`Imported.close` lists the keys that no rule has taken, so nothing is lost. A secret is named, and its value is nowhere.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret, redact, without
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import FABRIC_ENV
from ansible_collections.gb10.cluster.plugins.module_utils._profile.shell import RecipeError, Script, marks, one_line, shown
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import PLACEHOLDERS, SECRET_ARGS, SIZE, drafter_path, human_int, speculation

STORE, CACHE = "{model_store}", "{model_store}/vllm-cache"
SHORTEST = 8  # characters of a secret that is looked for within other values
HIDDEN = "is or contains a secret, and a profile must not: set it in vllm_tp2_secret_env (an API key in vllm_tp2_api_key)"
NO_KEY = "a profile has no key for it"
ONE_NODE = "the recipe is for one node: the profile serves the model on two nodes with tensor-parallel-size 2. Compare its other arguments"
ROLE_ENV = (*FABRIC_ENV, "NODE_RANK", "HEADLESS", "MASTER_ADDR", "MASTER_PORT")
HUB_ENV = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
# Keys of a container whose place the role has taken, and why other keys are not mapped.
ROLE_KEYS = (
    "network_mode", "gpus", "deploy", "runtime", "restart", "container_name", "hostname", "logging", "healthcheck", "labels", "pull_policy", "ipc",
    "network", "networks", "tty", "stdin_open", "interactive", "init", "detach", "rm", "auto_remove", "restart_policy", "gpu_access_mode",
)  # fmt: skip
REASONS = {
    **dict.fromkeys(("privileged", "cap_add"), "the role drops all capabilities but IPC_LOCK"),
    "security_opt": "the role sets no-new-privileges",
    **dict.fromkeys(("build", "build_args", "builder", "builder_config"), "write images/NAME/Dockerfile and set image.build: NAME, or load the image"),
    **dict.fromkeys(("pre_exec", "post_exec", "post_commands"), "commands around the engine: put what it needs into the image, or into image.mods"),
    "benchmark": "use playbooks/bench.yml",
    "distribution_config": "the roles image and weights bring image, model and drafter: set model.revision and drafter.revision",
    **dict.fromkeys(("working_dir", "user"), "the image decides"),
    "depends_on": "another service, which the profile does not start",
    "include": "other files, which are not read: import what `docker compose config` prints",
    "overrides": "settings under conditions, which are not read: put those of your nodes into defaults",
}
OTHER_ENGINES = {
    "TensorRT-LLM": r"trtllm|tensorrt[-_]?llm", "SGLang": r"sglang", "llama.cpp": r"llama[-_.]?cpp|llama-server|llama_cpp|\.gguf\b", "Ollama": r"\bollama\b",
    "TGI": r"text-generation-(?:inference|launcher)", "TEI": r"text-embeddings-(?:inference|router)", "NVIDIA NIM": r"nvcr\.io/nim/", "LMDeploy": r"lmdeploy",
    "Triton Inference Server": r"tritonserver", "Atlas": r"\batlas\b", "Modular MAX": r"modular-?max|max-pipelines", "MLC LLM": r"\bmlc[-_]llm",
    "Infinity": r"infinity_emb", "ComfyUI": r"comfyui", "TabbyAPI": r"tabbyapi", "KTransformers": r"ktransformers",
}  # fmt: skip
SHORT_FLAGS = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "ep": "enable-expert-parallel", "cc": "compilation-config",
    "sc": "speculative-config", "q": "quantization", "n": "nnodes", "r": "node-rank", "dcp": "decode-context-parallel-size", "ac": "attention-config",
    "pcp": "prefill-context-parallel-size", "asc": "api-server-count", "dpl": "data-parallel-size-local", "dpr": "data-parallel-start-rank",
}  # fmt: skip
# Flags that never take a value, so what follows is not one.
BARE = re.compile(r"(?:no-)?(?:enable|disable|async|trust|enforce|headless|language-model-only|skip-mm|calculate-kv)(?!.*-(?:size|config|backend))[\w-]*")
EXTRA = re.compile(r"(?i)\*|.*(?:extra|args|flags|opts|options)\w*")
# Arguments that name a file or another model, which the user has to copy to the nodes.
FILE_FLAGS = ("chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "tokenizer", "hf-config-path", "lora-modules", "logits-processors")
FILE = re.compile(r"(?:/workspace/|/tmp/)\S*|[\w./~-]*\.(?:jinja2?|py|json|ya?ml|so|txt|patch|sh)")
POOLING = re.compile(r"embed\w*|rerank\w*|score|classify|classification|reward|pooling|transcription")
POOLING_NAME = re.compile(r"(?i)embed|rerank|colbert|colpali|(?:^|[-_])(?:bge|e5|gte)-")


def text_of(value: Any) -> str:
    """Return a value of YAML as an environment or a command line has it."""
    if isinstance(value, (dict, list)):
        return json.dumps(_typed(value), ensure_ascii=False)  # a variable without a value stays a mark
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _typed(value: Any) -> Any:
    """Return a structure of texts with its numbers and booleans."""
    if isinstance(value, Mapping):
        return {str(key): _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    plain = isinstance(value, str) and re.fullmatch(r"true|false|-?(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:[eE][-+]?\d+)?", value)
    return json.loads(value) if plain else value


def is_true(value: Any) -> bool:
    """Tell whether a value of YAML means yes."""
    return text_of(value).lower() in ("true", "yes", "on", "1")


def slug(text: str) -> str:
    """Return a name for a profile."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60].strip("-.")


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of a recipe, empty if it has none."""
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise RecipeError(f"{key} is not a mapping, expected names and values")
    return value or {}


def items(value: Any) -> list[Any]:
    """Return a list of a recipe; a single value is a list of one."""
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def need(where: str, text: str) -> str:
    """Return the text. Raise RecipeError if a variable in it has no value."""
    for name, message in marks(text).items():
        remedy = f"Add {name}=VALUE to .env next to a Compose file, or give a file of such lines with -e env_file=FILE"
        raise RecipeError(f"{where} takes the variable {name}, which has no value{f' ({message})' if message else ''}. {remedy}")
    return text


def program_of(words: list[str]) -> int:
    """Return how many words start vLLM's server; 0 if they do not."""
    if words and posixpath.basename(words[0]) in ("echo", "printf", "pkill", "pgrep", "which", "docker", "ssh"):
        return 0
    for index, word in enumerate(words):
        following = words[index + 1 : index + 2] == ["serve"]
        if posixpath.basename(word) == "vllm" and following:
            return index + 2
        if word.startswith("vllm.entrypoints."):
            return index + 1 + following
    return 0


def other_engine(*texts: str) -> str:
    """Return the name of another engine that texts name; empty if there is none."""
    return next((name for text in texts for name, pattern in OTHER_ENGINES.items() if re.search(pattern, text, re.IGNORECASE)), "")


def is_flag(word: str) -> bool:
    """Tell whether a word is the name of an argument and not a negative number."""
    return bool(re.match(r"--[A-Za-z]|-[A-Za-z]", word))


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
        if not is_flag(word):
            names = marks(word) if re.fullmatch("(?:\ue000[^\ue001]*\ue001)+", word) else []
            left += [(f"command: {'$@' if each == '*' else '${' + each + '}'}", "more arguments, which have no value here") for each in names]
            stray += [] if names else [word]
            continue
        name, sign, value = word.lstrip("-").partition("=")
        head, dot, tail = name.partition(".")
        if not word.startswith("--") and head not in SHORT_FLAGS:
            raise RecipeError(f"the argument -{name} is short, and its long form is not known here. Write it as --NAME")
        head = (head if word.startswith("--") else SHORT_FLAGS[head]).replace("_", "-")
        flag, values = head + dot + tail, [value] if sign else []
        while not sign and index < len(words) and not is_flag(words[index]) and (not BARE.fullmatch(flag) or words[index].lower() in ("true", "false")):
            if re.fullmatch("(?:\ue000[^\ue001]*\ue001)+", words[index]) and (values or all(EXTRA.fullmatch(each) for each in marks(words[index]))):
                break
            values.append(words[index])
            index += 1
        result = True if not values else _value(values[0]) if len(values) == 1 else values
        if head == "speculative-config" and dot:
            flag, result = head, _nested(args.pop(head, {}), tail, result)
        elif flag in args:
            left.append((f"--{flag} {text_of(args[flag])}", "is given twice: the last value counts"))
        args[flag] = result
    return args, stray, left


def _nested(table: Any, path: str, value: Any) -> dict[str, Any]:
    out = dict(table) if isinstance(table, Mapping) else {}
    head, dot, tail = path.partition(".")
    out[head] = _nested(out.get(head), tail, value) if dot else value
    return out


def _value(text: str) -> Any:
    """Return a JSON object as a mapping, and digits as a number. One with null stays a text: null in a profile removes a key."""
    if text.startswith("{") and not re.search(r"[:,\[]\s*null\b", text):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return int(text) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text) else text


@dataclass
class Imported:
    """A profile, the fields that the collection sets, and (field, reason) of those that it does not have."""

    kind: str
    name: str
    summary: str
    decided: list[str] = field(default_factory=list)
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

    def close(self, rest: Mapping[str, Any]) -> None:
        """List the keys of the input that no rule has taken, and remove secrets and marks."""
        left = [key for key, value in rest.items() if value not in (None, {}, [])]
        self.decided += [key for key in left if key in ROLE_KEYS]
        self.unmapped += [(key, "it informs only" if key.startswith("x-") else REASONS.get(key, NO_KEY)) for key in left if key not in ROLE_KEYS]
        known = {value for value in self.secrets if len(value) >= SHORTEST}

        def clean(text: str) -> str:
            return redact(one_line(shown(text)), known)

        self.profile = without(self.profile, known)
        self.decided = list(dict.fromkeys(map(clean, self.decided)))
        self.unmapped = [(clean(name), clean(text)) for name, text in dict(self.unmapped).items()]

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
            address = re.fullmatch(r"(?!0\.0\.0\.0|127\.)\d+\.\d+\.\d+\.\d+", text) or re.fullmatch(r"(?:.*_)?RANK", str(key))
            if self.hides(str(key), text):
                self.unmapped.append((where, HIDDEN))
            elif key in (*ROLE_ENV, *HUB_ENV) or (key in OFFLINE and text in ("", "0")) or (key == "NCCL_DEBUG" and text in ("WARN", "VERSION", "")):
                self.decided.append(where)  # the gate reads the transport, which NCCL names at level INFO
            elif value is None or marks(text):
                self.unmapped.append((where, f"{shown(text)} has no value here: set env.{key}, or head_env and worker_env if the nodes differ".lstrip()))
            elif address and table == "env":
                self.unmapped.append((where, f"{text} is that of one node: set it in head_env and worker_env if the engine needs it"))
            else:
                self.profile.setdefault(table, {})[str(key)] = text
            if key == "MASTER_PORT" and text.isdigit():
                self.profile["engine"]["master_port"] = int(text)

    def list_script(self, script: Script) -> None:
        """Take what a script does next to the engine's command. The words of other commands can contain anything, so only the first is named."""
        self.set_environment("command: export", script.exported)
        for each in script.others:
            name = f"command: {slug(posixpath.basename(each[0])) or 'a command'}"
            if each[0] in ("set", "ulimit", "trap", "wait", "true", ":", "echo", "printf", "sleep", "sync", "tee", "cd") or each[:2] == ["ray", "start"]:
                self.decided.append(name)
            else:
                self.unmapped.append((name, "a command next to the engine: put what the engine needs into the image"))
        self.unmapped += [(f"command: {one_line(each)[:60]}", "a comment of the script") for each in script.comments if " --" in each]
        self.decided += [f"command: > {each}" for each in script.redirections]  # the container's log has what the engine prints
        self.unmapped += [(f"command: unset {key}", "the engine gets no such variable") for key in script.removed]
        if "PATH" in self.profile["env"]:
            self.unmapped.append(("command: export.PATH (the image's own PATH)", "it is not known: env.PATH replaces it. Compare with the image"))

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
            self.unmapped.append((f"{source} {reference}", why))

    def set_size(self, source: str, key: str, value: Any) -> None:
        """Set a size of the container, if it is one."""
        if re.fullmatch(SIZE, text_of(value)):
            self.profile["container"][key] = text_of(value)
        elif value is not None:
            self.unmapped.append((source, f"its value is not a size that container.{key} takes, such as 16g"))

    def set_engine(self, words: list[str], model: str = "", image: str = "", own_entrypoint: bool = False) -> None:
        """Split the engine's command into the keys of a profile."""
        engine, at, of_vllm = self.profile["engine"], program_of(words), "vllm" in image and not own_entrypoint
        at = at or int(words[:1] == ["serve"] and of_vllm)
        if not at and not (of_vllm and words and (words[0].startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+|/[\w./-]+", words[0]))):
            other = other_engine(" ".join(words[:3]), image)
            first = f"it starts {other or shown(words[0])}" if words else "it is empty"
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
            raise RecipeError(f"the command has the word {shown(stray[0])} that belongs to no argument, expected --NAME VALUE. Write it with its argument")
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
        drafter, spec = drafter_path(engine["args"]), speculation(engine["args"])
        if drafter not in ("", path.rstrip("/")):
            self.profile["drafter"] = {"id": posixpath.basename(drafter) if drafter.startswith("/") else drafter, "path": drafter}
            self.profile["drafter"].update({"revision": text_of(spec["revision"])} if spec.get("revision") else {})

    def _set_argument(self, flag: str, value: Any) -> None:
        engine, where, text = self.profile["engine"], f"--{flag}", text_of(value)
        if flag in SECRET_ARGS or self.hides(flag, value):
            self.unmapped.append((where, HIDDEN))
            return
        if flag in ("nnodes", "node-rank", "master-addr", "headless", "download-dir") or (flag == "master-port" and marks(text)):
            self.decided.append(where)
            engine["args"].update({flag: PLACEHOLDERS[flag]} if flag not in ("download-dir", "master-port") else {})
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
            self.unmapped += [] if text in ("ray", "mp") else [(f"{where} {text}", "two nodes are joined by mp or ray: the profile has mp")]
        engine["args"][flag] = PLACEHOLDERS.get(flag, value)

    def _set_ranks(self, args: Mapping[str, Any]) -> None:
        tensor, pipeline, data = (human_int(args.get(f"{kind}-parallel-size", 1)) or 1 for kind in ("tensor", "pipeline", "data"))
        if data > 1:
            raise RecipeError(f"--data-parallel-size is {data}, expected 1: the collection joins nodes by tensor and pipeline parallelism. Use -tp instead")
        if pipeline > 1:
            self.profile["engine"]["args"]["tensor-parallel-size"] = tensor
        if tensor * pipeline == 1:
            self.unmapped.append((f"--tensor-parallel-size {tensor}", ONE_NODE))
        self.profile["ranks"]["min"] = max(2, tensor * pipeline, human_int(args.get("nnodes", 1)) or 1)

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
                source = next((source for _where, source, target in volumes if target == top and not marks(source)), top)
                self.profile[key]["relative_path"] = posixpath.basename(source.rstrip("/"))
                own.append(f"{STORE}/{self.profile[key]['relative_path']}:{top}:ro")
        box.update(volumes=[*own, f"{on_node}:{cache}"], cache_dirs=[on_node])
        keys = ["container.volumes", "container.cache_dirs", *(f"env.{key}" for key in env if key not in given), "gate.transport"]
        why = "The container reads the weights below gb10_model_store and cannot change them. Compile caches and the model's Python modules are apart."
        self.profile["deviations"] = [{"keys": keys, "original": None, "why": why}]
        for volume in volumes:
            self._set_volume(*volume, home, cache, models)
        self._list_files(home, [volume.split(":")[1] for volume in box["volumes"][1:]])

    def _set_volume(self, where: str, source: str, target: str, home: str, cache: str, models: list[str]) -> None:
        box, tables = self.profile["container"], (self.profile["engine"]["args"], self.profile["env"])
        if target in (home, cache, *(each.rstrip("/") for each in models)) or home.startswith(target.rstrip("/") + "/"):
            self.decided.append(f"{where} {target}")  # the model store, or the compile caches in it
        elif re.search(r"cache|/\.triton|/\.nv\b|flashinfer|tilelang|inductor", target) and not target.startswith(home + "/"):
            folder = f"{STORE}/{slug(target)}"
            box["volumes"].append(f"{folder}:{target}")
            box["cache_dirs"].append(folder)
        elif source.startswith("/") and not marks(source) and any(target in text_of(each) for table in tables for each in table.values()):
            box["volumes"].append(f"{source}:{target}:ro")
            self.unmapped.append((f"{where} {target}", f"it is mounted read-only, and {source} must be on each node"))
        elif source.startswith((".", "\ue000PWD")):
            why = "a file of the recipe's folder, which the nodes do not have: bring it into the image, or copy it and add a volume"
            self.unmapped.append((f"{where} {target}", why))
        else:
            self.unmapped.append((f"{where} {target}", "a mount of the host: add it to container.volumes if the engine needs it"))
        if source and not source.startswith((".", "/", "~", "\ue000")):
            why = "a volume of Docker, whose content is not taken over: the profile mounts folders of the nodes"
            self.unmapped.append((f"{where} {source} (named volume)", why))

    def _list_files(self, home: str, mounted: list[str]) -> None:
        """List the files and models that the engine needs and the profile does not bring."""
        args, model = self.profile["engine"]["args"], self.profile["model"]["path"]
        named = [(f"--{flag}", text_of(each), flag in FILE_FLAGS) for flag, value in args.items() for each in items(value)]
        named += [(f"env.{key}", value, False) for key, value in self.profile["env"].items()]
        for where, text, is_file in named:
            if text == model or "{%" in text or not (is_file or FILE.fullmatch(text)):
                continue
            if any(text.startswith(each.rstrip("/") + "/") or text == each for each in mounted):
                continue
            why = "the profile does not bring it: it must be in the image, or a mod of the recipe makes it (image.mods)"
            if text.startswith(home + "/") or (where == "--tokenizer" and not text.startswith("/")):
                why = "it must be below gb10_model_store on each node as well"
            self.unmapped.append((f"file {text} ({where})", why))
