"""Recipes of sparkrun and eugr/spark-vllm-docker, Compose files and docker run as profiles. The inputs are written for these tests."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.action.profile_import import load
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import render_rank
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import writable_weights
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.recipe_profile import Imported, convert
from ansible_collections.gb10.cluster.plugins.plugin_utils.recipe_source import Around, RecipeError, env_values, text_of
from shipped_profiles import SHIPPED

RECIPES = Path(__file__).parents[2] / "fixtures" / "recipes"
FILES = ("eugr.yaml", "sparkrun.yaml", "docker-compose.yml")
SECRETS = ("hf_abcdefghijklmnopqrstuvwx", "plain-words-for-the-api", "pw123456")
IMAGE = "    image: ghcr.io/o/vllm:1\n"


def made(text: str, env: str = "", service: str = "", folder: Path = Path("folder")) -> Imported:
    return convert(None if text.startswith(("#!", "docker")) else load(text), Around(text, folder, env_values(env)), service)


def imported(name: str) -> Imported:
    return made((RECIPES / name).read_text(), (RECIPES / "flash.env").read_text() if name == "docker-compose.yml" else "")


def service(lines: str, env: str = "", folder: Path = Path("folder")) -> Imported:
    return made("services:\n  vllm:\n" + "".join(f"    {line.strip()}\n" for line in lines.strip().splitlines()), env, folder=folder)


def argv(found: Imported, rank: int = 0) -> list[str]:
    profile = resolve("mine", SHIPPED, {"mine": found.profile})
    place = {"rank": rank, "size": 2, "master_addr": "10.0.0.1", "fabric_ip": f"10.0.0.{rank + 1}"}
    words: list[str] = render_rank(profile, place, {"model_store": "/srv/models", "fabric": "node"})["argv"]
    return words


def reasons(found: Imported) -> dict[str, str]:
    return {**dict.fromkeys(found.left, ""), **dict(found.unmapped)}


@pytest.mark.parametrize("name", FILES)
def test_the_profile_is_valid_has_no_secret_and_cannot_change_the_weights(name: str) -> None:
    found = imported(name)
    profile = resolve("mine", SHIPPED, {"mine": found.profile})
    assert (profile["gate"]["transport"], profile["ranks"]["min"], writable_weights(profile, "/srv/models")) == ("rdma", 2, [])
    everything = json.dumps([found.profile, found.left, found.unmapped])
    assert [secret for secret in SECRETS if secret in everything] == []


def test_a_recipe_of_eugr_argument_by_argument() -> None:
    found = imported("eugr.yaml")
    assert (found.kind, found.name) == ("recipe of eugr/spark-vllm-docker", "flash-pair")
    profile = resolve("mine", SHIPPED, {"mine": found.profile})
    assert " ".join(argv(found)) == (
        "vllm serve example-org/Flash-V4 --served-model-name example-org/Flash-V4 --host 0.0.0.0 --port 8000 --trust-remote-code "
        "--tensor-parallel-size 2 --kv-cache-dtype fp8 --max-model-len 200000 --gpu-memory-utilization 0.80 "
        '--speculative-config {"method":"deepseek_mtp","num_speculative_tokens":2} --tokenizer-mode deepseek_v4 '
        "--distributed-executor-backend ray --default-chat-template-kwargs.thinking=true --load-format safetensors"
    )
    assert (profile["engine"]["executor"], profile["env"]["TORCH_CUDA_ARCH_LIST"]) == ("ray", "12.1a")
    assert (profile["image"]["pull"], profile["image"]["reference"], profile["image"]["build"]) == (False, "vllm-node-flash", None)
    listed = reasons(found)
    assert "{repository: https://github.com/eugr/spark-vllm-docker, commit: " in listed["mods[0] mods/clear-cache"]
    assert {"defaults.unused_knob", "build_args", "recipe_version", "image vllm-node-flash", "env.HF_TOKEN"} <= set(listed)


def test_a_recipe_of_sparkrun_without_a_command() -> None:
    found = imported("sparkrun.yaml")
    assert (found.kind, found.name) == ("recipe of sparkrun", "next-80b")
    assert " ".join(argv(found, 1)) == (
        "vllm serve example-org/Next-80B --revision 0123456789abcdef0123456789abcdef01234567 --host 0.0.0.0 --port 8001 --tensor-parallel-size 2 "
        "--gpu-memory-utilization 0.8 --max-model-len 131072 --served-model-name next --trust-remote-code "
        '--speculative-config {"method":"mtp","num_speculative_tokens":1} --nnodes 2 --node-rank 1 '
        "--master-addr 10.0.0.1 --master-port 25000 --headless"
    )
    assert (found.profile["summary"], found.profile["container"]["shm_size"], found.profile["ranks"]) == ("Next-80B for a pair", "32gb", {"min": 2, "max": 2})
    assert found.profile["image"] == {"reference": "ghcr.io/example-org/vllm-spark:1.2", "pull": True}


def test_a_compose_file_with_its_env() -> None:
    found = imported("docker-compose.yml")
    assert " ".join(argv(found)) == (
        "/opt/env/bin/vllm serve example-org/Flash --served-model-name flash --host 127.0.0.1 --port 8888 --tensor-parallel-size 2 "
        '--max-model-len 500000 --gpu-memory-utilization 0.82 --speculative-config {"method":"dspark","num_speculative_tokens":5} '
        '--reasoning-config {"start":"<think>","end":"</think>"} --override-generation-config {"temperature":0.6} --nnodes 2 --node-rank 0 '
        "--master-addr 10.0.0.1 --master-port 25000"
    )
    profile = resolve("mine", SHIPPED, {"mine": found.profile})
    assert profile["env"]["PATH"] == "/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert profile["container"]["volumes"] == ["{model_store}:/cache/huggingface:ro", "{model_store}/vllm-cache:/cache/huggingface/vllm-cache"]
    assert (profile["container"]["stack"], profile["container"]["memlock"], profile["engine"]["master_port"]) == (67108864, -1, 25000)
    listed = reasons(found)
    assert listed["volumes[2] /var/run/docker.sock"].startswith("the nodes do not have /var/run/docker.sock, ")
    for key in ("env.HF_TOKEN", "env.EXTRA_HEADER_URL", "--api-key"):
        assert listed[key].startswith("is or contains a secret")
    assert {"command: pip", "services.proxy", "env.PATH", "privileged", "devices"} <= set(listed)


def test_named_volumes_entrypoints_ports_and_nodes_of_a_compose_file(tmp_path: Path) -> None:
    (tmp_path / "own.env").write_text("FROM_FILE=x\n")
    found = service(
        """
        image: vllm/vllm-openai:v0.30.0
        entrypoint: [vllm, serve]
        command: [Qwen/Q3, --tensor-parallel-size, "2", --trust-remote-code, --max-model-len, "${LEN:?set LEN}"]
        environment: [HF_TOKEN, A=1, "B=${NODE_IP}", "C=${IFACE}", RANK=0]
        env_file: [own.env, {path: none.env, required: false}]
        ports: ["18000:8000", "8000:8000"]
        volumes: ["hf-cache:/root/.cache/huggingface", "caches:/root/.triton", "./t:/t:ro", "/opt/tpl:/opt/tpl", "/etc/localtime:/etc/localtime:ro"]
        deploy: {replicas: 2, resources: {limits: {memory: 100g, cpus: "8"}, reservations: {memory: 9g, devices: [{driver: nvidia}]}}}
        ulimits: {memlock: {soft: -1, hard: -1}, nofile: "1024:4096"}
        """,
        "LEN=65536 # tokens\nNODE_IP=10.1.2.3\n",
        tmp_path,
    )
    profile, listed = found.profile, reasons(found)
    assert argv(found)[:3] == ["vllm", "serve", "Qwen/Q3"]
    assert (profile["engine"]["entrypoint"], profile["engine"]["args"]["max-model-len"]) == ([], 65536)
    assert (profile["env"]["FROM_FILE"], profile["env"]["A"]) == ("x", "1")
    assert profile["container"]["cache_dirs"] == ["{model_store}/vllm-cache", "{model_store}/root-.triton"]
    assert (profile["container"]["memory"], profile["container"]["memlock"]) == ("100g", -1)
    assert {f"env.{name}" for name in ("B", "C", "RANK", "HF_TOKEN")} <= set(listed)
    assert listed["volumes[2] /t"].startswith("the nodes do not have ./t")
    assert {"B", "C", "RANK"} & set(profile["env"]) == set()
    assert {"volumes[0] /root/.cache/huggingface", "ports", "deploy"} <= set(listed)


def test_the_head_of_several_ranks_is_chosen_by_its_name() -> None:
    common = "image: o/vllm:1, network_mode: host"
    command = "vllm serve org/m -tp 2 --nnodes 2 --node-rank"
    text = (
        "x-env: &env {A: '1', NCCL_IB_HCA: x}\nservices:\n"
        f"  worker: {{{common}, command: {command} 1 --headless, environment: {{<<: *env, B: w}}}}\n"
        f"  head: {{{common}, command: {command} 0 --port 8001, environment: {{<<: *env, B: h}}, restart: always}}\n"
    )
    with pytest.raises(RecipeError, match=r"several services run vLLM: worker, head\. Choose one, or that of the head of a pair, with -e service=NAME"):
        made(text)
    with pytest.raises(RecipeError, match="there is no service z, expected one of: worker, head"):
        made(text, service="z")
    found = made(text, service="head")
    profile = found.profile
    assert {"services.worker", "restart", "x-env"} <= set(found.left)
    assert (profile["env"]["A"], profile["env"]["B"], profile["ranks"], profile["engine"]["api"]) == ("1", "h", {"min": 2}, {"port": 8001})
    ray = "services:\n  a: {image: o/vllm, command: bash -c 'ray start --head && vllm serve o/m -tp 2'}\n  b: {image: o/vllm, command: ray start --address=a}"
    assert made(ray).profile["engine"]["executor"] == "ray"


def test_docker_run_of_a_script() -> None:
    script = """#!/bin/bash
