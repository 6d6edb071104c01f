"""Secrets leave text; counts stay."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import redact
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_values import MASK

SECRET = "s3cr3tv4lue"


@pytest.mark.parametrize(
    "text",
    [
        f"VLLM_API_KEY={SECRET}", f"'api_key': '{SECRET}', 'port': 8000", f'"HF_TOKEN": "{SECRET}"', f"Authorization: Bearer {SECRET}",
        f"vllm serve --api-key {SECRET} --port 8000", f"--hf-token={SECRET}", f"password: {SECRET}",
    ],
)  # fmt: skip
def test_masked_by_shape(text: str) -> None:
    out = redact(text)
    assert SECRET not in out
    assert MASK in out


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('PASSWORD="a b c secret" next', f'PASSWORD="{MASK}" next'),
        ("password: 'it is \\'quoted\\' too' next", f"password: '{MASK}' next"),
        ("HF_TOKEN='never closed\nnext", f"HF_TOKEN='{MASK}\nnext"),
        ("'--api-key', 'abc123', '--port'", f"'--api-key', '{MASK}', '--port'"),
        ('["--hf-token", "abc123"]', f'["--hf-token", "{MASK}"]'),
        ("- --api-key\n  - abc123\n  - --port", f"- --api-key\n  - {MASK}\n  - --port"),
        ("--api-key 'two words' --port 1", f"--api-key '{MASK}' --port 1"),
        ("args: api_key=['abc123'], port=1", f"args: api_key=[{MASK}], port=1"),
        ("'api_key': [\"a b\", 'c']}", f"'api_key': [{MASK}]}}"),
        ("api_key=[], secret=''", "api_key=[], secret=''"),
    ],
)
def test_quoted_and_listed_values_go_as_a_whole(text: str, masked: str) -> None:
    assert redact(text) == masked
    assert redact(masked) == masked


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("sent sk-abcdefgh1234 to it", "sk-abcdefgh1234"),
        ("remote ghp_abcdefghijklmnop1234", "ghp_abcdefghijklmnop1234"),
        ("nvapi-abcdefgh12345 was given", "nvapi-abcdefgh12345"),
        ("header Bearer abc.def.ghi", "abc.def.ghi"),
        ("HTTPS_PROXY=http://me:pa55word@proxy:3128", "pa55word"),
    ],
)
def test_what_is_a_secret_by_its_shape(text: str, secret: str) -> None:
    assert secret not in redact(text)


def test_masked_by_value() -> None:
    assert redact("the key is horse-battery", ["horse-battery"]) == f"the key is {MASK}"


def test_masked_hugging_face_token() -> None:
    assert redact("using hf_abcdefgh12345678 now") == f"using {MASK} now"


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=8192", "num_speculative_tokens: 5", "pad_token_id=0", "GPU KV cache size: 1,990,142 tokens",
        "--tokenizer-mode=deepseek_v4",
    ],
)  # fmt: skip
def test_counts_stay(text: str) -> None:
    assert redact(text) == text
