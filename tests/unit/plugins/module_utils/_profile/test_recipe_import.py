"""Recipes of sparkrun, of eugr/spark-vllm-docker and Compose files as profiles. The inputs are written for these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common import env_file
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import render_rank
from ansible_collections.gb10.cluster.plugins.module_utils._profile.mounts import writable_weights
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_fields import Imported
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_import import convert
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_words import RecipeError
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from shipped_profiles import SHIPPED

RECIPES = Path(__file__).parents[3] / "fixtures" / "recipes"
FILES = ("eugr.yaml", "sparkrun.yaml", "docker-compose.yml")
SECRETS = ("hf_abcdefghijklmnopqrstuvwx", "plain-words-for-the-api", "pw123456")


def imported(name: str, **changes: Any) -> Imported:
    data = yaml.safe_load((RECIPES / name).read_text())
    env = env_file.parse((RECIPES / "flash.env").read_text()) if name == "docker-compose.yml" else {}
    return convert({**data, **changes}, env)


def argv(found: Imported, rank: int = 0) -> list[str]:
    profile = resolve("mine", SHIPPED, {"mine": found.profile})
    place = {"rank": rank, "size": 2, "master_addr": "10.0.0.1", "fabric_ip": f"10.0.0.{rank + 1}"}
    words: list[str] = render_rank(profile, place, {"model_store": "/srv/models", "fabric": "node"})["argv"]
    return words


@pytest.mark.parametrize("name", FILES)
def test_the_profile_is_valid_and_cannot_change_the_weights(name: str) -> None:
    profile = resolve("mine", SHIPPED, {"mine": imported(name).profile})
    assert profile["gate"]["transport"] == "rdma"
    assert profile["ranks"]["min"] == 2
    assert writable_weights(profile, "/srv/models") == []


@pytest.mark.parametrize("name", FILES)
def test_no_secret_is_in_the_profile_or_the_lists(name: str) -> None:
    found = imported(name)
    everything = json.dumps([found.profile, found.mapped, found.decided, found.unmapped])
    assert [secret for secret in SECRETS if secret in everything] == []


def test_a_recipe_of_eugr_argument_by_argument() -> None:
    found = imported("eugr.yaml")
    assert (found.kind, found.name) == ("recipe of eugr/spark-vllm-docker", "flash-pair")
    profile = resolve("mine", SHIPPED, {"mine": found.profile})
    assert profile["engine"]["executor"] == "ray"
    assert " ".join(argv(found)) == (
        "vllm serve example-org/Flash-V4 --served-model-name example-org/Flash-V4 --host 0.0.0.0 --port 8000 --trust-remote-code "
        "--tensor-parallel-size 2 --kv-cache-dtype fp8 --max-model-len 200000 --gpu-memory-utilization 0.8 "
        '--speculative-config {"method":"deepseek_mtp","num_speculative_tokens":2} --tokenizer-mode deepseek_v4 '
        "--distributed-executor-backend ray --default-chat-template-kwargs.thinking=true --load-format safetensors"
    )
    assert profile["env"]["TORCH_CUDA_ARCH_LIST"] == "12.1a"
    assert (profile["image"]["pull"], profile["image"]["reference"]) == (False, "vllm-node-flash")
    assert "--apply-vllm-pr 41834" in profile["image"]["build"]["note"]


def test_a_recipe_of_sparkrun_without_a_command() -> None:
    found = imported("sparkrun.yaml")
    assert (found.kind, found.name) == ("recipe of sparkrun", "next-80b")
    assert " ".join(argv(found, 1)) == (
        "vllm serve example-org/Next-80B --revision 0123456789abcdef0123456789abcdef01234567 --host 0.0.0.0 --port 8001 --tensor-parallel-size 2 "
        "--gpu-memory-utilization 0.8 --max-model-len 131072 --served-model-name next --trust-remote-code "
        '--speculative-config {"method":"mtp","num_speculative_tokens":1} --nnodes 2 --node-rank 1 '
        "--master-addr 10.0.0.1 --master-port 25000 --headless"
    )
    assert found.profile["summary"] == "Next-80B for a pair"
    assert found.profile["image"] == {"reference": "ghcr.io/example-org/vllm-spark:1.2", "pull": True}
    assert found.profile["container"]["shm_size"] == "32gb"
    assert found.profile["ranks"] == {"min": 2, "max": 2}


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
    assert profile["env"]["NCCL_NET"] == "IB"
    assert profile["container"]["volumes"] == ["{model_store}:/cache/huggingface:ro", "{model_store}/vllm-cache:/cache/huggingface/vllm-cache"]
    assert (profile["container"]["stack"], profile["engine"]["master_port"]) == (67108864, 25000)
    assert not profile["container"]["cap_add"]


def keys(data: Any, path: str = "") -> list[str]:
    """The fields of a recipe as the lists name them."""
    return [f"{path}{key}" for key in data]


@pytest.mark.parametrize("name", FILES)
def test_each_field_is_in_one_list(name: str) -> None:
    data = yaml.safe_load((RECIPES / name).read_text())
    found = imported(name)
    listed = [field for field, _text in (*found.mapped, *found.decided, *found.unmapped)]
    box = data.get("services", {}).get("vllm-flash") or data
    nested = ("environment", "env", "defaults", "executor_config", "ulimits")
    fields = [key for key in keys(box) if key not in (*nested, "volumes", "devices")]
    fields += [each for key in nested for each in keys(box.get(key) or {}, f"{key}.")]
    fields += [f"{key}[{i}]" for key in ("volumes", "devices") for i in range(len(box.get(key) or []))]
    if box is not data:
        fields += [f".env {key}" for key in env_file.parse((RECIPES / "flash.env").read_text())]
        fields += ["volumes", "services.proxy"]
    assert [field for field in fields if not any(each == field or each.startswith(f"{field} ") for each in listed)] == []
    decisions = {each for each in listed if each != "runtime"}
    assert sum(each in decisions for each in listed) == len(decisions), "no field is in two lists"


def test_what_is_not_mapped_has_its_reason() -> None:
    reasons = dict(imported("docker-compose.yml").unmapped)
    assert reasons["command: pip"] == "a command next to the engine: put it into the image"
    assert reasons["volumes[2] /var/run/docker.sock"].startswith("a mount of the host")
    for key in ("environment.HF_TOKEN", "environment.EXTRA_HEADER_URL", "--api-key", ".env SERVE_KEY"):
        assert reasons[key].startswith("is or contains a secret")
    assert reasons[".env WORKER_HOST"] == "the Compose file does not use it"
    assert dict(imported("eugr.yaml").unmapped)["defaults.unused_knob"] == "the command does not use it"


def test_a_variable_without_a_value_is_listed() -> None:
    data = yaml.safe_load((RECIPES / "docker-compose.yml").read_text())
    found = convert({"services": {"vllm": {**data["services"]["vllm-flash"], "shm_size": "${UNKNOWN_SIZE}"}}}, {})
    assert ("${UNKNOWN_SIZE}", "has no value") in found.unmapped


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ({"command": ["--model", "org/m", "--port", "9"]}, ["--model", "org/m", "--served-model-name", "org/m", "--host", "0.0.0.0", "--port", "9"]),
        ({"command": "vllm serve org/m --port 9"}, ["vllm", "serve", "org/m", "--served-model-name", "org/m", "--host", "0.0.0.0", "--port", "9"]),
        (
            {"entrypoint": ["python3", "-m", "vllm.entrypoints.openai.api_server"], "command": "--model /models/m --port 9"},
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m", "--served-model-name", "m", "--host", "0.0.0.0", "--port", "9"],
        ),
    ],
)
def test_other_ways_to_start_the_engine(service: dict[str, Any], words: list[str]) -> None:
    found = convert({"services": {"one": {"image": "org/vllm:1", **service}}})
    assert argv(found)[: len(words)] == words
    assert resolve("mine", SHIPPED, {"mine": found.profile})["engine"]["entrypoint"] == ([] if "entrypoint" in service else None)


def test_a_model_in_a_folder_is_mounted_from_the_store() -> None:
    data = {"model": "/models/org/M", "container": "vllm:1", "command": "vllm serve {model}"}
    profile = resolve("mine", SHIPPED, {"mine": convert(data).profile})
    assert profile["container"]["volumes"][0] == "{model_store}:/models/org:ro"
    assert (profile["model"]["layout"], profile["model"]["relative_path"]) == ("directory", "M")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([1], "is not a mapping"),
        ({"title": "x"}, "neither services"),
        ({"model": "a/b", "container": "c", "runtime": "sglang"}, "serves vLLM only"),
        ({"model": "a/b", "container": "c", "command": "sglang serve a/b"}, "does not start vLLM"),
        ({"model": "a/b", "container": "c", "command": "vllm serve a/b --port {port}"}, r"placeholder \{port\}"),
        ({"model": "a/b"}, "container is missing"),
        ({"model": "a/b", "container": "c", "env": ["A=b"]}, "env is not a mapping"),
        ({"model": "a/b", "container": "c", "defaults": {"port": "x"}}, "expected a port"),
        ({"services": {}}, "services is empty"),
        ({"services": {"db": {"image": "postgres"}}}, "does not start vLLM"),
        ({"model": "a/b", "container": "c", "list": [1] * 6000}, "more than 5000 entries"),
    ],
)
def test_what_cannot_be_converted_is_an_error(data: Any, error: str) -> None:
    with pytest.raises(RecipeError, match=error):
        convert(data)


def test_aliases_of_yaml_do_not_grow() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)), "model: x"]
    with pytest.raises(RecipeError, match="entries"):
        convert(yaml.safe_load("\n".join(lines)))