set -e
IMAGE=${IMAGE:-vllm/vllm-openai:v1}
docker rm -f v || true
docker run -d --name v --gpus all --ipc=host -v ~/.cache/huggingface:/root/.cache/huggingface --ulimit memlock=-1 \\
  -e A='x y' -e HF_TOKEN=$HF_TOKEN --shm-size 8g --security-opt seccomp=unconfined "$IMAGE" \\
  --model org/m -tp 2 --hf-overrides '{"a": null}' $EXTRA_ARGS
"""
    found = made(script)
    profile = found.profile
    assert (profile["image"]["reference"], profile["engine"]["command"], profile["env"]["A"]) == ("vllm/vllm-openai:v1", [], "x y")
    assert (profile["engine"]["args"]["hf-overrides"], profile["container"]["shm_size"], profile["container"]["memlock"]) == ('{"a": null}', "8g", -1)
    assert {"env.HF_TOKEN", "security_opt", "command: docker", "command: ${EXTRA_ARGS}"} <= set(reasons(found))
    assert made("docker run --rm vllm/vllm-openai:v1 \\\n  --model org/m -tp 2\n").profile["model"]["id"] == "org/m"
    bare = "--use-api-socket --disable-content-trust --sig-proxy"
    mounts = "--mount type=bind,source=/m,target=/models --mount type=bind,src=/t,dst=/opt/t,readonly"
    found = made(f"docker run {bare} {mounts} o/vllm vllm serve /models/m -tp 2 --seed 1 --seed 2\n")
    assert (found.profile["image"]["reference"], found.profile["container"]["volumes"][0]) == ("o/vllm", "{model_store}:/models:ro")
    assert (reasons(found)["volumes[1] /opt/t"][:29], reasons(found)["--seed"]) == ("the nodes do not have /t, so ", "is given twice: the last value counts")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('command: ["--model", "org/m", "--port", "9"]', ["--model", "org/m", "--served-model-name", "org/m", "--host", "0.0.0.0", "--port", "9"]),
        ("command: vllm serve org/m --port 9", ["vllm", "serve", "org/m", "--served-model-name", "org/m", "--host", "0.0.0.0", "--port", "9"]),
        ("command: vllm serve --enforce-eager org/m", ["vllm", "serve", "org/m"]),
        ("command: serve --model org/m", ["serve", "--model", "org/m"]),
        (
            "entrypoint: [python3, -m, vllm.entrypoints.openai.api_server]\ncommand: --model /models/m --port 9",
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m", "--served-model-name", "m", "--host", "0.0.0.0", "--port", "9"],
        ),
        ("entrypoint: [/bin/bash, /x/run.sh]\ncommand: vllm serve org/m -tp 2", ["vllm", "serve", "org/m"]),
        ("entrypoint: /bin/bash -c\ncommand: ['vllm serve org/m -tp 2']", ["vllm", "serve", "org/m"]),
    ],
)
def test_other_ways_to_start_the_engine(lines: str, words: list[str]) -> None:
    assert argv(service(f"image: org/vllm:1\n{lines}"))[: len(words)] == words


def test_a_drafter_a_folder_of_models_and_files_that_are_missing() -> None:
    found = made(
        "model: /models/org/M\ncontainer: o/vllm:1\nenv: {X: /workspace/p.json}\ncommand: |\n  vllm serve {model} -tp 2 --chat-template unsloth.jinja "
        '--tokenizer org/tok --speculative-config \'{"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 7}\'\n'
    )
    assert found.profile["drafter"] == {"id": "draft", "path": "/models/draft"}
    assert found.profile["container"]["volumes"][0] == "{model_store}:/models:ro"
    assert {"file unsloth.jinja (--chat-template)", "file org/tok (--tokenizer)", "file /workspace/p.json (env.X)"} <= set(reasons(found))


def test_a_drafter_by_dotted_arguments_and_what_a_recipe_distributes() -> None:
    text = (
        "model: a/m\ncontainer: o/vllm:1\ncommand: vllm serve a/m -tp 2 --speculative_config.method dspark --speculative_config.model b/d\n"
        "distribution_config: {models: {entries: [{name: b/d, revision: abc}]}}\n"
    )
    found = made(text)
    assert found.profile["drafter"] == {"id": "b/d", "path": "b/d"}
    assert [word for word in argv(found) if "speculative" in word] == ["--speculative-config.method=dspark", "--speculative-config.model=b/d"]
    assert resolve("mine", SHIPPED, {"mine": found.profile})["gate"]["speculative_method"] == "dspark"
    assert "distribution_config" in reasons(found)


def test_a_mod_next_to_the_recipe_is_taken_and_another_has_the_lines_to_add(tmp_path: Path) -> None:
    (tmp_path / "mods/here").mkdir(parents=True)
    (tmp_path / "mods/here/run.sh").write_text("true\n")
    text = "model: a/m\ncontainer: vllm-node\nmods: [mods/here, mods/there]\ncommand: vllm serve a/m -tp 2\n"
    found = made(text, folder=tmp_path)
    assert found.profile["image"]["mods"] == [{"path": str(tmp_path / "mods/here")}]
    assert "path: mods/there" in reasons(found)["mods[1] mods/there"]


@pytest.mark.parametrize("more", ["max_nodes: 1", "solo_only: true", "defaults: {tensor_parallel: 1}", "mode: solo"])
def test_a_recipe_for_one_node_becomes_one_for_two_with_a_line(more: str) -> None:
    found = made(f"model: a/m\ncontainer: o/vllm:1\ncommand: vllm serve a/m\n{more}\n")
    assert found.profile["ranks"] == {"min": 2}
    assert "the recipe is for one node: the profile serves the model on two nodes" in reasons(found)["--tensor-parallel-size 1"]


RECIPE = "model: a/b\ncontainer: c/vllm\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("title: x", "neither services"),
        (RECIPE + "runtime: sglang", "runtime is 'sglang', and the collection serves vLLM only"),
        (RECIPE + "command: sglang serve a/b", "the command starts sglang, expected 'vllm serve MODEL' once"),
        (RECIPE + "command: vllm serve a/b --port {port}", r"placeholder \{port\}, and defaults has no value for it"),
        (RECIPE + "command: vllm serve a/b --runner pooling", "pooling is for pooling"),
        ("model: Q/Qwen3-Embedding-8B\ncontainer: c\ncommand: vllm serve {model}", "Q/Qwen3-Embedding-8B is for pooling"),
        (RECIPE + "command: vllm serve a/b -dp 2", "--data-parallel-size is 2, expected 1"),
        (RECIPE + "command: vllm serve a/b -O3", "the argument -O3 is short"),
        (RECIPE + "command: vllm serve a/b stray", "has the word stray that belongs to no argument"),
        (RECIPE + "command: |\n  vllm serve a/b &\n  vllm serve c/d", "the command starts vllm serve a/b, vllm serve c/d, expected"),
        ("model: a/b", "the image is missing"),
        (RECIPE + "env: [A=b]", "env is not a mapping"),
        (
            "services:\n  a: {image: trt/tensorrt-llm, command: trtllm-serve serve x}\n  b: {image: redis}",
            "the service a runs trtllm-serve, .* the service b has no command",
        ),
        ("services:\n  v: {image: o/vllm, entrypoint: [bash, /entrypoint.sh]}", "the service v runs bash /entrypoint.sh, expected 'vllm serve MODEL'"),
        ("services:\n  v: {image: o/vllm, entrypoint: [bash, -c], command: vllm serve a/b}", "a shell runs the first"),
        ("services:\n  v: {image: o/vllm, command: 'vllm serve a/b --seed ${S}'}", "--seed takes the variable S, which has no value. Add S=VALUE to .env"),
        (RECIPE + "command: vllm serve a/b --served-model-name {a,b}", "has {a,b}, which is computed"),
        (RECIPE + "command: vllm serve ~/models/m --seed 1", "the model takes the variable HOME, which has no value"),
        (RECIPE + "command: vllm serve a/b --seed 1 -- --port 2", "the word --, after which nothing is an argument"),
        (RECIPE + "include: base", "it is a change of the recipe base, which is not read"),
        ("services:\n  v: {image: o/vllm, command: 'vllm serve a/b && x'}", "the command has && without a shell"),
        ("services:\n  v: {image: '${I:?no image}', command: vllm serve a/b}", r"image takes the variable I, which has no value \(no image\)"),
        ("services: {}", "^it has no service, expected one that runs vLLM$"),
        ("#!/bin/sh\ndocker run --name container2 o/vllm serve Q/a\ndocker run o/vllm serve Q/b", "several services run vLLM: container2, container3"),
        ("services:\n  b: {image: o/vllm, command: serve a/b}\n  v: {extends: {service: b}}", "the service v extends another one, .*`docker compose config`"),
        ("#!/bin/sh\nvllm serve a/b", "it is neither a YAML mapping nor a script with docker run"),
    ],
)
def test_what_cannot_be_imported_is_refused_in_one_sentence(text: str, error: str) -> None:
    with pytest.raises(RecipeError, match=error):
        made(text)


def test_variables_of_a_file_are_taken_in_each_kind_of_recipe() -> None:
    texts = (RECIPE + "command: vllm serve a/b --seed ${S}\n", f"services:\n  v:\n{IMAGE}    command: vllm serve a/b --seed ${{S}}\n")
    for text in (*texts, "#!/bin/sh\ndocker run o/vllm vllm serve a/b --seed $S\n"):
        assert made(text, "S=3\nUNUSED=x\n").profile["engine"]["args"]["seed"] == 3


def test_a_scalar_with_a_tag_is_its_text() -> None:
    assert load("a: !!bool foo\nb: !!int ''\nc: !!float 1e3\n") == {"a": "foo", "b": "", "c": "1e3"}


def test_a_broken_environment_file_of_a_service_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.env").write_text("A=1\n- x\n")
    with pytest.raises(RecipeError, match=r"^own\.env:2: the line is not NAME=value"):
        service("image: o/vllm\nenv_file: own.env\ncommand: vllm serve a/b", folder=tmp_path)


def test_aliases_of_yaml_do_not_grow() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)), "model: x"]
    with pytest.raises(RecipeError, match="entries"):
        made("\n".join(lines))


FLAGS = ("--seed 1", "--kv-cache-dtype fp8", "--enforce-eager", "--x-unknown=3", "--limit-mm-per-prompt.image 2", "--served-model-name a b", "--port 81",
         "--node-rank 0", "--api-key s3cr3tw0rd99", "--tokenizer t/t", "--compilation-config '{\"a\":{\"b\":1}}'", "--seed 2", "-pp 1")  # fmt: skip
VARIABLES = {
    "A": "1", "NCCL_IB_HCA": "x", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx", "ADDR": "10.0.0.9", "NODE_RANK": "0", "P": "/tmp/x.py", "E": "", "N": "${NO}",
}  # fmt: skip
KEYS = {
    "privileged": "true", "shm_size": "1g", "mem_limit": "lots", "user": "root", "x_new": "{a: [1, {b: 2}]}", "restart": "always", "ports": "['1:2']",
    "volumes": "['/m:/root/.cache/huggingface', 'v:/x', './y:/y:ro', {type: bind, source: /a, target: /b}]", "ulimits": "{nofile: 9, cpu: 3}",
    "devices": "[/dev/infiniband, /dev/x]", "healthcheck": "{test: [a, b]}", "deploy": "{resources: {limits: {cpus: '2'}}}", "cap_add": "[SYS_NICE]",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_each_field_of_a_random_recipe_is_in_the_profile_or_in_the_report(seed: int) -> None:
    """Each argument, variable, volume and key: the profile has it, or its name is listed."""
    rng = random.Random(seed)
    flags, env = rng.sample(FLAGS, 6), {key: VARIABLES[key] for key in rng.sample(sorted(VARIABLES), 5)}
    keys = {key: KEYS[key] for key in rng.sample(sorted(KEYS), 6)}
    command, table = json.dumps(f"vllm serve a/m -tp 2 {' '.join(flags)}"), json.dumps(env)
    if seed % 2:
        text = f"services:\n  vllm:\n{IMAGE}    command: {command}\n    environment: {table}\n" + "".join(
            f"    {key}: {value}\n" for key, value in keys.items()
        )
    else:
        text = f"model: a/m\ncontainer: o/vllm\ncommand: {command}\nenv: {table}\n" + "".join(f"{key}: {value}\n" for key, value in keys.items())
    found = made(text)
    names = {name.split(" ")[0].rstrip(":") for name in (*found.left, *(name for name, _text in found.unmapped))}
    engine, env_of, box = found.profile["engine"], found.profile["env"], json.dumps(found.profile["container"])
    assert [key for key in env if not any(name.endswith(f".{key}") for name in names) and env_of.get(key) != text_of(env[key])] == []
    flags_of = [flag.split()[0].split("=")[0].replace("-pp", "--pipeline-parallel-size") for flag in flags]
    assert [flag for flag in flags_of if flag not in names and flag[2:] not in engine["args"]] == []
    taken = {"shm_size", "ulimits", "volumes"} if seed % 2 else set()
    assert [key for key in keys if key not in taken and not any(re.match(rf"{key}(?:$|[.\[])", name) for name in names)] == []
    assert not (seed % 2 and "shm_size" in keys) or '"shm_size": "1g"' in box
    assert not (seed % 2 and "volumes" in keys) or {"volumes[1]", "volumes[2]", "volumes[3]"} <= names
    assert not (seed % 2 and "ulimits" in keys) or ('"nofile": 9' in box and "ulimits.cpu" in names)
    assert "s3cr3tw0rd99" not in json.dumps([found.profile, found.left, found.unmapped])
