# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/reference/profiles.md from profiles/*.yml and the schema; with --check only test whether it is up to date."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles  # noqa: E402  the path must stand first
from ansible_collections.gb10.cluster.plugins.module_utils._bench import levels  # noqa: E402
from ansible_collections.gb10.cluster.plugins.module_utils._profile import host_memory, kv_estimate, text, values  # noqa: E402
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import PLACEHOLDERS  # noqa: E402
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve  # noqa: E402
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import SCHEMA, resolved, types  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "profiles.md"
HEAD = """\
<!-- Written by tools/profiles_doc.py from profiles/*.yml: change those, then run it. -->
# Profiles

A profile is a serving system as data: image, model, all arguments of `vllm serve`, environment, container, and what a good boot must show.
One variable selects it. `ansible-playbook playbooks/profiles.yml` lists the profiles and prints the selected one.

```yaml
# inventories/<yours>/group_vars/gb10.yml
gb10_profile: b12x-fp8-1m        # the default
```

{table}

Images are *pulled* from a registry, all by digest, or *built* from a Dockerfile ([roles/image](../../roles/image/README.md)). What no registry has and
nothing here builds is an [example](#examples). Sizes and the duration of a build are as published.

The pool is in effective tokens (maximum concurrency x context). The gate fails a boot below or above it. An estimate is the plan's for two nodes of
121.69 GiB: no such boot is published, and the gate does not check it. A dash means not known.

### The default

`b12x-fp8-1m` is the default because a new owner has it with the fewest steps. One node pulls its image (about 12 GiB, pinned by digest) and downloads its
weights (148 GiB, pinned by revision), and nothing is built. It serves 1M tokens of context. Then look at `dspark-nvfp4-1m`: it is faster, and its image is
pulled too. No profile was run on a GB10 by the authors of this collection.

### Images

| `image` of the profile | the image |
|---|---|
| `pull: true`, and `digest` | is pulled |
| `pull: false`, `build: NAME` | is built from `profiles/images/NAME/Dockerfile`, whose lines have the base, the sources, the pins and the proofs |
| `pull: false` | is one that you load under this name (`docker load`), on one rank |
| `mods` | is a layer of its own over one of these |

`NAME` can also be a folder `images/NAME/` in `gb10_profiles_directory` (it wins over a shipped one), or an absolute path. The folder is the build context.
[roles/image](../../roles/image/README.md#how-an-image-is-built) describes the build.

### Mods

A mod is a folder with `run.sh`, as those of eugr/spark-vllm-docker, or one patch. It is in a repository on GitHub at a commit, or on the controller:

```yaml
gb10_profiles:
  mine:
    extends: glm53-flash-spark-500k
    image:
      mods:
        - {{repository: https://github.com/OWNER/REPO, commit: "0123456789012345678901234567890123456789", path: mods/fix-x}}
        - {{path: fix-y}}                     # own-profiles/fix-y/run.sh
        - {{path: /home/me/src/z.patch}}
```

- A folder is copied to `/workspace/mods/<name>` of the image, and `bash run.sh` runs there, with `WORKSPACE_DIR` as in the launcher of that repository.
- A patch is applied with `patch -p1` in the `site-packages` that has vLLM. Its paths begin with `a/vllm/`. The image needs the program `patch`.
- The node that builds fetches the archive of a repository. Clone a private repository, or one elsewhere, and give the path.
- A mod runs once, when the layer is built, without a GPU. One that starts a process, or reads the variables of a start, has no effect.
- The image has the name of its base, without the registry, and `-mods-` with 12 digits of the hash of the mods. A changed mod is another image.
- A base without a digest is recorded in the lock file when it is pulled.

### Published figures

`published` of a profile has the figures of its source, in groups. A group has the level that its figures share, and columns for what varies:

```yaml
published:
  - tool: llama-benchy                    # pp1024 tg128, pp1024 tg128 @ d240000
    prompt: 1024
    output: 128
    depth: [0, 240000]
    figures:
      decode_tok_s: [45.7, 39.4]
      ttft_ms: [1000, 144000]
  - {{tool: gb10, case: code, output: 256, concurrency: 16, arrivals: every 0.4 s, figures: {{aggregate_tok_s: 205.0}}}}
  - {{measured_by: gate, figures: {{kv_pool_tokens: 1990142}}}}
  - {{not_compared: The source does not give the prompt, figures: {{decode_tok_s: 37}}}}
```

A measurement is compared with a figure of the same tool, case, tokens, requests, arrivals and quantity, and with no other. The difference is marked if at
least three runs were made, and it is beyond their spread and beyond 3 %. A figure with a `remark` is of another system: its difference is not marked.
Of the figures of all profiles, {runnable} can be measured again with a tool, and {others} have a reason instead. The gate or the report measures {at_boot}.

| tool | case | what is sent |
| --- | --- | --- |
{cases}

`decode_tok_s` is of each request (`t/s (req)` of llama-benchy). `aggregate_tok_s` is of all requests together (`t/s (total)`): for a case of `gb10` all
output over the time until the last reply. `prefill_tok_s` is of all together too. `ttft_ms` is `e2e_ttft` of llama-benchy.

| quantity | meaning | unit | better |
| --- | --- | --- | --- |
{quantities}

### Sources and deviations

A source is the public text that a profile is made from, with the files of its repository at that state. `sources` names them. Each argument and variable
that differs is in `deviations`. The five that the first profiles and most settings of the hosts come from, by the names that they have here:

| name | title, author | address | last read |
|---|---|---|---|
| GanyX19 | DeepSeek-V4-Flash on 2x DGX Spark (GB10): Reproducible vLLM Serving Recipe up to 1M Token Context; GanyX19 | [forum][ganyx] | 2026-11-26 |
| the Aiden thread | DeepSeek v4 Flash (Aiden Recipe from Reddit), 1M token session operational; a recipe of aidendle94 | [forum][aiden] | 2026-11-26 |
| 11_p's thread | DeepSeek-V4-Flash (official FP8) running across 2x DGX Spark, TP=2, MTP, 200K ctx, recipe + numbers | [forum][11p] | 2026-11-26 |
| tonyd2wild | DeepSeek-v4-Flash-DSpark-1M-NVFP4-KV-2x-DGX-Spark; tonyd2wild | [repository][tony] | 2026-11-28 |
| Tobias Weiss | Two-Node DGX Spark Cluster: Running DeepSeek V4 Flash at 20 TPS; Tobias Weiss | [page][weiss] | 2026-11-26 |

[ganyx]: https://forums.developer.nvidia.com/t/374742
[aiden]: https://forums.developer.nvidia.com/t/372268
[11p]: https://forums.developer.nvidia.com/t/370309
[tony]: https://github.com/tonyd2wild/DeepSeek-v4-Flash-DSpark-1M-NVFP4-KV-2x-DGX-Spark
[weiss]: https://tobias-weiss.org/content/ai/2-node-dgx-spark-deepseek-v4-cluster

Each image was found in public material by its digest. `sources` of a profile has the addresses, with their state and the day on which they were read.
Neither a registry nor Hugging Face was asked. For an image that is built, this is its base:

{read}

These differences are the same in all profiles, and not repeated there:

- The collection names the container, the project and the labels, and rotates the log. `restart` is `no`, because the agent restarts the pair as a whole.
- It writes the address, the port, the served name, the ranks and the rendezvous as arguments, and `NODE_RANK`, `HEADLESS`, `MASTER_ADDR`, `MASTER_PORT` and
  `VLLM_HOST_IP` as variables. The fabric's variables are those of the node.
- It adds the health check, the capability `IPC_LOCK` without any other, `no-new-privileges`, and the limits `memlock` and `stack`. A stop has
  a grace of 10 s. There is a GPU reservation instead of `gpus: all`. Only the device nodes of RDMA are passed, not all of `/dev/infiniband`.

A bound of the gate is set only where the pool of that configuration was published. What a source calls an estimate is named in the notes.

### Examples

`profiles/examples/` has what is described completely, and whose image no registry has. Each file names how its owners build it. Copy the file and the
folders that its `image.mods` names into `own-profiles/`, build the image under the name in the file, and set `gb10_profile`.

- `dspark-nvfp4-1m-0731`: tonyd2wild's state of 2026-08-07, with DeepSeek-V4-Flash-0731. Its mod counts the markers of Patches 2b, 3 and 4 in your image.

### Not in the list

Two models that owners of a pair serve have no profile (2026-11-28):

- **GLM-5.3-Flash in NVIDIA's NVFP4, TP2 with DCP2.** The recipe is public: eugr/spark-vllm-docker at 683281de5c7d6cfd220802682277bdd56a61f194,
  recipes/glm-5.3-flash-nvidia-nvfp4.yaml. It has the arguments, the revision of the model, 34 to 48 tokens/s and a pool of 1,711,646 tokens. Missing are the
  digest of the image that was measured, and the recipe's five mods, which this collection does not contain. To serve it, clone that repository and import the
  recipe from the clone: the mods become `image.mods`. Then set `image.reference`, `image.digest` and `image.pull`.
- **DeepSeek-V4.1-Flash on B12X.** 0xSero/DeepSeek-V4.1-Flash-Two-Sparks at 61f9933ace05d239e009b4f9e2a4f0918a26f56a has the image by digest, the arguments,
  29 to 41 tokens/s and a pool of 2,023,717 tokens. Its container is privileged: its tables are read from the disk with io_uring, which Docker's
  seccomp profile denies. A script also has to join the parts of two weight files on each node. The recipes of eugr/spark-vllm-docker are for 3 and 4 nodes.

## A profile of your own

Extend one: mappings merge key by key, lists and values replace, `null` removes a key. New arguments go to the end of the line.

```yaml
gb10_profile: mine
gb10_profiles:
  mine:
    extends: dspark-nvfp4-1m
    engine:
      args:
        max-model-len: 500000
        max-num-seqs: 4
        enable-flashinfer-autotune: null      # leave it out
    gate:
      concurrency: {{min: 3.7}}
```

- `gate.context`, `gate.kv_cache_dtype` and `gate.speculative_method` follow the arguments: leave them out.
- Inherited bounds that an argument invalidates are removed: `gate.concurrency` with another `max-model-len`, the upper bounds with another
  `gpu-memory-utilization`, all of them with another `kv-cache-dtype`. Your own bounds always count.
- A profile under a shipped name changes the shipped one, without `extends`. Shipped profiles build on shipped ones only.
- A profile without `extends` needs at least `summary`, `image.reference`, `model.id` and `model.path`.
- A drafter that is a model of its own is `drafter`, with the keys of `model`: `drafter: {{id: org/Draft, revision: <commit>, path: /models/org/Draft}}`. It is
  downloaded, compared on all ranks, mounted read-only and pinned as the model is. `speculative-config.model` is `drafter.path`, and `drafter.revision` is
  added to `speculative-config`. A layer that takes `speculative-config` away, or names another model there, removes an inherited drafter.
- `plan.weights_gib_per_rank` contains the drafter if the measured boot ran with it. If `plan.at` shows a boot without a drafter, `drafter.size_gib` is
  added, divided by `draft_tensor_parallel_size` of `speculative-config`, or by the number of ranks.
- An unknown key, a value of the wrong type or a contradiction is an error with the key, the value and what is expected.
- What contains the weights is mounted read-only (`"{{model_store}}:/models:ro"`), and each cache apart (`"{{model_store}}/vllm-cache:/models/vllm-cache"`).
- A profile must not contain secrets. An API key is a variable of the role and reaches vLLM as `VLLM_API_KEY` from a file with mode 0600.
- The shipped profiles listen on all addresses of the head, as their sources do. The first run makes an API key; see [security.md](../security.md).

- A profile can also be a file, `own-profiles/mine.yml`, with the keys below `mine` and without the line `mine:`. `gb10_profiles_directory` is the folder.

### From a recipe of another tool

```sh
ansible-playbook playbooks/import.yml -e recipe=flash.yaml                               # a recipe of sparkrun or eugr/spark-vllm-docker
ansible-playbook playbooks/import.yml -e recipe=docker-compose.yml -e profile_name=mine  # a Compose file, with the .env next to it
ansible-playbook playbooks/import.yml -e recipe=run.sh                                   # a script with `docker run`
```

It writes `own-profiles/<name>.yml`, contacts no host and executes nothing. `gb10_profile: <name>` selects the profile.
A misspelt `-e` is refused before anything is written.
More options: `-e gb10_profiles_directory=FOLDER`, `-e env_file=FILE`, `-e service=NAME` of a Compose file, `-e force=true` to replace a file, `--check --diff`.
A file that ends in `.yml` or `.yaml` is a recipe or a Compose file, any other one a script.

| from | into |
|---|---|
| `vllm serve` and its arguments, also within a shell script or with placeholders | `engine`, `model`, `ranks` |
| `env`, `environment`, exports of a script | `env` |
| `container`, `image` | `image.reference`; `pull` if the name has a slash |
| `mods` with a folder next to the recipe, or in a folder above it in its checkout | `image.mods` |
| `speculative-config.model` | `drafter` |
| several services, or `docker run` commands, that run vLLM | the one that `-e service=NAME` names; of a pair, that of the head |
| mounts of models and compile caches | the model store, read-only, and `container.cache_dirs` |
| secrets, variables without a value, other mounts, other mods, files that the engine reads | a line with what you have to do |
| `NCCL_IB_HCA`, `NODE_RANK`, `restart`, `privileged`, hooks, other services, ... | one line of names: the role sets them, or a profile has no such key |

- The run prints the file, these lines, and the command that validates the profile. The notes of the profile have the same lines.
- That command needs an inventory: `inventories/mine`, or the `-i` that you gave to `import.yml`, which it repeats.
- No field is lost: what no rule knows is named. Secrets are named without their values.
- A recipe for one node becomes a profile for two, and the report has a line for it.
- The profile is compared with the schema, and nothing is written if it is not valid. `validate.yml` checks the rest, such as its memory.
- Of the files that a recipe names, only those below its folder are read, and mods of its checkout. A link that leads out is not followed.
- A Compose file sees only its `.env`, not the environment of the controller. An argument without a value is an error.
- A command that decides or computes something is an error that names the construct and its line: a condition, a loop, an array, arithmetic, a function,
  a here-document, a command substitution. Run it once with `set -x`, or `docker compose config` for variables of Compose, and import what it prints.
- An engine other than vLLM is an error, and so are several engines, and models for pooling (embeddings, rerankers).

### Defaults of every pair

A profile of your own without a shipped one below it gets what every pair needs. A value of its own wins, `null` leaves the variable out, and
`profiles.yml` lists these under *Default of the collection*.

| default | why |
|---|---|
| `UCX_MEM_MMAP_HOOK_MODE=none`, `UCX_RCACHE_MAX_UNRELEASED=1024` | without this pair each request leaks about 14 MB until the node freezes (GanyX19) |
| `NCCL_IB_DISABLE=0` | RDMA, also if the image turns it off (the Aiden thread, 11_p's thread) |
| `NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=INIT,NET` | NCCL names its transport at this level alone, and the gate reads it |
| `NCCL_NVLS_ENABLE=0` | a GB10 has no NVLink, and NCCL 2.30.4 hangs while a pair loads experts |
| `HF_HUB_OFFLINE=1` | only if the container mounts the model store: the role `weights` has proven the model |
| `default-chat-template-kwargs: {{thinking: false, enable_thinking: false}}` | tonyd2wild; only with the tokenizer or reasoning parser `deepseek_v4` |

`NCCL_NET`, `NCCL_CROSS_NIC`, `NCCL_CUMEM_ENABLE` and `NCCL_IGNORE_CPU_AFFINITY` are not defaults: only some sources set them, without a reason.

### Memory of the host

CPU and GPU of a GB10 share one memory. A node without free memory freezes, and a person has to power-cycle it. The inventory check, `validate.yml` and
the plan of `site.yml` refuse the settings that are reported to freeze nodes:

- `gpu-memory-utilization` above 0.82 (GanyX19), above the profile's `plan.utilization_limit`, or above its own value in a shipped profile. vLLM's
  default, 0.9 or 0.92, counts if the argument is missing.
- `custom_ops: [all]` on a profile whose measured boot compiled without it (Tobias Weiss).

If the profile pins the KV size (`kv-cache-memory-bytes` or `kv-cache-memory`), vLLM does not size the pool by the utilization. What stays free decides then,
and 0.85 or 0.87 is accepted if it is as much as 0.82 leaves, about 5 GiB:

`MemTotal - plan.weights_gib_per_rank - pinned KV - plan.reserve_gib - 16.9 GiB`

| figures of the profile | utilization | result |
| --- | --- | --- |
| both, enough stays free | any | accepted: `gpu-memory-utilization 0.85 with a KV pool of 6.0 GiB: about 10.8 GiB stay free on each node` |
| too little stays free, even without the reserve | any | refused, with the largest KV size that fits |
| one is missing | above 0.82 | refused: the message names the figure to set |
| one is missing | up to 0.82, or a shipped profile's own | accepted: the message names the figure to set |

vLLM's start check still compares the free memory with `utilization x MemTotal`. If a node has less, the plan names the utilization that starts.

The message names the memory that would stay free: what the utilization leaves, less {outside:.1f} GiB for the host and the engine's use outside its
share. This figure is from GanyX19, where 8 GB stayed free at 0.80. It gives {at_85:.1f} GiB at 0.85, where the source reports about 1 GB.
`vllm_tp2_allow_unsafe_memory: true` makes the refusal a warning. `vllm_tp2_plan: report` does not.
The plan also warns if a node is smaller than 121.7 GiB, or has too little memory for the peak of the load. This is 33 GiB next to the weights (11_p's thread).
No source names a context that freezes a node: the context takes memory from the pool, not from the host.

### Arguments

`engine.args` is in the order of the command line. `true` is a bare flag, and `false` leaves it out. A list repeats values after the flag. A mapping
becomes compact JSON. A key with a dot is written `--key=value`. The collection writes these itself, after the model or at the end:
{managed}.
To put one at another place, name it with its placeholder, as in `host: "{{host}}"`.

### Environment

Weakest first: what the collection adds; `env`; `head_env` or `worker_env`; the fabric variables of this node ({fabric}), which also remove all others of
these from the profile; `NODE_RANK`, `HEADLESS`, `MASTER_ADDR`, `MASTER_PORT`, `VLLM_HOST_IP`; the user's extra environment.

### What the collection adds

Each profile gets these variables, unless it sets them, or the inventory sets them or removes them (`vllm_tp2_extra_env: {{NAME: null}}`).
*cache* is where the first folder of `container.cache_dirs` is mounted writable. Without such a mount the compile caches are not added.

{added}

At vLLM's own limits, a kernel that is compiled during a boot or a request ends the engine. The gate ends a phase of a boot that takes too long, and the
watch finds a rank that hangs. With `vllm_tp2_keep_serving: false`, only the second limit ends a request to a hanging rank. `VLLM_RPC_TIMEOUT` stays as it
is: it does not bound a step of the model. PyTorch's NCCL watchdog of 600 s stays too.

Each folder of `container.cache_dirs` is mounted from `<folder>-<key>` on the node. The key is a hash of the image, the model, the number of ranks
and `engine.args`. It also covers the variables that begin with {shaping}. Arguments that change no kernel are left out, such as `port`, `served-model-name`,
`override-generation-config` and `gpu-memory-utilization`. So another image or shape never reads the artifacts of this one, and a rollback finds its
warm cache. [The role `vllm_tp2`](../../roles/vllm_tp2/README.md) creates and removes these folders.

### Ray

With `executor: ray` the head's container starts Ray's head, then the engine; the others wait for its port, join and stay. Each node keeps its own
`engine.ray.own_env`, which Ray would otherwise overwrite with the head's.

The lab cannot test it: with Ray 2.60 and a running cluster, vLLM 0.32 for CPU ends its boot with `ValueError: current platform cpu does not support ray.`
(`initialize_ray_cluster`; only CUDA, ROCm and XPU name a Ray resource). Tried on 2026-11-21.
The rendered files are tested against the source's, argument by argument.

## The plan: the estimated pool

The estimate is `utilization x MemTotal - weights - reserve` of each rank. The smallest result, divided by the bytes a token, is the pool.
If the GPU has its own memory, that is used instead of MemTotal, as `nvidia-smi` reports it. The limits for the host's memory do not apply then.
The figures are calibrated on measured boots (one of each profile, whose error is 0.0 by construction). The error on each:

{calibration}

The stated error is the profile's `plan.error_percent`. It grows by 2 to 8 points for each argument that differs from the measured boot. It also
grows if the pool is smaller than the measured one, because what varies from boot to boot are GiB. Nothing is estimated if the KV dtype, the block
size, the quantization, the number of ranks or the model differ. A profile with another `model.id` inherits no plan. With
`num-gpu-blocks-override` or `cpu-offload-gb` nothing is estimated either. Unknown figures never block. A boot is refused for three reasons only:
the upper end of the error is below what the gate needs; pinned KV memory does not fit next to the weights; vLLM's start check would fail.

"""
# A profile's whole plan on two DGX Sparks, against a measured pool.
POOLS = (
    ("tonyd2wild, 2026-06-30", "dspark-nvfp4-1m-seed", 1990142),
    ("tonyd2wild, 2026-06-29", "dspark-nvfp4-1m-seed", 2044166),
    ("tonyd2wild, code microbench", "dspark-nvfp4-1m-seed", 1901239),
    ("GanyX19, 1M", "fp8-1m", 1430000),
    ("GanyX19's repository, 512K", "fp8-512k", 1180000),
    ("Tobias Weiss", "piecewise-200k", 865000),
)
# Bytes a token alone: KV memory in GiB, against a measured pool.
TOKENS = (
    ("boot log 055, 18.08 GiB, bytes a token of dspark-nvfp4-1m-seed", 18.08, 2493464),
    ("third party, 10.02 GiB, bytes a token of dspark-nvfp4-1m-seed", 10.02, 1487645),
)
UNKNOWN = (
    ("11.97 GiB, 21.54, 18.63 pinned, 15.01, 4.00 pinned", "1,219,414; 1,942,028; 652,465; 934,680; 414,615", "not estimated: models not named"),
    (
        "boot logs 001, 003, 005, 009, 011: hybrid models",
        "519,920; 1,251,446; 177,440; 1,934,432; 623,040",
        "not estimated: a token's cost depends on the context",
    ),
)


