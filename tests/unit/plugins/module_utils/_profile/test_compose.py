"""Rendering a rank: golden files, the seeds' own command lines and environments, and the unhappy paths."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose as serving
from ansible_collections.gb10.cluster.plugins.module_utils._profile.profile import resolve
from shared_samples import SHARED, needs_shared

ROOT = Path(__file__).resolve().parents[5]
FIXTURES = ROOT / "tests" / "unit" / "fixtures" / "profiles"
SHIPPED: dict[str, Any] = {p.stem: yaml.safe_load(p.read_text()) for p in sorted((ROOT / "profiles").glob("*.yml"))}
PAIR = ("192.168.200.1", "192.168.200.2")
FABRIC = {
    "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
    "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
    "TP_SOCKET_IFNAME": "enp1s0f0np0",
}
# What the collection adds to a rank's environment whatever the seed says.
OWN = {"MASTER_PORT", "VLLM_HOST_IP"}


def profile(name: str) -> dict[str, Any]:
    return resolve(name, SHIPPED)


def rank(number: int, size: int = 2, **more: Any) -> dict[str, Any]:
    addresses = [f"192.168.200.{i + 1}" for i in range(size)]
    return {"rank": number, "size": size, "master_addr": addresses[0], "fabric_ip": addresses[number], "env": {}, **more}


def render(name: str, number: int, **options: Any) -> dict[str, Any]:
    return serving.render_rank(profile(name), rank(number, env=FABRIC), {"model_store": "/srv/models", "infiniband": True, **options})


def mini(**over: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {"summary": "s", "image": {"reference": "e:1"}, "model": {"id": "a/b", "path": "/m", "served_names": ["b"]}}
    raw.update(over)
    return resolve("mini", {"mini": raw})


class Indented(yaml.SafeDumper):
    """Writes lists as yamllint wants them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


# --- every profile ---------------------------------------------------------------------------------------------------

ALL_OPTIONS = {
    "name": "vllm-pair1",
    "project": "vllm-pair1",
    "group": "pair1",
    "release": "0123456789ab",
    "model_store": "/srv/models",
    "infiniband": True,
    "secrets": {"VLLM_API_KEY": "not-in-any-file"},
    "env_file": "/opt/gb10/pair1/secrets.env",
}
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FIXTURES / "expected.yml").read_text())
OF_A_PROFILE = ("image", "pull_policy", "volumes", "shm_size", "mem_limit")


def golden(number: int) -> Path:
    return FIXTURES / f"dspark-nvfp4-1m.rank{number}.compose.yml"


@pytest.mark.parametrize("number", [0, 1])
def test_golden(number: int) -> None:
    """UPDATE_GOLDEN=1 writes the files; a person reads the diff."""
    out = serving.render_rank(profile("dspark-nvfp4-1m"), rank(number, env=FABRIC), ALL_OPTIONS)
    text = "---\n" + yaml.dump(out["compose"], Dumper=Indented, sort_keys=False, width=90)
    if os.environ.get("UPDATE_GOLDEN"):
        golden(number).write_text(text)
    assert golden(number).read_text() == text, f"{golden(number).name} differs: UPDATE_GOLDEN=1 rewrites it"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_renders_the_arguments_and_the_environment_of_the_profile(name: str, number: int) -> None:
    own = EXPECTED[name]
    base = EXPECTED[own["like"]] if "like" in own else own
    out = serving.render_rank(profile(name), rank(number, env=FABRIC), ALL_OPTIONS)
    service = out["compose"]["services"]["vllm"]

    changed = dict(arguments(shlex.split(own["arguments"])))
    expected = [(flag, changed.get(flag, value)) for flag, value in arguments(shlex.split(base["arguments"]))]
    program = shlex.split(base["program"])
    assert out["argv"][: len(program)] == program
    assert set(changed) <= {flag for flag, _value in expected}
    if number and dict(expected).get("distributed-executor-backend") != ("ray",):
        expected = [(flag, ("1",) if flag == "node-rank" else value) for flag, value in expected] + [("headless", ())]
    assert arguments(out["argv"][len(program) :]) == expected

    wiring = {"NODE_RANK": str(number), "HEADLESS": "1" if number else "", "VLLM_HOST_IP": PAIR[number]}
    assert out["env"] == {**dict(word.split("=", 1) for word in shlex.split(base["environment"])), **FABRIC, **wiring}
    assert service["environment"] == {key: value.replace("$", "$$") for key, value in out["env"].items()}

    like = yaml.safe_load(golden(number).read_text())["services"]["vllm"]
    rest = {key: value for key, value in {**like, **base, **own}.items() if key in like or key in OF_A_PROFILE}
    rest.update(
        labels={**like["labels"], "gb10.cluster.profile": name},
        command=[word.replace("$", "$$") for word in out["command"]],
        environment=service["environment"],
    )
    assert service == rest
    assert out["command"][0] == "bash" or out["command"] == out["argv"]

    assert "not-in-any-file" not in json.dumps([out["compose"], out["env"], out["argv"]])
    assert out["secrets"] == {"VLLM_API_KEY": "not-in-any-file"}


