"""Secrets in the forms in which engines, shells, and libraries print them: all are masked, in time that grows with the text only (H4, H5)."""

from __future__ import annotations

import base64
import json
import shlex
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import masked, redact
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_values import MASK

X = "s3cretKEY7aZ"
B64 = base64.b64encode(f"user:{X}".encode()).decode()
PEM = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7s3cretKEY7aZ"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.s3cretKEY7aZ"
#: Name of the shape -> (the text, what must not be left of it). The numbers are those of the security review's Table 1.
SHAPES: dict[str, tuple[str, str]] = {
    "01 bearer": (f"Authorization: Bearer {X}", X),
    "02 bearer in lower case": (f"authorization: bearer {X}", X),
    "03 curl": (f"curl -H 'Authorization: bearer {X}' http://a", X),
    "04 basic": (f"Authorization: Basic {B64}", B64),
    "05 proxy": (f"proxy-authorization: Basic {B64}", B64),
    "06 token scheme": (f"Authorization: Token {X}", X),
    "07 bearer alone": (f"sent bearer {X} to it", X),
    "08 x-api-key": (f"X-Api-Key: {X}", X),
    "09 hugging face": (f"hf_{X}abcdef", X),
    "10 hugging face in a path": (f"/cache/my-hf_{X}-model/a_hf_{X}abc", X),
    "11 sk": (f"sk-{X}", X),
    "12 ghp": (f"ghp_{X}abcdefgh", X),
    "13 github_pat": (f"github_pat_11AAA_{X}", X),
    "14 glpat": (f"glpat-{X}", X),
    "15 nvapi": (f"nvapi-{X}", X),
    "16 access key id": ("AKIAS3CRETKEY7AZ1234", "S3CRETKEY7AZ"),
    "17 aws": (f"AWS_SECRET_ACCESS_KEY={X}", X),
    "18 jwt": (f"got {JWT} back", X),
    "19 slack": (f"xoxb-1234-{X}", X),
    "20 user and password": (f"https://user:{X}@host/x", X),
    "21 at in a password": (f"https://user:p@{X}@host/x", X),
    "22 empty user": (f"redis://:{X}@host:6379/0", X),
    "23 token as a user": (f"https://{X}@host/x.git", X),
    "24 parameter": (f"GET /x?token={X}&a=1", X),
    "25 presigned": (f"https://b.s3/x?X-Amz-Date=1&X-Amz-Signature={X}&sig={X}", X),
    "26 args of vLLM": (f"args: {{'api_key': ['{X}'], 'port': 1}}", X),
    "27 namespace": (f"Namespace(api_key=['{X}'], port=1)", X),
    "28 bracket in a list": (f"api_key=['a]b','{X}']", X),
    "29 argument": (f"--api-key {X} --port 1", X),
    "30 two keys": (f"--api-key first {X} --port 1", X),
    "31 password argument": (f"--password {X}", X),
    "32 token argument": (f"--token {X}", X),
    "33 mysql": (f"mysql -u root -p{X} db", X),
    "34 JSON": (f'{{"api_key": "{X}"}}', X),
    "35 JSON in JSON": (json.dumps(json.dumps({"api_key": X})), X),
    "36 escaped name": (f'{{"api\\u005fkey": "{X}"}}', X),
    "37 docker config": (f'{{"auths": {{"a.io": {{"auth": "{B64}"}}}}}}', B64),
    "38 docker login": (f"echo {X} | docker login -u me --password-stdin a.io", X),
    "39 PEM": (f"-----BEGIN PRIVATE KEY-----\n{PEM}\n{X}==\n-----END PRIVATE KEY-----", X),
    "40 environment": (f"PATH=/bin\nHF_TOKEN={X}\nHOME=/", X),
    "41 PADDLE": (f"PADDLE_API_KEY={X}", X),
    "42 LAUNCHPAD": (f"LAUNCHPAD_TOKEN={X}", X),
    "43 NUMERAI": (f"NUMERAI_SECRET={X}", X),
    "44 MAXMIND": (f"MAXMIND_API_KEY={X}", X),
    "45 accessTokens": (f"{{'accessTokens': '{X}'}}", X),
    "46 registry": (f"REGISTRY_AUTH=user:{X}", X),
    "47 private key": (f"PRIVATE_KEY={X}", X),
    "47 passphrase": (f"passphrase: {X}", X),
    "48 netrc": (f"machine a.io login me password {X}", X),
    "48 netrc in lines": (f"machine a.io\n  login me\n  password {X}", X),
    "49 comma": (f"VLLM_API_KEY=ab,{X}", X),
    "50 semicolon": (f"VLLM_API_KEY=ab;{X}", X),
    "51 bracket": (f"VLLM_API_KEY=ab({X}", X),
    "52 blank": (f"VLLM_API_KEY=ab {X}", X),
    "53 not ASCII": (f"VLLM_API_KEY=pä{X}ß", X),
    "54 ANSI before the value": (f"api_key: \x1b[32m{X}\x1b[0m", X),
    "55 ANSI in the name": (f"api\x1b[1m_key\x1b[0m={X}", X),
    "56 ANSI in the token": (f"hf_{X[:6]}\x1b[1m{X[6:]}abcdef", X[6:]),
    "57 rich": (f"\x1b[33mapi_key\x1b[0m\x1b[1m:\x1b[0m \x1b[32m'{X}'\x1b[0m", X),
    "58 bytes": (f"b'api_key': b'{X}'", X),
    "59 triple quotes": (f'api_key="""{X}"""', X),
    "59 line end": (f"api_key=\n{X}", X),
    "60 YAML block": (f"api_key: >-\n  {X}\n", X),
    "61 YAML list": (f"- --api-key\n- {X}\n- --port", X),
    "62 arrow": (f":api_key => {X}", X),
    "62 arrow, bare": (f"key => {X}", X),
    "63 prose": (f"the api key is {X} and more", X),
    "63 prose, bare": (f"the key is {X}", X),
    "64 refused key": (f"Incorrect API key provided: {X}.", X),
    "65 percent": (f"h=Authorization%3A%20Bearer%20{X}", X),
    # forms that the review did not list
    "OPENAI_KEY": (f"OPENAI_KEY={X}", X),
    "WANDB_KEY in a shell": (f"export WANDB_KEY='{X}'", X),
    "docker run": (f"docker run -e HF_TOKEN={X} img", X),
    "compose": (f"environment:\n  HF_TOKEN: {X}\n", X),
    "list of words": (f'["vllm", "serve", "--api-key", "{X}", "--port", "1"]', X),
    "two in a list": (f"['--api-key', 'one', '{X}', '--port']", X),
    "client secret": (f"clientSecret: '{X}'", X),
    "cookie": (f"Set-Cookie: session={X}; Path=/", X),
    "PEM, each line with a prefix": (f"(A pid=1) -----BEGIN RSA PRIVATE KEY-----\n(A pid=1) {PEM}\n(A pid=1) -----END RSA PRIVATE KEY-----", X),
    "PEM without an end": (f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PEM}\n", X),
    "password of a database": (f"postgresql+psycopg://u:{X}@db/x", X),
    "dictionary": (f"{{'headers': {{'Authorization': 'Bearer {X}'}}}}", X),
    "tuple of headers": (f"(b'authorization', b'Bearer {X}')", X),
    "wandb login": (f"WANDB_API_KEY: {X}", X),
    "twice on a line": (f"A_TOKEN={X} B_SECRET={X}2", X),
    "lower case with digits": ("password: hunter2", "hunter2"),
    "only digits": ("password=87654321", "87654321"),
    "words": ("api_key=horse-battery-staple", "battery"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_of_this_shape_is_masked(shape: str) -> None:
    text, secret = SHAPES[shape]
    out = redact(text)
    assert secret not in out
    assert MASK in out
    assert redact(out) == out


# A value with a blank and without quotes ends where its line does, if nothing but a time and a process is before its name.
@pytest.mark.parametrize("prefix", ["", "(APIServer pid=1) ", "  ", "2026-08-15T12:00:00.123456789Z ", "- "])
def test_a_secret_is_masked_anywhere_on_a_line(prefix: str) -> None:
    assert [name for name, (text, secret) in SHAPES.items() if "\n" not in text and secret in redact(f"first\n{prefix}{text}\nlast")] == []


VALUES = ['päs"s\\w0rd,tail', "a&b=c d'e/f+g", "plain-s3cret", "12345678", "x'y\"z\\"]
WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": str, "JSON": json.dumps, "JSON in JSON": lambda value: json.dumps(json.dumps(value)), "repr": repr, "URL": quote_plus, "path": quote,
    "shell": shlex.quote, "whole URL": lambda value: quote(value, safe=""), "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "JSON without escapes": lambda value: json.dumps(value, ensure_ascii=False),
}  # fmt: skip


@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize("value", VALUES)
def test_a_known_value_is_masked_in_every_form(value: str, form: str) -> None:
    written = WRITTEN[form](value)
    assert written.strip("\"'") not in redact(f"it holds {written} there", [value])


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
def test_a_known_value_within_base64_is_masked(before: str) -> None:
    written = base64.b64encode(f"{before}plain-s3cret-value".encode()).decode()
    out = redact(f"it holds {written} there", ["plain-s3cret-value"])
    kept = out.removeprefix("it holds ").removesuffix(" there").replace(MASK, "")
    assert len(kept) <= 12


def test_a_container_is_masked_as_a_structure() -> None:
    config = {
        "Env": [f"VLLM_API_KEY={X}", "NCCL_DEBUG=INFO", f"REDIS_URL=redis://:{X}@h", f"KNOWN=kn0wn{X[:0]}-value", "MAX_TOKENS=5"],
        "Cmd": ["vllm", "serve", "--api-key", X, f"{X}2", "--port", "8000", f"--hf-token={X}"],
        "Labels": {"gb10.cluster.group": "pair1", "api_key": X},
        "Nested": [{"authorization": f"Bearer {X}"}],
    }
    out = masked(config, ["kn0wn-value"])
    assert X not in json.dumps(out)
    assert out["Env"] == [f"VLLM_API_KEY={MASK}", "NCCL_DEBUG=INFO", f"REDIS_URL={MASK}", f"KNOWN={MASK}", "MAX_TOKENS=5"]
    assert out["Cmd"] == ["vllm", "serve", "--api-key", MASK, MASK, "--port", "8000", f"--hf-token={MASK}"]
    assert out["Labels"] == {"gb10.cluster.group": "pair1", "api_key": MASK}


PATTERNS = [
    "a-", "token", "token=", "deadbeef-", "--api-key\n", "--api-key ", "api_key=[", "'", '"', "\\", "[", '["', "\x1b[", "eyJ", "eyJ.", "eyJ-", "-", "--", "://",
    "://a@", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nAAAA", "A", "AKIA",
    "hf_", "sk-", "mysql ", "mysql -p", "echo a|", "echo a", "?a", "?sig=",
    "key is ",
    "login a password ", " ", "\n", "api key is ", "Bearer ",
    "%3A", "\\u0061", '\\"token\\": \\"a', "password: >-\n", "auth: {", "_KEY=", "a@",
    "=", "token'", "secret:::",
    "--a-token\n- ", "--token a,b", "--token 'a', ", "\x9b", "API_KEY='", 'x="""', "set-cookie=", "key\n  - ", "token[']",
    "%22", "%2525", "&quot;", "&amp;", "\\x3d", "key ", "key:\n", "key:\n - a\n", "<password>", "<token a=", "<key>a</key><b>", "key,", "key|", "key (",
    "token for a ", "auth: [", "auth: (", "auth={'a': ", "-p a", "mysql -p a ", "curl -u a:b", "a:1b@", "//a:1a@", "x1y2/", "AAAA\n-----END PRIVATE KEY-----",
    "a is not a valid token ", "a:1:a:a:a\n", "://hook/", "$6$a", "1//", "sk-1", "M.a", "a.atlasv1.", "password=SecretStr(", "password: &a ", "key name value=",
    "('token', 'a1b'), ", "-token a1b2c3 ", "key\n  input_value=", "?session=a1&", "token........", "token a1b2c3d4 ", "  - token:\n", "key=a1b2c3;",
    "auth=auth(", "token=a.token ", "key:=", "key: str = ", "ENV a ", "token 'a ", ", 'a', ",
    "<<a\n", "<<<a ", "sudo -a ", "sudo -S <<<a ", "chpasswd <<a\na:b\n", "echo a|sudo -a ", "nmcli password a ", "user=a pass=",
    "a-A1b", "hook/a1", "eyJa+", "://a:b@c@",
    "token = a.get('", "token = a(b, c, ", "token = a.b.", "htpasswd -nb a ", "openssl passwd a ", "user set password ",
]  # fmt: skip


def seconds(pattern: str, size: int) -> float:
    """Return the CPU time of masking one pattern."""
    text = pattern * (size // len(pattern))
    start = time.process_time()
    redact(text, ["known-value", 'other"value'])
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_time_grows_with_the_length_of_the_text(pattern: str) -> None:
    """Compare two sizes side by side, up to eight times: a machine that is busy in one turn is not the pattern's fault."""
    ratios = (seconds(pattern, 1 << 14) / max(seconds(pattern, 1 << 11), 0.0005) for _turn in range(8))
    assert any(ratio < 20 for ratio in ratios), "eight times the text; a quadratic one takes 64 times as long"


@pytest.mark.long
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_megabyte_of_one_pattern_takes_seconds(pattern: str) -> None:
    assert seconds(pattern, 1 << 20) < 20, "it takes 2 s; in quadratic time it takes minutes"