def calibration(profiles: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows: figure, measured pool, error of the plan."""
    rows = []
    for label, name, measured in POOLS:
        ranks = [{"total_kib": host_memory.SPARK_GIB * kv_estimate.KIB_PER_GIB}] * 2
        rows.append((f"{label} ({name})", measured, kv_estimate.make_plan(profiles[name], ranks)["expected_tokens"]))
    for label, gib, measured in TOKENS:
        rows.append((label, measured, gib * kv_estimate.GIB / profiles["dspark-nvfp4-1m-seed"]["plan"]["kv_bytes_per_token"]))
    return [(label, f"{measured:,}", f"{100 * (found - measured) / measured:+.1f} %") for label, measured, found in rows] + list(UNKNOWN)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table's lines; pipes in cells are escaped."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (header, *rows)]
    return [lines[0], "|" + " --- |" * len(header), *lines[1:]]


KINDS = {"string": "str", "integer": "int", "number": "number", "boolean": "bool", "array": "list", "object": "mapping"}


def kind(spec: Mapping[str, Any], many: bool = False) -> str:
    """Return the type of a value for a reader; `many` is for the values of a list or mapping."""
    name = str(spec.get("$ref", "")).rpartition("/")[2] or KINDS[types(spec)[0]]
    return {"mapping": "mappings", "argument": "arguments"}.get(name, name) if many else name


def schema_rows(spec: Mapping[str, Any] = SCHEMA, path: str = "") -> list[tuple[str, str, str, str]]:
    """Return (key path, type, default, meaning) for every key."""
    rows: list[tuple[str, str, str, str]] = []
    for key, sub in spec["properties"].items():
        if key == "extends":
            continue
        where, below = f"{path}{key}", sub.get("items") or sub.get("additionalProperties")
        text = " or ".join(each for each in sub["enum"] if each) if "enum" in sub else kind(sub)
        if below:
            text = f"{text} of {kind(below, many=True)}"
        required = key in spec.get("x-required", ())
        default = "(required)" if required else "" if "properties" in sub else default_text(sub.get("default"))
        rows.append((f"`{where}`", text, f"`{default}`" if default else "", sub["description"]))
        if "properties" in sub:
            rows.extend(schema_rows(sub, f"{where}."))
        elif below and types(resolved(below)) == ["object"]:
            rows.extend(schema_rows(resolved(below), f"{where}[]."))
    return rows


def last_read(profiles: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return the rows of the images, or of the bases of those that are built: name, digest, profiles, and the last day of a source of them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for profile in profiles:
        image = profile["image"]
        name = f"{image['reference']}@{image['digest']}"
        if image["build"]:
            lines = (ROOT / "profiles/images" / image["build"] / "Dockerfile").read_text(encoding="utf-8")
            name = re.findall(r"^FROM (\S+@sha256:\S+)", lines, re.MULTILINE)[-1]
        found.setdefault(name, []).append(profile)
    rows = []
    for name, those in sorted(found.items()):
        reference, _at, digest = name.partition("@sha256:")
        days = re.findall(r"\(read (\d{4}-\d\d-\d\d)\)", str([each["sources"] for each in those]))
        rows.append((f"`{reference}`", f"`{digest[:12]}`", ", ".join(each["name"] for each in those), max(days)))
    return rows


def default_text(value: Any) -> str:
    """Return a default as YAML."""
    if isinstance(value, list):
        return f"[{', '.join(str(each) for each in value)}]"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def added() -> list[tuple[str, str, str]]:
    """Return the rows of the variables that the collection adds to each profile."""
    rows = [(f"`{name}`", f"*cache*/{folder}".rstrip("/"), source) for name, (folder, source) in values.CACHE_VARIABLES.items()]
    for name, (phases, default, ends) in values.TIME_LIMITS.items():
        total = " + ".join(f"`{phase}`" for phase in phases)
        rows.append((f"`{name}`", f"{total} of `launch.phase_seconds`", f"vLLM, vllm/envs.py: the longest time of {ends}; {default} s by default"))
    for name, path in values.NCCL_LOG.items():
        rows.append((f"`{name}`", f"{path}, if the profile sets `NCCL_DEBUG` and does not use Ray", "NCCL, src/debug.cc: each line is printed at once"))
    return rows


COLUMNS = {"requests": "requests", "KV cache": "kv_cache", "speculation": "speculation", "pool (gate)": "kv_pool", "image": "image", "published": "speed"}


def figure_tables(figures: Sequence[levels.Figure]) -> dict[str, Any]:
    """Return what the page has about published figures: how many are of each kind, the cases, the quantities."""
    kinds = [("runnable" if each.can_be_run else "at_boot" if each.measured_by else "others") for each in figures]
    cases = [(tool, f"`{case}`" if case else "", text) for tool, known in levels.CASES.items() for case, text in known.items()]
    quantities = [(f"`{name}`", *each[:2], "higher" if each.higher else "lower") for name, each in levels.QUANTITIES.items()]
    rows: dict[str, list[tuple[str, ...]]] = {"cases": [*cases], "quantities": [*quantities]}
    return {
        **{kind: kinds.count(kind) for kind in ("runnable", "at_boot", "others")},
        **{key: "\n".join(markdown_table((), found)[2:]) for key, found in rows.items()},
    }


def page() -> str:
    """Return the page's text."""
    shipped = shipped_profiles()
    profiles = {name: resolve(name, shipped) for name in shipped}
    names = text.by_availability(profiles)
    found = [text.facts(profiles[name]) for name in names]
    linked = [(f"[{each['name']}](#{each['name']})", text.thousands(each["context"]), *(str(each[key] or "-") for key in COLUMNS.values())) for each in found]
    out = HEAD.format(
        table="\n".join(markdown_table(("profile", "context", *COLUMNS), linked)),
        managed=", ".join(f"`--{flag}`" for flag in PLACEHOLDERS),
        fabric="`NCCL_IB_*`, `NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME`, `UCX_NET_DEVICES`",
        read="\n".join(markdown_table(("image", "digest", "profiles", "last read"), last_read([profiles[name] for name in names]))),
        added="\n".join(markdown_table(("variable", "value", "read by"), added())),
        shaping=", ".join(f"`{prefix}`" for prefix in values.SHAPING),
        outside=host_memory.OUTSIDE_GIB,
        at_85=host_memory.free_gib(0.85, host_memory.SPARK_GIB),
        **figure_tables([each for profile in profiles.values() for each in levels.figures(profile["published"])]),
        calibration="\n".join(markdown_table(("figure", "measured pool, tokens", "error of the plan"), calibration(profiles))),
    )
    for name in names:
        lines = text.sheet(profiles[name])
        out += f"## {name}\n\n{profiles[name]['summary']}.\n\n```text\n" + "\n".join(lines[2:]) + "\n```\n\n"
    return out + "## Every key\n\n" + "\n".join(markdown_table(("key", "type", "default", "meaning"), schema_rows())) + "\n"


def main(argv: list[str]) -> int:
    """Write the page, or check it."""
    wanted = page()
    if "--check" in argv:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE.relative_to(ROOT)} differs from the output of tools/profiles_doc.py. Run it", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
