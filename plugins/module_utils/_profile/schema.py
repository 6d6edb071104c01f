# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of a serving profile: types, defaults and meaning. docs/profiles.md is generated from it.

Units are in the key names: ``_gib`` is GiB, ``_seconds`` is seconds, tokens are counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.image_names import EXPECTED, IMAGE

# The fewest steps to a first boot: an image and weights that are downloaded, both pinned (docs/profiles.md).
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
MODEL_PATH = r"(?!(?:.*/)?\.\.(?:/|$))[^:$\x00-\x1f]+"
MODEL_PATH_TEXT = "an id or a path without '..', ':' and '$', such as org/Model"


@dataclass(frozen=True)
class Field:
    """The type and meaning of one key; ``doc`` is printed into docs/profiles.md."""

    kind: str  # str, int, number, bool, list, map (fixed keys), dict (free keys), argument, scalar, criterion
    doc: str = ""
    default: Any = None
    required: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""  # of a string, or of the keys of a dict
    pattern_text: str = ""
    element: Field | None = None  # of a list or dict
    fields: Mapping[str, Field] = field(default_factory=dict)


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


def _environment(doc: str) -> Field:
    return Field("dict", doc, {}, element=Field("str"), pattern=r"[A-Za-z_][A-Za-z0-9_]*", pattern_text="a variable name (letters, digits, _)")


_DIGEST = "sha256: and 64 hexadecimal digits"
_COMMIT: dict[str, Any] = {"pattern": r"[0-9a-f]{40}", "pattern_text": "the 40 hexadecimal digits of a commit"}
_FOLDER: dict[str, Any] = {
    "pattern": r"[A-Za-z0-9][\w.-]*|~?/[^\x00-\x1f]+",
    "pattern_text": "the name of a folder below images/ of the profiles, or an absolute path",
}
_GITHUB: dict[str, Any] = {
    "pattern": r"https://github\.com/[A-Za-z0-9-]+/[\w.-]+/?",
    "pattern_text": "https://github.com/OWNER/REPO; clone another repository and give the path of the mod without repository and commit",
}
_MOD_PATH: dict[str, Any] = {"pattern": r"[^\x00-\x1f]*[^\x00-\x1f/.]/?", "pattern_text": "the path of a folder with run.sh, or of a .patch or .diff file"}

_MODEL_PATH = _text("What is passed to vLLM: an id, or a path inside the container.", required=True, pattern=MODEL_PATH, pattern_text=MODEL_PATH_TEXT)
# What a model is on the nodes. The drafter has the same keys.
_FILES: dict[str, Field] = {
    "revision": _text("Hugging Face revision.", nullable=True),
    "layout": _text(
        "hub: models--org--name below <store>/hub; directory: plain files. Derived from the path when null.",
        nullable=True,
        choices=("hub", "directory"),
    ),
    "relative_path": _text("Path of the model below the model store. Derived when null.", nullable=True, pattern=MODEL_PATH, pattern_text=MODEL_PATH_TEXT),
    "size_gib": Field("number", "Size of the weights on disk, GiB.", nullable=True, minimum=0),
}

_SECONDS = "Seconds allowed for this phase of the boot."

