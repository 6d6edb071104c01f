# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: a serving profile's schema, inheritance and checks, pure.

A profile is plain data: a mapping as read from ``profiles/<name>.yml`` or from the inventory's ``gb10_profiles``.
:func:`resolve` follows ``extends``, merges, checks every key against :data:`SCHEMA` and fills the defaults.
Units are in the key names: ``_gib`` is GiB, ``_seconds`` is seconds, tokens are counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean

DEFAULT_PROFILE = "dspark-nvfp4-1m"

# Arguments that the collection writes itself, and the placeholder that puts them at a seed's place in the order.
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
# The profile's key that decides such an argument. The inventory decides the others.
DECIDED_BY = {"host": "engine.api.host", "port": "engine.api.port", "served-model-name": "model.served_names", "master-port": "engine.master_port"}
# Of these a literal value is also allowed: a group of four may run TP 2 x PP 2.
LITERAL_ALLOWED = ("tensor-parallel-size", "distributed-executor-backend")
# vLLM reads the key from VLLM_API_KEY; a key in a profile would end in compose files, process lists and logs.
SECRET_ARGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
SECRET_ENV = re.compile(r"(?:^|_)(?:API_KEY|TOKEN|SECRET|PASSWORD|PASSWD)(?:$|_)")
# Environment names that look like secrets to SECRET_ENV but hold counts or switches.
NOT_SECRET = re.compile(r"(?:NUM_TOKENS?|_TOKENS)$|^HF_HUB_DISABLE_IMPLICIT_TOKEN$|_TOKENIZER")


class ProfileError(ValueError):
    """A profile cannot be used; the text names the profile, the key, what was found and what was expected.

    Of several faults the text has all, and ``faults`` has them one by one. ``path`` is the key's path, where there is one fault.
    """

    def __init__(self, text: str, path: str = "", faults: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.path = path
        self.faults = faults or (text,)


@dataclass(frozen=True)
class Field:
    """One key's type and meaning; ``doc`` is printed into docs/profiles.md."""

    kind: str  # str, int, number, bool, list, map (fixed keys), dict (free keys), argument, scalar, criterion
    doc: str = ""
    default: Any = None
    required: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    pattern_says: str = ""
    element: Field | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)


ANYTHING = Field("scalar")


def _text(doc: str, default: Any = None, **more: Any) -> Field:
    return Field("str", doc, default, **more)


def _strings(doc: str, default: Any = None, **more: Any) -> Field:
    if default is None and not more.get("nullable"):
        default = []
    return Field("list", doc, default, element=Field("str"), **more)


def _table(doc: str, **fields: Field) -> Field:
    return Field("map", doc, fields=fields)


def _bounds(doc: str, kind: str) -> Field:
    return _table(
        doc,
        min=Field(kind, "Lowest value that passes; null for none.", nullable=True, minimum=0),
        max=Field(kind, "Highest value that passes; null for none.", nullable=True, minimum=0),
    )


_ENV = Field("dict", "", {}, element=Field("str"), pattern=r"[A-Za-z_][A-Za-z0-9_]*", pattern_says="a variable name (letters, digits, _)")
_SECONDS = "Seconds allowed for this phase of the boot."

