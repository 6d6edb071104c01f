"""A secret never gets into a Compose file, an argument list, or an error: it goes to the environment file for root, or it is refused (M1, M2, M8, L10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.filter.image import build_hash
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import read_key
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.rules import faults
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import ServingError, env_file_text
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_check import check
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError

X = "s3cretKEY7aZ"
PROFILE: dict[str, Any] = {"summary": "s", "image": {"reference": "e:1"}, "model": {"id": "a/b", "path": "a/b"}}


@pytest.mark.parametrize("flag", ["api-key", "api_key", "hf_token", "hf-token", "api", "api-ke", "api_ke", "hf-to", "some-password", "client_secret"])
def test_an_argument_that_is_a_secret_is_refused(flag: str) -> None:
    with pytest.raises(ProfileError, match="process list") as found:
        check("x", {**PROFILE, "engine": {"args": {flag: X}}})
    assert X not in str(found.value)


@pytest.mark.parametrize("value", ['{"api_key": "' + X + '"}', {"connector": {"password": X}}, f"redis://:{X}@host", f"hf_{X}abcdefgh"])
def test_an_argument_with_a_secret_in_it_is_refused(value: Any) -> None:
    with pytest.raises(ProfileError, match=r"process list|expected a mapping") as found:
        check("x", {**PROFILE, "engine": {"args": {"kv-transfer-config": value}}})
    assert X not in str(found.value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max-num-batched-tokens", 8192),
        ("long-prefill-token-threshold", 0),
        ("api-server-count", 2),
        ("enable-prompt-tokens-details", True),
        ("tokenizer", "a/b"),
        ("allow-credentials", True),
        ("speculative-config", {"method": "mtp", "num_speculative_tokens": 3}),
        ("override-generation-config", {"max_new_tokens": 16, "eos_token_id": 1}),
        ("revision", "0123456789abcdef0123456789abcdef01234567"),
    ],
)
def test_other_arguments_are_accepted(flag: str, value: Any) -> None:
    assert flag in check("x", {**PROFILE, "engine": {"args": {flag: value}}})["engine"]["args"]


SECRETS = [
    "X_HEADER=Authorization: Bearer §", "OTEL_EXPORTER_OTLP_HEADERS=api-key=§", 'SETTINGS={"api_key":"§"}', 'MORE={"auth":{"password":"§"}}',
    "SAS=sv=2020&sig=§", "AZ=AccountKey=§==", "CONN=Server=a;Password=§;", "CMDLINE=--api-key §", "SALT=§", "PASS=§", "DB_PW=§", "PGPASSWORD=§",
    "HFTOKEN=§", "MYSQL_PWD=§", "GITHUB_PAT=§", "API_KEY_2=§", "AWS_ACCESS_KEY_ID=§", "DSN=postgres://u:§@h/d", "HTTPS_PROXY=http://u:§@p:3128",
    "HOOK=https://hooks.slack.com/services/T00/B00/§§", "ANY=sk-§", "REGISTRY_AUTH=§", "CREDENTIALS=§", "TOKEN_2=§", "HF_TOKEN=§",
    "WANDB_KEY=§", "OPENAI_KEY=§", "PASSPHRASE=§", "MY_SECRET=§",
]  # fmt: skip
OPEN = [
    "TOKENIZERS_PARALLELISM=false", "VLLM_TOKENIZER_MODE=auto", "NCCL_IB_PKEY=0", "MAX_TOKENS=5", "HF_TOKEN_PATH=/root/.cache/token", "PAD_TOKEN_ID=0",
    "HF_ENDPOINT=https://hf-mirror.com", "NCCL_IB_HCA==rocep1s0f0:1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "KV_CACHE_KEY=x",
    "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE=163840", "EOS_TOKEN=</s>", "SSH_AUTH_SOCK=/run/x", "NO_PROXY=localhost,127.0.0.1", "URL=redis://host:6379/0",
    "IMAGE=vllm/vllm-openai:v0.11@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "REASONING=deepseek_r1", "SEED=42",
    "MODEL=nvidia/Qwen3-235B-A22B-NVFP4", "PWD=/root", "KEYBOARD=us", "AUTHOR=me", "PASSTHROUGH=1", "TORCH_CUDA_ARCH_LIST=12.1a",
]  # fmt: skip


@pytest.mark.parametrize("variable", SECRETS)
def test_a_secret_anywhere_in_a_variable_is_refused(variable: str) -> None:
    name, _sign, value = variable.replace("§", X).partition("=")
    [(path, text)] = faults("vllm_tp2_extra_env", {name: value, "NCCL_DEBUG": "INFO"}, {"type": "dict"})
    assert path == (name,)
    assert "vllm_tp2_secret_env" in text
    assert X not in text
    with pytest.raises(ProfileError, match="vllm_tp2_secret_env") as found:
        check("x", {**PROFILE, "env": {name: value}})
    assert X not in str(found.value)


@pytest.mark.parametrize("variable", OPEN)
def test_other_variables_are_accepted(variable: str) -> None:
    name, _sign, value = variable.partition("=")
    assert faults("vllm_tp2_extra_env", {name: value}, {"type": "dict"}) == []
    assert check("x", {**PROFILE, "env": {name: value}})["env"][name] == value


@pytest.mark.parametrize("value", [f"{X}\\", f"{X}\\\\\\", f"{X}'x", f"{X}\n"])
@pytest.mark.parametrize("name", ["vllm_tp2_api_key", "vllm_tp2_secret_env"])
def test_a_value_that_compose_would_print_in_its_error_is_refused(name: str, value: str) -> None:
    found = faults(name, value if name.endswith("key") else {"VLLM_API_KEY": value}, {"type": "str" if name.endswith("key") else "dict", "no_log": True})
    assert len(found) == 1
    assert X not in found[0][1]
    with pytest.raises(ServingError) as error:
        env_file_text({"VLLM_API_KEY": value})
    assert X not in str(error.value)


@pytest.mark.parametrize(
    "value", [X, f'"{X}', f'"{X}"', f"{X}\\\\", "\\\\", f"a\\{X}", "a\\nb", "$HOME", "${HOME}", "$$x", f"{X} #x", "a#b", "a b", "é", "`id`"]
)
def test_the_gate_reads_the_key_that_the_engine_reads(value: str, tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text(env_file_text({"VLLM_API_KEY": value, "X": "y"}), encoding="utf-8")
    assert read_key([str(path)]) == value
    assert bounded.env_values(path.read_text(encoding="utf-8")) == {"VLLM_API_KEY": value, "X": "y"}


@pytest.mark.parametrize(
    "value", [f"ftp://bob:{X}@h", f"https://bob:{X}@hub.example.org", f"https://{X}@hub.example.org/a", f"Authorization: Bearer {X}", f"https://h/?token={X}"]
)
def test_a_url_with_a_password_is_refused_without_the_password(value: str) -> None:
    found = faults("weights_hf_endpoint", value, {"type": "str"})
    assert found
    assert X not in repr(found)


BUILD_SECRETS = [
    ("HF_TOKEN", X),
    ("PIP_PASSWORD", X),
    ("registry-key", X),
    ("http_proxy", f"http://bob:{X}@proxy:3128"),
    ("PIP_ARGS", f"--extra-index-url https://{X}@pypi.example.org/simple"),
    ("SOURCE", f"hf_{X}abcdefgh"),
]


@pytest.mark.parametrize(("name", "value"), BUILD_SECRETS)
def test_a_build_argument_that_is_a_secret_is_refused(name: str, value: str) -> None:
    args = {"JOBS": "8", "https_proxy": "http://proxy:3128", name: value}
    [(path, text)] = faults("image_build_args", args, {"type": "dict"})
    assert path == (name,)
    with pytest.raises(AnsibleFilterError, match=f"image_build_args: {name} ") as role:
        build_hash("", args)
    for each in (text, str(role.value)):
        assert "docker login" in each
        assert X not in each


@pytest.mark.parametrize(("name", "value"), [("MAX_JOBS", "8"), ("http_proxy", "http://proxy:3128"), ("NO_PROXY", "a,b"), ("BASE_IMAGE", "r/e@sha256:1")])
def test_other_build_arguments_are_accepted(name: str, value: str) -> None:
    assert faults("image_build_args", {name: value}, {"type": "dict"}) == []
    assert len(build_hash("", {name: value}, "layer")) == 64
