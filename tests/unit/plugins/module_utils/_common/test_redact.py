"""What is left of a text whose secrets are masked. The shapes of secrets are in tests/security."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import redact
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_values import MASK


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
        ("header Bearer abc.def.ghi", f"header Bearer {MASK}"),
        ("HTTPS_PROXY=http://me:pa55word@proxy:3128", f"HTTPS_PROXY=http://{MASK}@proxy:3128"),
        ("using hf_abcdefgh12345678 now", f"using {MASK} now"),
    ],
)
def test_masks_the_whole_value_and_nothing_else(text: str, masked: str) -> None:
    assert redact(text) == masked
    assert redact(masked) == masked


def test_masked_by_value() -> None:
    assert redact("the key is horse-battery", ["horse-battery"]) == f"the key is {MASK}"
