# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of a recipe's engine: whether it is vLLM, its arguments, and which keys of the profile they are. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.imported import HIDDEN, RANK, Imported, items, need, text_of
from ansible_collections.gb10.cluster.plugins.module_utils._profile.models import drafter_path, speculation
from ansible_collections.gb10.cluster.plugins.module_utils._profile.script import RecipeError, Script, marks, shown_marks
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import PLACEHOLDERS, SECRET_ARGS, human_int

OTHER_ENGINES = {
    "TensorRT-LLM": r"trtllm|tensorrt[-_]?llm", "SGLang": r"sglang", "llama.cpp": r"llama[-_.]?cpp|llama-server|llama_cpp|\.gguf\b", "Ollama": r"\bollama\b",
    "TGI": r"text-generation-(?:inference|launcher)", "TEI": r"text-embeddings-(?:inference|router)", "NVIDIA NIM": r"nvcr\.io/nim/", "LMDeploy": r"lmdeploy",
    "Triton Inference Server": r"tritonserver", "Atlas": r"\batlas\b", "Modular MAX": r"modular-?max|max-pipelines", "MLC LLM": r"\bmlc[-_]llm",
    "Infinity": r"infinity_emb", "ComfyUI": r"comfyui", "TabbyAPI": r"tabbyapi", "KTransformers": r"ktransformers",
}  # fmt: skip
POOLING = r"embed\w*|rerank\w*|score|classify|classification|reward|pooling"
SHORT_FLAGS = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "ep": "enable-expert-parallel", "cc": "compilation-config",
    "sc": "speculative-config", "q": "quantization", "n": "nnodes", "r": "node-rank", "dcp": "decode-context-parallel-size", "ac": "attention-config",
    "pcp": "prefill-context-parallel-size", "asc": "api-server-count", "dpl": "data-parallel-size-local", "dpr": "data-parallel-start-rank",
}  # fmt: skip
DEFAULT_ALIASES = {"tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size", "data_parallel": "data-parallel-size"}
# Flags that never take a value, so what follows is not one.
BARE = re.compile(r"(?:no-)?(?:enable|disable|async|trust|enforce|headless|language-model-only|skip-mm|calculate-kv)(?!.*-(?:size|config|backend))[\w-]*")
EXTRA = re.compile(r"(?i).*(?:extra|args|flags|opts|options)\w*")
SHELLS = ("sh", "bash", "dash", "zsh", "ash")
_POOLING_NAME = r"(?i)embed|rerank|colbert|colpali|(?:^|[-_])(?:bge|e5|gte)-"
_MARKS = "(?:\ue000[^\ue001]*\ue001)+"


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


def only(script: Script, images: list[str]) -> list[str]:
    """Return the one command of a script that starts vLLM, with its own variables exported. Raise RecipeError if there is none or more."""
    texts = [" ".join(each[:4]) for each in script.others]
    other = other_engine(*texts)
    if len(script.found) > 1 or (script.found and other):
        names = [other] if other else [" ".join(shown_marks(word) for word in words[:3]) for words, _own in script.found]
        both = ", ".join(["vLLM", *names] if other else names)
        raise RecipeError(f"the command starts several engines ({both}), expected one. Import each with a recipe of its own")
    if not script.found:
        name = other or other_engine(*images)
        what = f"starts {name}, and the collection serves vLLM only" if name else "does not start vLLM, expected 'vllm serve MODEL' with arguments"
        raise RecipeError(f"the command {what}. Write the engine's command there")
    words, own = script.found[0]
    script.exported.update(own)
    return words


