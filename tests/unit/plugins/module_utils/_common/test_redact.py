"""What is left of a text whose secrets are masked. The shapes of secrets are in tests/security."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common import redact as module
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import AROUND, PIECE, redact, redact_each
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
        ("Incorrect API key provided: team-blue-4711. You can find it", f"Incorrect API key provided: {MASK}. You can find it"),
        ("Incorrect API key provided (team-blue): see the docs", f"Incorrect API key provided ({MASK}): see the docs"),
        ('"cmd": "vllm serve --api-key abc123","stream":true', f'"cmd": "vllm serve --api-key {MASK}","stream":true'),
        ("'cmd': 'vllm serve --api-key abc123', 'stream': True", f"'cmd': 'vllm serve --api-key {MASK}', 'stream': True"),
        ("  - /opt/pair1/api_key\n\n== /proc/meminfo\nMemTotal: 1", "  - /opt/pair1/api_key\n\n== /proc/meminfo\nMemTotal: 1"),
        ("  secret\n\n==== figures of this moment\n", "  secret\n\n==== figures of this moment\n"),
    ],
)
def test_masks_the_whole_value_and_nothing_else(text: str, masked: str) -> None:
    assert redact(text) == masked
    assert redact(masked) == masked


def test_texts_are_masked_by_themselves_and_a_value_that_one_names_in_all() -> None:
    found = redact_each(["HF_TOKEN", "= 12 MB", "API_KEY=s3cretKEY7aZ", "sent s3cretKEY7aZ"])
    assert found == ["HF_TOKEN", "= 12 MB", f"API_KEY={MASK}", f"sent {MASK}"]


def test_a_value_that_begins_with_another_one_is_masked_whole() -> None:
    values = [f"tQ9zLw83kfPa{'7XcVbNm41'[:length]}" for length in range(10)]
    named = "\n".join(f"api_key={value}" for value in values)
    assert redact_each([named, " ".join(values)])[1] == " ".join([MASK] * len(values))


PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7s3cretKEY7aZ\n-----END PRIVATE KEY-----"


def test_a_secret_of_several_lines_leaves_as_many_lines() -> None:
    assert redact(PEM).split("\n") == ["-----BEGIN PRIVATE KEY-----", MASK, MASK, "-----END PRIVATE KEY-----"]
    assert redact("one first-line\nsecond-line two", ["first-line\nsecond-line"]) == f"one {MASK}\n{MASK} two"


@pytest.mark.parametrize("secret", [PEM, '[\n "--api-key",\n "horse-battery"\n]', "api_key: >-\n  horse-battery\n", "sent \u200bhf_abcdefgh\u200b12345678"])
@pytest.mark.parametrize("before", range(-60, 1, 5))
def test_a_secret_at_the_end_of_a_piece_is_masked(secret: str, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 1600)
    monkeypatch.setattr(module, "AROUND", 400)
    filler = "a line of a log\n" * 200
    out = redact(f"{filler[: 1600 + before - 1]}\n{secret}\n{filler}")
    assert not any(word in out for word in ("MIIE", "BKcw", "horse-battery", "hf_abc"))


@pytest.mark.parametrize("before", [-10, 0])
def test_a_text_without_line_ends_is_masked_in_pieces(before: int) -> None:
    out = redact("a" * (PIECE + before) + " hf_abcdefgh12345678 " + "b" * AROUND)
    assert "hf_abc" not in out
    assert len(out) <= PIECE + AROUND + 30


def test_masked_by_value() -> None:
    assert redact("the key is horse-battery", ["horse-battery"]) == f"the key is {MASK}"