def test_the_table_of_profiles_has_no_other_rows() -> None:
    assert set(EXPECTED) == set(SHIPPED)


def test_an_id_is_started_and_the_content_is_on_the_label() -> None:
    service = render("dspark-nvfp4-1m", 0, image="sha256:1", content="aaaa")["compose"]["services"]["vllm"]
    assert (service["image"], service["pull_policy"], service["labels"]["gb10.cluster.image"]) == ("sha256:1", "never", "aaaa")


# --- the seeds' own words --------------------------------------------------------------------------------------------


def seed(number: str) -> str:
    assert SHARED is not None
    found: Path = next((SHARED / "seeds").glob(number + "_*.txt"))
    return found.read_text()


def between(text: str, start: str, end: str) -> str:
    _unused, found, rest = text.partition(start)
    assert found, start
    body, found, _unused = rest.partition(end)
    assert found, end
    return body


def arguments(words: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Group words into (flag, values), in order."""
    out: list[tuple[str, tuple[str, ...]]] = []
    for word in words:
        if word.startswith("--"):
            flag, _unused, value = word[2:].partition("=")
            out.append((flag, (value,) if value else ()))
        elif out:
            out[-1] = (out[-1][0], (*out[-1][1], word))
    return out


def deviations(name: str, prefix: str) -> dict[str, str | None]:
    return {key[len(prefix) :]: d["seed"] for d in profile(name)["deviations"] for key in d["keys"] if key.startswith(prefix)}


def same_but_for_deviations(name: str, prefix: str, ours: dict[str, Any], seeds: dict[str, Any]) -> None:
    """Every value is the seed's, or a deviation names the key and quotes the seed."""
    allowed = deviations(name, prefix)
    for key in sorted(set(ours) | set(seeds)):
        if ours.get(key) == seeds.get(key):
            continue
        assert key in allowed, f"{name}: {prefix}{key} is {ours.get(key)!r}, the seed says {seeds.get(key)!r}, and no deviation says why"
        assert allowed[key] == seeds.get(key), f"{name}: the deviation {prefix}{key} misquotes the seed"


def seed_001_words(number: int) -> list[str]:
    line = between(seed("001"), "- >\n", "\nPer-Node").replace("exec ", "", 1)
    line = line.replace("${NODE_RANK}", str(number)).replace("${MASTER_ADDR}", PAIR[0])
    line = line.replace("${HEADLESS:+--headless}", "--headless" if number else "")
    return shlex.split(line)


@needs_shared
@pytest.mark.parametrize("number", [0, 1])
def test_seed_001_argument_by_argument(number: int) -> None:
    ours, seeds = render("b12x-fp8-1m", number)["argv"], seed_001_words(number)
    assert ours[:3] == seeds[:3] == ["/usr/local/bin/dsv4-vllm-entrypoint", "serve", "deepseek-ai/DeepSeek-V4-Flash"]
    one, two = arguments(ours), arguments(seeds)
    assert [f for f, _unused in one] == [f for f, _unused in two], "the order is the seed's too"
    same_but_for_deviations("b12x-fp8-1m", "engine.args.", {f: " ".join(v) for f, v in one}, {f: " ".join(v) for f, v in two})
    differing = [f for (f, v), (_unused, w) in zip(one, two, strict=True) if v != w]
    assert differing == ["reasoning-config"]


def test_b12x_runs_through_a_login_shell() -> None:
    command = render("b12x-fp8-1m", 0)["command"]
    assert command[:2] == ["bash", "-lc"]
    assert shlex.split(command[2]) == ["exec", *render("b12x-fp8-1m", 0)["argv"]]


@needs_shared
@pytest.mark.parametrize("number", [0, 1])
def test_seed_001_environment(number: int) -> None:
    lines = between(seed("001"), "environment:\n", "command:").strip().splitlines()
    seeds = {}
    for line in lines:
        key, _unused, value = line.partition(": ")
        seeds[key] = value.split(" #")[0].strip().strip('"')
    seeds.update(NODE_RANK=str(number), HEADLESS="1" if number else "", MASTER_ADDR=PAIR[0])
    bare = serving.render_rank(profile("b12x-fp8-1m"), rank(number), {"model_store": "/srv/models"})["env"]
    same_but_for_deviations("b12x-fp8-1m", "env.", {k: v for k, v in bare.items() if k not in OWN}, seeds)


@needs_shared
def test_seed_001_container() -> None:
    text = seed("001")
    service = render("b12x-fp8-1m", 0)["compose"]["services"]["vllm"]
    assert f'shm_size: "{service["shm_size"]}"' in text
    assert f"memlock: {service['ulimits']['memlock']['soft']}\n" in text
    assert f"stack: {service['ulimits']['stack']['soft']}\n" in text
    assert f"image: {service['image']}\n" in text
    assert service["network_mode"] == service["ipc"] == "host"
    assert service["devices"] == ["/dev/infiniband:/dev/infiniband"]
    assert service["volumes"] == ["/srv/models:/cache/huggingface", "/etc/passwd:/etc/passwd:ro", "/etc/group:/etc/group:ro"]


def without_wiring(words: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    wiring = {"nnodes", "node-rank", "master-addr", "master-port", "headless"}
    return [a for a in arguments(words) if a[0] not in wiring]


@needs_shared
def test_seed_002_recipe_argument_by_argument() -> None:
    text = seed("002")
    defaults = dict(re.findall(r"  (\w+): (\S+)\n", between(text, "defaults:\n", "\nenv:") + "\n"))
    line = between(text, "command: |\n", "\n\nThe llama-benchy")
    line = line.replace("{{", "\0").replace("}}", "\1")
    line = re.sub(r"\{(\w+)\}", lambda m: defaults[m.group(1)], line).replace("\0", "{").replace("\1", "}")
    seeds = shlex.split(line.replace("\\\n", " "))
    ours = render("pr41834-300k", 0)["argv"]
    assert ours[:3] == seeds[:3]
    assert without_wiring(ours) == arguments(seeds)
    env = dict(re.findall(r"  (\w+): (\S+)\n", between(text, "\nenv:\n", "\ncommand: |") + "\n"))
    bare = serving.render_rank(profile("pr41834-300k"), rank(0), {"model_store": "/m"})["env"]
    same_but_for_deviations("pr41834-300k", "env.", {k: v for k, v in bare.items() if k not in OWN | {"NODE_RANK", "HEADLESS", "MASTER_ADDR"}}, env)


@needs_shared
def test_seed_002_ray_report() -> None:
    text = between(seed("002"), "Serve config:\n", "\nNumbers")
    for odd, plain in (("\u2013", "--"), ("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"')):  # the page's typography
        text = text.replace(odd, plain)
    text = text.replace("\n--kv", "\n --kv").split("env:")[0].replace("# MTP=2", "")
    flat, _unused, flags = text.partition("\n")
    names = {"gpu_mem": "gpu-memory-utilization", "max_model_len": "max-model-len", "bt": "max-num-batched-tokens", "max_num_seqs": "max-num-seqs"}
    seeds = {names[k]: v for k, v in re.findall(r"(\w+)=([\d.]+)", flat) if k in names}
    seeds.update({f: " ".join(v) for f, v in arguments(shlex.split(flags))})
    assert seeds["enable-expert-parallel"] == ""
    ours = {f: " ".join(v) for f, v in arguments(render("pr41834-ray-200k", 0)["argv"])}
    for managed in ("served-model-name", "host", "port"):
        ours.pop(managed)
    seeds.update({"tensor-parallel-size": "2", "distributed-executor-backend": "ray"})  # "TP=2 (Ray)"
    same_but_for_deviations("pr41834-ray-200k", "engine.args.", {k: v or None for k, v in ours.items()}, {k: v or None for k, v in seeds.items()})
    env = dict(re.findall(r"([A-Z_]+)=([\w.]+)", between(seed("002"), "\nenv: TORCH", "Numbers (llama").join(["TORCH", ""])))
    assert len(env) == 4
    bare = serving.render_rank(profile("pr41834-ray-200k"), rank(0), {"model_store": "/m"})["env"]
    same_but_for_deviations("pr41834-ray-200k", "env.", {k: v for k, v in bare.items() if k not in OWN | {"NODE_RANK", "HEADLESS", "MASTER_ADDR"}}, env)


def seed_003() -> tuple[dict[str, str], dict[str, str]]:
    text = seed("003")
    flags = between(text, "Core vLLM flags:\n", "\nKey runtime env")
    args = {f: v.strip().strip("'") for f, v in re.findall(r"--([a-z][a-z-]*[a-z])((?: (?:'[^']*'|(?:(?!--[a-z]).)+))?)", flags)}
    args["speculative-config"] = args["speculative-config"].replace("${MTP_NUM_TOKENS:-5}", "5")
    env = dict(re.findall(r"([A-Z][A-Z0-9_]*)=(off|\d+)", between(text, "Key runtime env:\n", "\nFor DSpark concurrency")))
    keep = between(text, "deliberately experimenting:\n", "\nBuild the base")
    sampling = dict(re.findall(r"GENERATION_([A-Z_]+)=([\d.]+\d)", keep))
    args["override-generation-config"] = "{" + ",".join(f'"{k.lower()}":{v}' for k, v in sampling.items()) + "}"
    args["generation-config"] = re.findall(r"--generation-config (\w+)", text)[0].removesuffix("--")
    env.update(re.findall(r"(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)=(\d)", keep))
    return args, env


@needs_shared
def test_seed_003_flags() -> None:
    args, _unused = seed_003()
    assert set(args) >= {"kv-cache-dtype", "max-num-seqs", "nnodes", "speculative-config", "block-size"}
    assert json.loads(args["override-generation-config"]) == {"temperature": 0.6, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.05}
    ours = {f: " ".join(v) for f, v in arguments(render("dspark-nvfp4-1m", 0)["argv"])}
    for managed in ("served-model-name", "host", "port", "node-rank", "master-addr", "master-port"):
        ours.pop(managed)
    listed = set(deviations("dspark-nvfp4-1m", "engine.args."))
    assert {k: v for k, v in ours.items() if k not in listed} == args


@needs_shared
@pytest.mark.parametrize("number", [0, 1])
def test_seed_003_environment(number: int) -> None:
    _unused, env = seed_003()
    assert len(env) == 12
    env.update(re.findall(r"^(UCX_\w+)=(\w+)$", seed("000"), re.MULTILINE))
    assert len(env) == 14
    bare = serving.render_rank(profile("dspark-nvfp4-1m"), rank(number), {"model_store": "/m"})["env"]
    listed = set(deviations("dspark-nvfp4-1m", "env."))
    wiring = {"NODE_RANK": str(number), "HEADLESS": "1" if number else "", "MASTER_ADDR": PAIR[0], "MASTER_PORT": "25000", "VLLM_HOST_IP": PAIR[number]}
    assert {k: v for k, v in bare.items() if k not in listed} == {**env, **wiring}


@needs_shared
@pytest.mark.parametrize("number", [0, 1])
def test_seed_004_argument_by_argument(number: int) -> None:
    text = seed("004")
    words = shlex.split(between(text, "(V0 engine, multi-node):\n", "\nV0 engine is enforced"))
    launch = between(text, "# Node 1 (master):\n", "\n# Node 2") if number == 0 else between(text, "# Node 2 (worker):\n", "\nOOM Safety")
    words += shlex.split(launch.replace("<master-ip>", PAIR[0]))
    ours, seeds = arguments(render("piecewise-200k", number)["argv"]), arguments(words)
    assert ("prefix-caching", ()) in seeds
    seeds = [("enable-prefix-caching", v) if f == "prefix-caching" else (f, v) for f, v in seeds]
    assert deviations("piecewise-200k", "engine.args.") == {"enable-prefix-caching": "--prefix-caching"}
    assert [a for a in ours if a[0] != "tensor-parallel-size"] == seeds
    assert ("tensor-parallel-size", ("2",)) in ours


@needs_shared
def test_every_row_of_the_recipes_table() -> None:
    assert SHARED is not None
    rows = re.findall(r"^\| `([\w-]+)`.*$", (SHARED / "recipes.md").read_text(), re.MULTILINE)
    table = {
        n: [c.strip() for c in line.strip("|").split("|")]
        for n, line in zip(rows, re.findall(r"^\| `[\w-]+`.*$", (SHARED / "recipes.md").read_text(), re.MULTILINE), strict=True)
    }
    assert set(table) == set(SHIPPED)
    for name, (_unused, _unused, engine, context, seqs, batched, util, dtype, speculative, *_unused) in table.items():
        args = profile(name)["engine"]["args"]
        k = {"512K": 524288, "256K": 262144}
        assert args["max-model-len"] == (k[context] if context in k else int(context)), name
        assert args["max-num-seqs"] in [int(n) for n in re.findall(r"\d+", seqs)], name
        assert args["max-num-batched-tokens"] == int(batched), name
        assert args["gpu-memory-utilization"] == util, name
        assert args["kv-cache-dtype"] == dtype, name
        method, tokens = speculative.split(", ")
        assert args["speculative-config"] == {"method": method, "num_speculative_tokens": int(tokens)}, name
        assert profile(name)["engine"]["executor"] == ("ray" if "Ray" in engine else "mp"), name


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_profile_has_what_pairs_need(name: str) -> None:
    out = render(name, 1)
    assert out["env"]["UCX_MEM_MMAP_HOOK_MODE"] == "none"
    assert out["env"]["UCX_RCACHE_MAX_UNRELEASED"] == "1024"
    service = out["compose"]["services"]["vllm"]
    assert service["restart"] == "no"
    assert "privileged" not in service
    assert "IPC_LOCK" in service["cap_add"]
    assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    assert profile(name)["sources"]
    assert profile(name)["model"]["relative_path"]


# --- ranks, environment, secrets -------------------------------------------------------------------------------------


def test_four_ranks() -> None:
    out = serving.render_rank(profile("dspark-nvfp4-1m"), rank(3, size=4), {"model_store": "/m"})
    args = dict(arguments(out["argv"]))
    assert args["tensor-parallel-size"] == args["nnodes"] == ("4",)
    assert args["node-rank"] == ("3",)
    assert args["headless"] == ()


def test_one_rank_has_no_wiring() -> None:
    out = serving.render_rank(mini(), {"rank": 0, "size": 1})
    assert out["argv"] == ["vllm", "serve", "/m", "--served-model-name", "b", "--host", "0.0.0.0", "--port", "8000", "--tensor-parallel-size", "1"]
    assert out["env"] == {}


def test_headless_placeholder_is_not_doubled() -> None:
    one = mini(engine={"args": {"headless": "{headless}", "seed": 1}})
    assert serving.build_argv(one, rank(1)).count("--headless") == 1
    assert serving.build_argv(one, rank(0)).count("--headless") == 0


def test_the_fabric_replaces_every_fabric_variable_of_the_profile() -> None:
    """A GID index that the fabric leaves out on purpose must not come back from the seed."""
    fabric = {"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_ADDR_FAMILY": "AF_INET", "NCCL_IB_GID_INDEX": None, "NCCL_IB_ROCE_VERSION_NUM": 2}
    env = serving.render_rank(profile("b12x-fp8-1m"), rank(0, env=fabric), {"model_store": "/m"})["env"]
    assert env["NCCL_IB_HCA"] == "mlx5_0"
    assert env["NCCL_IB_ROCE_VERSION_NUM"] == "2"
    assert "NCCL_IB_GID_INDEX" not in env
    assert "NCCL_SOCKET_IFNAME" not in env
    assert env["NCCL_CROSS_NIC"] == "1", "what is not the fabric's stays"


def test_the_users_environment_beats_all() -> None:
    env = serving.render_rank(
        profile("b12x-fp8-1m"),
        rank(1, env=FABRIC),
        {"model_store": "/m", "extra_env": {"NCCL_IB_GID_INDEX": 5, "VLLM_HOST_IP": "10.0.0.9", "NCCL_DEBUG": None, "A": True}},
    )["env"]
    assert (env["NCCL_IB_GID_INDEX"], env["VLLM_HOST_IP"], env["A"]) == ("5", "10.0.0.9", "true")
    assert "NCCL_DEBUG" not in env


def test_head_and_worker_environment() -> None:
    one = mini(env={"A": "all"}, head_env={"A": "head"}, worker_env={"B": "worker"})
    assert serving.render_rank(one, rank(0))["env"]["A"] == "head"
    worker = serving.render_rank(one, rank(1))["env"]
    assert (worker["A"], worker["B"]) == ("all", "worker")


def test_a_secret_in_the_users_environment_moves_to_the_env_file() -> None:
    out = serving.render_rank(mini(), rank(0), {"extra_env": {"HF_TOKEN": "hf_x", "MTP_NUM_TOKENS": "5"}, "env_file": "/x/secrets.env"})
    assert out["secrets"] == {"HF_TOKEN": "hf_x"}
    assert out["env"]["MTP_NUM_TOKENS"] == "5"
    assert "hf_x" not in json.dumps([out["compose"], out["argv"], out["env"]])
    assert out["compose"]["services"]["vllm"]["env_file"] == ["/x/secrets.env"]


def test_an_empty_secret_is_none() -> None:
    out = serving.render_rank(mini(), rank(0), {"secrets": {"VLLM_API_KEY": ""}})
    assert out["secrets"] == {}
    assert "env_file" not in out["compose"]["services"]["vllm"]


def test_dollar_signs_reach_the_container_as_they_are() -> None:
    one = mini(env={"A": "$HOME and ${B}"}, engine={"args": {"x": "$y"}})
    service = serving.render_rank(one, rank(0))["compose"]["services"]["vllm"]
    assert service["environment"]["A"] == "$$HOME and $${B}"
    assert "$$y" in service["command"]
    assert serving.render_rank(one, rank(0))["env"]["A"] == "$HOME and ${B}"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--f"]),
        (False, []),
        (None, []),
        (1, ["--f", "1"]),
        ("a b", ["--f", "a b"]),
        (["a", 2], ["--f", "a", "2"]),
        ({"a": [1, {"b": None}], "c": "<é>"}, ["--f", '{"a":[1,{"b":null}],"c":"<é>"}']),
        ("", ["--f", ""]),
    ],
)
def test_argument_forms(value: Any, words: list[str]) -> None:
    argv = serving.build_argv(mini(engine={"args": {"z": True}}), {"rank": 0, "size": 1}, {"f": value})
    assert argv[argv.index("--z") + 1 : argv.index("--tensor-parallel-size")] == words


@pytest.mark.parametrize(("value", "word"), [(True, "--a.b=true"), (False, "--a.b=false"), ("x", "--a.b=x"), (3, "--a.b=3"), ([1], "--a.b=[1]")])
def test_dotted_arguments_are_one_word(value: Any, word: str) -> None:
    assert word in serving.build_argv(mini(engine={"args": {"a.b": value}}), {"rank": 0, "size": 1})


def test_extra_arguments_change_in_place_or_follow_at_the_end() -> None:
    one = mini(engine={"args": {"max-num-seqs": 6, "seed": 1}})
    changed = serving.build_argv(one, {"rank": 0, "size": 1}, {"max-num-seqs": 9, "--seed": None, "new": True})
    assert changed[-5:] == ["--max-num-seqs", "9", "--new", "--tensor-parallel-size", "1"]
    assert serving.build_argv(one, {"rank": 0, "size": 1}, ["--tail", 3])[-2:] == ["--tail", "3"]


def test_model_as_a_flag_with_revision() -> None:
    one = mini(engine={"positional_model": False}, model={"id": "a/b", "path": "a/b", "revision": "abc"})
    assert serving.build_argv(one, {"rank": 0, "size": 1})[:8] == ["vllm", "serve", "--model", "a/b", "--revision", "abc", "--served-model-name", "a/b"]


def test_ray_ranks() -> None:
    head, worker = render("pr41834-ray-200k", 0), render("pr41834-ray-200k", 1)
    assert head["command"][:2] == worker["command"][:2] == ["bash", "-c"]
    script = head["command"][2]
    assert "ray start --head --node-ip-address=192.168.200.1 --port=6379" in script
    assert shlex.split(script)[-len(head["argv"]) :] == head["argv"]
    assert '["NCCL_IB_GID_INDEX"' in script
    assert "--nnodes" not in head["argv"]
    assert "exec ray start --address=192.168.200.1:6379 --node-ip-address=192.168.200.2" in worker["command"][2]
    assert "--block" in worker["command"][2]
    assert "vllm serve" not in worker["command"][2]
    assert "$HOME" not in head["compose"]["services"]["vllm"]["command"][2].replace("$$HOME", "")


def test_options_of_the_service() -> None:
    service = render("dspark-nvfp4-1m", 0, memlock="unlimited", stack=None, image="sha256:abc", log_max_size="9m", log_max_file=1, labels={"a": 1})["compose"][
        "services"
    ]["vllm"]
    assert service["ulimits"] == {"memlock": {"soft": -1, "hard": -1}}
    assert (service["image"], service["pull_policy"]) == ("sha256:abc", "never")
    assert service["logging"]["options"] == {"max-size": "9m", "max-file": "1"}
    assert service["labels"]["a"] == "1"
    assert "devices" not in render("dspark-nvfp4-1m", 0, infiniband=False)["compose"]["services"]["vllm"]


def test_no_gpus_means_no_reservation() -> None:
    assert "deploy" not in serving.render_rank(mini(container={"gpus": "none"}), rank(0))["compose"]["services"]["vllm"]
    devices = serving.render_rank(mini(), rank(0))["compose"]["services"]["vllm"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]


def test_digest_and_memory_limit() -> None:
    digest = "sha256:" + "a" * 64
    service = serving.render_rank(mini(image={"reference": "r/n:t", "digest": digest}, container={"memory": "100G"}), rank(0))["compose"]["services"]["vllm"]
    assert (service["image"], service["mem_limit"], service["pull_policy"]) == (f"r/n:t@{digest}", "100G", "missing")


@pytest.mark.parametrize(
    ("place", "options", "text"),
    [
        ({"rank": 2, "size": 2, "master_addr": "a"}, {}, "rank 2 of a group of 2 does not exist, expected 0 to 1"),
        ({"rank": 0, "size": 1}, {}, "made for 2 or more ranks, but the serving group has 1"),
        ({"rank": 0, "size": 2}, {}, "no master address"),
        ({"rank": "0", "size": 2}, {}, "the rank's rank is '0', expected a whole number"),
        (None, {"nmae": "x"}, "'nmae' is not a rendering option"),
        (None, {"model_store": None}, "no model store is set"),
        (None, {"memlock": "8M"}, "memlock is '8M', expected a number of bytes, -1 or unlimited"),
        (None, {"secrets": {"VLLM_API_KEY": "k"}}, "VLLM_API_KEY), but no env_file"),
        (None, {"extra_args": {"api-key": "k"}}, "would show a secret in the process list: give VLLM_API_KEY"),
        (None, {"extra_args": ["--api-key=k"]}, "would show a secret in the process list: give VLLM_API_KEY"),
        (None, {"extra_args": "--x"}, "extra arguments are '--x', expected a mapping"),
        (None, {"extra_args": {"tensor-parallel-size": 4}}, "tensor-parallel-size 4 x pipeline-parallel-size 1 is 4, but the serving group has 2"),
    ],
)
def test_refusals(place: dict[str, Any] | None, options: dict[str, Any], text: str) -> None:
    with pytest.raises(serving.ServingError, match=re.escape(text)):
        serving.render_rank(profile("dspark-nvfp4-1m"), place or rank(0), {"model_store": "/m", **options})


def test_tensor_times_pipeline_may_fill_the_group() -> None:
    args = {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}
    out = serving.render_rank(mini(engine={"args": args}), rank(3, size=4))
    assert ("tensor-parallel-size", ("2",)) in arguments(out["argv"])


# --- env file, paths -------------------------------------------------------------------------------------


def test_env_file_text() -> None:
    assert serving.env_file_text({"B": "$x #y", "A": "1"}) == "A='1'\nB='$x #y'\n"


@pytest.mark.parametrize("value", ["a'b", "a\nb", "a\x00b"])
def test_env_file_refuses_what_it_cannot_carry(value: str) -> None:
    with pytest.raises(serving.ServingError, match="the secret A holds a quote or a line break"):
        serving.env_file_text({"A": value})


@pytest.mark.parametrize(
    ("name", "model", "caches"),
    [
        ("dspark-nvfp4-1m", "/srv/models/fraserprice/DeepSeek-V4-Flash-DSpark", ["/srv/models/vllm-cache"]),
        ("fp8-1m", "/srv/models/hub/models--deepseek-ai--DeepSeek-V4-Flash", ["/srv/models/vllm-cache"]),
    ],
)
def test_host_paths(name: str, model: str, caches: list[str]) -> None:
    paths = serving.host_paths(profile(name), "/srv/models/")
    assert (paths["model"], paths["caches"]) == (model, caches)