def set_engine(out: Imported, words: list[str], model: str = "", image: str = "", own_entrypoint: bool = False) -> None:
    """Split the engine's command into the keys of a profile."""
    engine, at = out.profile["engine"], program_of(words)
    of_vllm = "vllm" in image and not own_entrypoint
    if not at and words[:1] == ["serve"] and of_vllm:
        at = 1
    if not at and not (of_vllm and words and (words[0].startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+|/[\w./-]+", words[0]))):
        name = other_engine(" ".join(words[:3]), image)
        if name:
            raise RecipeError(f"the command starts {name}, and the collection serves vLLM only. Import a recipe for vLLM")
        first = f"starts {shown_marks(words[0])}" if words else "is empty"
        raise RecipeError(f"the command does not start vLLM, it {first}, expected 'vllm serve MODEL' with arguments. Write the command of the engine there")
    rest = words[at:]
    operator = next((word for word in rest if word in ("&&", "||", ";", "|", ">", "&")), "")
    if operator:
        raise RecipeError(f"the command has {operator} without a shell, which would be an argument of vLLM. Write it as a list: [bash, -c, COMMAND]")
    engine["command"] = words[:at]
    if engine["command"] == ["vllm", "serve"]:
        del engine["command"]
    positional = rest.pop(0) if rest and not is_flag(rest[0]) else ""
    args, stray, extra, repeated = arguments(rest)
    if stray and not positional:
        positional = stray.pop(0)
    if stray:
        raise RecipeError(f"the command has the word {shown_marks(stray[0])} that belongs to no argument, expected --NAME VALUE. Write it with its argument")
    path = need("the model", positional or text_of(args.pop("model", "")) or model)
    if not path:
        raise RecipeError("the recipe names no model, expected model, or a model in the command. Add it")
    if not positional:
        engine["positional_model"] = False
    name = model if model and not model.startswith("/") else posixpath.basename(path.rstrip("/")) if path.startswith("/") else path
    out.profile["model"].update(id=name, path=path)
    out.mapped.append(("model", "model"))
    _refuse_pooling(args, name)
    out.unmapped += [(f"--{flag} {text_of(value)}", "is given twice: the last value counts") for flag, value in repeated]
    out.unmapped += [(f"command: {'$@' if each == '*' else '${' + each + '}'}", "more arguments, which have no value here") for each in extra]
    _set_arguments(out, args)


def _refuse_pooling(args: Mapping[str, Any], name: str) -> None:
    named = next((f"--{flag} {args[flag]}" for flag in ("task", "runner", "convert") if re.fullmatch(POOLING, text_of(args.get(flag)))), "")
    if named or "pooler-config" in args or "override-pooler-config" in args or re.search(_POOLING_NAME, posixpath.basename(name)):
        found = named or ("its pooler configuration" if len(args) and any("pooler" in each for each in args) else f"the model {name}")
        raise RecipeError(f"{found} is for pooling (embeddings, scores, rerankers), and the collection serves models that generate text. Serve it elsewhere")
    if text_of(args.get("task")) == "transcription":
        raise RecipeError("--task transcription is for speech, and the collection serves models that generate text. Serve it elsewhere")


def is_flag(word: str) -> bool:
    """Tell whether a word is the name of an argument and not a negative number."""
    return bool(re.match(r"--[A-Za-z]|-[A-Za-z]", word))


def arguments(words: list[str]) -> tuple[dict[str, Any], list[str], list[str], list[tuple[str, Any]]]:
    """Return the arguments by flag without dashes (one without a value is true), stray words, variables of more arguments, and repeated flags."""
    args: dict[str, Any] = {}
    stray: list[str] = []
    extra: list[str] = []
    repeated = []
    index = 0
    while index < len(words):
        name, sign, value = words[index].lstrip("-").partition("=")
        dashes = len(words[index]) - len(words[index].lstrip("-"))
        if not is_flag(words[index]):
            (extra.extend(marks(words[index])) if re.fullmatch(_MARKS, words[index]) else stray.append(words[index]))
            index += 1
            continue
        head, dot, tail = name.partition(".")
        if dashes == 1 and head not in SHORT_FLAGS:
            raise RecipeError(f"the argument -{name} is short, and its long form is not known here. Write it as --NAME")
        flag = (SHORT_FLAGS[head] if dashes == 1 else head).replace("_", "-") + dot + tail
        values = [value] if sign else []
        index += 1
        while not sign and index < len(words) and not is_flag(words[index]) and (not BARE.fullmatch(flag) or words[index].lower() in ("true", "false")):
            names = marks(words[index])
            whole = re.fullmatch(_MARKS, words[index])
            if whole and (values or all(each == "*" or EXTRA.fullmatch(each) for each in names)):
                break
            values.append(words[index])
            index += 1
        result = True if not values else _typed(values[0]) if len(values) == 1 else values
        if head.replace("_", "-") == "speculative-config" and dot:
            flag, result = "speculative-config", _nested(args.pop("speculative-config", {}), tail, result)
        elif flag in args:
            repeated.append((flag, args[flag]))
        args[flag] = result
    return args, stray, extra, repeated


def _nested(table: Any, path: str, value: Any) -> dict[str, Any]:
    out = dict(table) if isinstance(table, Mapping) else {}
    head, dot, tail = path.partition(".")
    out[head] = _nested(out.get(head), tail, value) if dot else value
    return out


def _typed(text: str) -> Any:
    """Return a JSON object as a mapping, and digits as a number."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            return text
        return text if _has_null(found) else found  # null in a profile removes a key
    return int(text) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text) else text


def _has_null(value: Any) -> bool:
    return value is None or any(_has_null(each) for each in (value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()))


def _set_arguments(out: Imported, args: Mapping[str, Any]) -> None:
    profile, engine = out.profile, out.profile["engine"]
    for flag, value in args.items():
        where, text = f"--{flag}", text_of(value)
        target, kept = f"engine.args.{flag}", PLACEHOLDERS.get(flag, value)
        if flag in SECRET_ARGS or out.hides(flag, value):
            out.unmapped.append((where, HIDDEN))
            continue
        if flag in PLACEHOLDERS and flag not in ("tensor-parallel-size", "served-model-name", "host", "port", "master-port", "distributed-executor-backend"):
            out.decided.append((where, RANK))
            engine["args"][flag] = kept
            continue
        if flag == "master-port" and marks(text):
            out.decided.append((where, RANK))
            continue
        need(where, text)
        if flag == "config":
            raise RecipeError(f"--config {text} has arguments in another file, which is not read. Write them into the command")
        if flag in ("revision", "download-dir"):
            profile["model"].update({"revision": text} if flag == "revision" else {})
            (out.mapped if flag == "revision" else out.decided).append((where, "model.revision" if flag == "revision" else "the model store decides"))
            continue
        if flag == "served-model-name":
            profile["model"]["served_names"], target = [text_of(each) for each in items(value)], "model.served_names"
        elif flag in ("host", "port"):
            engine.setdefault("api", {})[flag], target = _port(where, value) if flag == "port" else text, f"engine.api.{flag}"
        elif flag == "master-port":
            engine["master_port"], target = _port(where, value), "engine.master_port"
        elif flag == "distributed-executor-backend":
            engine["executor"], target = "ray" if text == "ray" else "mp", "engine.executor"
            if text not in ("ray", "mp"):
                out.unmapped.append((f"{where} {text}", "two nodes are joined by mp or ray: the profile has mp"))
        engine["args"][flag] = kept
        out.mapped.append((where, target))
    _set_ranks(out, args)
    _set_drafter(out, engine["args"])


def _port(where: str, value: Any) -> int:
    if not isinstance(value, int):
        raise RecipeError(f"{where} is {text_of(value)!r}, expected a port")
    return value


def _set_ranks(out: Imported, args: Mapping[str, Any]) -> None:
    tensor, pipeline, data = (human_int(args.get(f"{kind}-parallel-size", 1)) or 1 for kind in ("tensor", "pipeline", "data"))
    if data > 1:
        raise RecipeError(f"--data-parallel-size is {data}, expected 1: the collection joins nodes by tensor and pipeline parallelism. Use -tp instead")
    if pipeline > 1:
        out.profile["engine"]["args"]["tensor-parallel-size"] = tensor
    if tensor * pipeline == 1:
        why = "the recipe is for one node: the profile serves the model on two nodes with tensor-parallel-size 2. Compare its other arguments"
        out.unmapped.append((f"--tensor-parallel-size {tensor}", why))
    out.profile["ranks"]["min"] = max(2, tensor * pipeline, human_int(args.get("nnodes", 1)) or 1)


def _set_drafter(out: Imported, args: Mapping[str, Any]) -> None:
    model, spec = drafter_path(args), speculation(args)
    if model in ("", out.profile["model"]["path"].rstrip("/")):
        return
    out.profile["drafter"] = {"id": posixpath.basename(model) if model.startswith("/") else model, "path": model}
    if spec.get("revision"):
        out.profile["drafter"]["revision"] = text_of(spec["revision"])
    out.mapped.append(("--speculative-config.model", "drafter"))