SCHEMA = _table(
    "A serving profile.",
    summary=_text("What the profile offers, in one line.", required=True),
    sources=_strings("Where its values come from."),
    notes=_strings("What to know before using it."),
    deviations=Field(
        "list",
        "Where the profile differs from the text of its source, or adds to it, and why.",
        [],
        element=_table(
            "",
            keys=_strings("The keys, as paths.", required=True),
            original=_text("The source's text; null if it has none.", nullable=True),
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
        reference=_text("Name and tag.", required=True, pattern=IMAGE, pattern_text=f"{EXPECTED}; a digest goes into image.digest, as {_DIGEST}"),
        digest=_text("Pin: sha256:...", nullable=True, pattern=r"sha256:[0-9a-f]{64}", pattern_text=_DIGEST),
        pull=Field("bool", "Whether a registry has it; false for an image that is built or loaded.", True),
        size_gib=Field("number", "Size of the image on disk as published, GiB.", nullable=True, minimum=0),
        download_gib=Field("number", "Compressed size of the pull as published, GiB.", nullable=True, minimum=0),
        build_minutes=Field("number", "Duration of the build as published, minutes.", nullable=True, minimum=0),
        build=_text(
            "Folder with the Dockerfile that builds it if no registry has it: a name below profiles/images/ or <gb10_profiles_directory>/images/, or an "
            "absolute path on the controller.",
            nullable=True,
            **_FOLDER,
        ),
        mods=Field(
            "list",
            "What is changed in it, in this order. The result is an image of its own, the same on all ranks.",
            [],
            element=_table(
                "",
                repository=_text("Repository on GitHub; null for a path on the controller.", nullable=True, **_GITHUB),
                commit=_text("Its commit.", nullable=True, **_COMMIT),
                path=_text(
                    "Folder with run.sh, or one .patch or .diff file: in the repository, or absolute, or relative to the folder of your profiles.",
                    required=True,
                    **_MOD_PATH,
                ),
            ),
        ),
    ),
    model=_table(
        "The model.",
        id=_text("Hugging Face id, or any name.", required=True),
        path=_MODEL_PATH,
        served_names=_strings("Model names of the API; the first is the main one."),
        **_FILES,
    ),
    drafter=Field(
        "map",
        "The drafter, a model of its own that speculative-config names with drafter.path. Null if the model has it, or nothing drafts.",
        nullable=True,
        fields={"id": _text("Hugging Face id, or any name.", required=True), "path": _MODEL_PATH, **_FILES},
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
            pattern_text="a flag without its dashes, such as max-model-len",
        ),
        api=_table(
            "Where rank 0 listens.",
            host=_text("Address to bind.", "0.0.0.0"),  # noqa: S104  the sources serve other machines; docs/profiles.md describes how to restrict it
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
    env=_environment("Environment of every rank; values are strings."),
    head_env=_environment("Environment of rank 0 only, over env."),
    worker_env=_environment("Environment of the other ranks only, over env."),
    container=_table(
        "The container around the engine.",
        gpus=_text("Which GPUs it gets.", "all", choices=("all", "none")),
        ipc=_text("IPC namespace; null is private, unless vllm_tp2_ipc is host.", nullable=True, choices=("host", "private")),
        shm_size=_text("Size of /dev/shm; null is 16g. It has no effect with ipc host.", nullable=True, pattern=SIZE, pattern_text="a size like 16g"),
        memlock=Field("int", "Locked-memory limit, bytes; -1 is unlimited; null leaves it alone.", -1, nullable=True, minimum=-1),
        stack=Field("int", "Stack limit, bytes; null leaves it alone.", 67108864, nullable=True, minimum=-1),
        nofile=Field("int", "Open-files limit; null leaves it alone.", nullable=True, minimum=1024),
        memory=_text("Memory limit; does not bound the GPU's share.", nullable=True, pattern=SIZE, pattern_text="a size like 100G"),
        cap_add=_strings("Capabilities in addition to IPC_LOCK; all others are dropped."),
        devices=_strings("Devices in addition to those of InfiniBand, host:container."),
        volumes=_strings("host:container[:ro]; {model_store} stands for the model store on the node. What contains the weights must be read-only (ro)."),
        cache_dirs=_strings("The engine's compile caches on the node, below {model_store}. <folder>-<key> is mounted, one for each image and shape."),
        tmpfs=_strings("tmpfs mounts."),
        stop_grace_period=_text("Time between SIGTERM and SIGKILL.", "10s", pattern=r"\d+(?:ms|s|m)", pattern_text="a duration like 10s"),
    ),
    launch=_table(
        "Order and time limits of a start.",
        worker_lead_seconds=Field("int", "Seconds between the workers' start and the head's.", 10, minimum=0),
        phase_seconds=_table(
            "Longest time for a phase of the boot before the gate fails it.",
            rendezvous=Field("int", _SECONDS, 660, minimum=1),
            load=Field("int", _SECONDS, 2700, minimum=1),
            init=Field("int", _SECONDS, 2400, minimum=1),
            total=Field("int", "Seconds from start to ready, all phases together; vllm_tp2_timeout wins over it.", 2700, minimum=1),
        ),
    ),
    gate=_table(
        "What a good boot must show.",
        context=Field("int", "Exact max_model_len. From engine.args when null.", nullable=True, minimum=1),
        effective_tokens=_bounds("Concurrency x context, tokens.", "int"),
        concurrency=_bounds("Maximum concurrency for the context.", "number"),
        transport=_text("rdma fails a boot that shows NCCL on sockets.", "any", choices=("rdma", "any")),
        kv_cache_dtype=_text("From engine.args when null.", nullable=True),
        speculative_method=_text("From engine.args when null.", nullable=True),
        dtype=_text("Model dtype; null for any.", nullable=True),
        max_restarts=Field("int", "Restarts of the container that are still accepted.", 0, minimum=0),
        completion=_table(
            "The real completion that proves service.",
            prompt=_text("The prompt.", "What is 17 + 25? Answer with the number only."),
            expect=_text("Text that the answer must contain; null for any sane answer.", nullable=True),
            max_tokens=Field("int", "Length of the answer.", 64, minimum=1),
            chat=Field("bool", "Chat completion; false for a plain one.", True),
            body=Field(
                "dict",
                "More keys of the request's body, such as chat_template_kwargs for a model that reasons.",
                {},
                element=Field("argument"),
                pattern=r"(?!(?:model|prompt|messages|stream)$)\w+",
                pattern_text="a key of the request's body other than model, prompt, messages and stream",
            ),
        ),
        concurrent_requests=Field("int", "How many completions are requested at once; all must pass.", 2, minimum=1),
        long_prompt_tokens=Field(
            "int", "Length of a long prompt that must be answered. Null: 28000 if KV memory is pinned, else none.", nullable=True, minimum=1
        ),
        acceptance=_table(
            "Speculation, by the engine's own counters over the gate's completions. Without bounds, a drafter that accepts nothing is a warning.",
            min=Field("number", "Lowest share of draft tokens that are accepted, 0 to 1; null for none.", nullable=True, minimum=0, maximum=1),
            positions_active=Field("int", "Draft positions, from the first, that must have an accepted token; null for none.", nullable=True, minimum=1),
        ),
        decode_tok_s=_table(
            "Decode speed of one stream, tokens/s. The published speed is compared as well, and a difference is only a warning.",
            min=Field("number", "Lowest speed that passes; null for none.", nullable=True, minimum=0),
        ),
        cold_prefill_tokens=Field("int", "Length of a prompt that no prefix cache has, which must be answered; null for none.", nullable=True, minimum=1),
        cold_prefill_tools=Field(
            "bool", "Whether that prompt stands before the one of gate.completion in a chat with tools, whose reply is judged as that one's.", False
        ),
        long_replies=Field("int", "How many generations of 800 tokens are requested at once; null for none.", nullable=True, minimum=1),
        engine=_table(
            "What the engine must report in its log; null for any.",
            eager=Field("bool", "Whether the engine runs without CUDA graphs.", nullable=True),
            moe_backend=_text("Backend of the experts, such as B12X or MARLIN; upper and lower case are equal.", nullable=True),
            custom_ops=_text("The custom_ops of the compilation, such as all or none; several joined by commas.", nullable=True),
            autotune=Field("bool", "Whether FlashInfer tunes its kernels.", nullable=True),
        ),
        expressions=Field(
            "list",
            "JMESPath expressions over the gate's facts; each must be true. A string, or a mapping of expression, name and remedy, which a failure shows. "
            "`!(head.unknown_variables)` refuses an engine that does not know one of its environment variables.",
            [],
            element=Field(
                "criterion",
                fields={
                    "expression": _text("The expression.", required=True),
                    "name": _text("Its name in a failure.", nullable=True),
                    "remedy": _text("The remedy in a failure.", nullable=True),
                },
            ),
        ),
    ),
    plan=_table(
        "Figures for kv_pool_plan; null is not known. A utilization above 0.82 with a pinned KV size needs the weights and the reserve.",
        weights_gib_per_rank=Field("number", "Weights on each rank, GiB, drafter included if the measured boot ran with it.", nullable=True, minimum=0),
        kv_bytes_per_token=Field("number", "KV bytes per effective token and rank.", nullable=True, minimum=0),
        reserve_gib=Field("number", "Activations, graphs, NCCL and the rest, GiB a rank.", nullable=True, minimum=0),
        error_percent=Field("number", "Stated error of the estimated pool, +-%.", nullable=True, minimum=0, maximum=100),
        ranks=Field("int", "Ranks of the measured boot.", 2, minimum=1),
        at=Field("dict", "Arguments of the measured boot; if the profile's differ, the error grows or nothing is estimated.", {}, element=Field("argument")),
        utilization_limit=Field(
            "number",
            "Highest gpu-memory-utilization that is reported to serve: more is refused, and no remedy proposes it. Null is 0.82, or a shipped profile's own.",
            nullable=True,
            minimum=0,
            maximum=1,
        ),
        measured_pool_tokens=Field("int", "A measured pool, effective tokens.", nullable=True, minimum=1),
        sources=_strings("Where the figures come from."),
    ),
    published=Field("dict", "Published figures, name to value.", {}, element=Field("scalar")),
)