SCHEMA = _table(
    "A serving profile.",
    summary=_text("What the profile gives, in one line.", required=True),
    sources=_strings("Where its values come from."),
    notes=_strings("What a reader must know before using it."),
    deviations=Field(
        "list",
        "Where the profile does not say what its seed's text says, or says more, and why.",
        [],
        element=_table(
            "",
            keys=_strings("The keys, as paths.", required=True),
            seed=_text("The seed's text; null where it is silent.", nullable=True),
            why=_text("The reason.", required=True),
        ),
    ),
    ranks=_table(
        "How many nodes the profile is made for.",
        min=Field("int", "Fewest ranks.", 1, minimum=1),
        max=Field("int", "Most ranks; null for no limit.", nullable=True, minimum=1),
    ),
    image=_table(
        "The container image.",
        reference=_text("Name and tag.", required=True, pattern=r"[\w.:/-]+", pattern_says="an image name like registry/name:tag"),
        digest=_text("Pin: sha256:...", nullable=True, pattern=r"sha256:[0-9a-f]{64}", pattern_says="sha256: and 64 hexadecimal digits"),
        pull=Field("bool", "Whether a registry has it; false for an image that is built or loaded.", True),
        build=Field(
            "map",
            "How to build it where no registry has it.",
            nullable=True,
            fields={
                "context": _text("Directory on the controller with the Dockerfiles; the user gives it.", nullable=True),
                "dockerfiles": _strings("Dockerfiles below the context, built in this order, each on the last one's result."),
                "args": Field("dict", "Build arguments.", {}, element=Field("str")),
                "note": _text("What the seed says of the build.", nullable=True),
            },
        ),
    ),
    model=_table(
        "The model.",
        id=_text("Hugging Face id, or any name.", required=True),
        path=_text("What is passed to vLLM: an id, or a path inside the container.", required=True),
        served_names=_strings("Names the API answers to; the first is the main one."),
        revision=_text("Hugging Face revision.", nullable=True),
        layout=_text(
            "hub: models--org--name below <store>/hub; directory: plain files. Derived from model.path when null.",
            nullable=True,
            choices=("hub", "directory"),
        ),
        relative_path=_text("Where the model lies below the model store. Derived when null.", nullable=True),
        size_gib=Field("number", "Size of the weights on disk, GiB.", nullable=True, minimum=0),
    ),
    engine=_table(
        "The engine's command line.",
        executor=_text("How ranks are joined.", "mp", choices=("mp", "ray")),
        entrypoint=_strings("Replaces the image's entrypoint; null keeps it.", nullable=True),
        shell=_strings("A shell to run the command line with, such as [bash, -lc]; null runs it directly.", nullable=True),
        command=_strings("First words of the command line.", ["vllm", "serve"]),
        positional_model=Field("bool", "Model as a bare argument; false writes --model.", True),
        headless_flag=_text("Flag for ranks above 0; null for none.", "--headless", nullable=True),
        args=Field(
            "dict",
            "Arguments by flag without its dashes, in order: true is a bare flag, false or null leaves it out, a list "
            "repeats values after the flag, a mapping becomes compact JSON, a dotted key is written --key=value.",
            {},
            element=Field("argument"),
            pattern=r"[a-z0-9][A-Za-z0-9._-]*",
            pattern_says="a flag without its dashes, such as max-model-len",
        ),
        api=_table(
            "Where rank 0 listens.",
            host=_text("Address to bind.", "0.0.0.0"),  # noqa: S104  the seeds serve agents on other machines; docs/profiles.md says how to close it
            port=Field("int", "TCP port.", 8000, minimum=1, maximum=65535),
        ),
        master_port=Field("int", "Rendezvous port on rank 0.", 25000, minimum=1, maximum=65535),
        ray=_table(
            "Only with executor ray.",
            port=Field("int", "Port of Ray's head.", 6379, minimum=1, maximum=65535),
            head_args=_strings("More arguments for ray start on rank 0."),
            worker_args=_strings("More arguments for ray start on the others."),
            own_env=_strings(
                "Variables that each node keeps for itself: Ray would copy the head's value to the others.",
                [
                    "NCCL_IB_GID_INDEX",
                    "NCCL_IB_HCA",
                    "NCCL_SOCKET_IFNAME",
                    "GLOO_SOCKET_IFNAME",
                    "TP_SOCKET_IFNAME",
                ],
            ),
        ),
    ),
    env=Field(**{**_ENV.__dict__, "doc": "Environment of every rank; values are strings."}),
    head_env=Field(**{**_ENV.__dict__, "doc": "Environment of rank 0 only, over env."}),
    worker_env=Field(**{**_ENV.__dict__, "doc": "Environment of the other ranks only, over env."}),
    container=_table(
        "The container around the engine.",
        gpus=_text("Which GPUs it gets.", "all", choices=("all", "none")),
        ipc=_text("IPC namespace.", "host", choices=("host", "private")),
        shm_size=_text("Size of /dev/shm; has no effect with ipc host.", nullable=True, pattern=r"\d+[bkmgBKMG][bB]?", pattern_says="a size like 16g"),
        memlock=Field("int", "Locked-memory limit, bytes; -1 is unlimited; null leaves it alone.", -1, nullable=True, minimum=-1),
        stack=Field("int", "Stack limit, bytes; null leaves it alone.", 67108864, nullable=True, minimum=-1),
        nofile=Field("int", "Open-files limit; null leaves it alone.", nullable=True, minimum=1024),
        memory=_text("Memory limit; does not bound the GPU's share.", nullable=True, pattern=r"\d+[bkmgBKMG][bB]?", pattern_says="a size like 100G"),
        cap_add=_strings("Capabilities beside IPC_LOCK."),
        devices=_strings("Devices beside /dev/infiniband, host:container."),
        volumes=_strings("host:container[:ro]; {model_store} stands for the model store on the node."),
        cache_dirs=_strings("Engine's compile caches on the node, wiped when the image changed; below {model_store}."),
        tmpfs=_strings("tmpfs mounts."),
        stop_grace_period=_text("Time between SIGTERM and SIGKILL.", "10s", pattern=r"\d+(?:ms|s|m)", pattern_says="a duration like 10s"),
    ),
    launch=_table(
        "Order and patience.",
        worker_lead_seconds=Field("int", "Seconds between the workers' start and the head's.", 10, minimum=0),
        phase_seconds=_table(
            "Longest time a phase of the boot may take before the gate gives up.",
            rendezvous=Field("int", _SECONDS, 660, minimum=1),
            load=Field("int", _SECONDS, 2700, minimum=1),
            init=Field("int", _SECONDS, 2400, minimum=1),
            total=Field("int", "Seconds from start to ready, all phases together; vllm_tp2_timeout wins over it.", 2700, minimum=1),
        ),
    ),
    gate=_table(
        "What a good boot shows.",
        context=Field("int", "Exact max_model_len. From engine.args when null.", nullable=True, minimum=1),
        effective_tokens=_bounds("Concurrency x context, tokens.", "int"),
        concurrency=_bounds("Maximum concurrency for the context.", "number"),
        transport=_text("rdma fails a boot that shows NCCL on sockets.", "any", choices=("rdma", "any")),
        kv_cache_dtype=_text("From engine.args when null.", nullable=True),
        speculative_method=_text("From engine.args when null.", nullable=True),
        dtype=_text("Model dtype; null for any.", nullable=True),
        max_restarts=Field("int", "Restarts of the container that are still fine.", 0, minimum=0),
        completion=_table(
            "The real completion that proves service.",
            prompt=_text("What is asked.", "What is 17 + 25? Answer with the number only."),
            expect=_text("Text the answer must hold; null for any sane answer.", nullable=True),
            max_tokens=Field("int", "Length of the answer.", 64, minimum=1),
            chat=Field("bool", "Chat completion; false for a plain one.", True),
            body=Field(
                "dict",
                "More keys of the request's body, such as chat_template_kwargs for a model that reasons.",
                {},
                element=Field("argument"),
                pattern=r"(?!(?:model|prompt|messages|stream)$)\w+",
                pattern_says="a key of the request's body other than model, prompt, messages and stream",
            ),
        ),
        concurrent_requests=Field("int", "How many completions are asked for at once; none of them may be bad.", 2, minimum=1),
        long_prompt_tokens=Field(
            "int", "Length of a long prompt that must be answered. Null: 28000 where KV memory is pinned by hand, else none.", nullable=True, minimum=1
        ),
        expressions=Field(
            "list",
            "JMESPath expressions over the gate's facts; each must be true. A string, or a mapping of expression, name and remedy, which a failure shows.",
            [],
            element=Field(
                "criterion",
                fields={
                    "expression": _text("The expression.", required=True),
                    "name": _text("What a failure calls it.", nullable=True),
                    "remedy": _text("What to do then.", nullable=True),
                },
            ),
        ),
    ),
    plan=_table(
        "Figures for kv_pool_plan; null is unknown and never blocks.",
        weights_gib_per_rank=Field("number", "Weights on each rank, GiB, drafter included.", nullable=True, minimum=0),
        kv_bytes_per_token=Field("number", "KV bytes per effective token and rank.", nullable=True, minimum=0),
        reserve_gib=Field("number", "Activations, graphs, NCCL and the rest, GiB a rank.", nullable=True, minimum=0),
        error_percent=Field("number", "Stated error of the expected pool, +-%.", nullable=True, minimum=0, maximum=100),
        ranks=Field("int", "Ranks of the measured boot.", 2, minimum=1),
        at=Field("dict", "Arguments of the measured boot; where the profile's differ, the error grows or nothing is expected.", {}, element=Field("argument")),
        utilization_limit=Field("number", "Highest gpu-memory-utilization that a remedy may propose; null is 0.82.", nullable=True, minimum=0, maximum=1),
        measured_pool_tokens=Field("int", "A measured pool, effective tokens.", nullable=True, minimum=1),
        sources=_strings("Where the figures come from."),
    ),
    published=Field("dict", "Published figures, name to value.", {}, element=Field("scalar")),
)

