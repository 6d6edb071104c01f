"""One predicate decides which names hold a secret."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_names import is_secret


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "VLLM_API_KEY", "MY_SECRET", "DB_PASSWORD", "WANDB_KEY", "OPENAI_KEY", "PASSPHRASE", "api-key", "accessToken", "REGISTRY_AUTH",
        "PADDLE_TOKEN", "LAUNCHPAD_TOKEN", "NUMERAI_SECRET", "MAXMIND_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASS", "vllm_tp2_secret_env",
    ],
)  # fmt: skip
def test_a_secret(name: str) -> None:
    assert is_secret(name)
    assert is_secret(name, "abc")


@pytest.mark.parametrize(
    "name",
    [
        "MTP_NUM_TOKENS", "TOKENIZERS_PARALLELISM", "NUM_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "max-num-batched-tokens", "keyboard", "PWD",
        "authentication", "eos_token", "TOKEN_TYPE", "long_prefill_token_threshold_max",
    ],
)  # fmt: skip
def test_no_secret(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("REDIS_URL", "redis://:pw@host", True), ("REDIS_URL", "redis://host", False), ("ENDPOINT", "https://u:p@host/x", True), ("X", "hf_aB3dEfGhIjKl", True),
        ("ACCESS_TOKENS", "one,two", True), ("SPARE_TOKENS", "5", False),
        ("long-prefill-token-threshold", 0, False), ("enable-prompt-tokens-details", True, False),
        ("HF_TOKEN", "12345", True), ("NCCL_DEBUG", "INFO", False),
    ],
)  # fmt: skip
def test_the_value_decides_too(name: str, value: object, secret: bool) -> None:
    assert is_secret(name, value) is secret