_EXPECTED = {
    "str": "a string",
    "int": "a whole number",
    "number": "a number",
    "bool": "true or false",
    "list": "a list",
    "map": "a mapping",
    "dict": "a mapping",
    "argument": "a string, a number, true, false, null, a list of strings and numbers, or a mapping",
    "scalar": "a string, a number, true or false",
    "criterion": "a string, or a mapping of expression, name and remedy",
}


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "the string {!r}".format(str(value) if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return type(value).__name__


def _is_argument(value: object) -> bool:
    if value is None or isinstance(value, (bool, int, float, str, Mapping)):
        return True
    return isinstance(value, (list, tuple)) and all(isinstance(v, (str, int, float)) and not isinstance(v, bool) for v in value)


def _covers(upper: str, path: str) -> bool:
    return path == upper or path.startswith((f"{upper}.", f"{upper}["))


class _Checker:
    """Walks a profile beside the schema, filling defaults; ``found`` has every fault, and what is wrong is left out of the result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[ProfileError] = []

    def fail(self, path: str, text: str) -> ProfileError:
        return ProfileError("profile {}: {} {}".format(self.name, path or "the profile", text), path)

    def note(self, path: str, text: str) -> None:
        """Remember a fault and go on."""
        self.found.append(self.fail(path, text))

    def part(self, value: object, spec: Field, path: str) -> tuple[Any, ...]:
        """Return a part of a value that was checked, as the one entry of a tuple; an empty one where it is wrong."""
        try:
            return (self.check(value, spec, path),)
        except ProfileError as exc:
            self.found.append(exc)
            return ()

    def sound(self, *paths: str) -> bool:
        """Tell whether nothing was found at these keys, above or below them, so that what they hold can be looked at further."""
        return not any(_covers(fault.path, path) or _covers(path, fault.path) for fault in self.found for path in paths)

    def done(self) -> None:
        """Raise what was found, if anything was."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            texts = tuple(dict.fromkeys(str(fault) for fault in self.found))
            raise ProfileError("; ".join(texts), faults=texts)

    def check(self, value: object, spec: Field, path: str) -> Any:
        if value is None:
            if spec.nullable or spec.kind == "argument":
                return None
            raise self.fail(path, f"is null, expected {_EXPECTED[spec.kind]}")
        method = getattr(self, "_" + spec.kind)
        return method(value, spec, path)

    def wrong(self, value: object, spec: Field, path: str, hint: str = "") -> ProfileError:
        return self.fail(path, f"is {_shown(value)}, expected {_EXPECTED[spec.kind]}{hint}")

    def _str(self, value: object, spec: Field, path: str) -> str:
        if not isinstance(value, str):
            hint = ""
            if isinstance(value, (int, float)):
                hint = f': write it in quotes, "{str(value).lower() if isinstance(value, bool) else value}"'
            raise self.wrong(value, spec, path, hint)
        if spec.choices and value not in spec.choices:
            raise self.fail(path, "is {!r}, expected one of {}{}".format(str(value), ", ".join(spec.choices), did_you_mean(value, spec.choices)))
        if spec.pattern and not re.fullmatch(spec.pattern, value):
            raise self.fail(path, f"is {str(value)!r}, expected {spec.pattern_says}")
        if any(c in value for c in "\x00\r"):
            raise self.fail(path, "holds a NUL or carriage return, which no command line can carry")
        return str(value)

    def _range(self, value: Any, spec: Field, path: str) -> Any:
        if spec.minimum is not None and value < spec.minimum:
            raise self.fail(path, f"is {value}, expected at least {spec.minimum:g}")
        if spec.maximum is not None and value > spec.maximum:
            raise self.fail(path, f"is {value}, expected at most {spec.maximum:g}")
        return value

    def _int(self, value: object, spec: Field, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(value, spec, path)
        return int(self._range(value, spec, path))

    def _number(self, value: object, spec: Field, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.wrong(value, spec, path)
        return self._range(value, spec, path)

    def _bool(self, value: object, spec: Field, path: str) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(value, spec, path)
        return value

    def _scalar(self, value: object, spec: Field, path: str) -> Any:
        if not isinstance(value, (str, int, float, bool)):
            raise self.wrong(value, spec, path)
        return value

    def _argument(self, value: object, spec: Field, path: str) -> Any:
        if not _is_argument(value):
            raise self.wrong(value, spec, path)
        if isinstance(value, Mapping):
            return dict(value)
        return list(value) if isinstance(value, (list, tuple)) else value

    def _criterion(self, value: object, spec: Field, path: str) -> Any:
        if isinstance(value, Mapping):
            return self._map(value, spec, path)
        if not isinstance(value, str):
            raise self.wrong(value, spec, path)
        return value

    def _list(self, value: object, spec: Field, path: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise self.wrong(value, spec, path)
        element = spec.element or ANYTHING
        return [part for i, item in enumerate(value) for part in self.part(item, element, f"{path}[{i}]")]

    def _dict(self, value: object, spec: Field, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self.wrong(value, spec, path)
        element = spec.element or ANYTHING
        out: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self.note(path, f"has the key {_shown(key)}, expected a string: write it in quotes")
            elif spec.pattern and not re.fullmatch(spec.pattern, key):
                self.note(f"{path}.{key}", f"is no usable key, expected {spec.pattern_says}")
            else:
                out.update((str(key), part) for part in self.part(item, element, f"{path}.{key}"))
        return out

    def _map(self, value: object, spec: Field, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self.wrong(value, spec, path)
        for key in value:
            if key not in spec.fields:
                where = f"{path}.{key}" if path else str(key)
                self.note(
                    where,
                    "is not a key of a profile{} (known {}: {})".format(
                        did_you_mean(key, spec.fields), "here" if path else "at the top", ", ".join(spec.fields)
                    ),
                )
        out: dict[str, Any] = {}
        for key, sub in spec.fields.items():
            where = f"{path}.{key}" if path else key
            if key in value and not (value[key] is None and not sub.required):
                out.update((key, part) for part in self.part(value[key], sub, where))
            elif sub.required:
                self.note(where, f"is missing, expected {_EXPECTED[sub.kind]}: {sub.doc}")
            elif sub.kind == "map" and not sub.nullable:
                out[key] = self._map({}, sub, where)
            else:
                out[key] = _copy(sub.default)
        return out


def _key(key: Any) -> Any:
    """Return a plain string for a string (Ansible's carry tags); anything else stays for the checker to name."""
    return str(key) if isinstance(key, str) else key


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_key(k): _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, (list, tuple)) else value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``over`` into ``base``: mappings key by key, null removes a key, everything else replaces. Order is kept."""
    out: dict[str, Any] = {_key(k): _copy(v) for k, v in base.items()}
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merge(out[key], value)
        else:
            out[_key(key)] = _without_null(value)
    return out


def _without_null(value: Any) -> Any:
    """Return a copy in which null keys of mappings are gone, as :func:`merge` would leave it."""
    if isinstance(value, Mapping):
        return {_key(k): _without_null(v) for k, v in value.items() if v is not None}
    return [_copy(v) for v in value] if isinstance(value, (list, tuple)) else value


def _chain(name: str, shipped: Mapping[str, Any], users: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (label, raw profile) from the root of ``extends`` down to ``name``."""
    out: list[tuple[str, Mapping[str, Any]]] = []
    seen: list[tuple[str, bool]] = []
    current, allow_user, asked_by = name, True, ""
    while True:
        from_user = allow_user and current in users
        if not from_user and current not in shipped:
            if current == asked_by:
                raise ProfileError(f"profile {current}: extends itself, and no shipped profile has its name; name another one, or leave extends out")
            known = sorted(set(shipped) | set(users))
            raise ProfileError(
                "{} is not a known profile{}; known are: {} (a profile of your own goes into gb10_profiles)".format(
                    f"profile {asked_by}: extends {current!r}, which" if asked_by else f"gb10_profile: {current!r}",
                    did_you_mean(current, known),
                    ", ".join(known),
                )
            )
        if (current, from_user) in seen:
            loop = [entry[0] for entry in seen[seen.index((current, from_user)) :]] + [current]
            raise ProfileError("profile {}: extends goes round in a circle ({}); one of them must stand on its own".format(name, " -> ".join(loop)))
        seen.append((current, from_user))
        raw = users[current] if from_user else shipped[current]
        if not isinstance(raw, Mapping):
            raise ProfileError(f"profile {current}: is {_shown(raw)}, expected a mapping")
        out.append((current, raw))
        parent = raw.get("extends")
        if parent is not None and not isinstance(parent, str):
            raise ProfileError(f"profile {current}: extends is {_shown(parent)}, expected a profile's name")
        if parent is None and from_user and current in shipped:
            parent = current  # a user's profile with a shipped name changes the shipped one
        if parent is None:
            return out[::-1]
        # Shipped profiles build on shipped ones only; a user's profile that extends its own name means the shipped one.
        allow_user = from_user and parent != current
        asked_by, current = current, str(parent)


def human_int(value: object) -> int | None:
    """Read a count as vLLM does: 200000, "200000", "200k" (1000), "512K" (1024), "1M", "1m"; None when it is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", value.strip())
    if not match:
        return None
    number, unit = match.groups()
    if "." in number and (not unit or unit.isupper()):
        return None
    factor = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[unit]
    return int(float(number) * factor) if "." in number else int(number) * factor


def _derive(profile: dict[str, Any], note: Any) -> None:
    """Fill what follows from other keys and refuse what contradicts them."""
    args, gate, model = profile["engine"]["args"], profile["gate"], profile["model"]
    context = human_int(args.get("max-model-len"))
    if context is not None and context < 1:  # -1: vLLM takes what fits
        context = None
    if gate["context"] is None:
        gate["context"] = context
    elif context is not None and context != gate["context"]:
        note(
            "gate.context",
            "is {}, but engine.args.max-model-len is {}: leave gate.context out, it follows the argument".format(gate["context"], context),
        )
    spec = args.get("speculative-config")
    method = spec.get("method") if isinstance(spec, Mapping) else None
    for key, wanted in (("kv_cache_dtype", args.get("kv-cache-dtype")), ("speculative_method", method)):
        if gate[key] is None:
            gate[key] = wanted if isinstance(wanted, str) else None
        elif isinstance(wanted, str) and wanted != gate[key]:
            note("gate." + key, f"is {gate[key]!r}, but engine.args says {wanted!r}: leave it out, it follows the argument")
    for key in ("effective_tokens", "concurrency"):
        low, high = gate[key]["min"], gate[key]["max"]
        if low is not None and high is not None and low > high:
            note(f"gate.{key}", f"has min {low} above max {high}")
    ranks = profile["ranks"]
    if ranks["max"] is not None and ranks["min"] > ranks["max"]:
        note("ranks", "has min {} above max {}".format(ranks["min"], ranks["max"]))
    if not model["served_names"]:
        model["served_names"] = [model["id"]]
    mount = store_mount(profile)
    path = model["path"]
    if model["layout"] is None:
        model["layout"] = "directory" if path.startswith("/") else "hub"
    if model["relative_path"] is None:
        if model["layout"] == "hub":
            model["relative_path"] = "hub/models--" + model["id"].replace("/", "--")
        elif mount is not None and (path + "/").startswith(mount.rstrip("/") + "/"):
            model["relative_path"] = path[len(mount.rstrip("/")) :].strip("/")


def store_mount(profile: Mapping[str, Any]) -> str | None:
    """Return the container path where ``{model_store}`` itself is mounted, or None."""
    for volume in profile["container"]["volumes"]:
        parts = volume.split(":")
        if parts[0] == "{model_store}" and len(parts) > 1:
            return str(parts[1])
    return None


def _is_share(value: object) -> bool:
    try:
        return not isinstance(value, bool) and 0 < float(str(value)) <= 1
    except ValueError:
        return False


def _is_context(value: object) -> bool:
    return str(value) in ("auto", "-1") or (human_int(value) or 0) > 0


# Argument -> whether a value will do, and what is expected: vLLM refuses these only when it boots, after image and weights have been brought.
_ARG_VALUES = {
    "gpu-memory-utilization": (_is_share, "a share of the memory, above 0 and at most 1, such as 0.8"),
    "max-model-len": (_is_context, "a number of tokens such as 131072 or 128k, or auto"),
}


def _check_args(args: Mapping[str, Any], note: Any) -> None:
    for key, value in args.items():
        path = "engine.args." + key
        if key in SECRET_ARGS:
            note(path, f"would show a secret in the process list: give it as {SECRET_ARGS[key]} through the role's variable instead")
            continue
        if "_" in key and key.replace("_", "-") in args:
            note(path, "and {} are the same flag: keep one".format(key.replace("_", "-")))
            continue
        fits, says = _ARG_VALUES.get(key.replace("_", "-"), (None, ""))
        if fits is not None and value is not None and value is not False and not fits(value):
            note(path, f"is {_shown(value)}, expected {says}")
        managed = PLACEHOLDERS.get(key.replace("_", "-"))
        if managed is not None and value != managed and value is not None:
            if key in LITERAL_ALLOWED and not (isinstance(value, str) and "{" in value):
                continue
            source = DECIDED_BY.get(key.replace("_", "-"))
            remedy = f"set {source} instead" if source else "leave it out"
            note(path, f'is {_shown(value)}, but the collection writes this argument itself: {remedy}, or use "{managed}" to choose its place')


def _check_container(container: Mapping[str, Any], note: Any) -> None:
    for i, volume in enumerate(container["volumes"]):
        parts = volume.split(":")
        if len(parts) not in (2, 3) or not all(parts) or not parts[1].startswith("/"):
            note(f"container.volumes[{i}]", f"is {volume!r}, expected host:container or host:container:ro")
        elif not parts[0].startswith(("/", "{model_store}")):
            note(f"container.volumes[{i}]", f"mounts {parts[0]!r}, expected an absolute path or {{model_store}}")
    for i, path in enumerate(container["cache_dirs"]):
        rest = path[len("{model_store}/") :] if path.startswith("{model_store}/") else ""
        if not rest.strip("/") or ".." in rest.split("/"):
            note(
                f"container.cache_dirs[{i}]",
                f"is {path!r}, expected a directory below {{model_store}}/, because it is deleted when the image changes",
            )


def check(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Check a merged profile (without ``extends``) and return it complete, with every default filled in; all its faults come at once."""
    checker = _Checker(name)
    profile: dict[str, Any] = checker.check(raw, SCHEMA, "")
    # What is wrong by the schema is left out of the profile: only what is whole is looked at further.
    if checker.sound("engine.args"):
        _check_args(profile["engine"]["args"], checker.note)
    for table in ("env", "head_env", "worker_env"):
        for key in profile.get(table, ()):
            if is_secret_name(key):
                checker.note(f"{table}.{key}", "looks like a secret, and a profile is not the place for one: use the role's variable for it")
    if checker.sound("container.volumes", "container.cache_dirs"):
        _check_container(profile["container"], checker.note)
    if checker.sound("engine", "gate", "model", "ranks", "container"):
        _derive(profile, checker.note)
    checker.done()
    return profile


def is_secret_name(name: str) -> bool:
    """Tell whether an environment variable of this name holds a secret (HF_TOKEN does, MTP_NUM_TOKENS does not)."""
    return bool(SECRET_ENV.search(name.upper())) and not NOT_SECRET.search(name.upper())


# A changed argument takes the inherited bounds with it that it makes meaningless; the layer's own bounds always count.
FORGOTTEN = (
    ("max-model-len", ("concurrency",)),
    ("gpu-memory-utilization", ("effective_tokens.max", "concurrency.max")),
    ("kv-cache-dtype", ("effective_tokens", "concurrency")),
)


def _at(tree: Any, *path: str) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _forget_bounds(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` without the gate's bounds that ``layer``'s arguments make meaningless (see :data:`FORGOTTEN`), and another model's plan."""
    out = merge(base, {})
    if _at(base, "model", "id") not in (None, _at(layer, "model", "id") or _at(base, "model", "id")):
        out.pop("plan", None)  # what was measured on another model foretells nothing of this one
    for flag, bounds in FORGOTTEN:
        before, after = _at(base, "engine", "args", flag), _at(layer, "engine", "args", flag)
        if before is None or after is None or before == after:
            continue
        for bound in bounds:
            drop: dict[str, Any] = {bound.partition(".")[0]: {"max": None} if "." in bound else None}
            if _at(out, "gate", bound.partition(".")[0]) is not None:
                out["gate"] = merge(out["gate"], drop)
    return out


def resolve(name: str, shipped: Mapping[str, Any], users: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the complete, checked profile ``name``.

    :param shipped: the collection's profiles, name to raw mapping.
    :param users: the inventory's ``gb10_profiles``; one with a shipped name changes the shipped one.
    :returns: every key of :data:`SCHEMA`, and ``name`` and ``lineage`` (names from the root to this one).
    :raises ProfileError: an unknown name, a circle in ``extends``, an unknown key, a wrong type, a contradiction.
    """
    users = {} if users is None else users
    if not isinstance(users, Mapping):
        raise ProfileError(f"gb10_profiles is {_shown(users)}, expected a mapping of profile names to profiles")
    chain = _chain(name, shipped, users)
    raw: dict[str, Any] = {}
    lineage: list[str] = []
    for label, layer in chain:
        if not lineage or lineage[-1] != label:
            lineage.append(label)
        raw = merge(_forget_bounds(raw, layer), {k: v for k, v in layer.items() if k != "extends"})
    profile = check(name, raw)
    return {"name": name, "lineage": lineage, **profile}


def adjusted(profile: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved ``profile`` with one more layer on it, checked again: as if a profile had extended it.

    What was derived from an argument (the gate's context, for one) follows the layer's argument, and the gate's bounds that a changed argument
    makes meaningless are gone, see :data:`FORGOTTEN`.

    :raises ProfileError: as :func:`resolve` does.
    """
    base = _without_null({key: value for key, value in profile.items() if key not in ("name", "lineage")})
    args, gate = base["engine"].get("args", {}), base["gate"]
    method = _at(args, "speculative-config", "method")
    for key, value in (("context", human_int(args.get("max-model-len"))), ("kv_cache_dtype", args.get("kv-cache-dtype")), ("speculative_method", method)):
        if value is not None and gate.get(key) == value:
            del gate[key]
    checked = check(str(profile["name"]), merge(_forget_bounds(base, layer), layer))
    return {"name": profile["name"], "lineage": list(profile["lineage"]), **checked}


def schema_rows(spec: Field = SCHEMA, path: str = "") -> list[tuple[str, str, str, str]]:
    """Return (key path, type, default, meaning) for every key, for the documentation."""
    rows: list[tuple[str, str, str, str]] = []
    for key, sub in spec.fields.items():
        where = f"{path}.{key}" if path else key
        kind = sub.kind
        if sub.choices:
            kind = " or ".join(sub.choices)
        elif sub.kind in ("list", "dict") and sub.element is not None:
            of = {"map": "mappings", "argument": "arguments"}.get(sub.element.kind, sub.element.kind)
            kind = "{} of {}".format({"list": "list", "dict": "mapping"}[sub.kind], of)
        if sub.required:
            default = "(required)"
        elif sub.kind == "map":
            default = ""
        else:
            default = "null" if sub.default is None else _default_text(sub.default)
        rows.append((where, "mapping" if sub.kind == "map" else kind, default, sub.doc))
        if sub.kind == "map":
            rows.extend(schema_rows(sub, where))
        elif sub.element is not None and sub.element.kind == "map":
            rows.extend(schema_rows(sub.element, where + "[]"))
    return rows


def _default_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[{}]".format(", ".join(str(v) for v in value))
    return "{}" if value == {} else str(value)
