# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What holds a secret: the one predicate of the inventory, the profiles, and the masking of text. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

#: Words behind hf_ that are no key.
_HF_WORDS = r"(?:overrides|processors?|quantizer|transfer|datasets?|tokenizer|inference|endpoint|internal|transformers|accelerate|generation)"
#: The begins of keys of hubs, clouds and services, as alternatives; eight or more letters follow, one of them a digit or a capital.
_BEGINS = (
    r"hf_|api_org_|sk[-_]|[rp]k_(?:live|test)_|whsec_|gh[pousr]_|github_pat_|gl[a-z]{1,5}[-_]|nvapi-|xox[a-z][.-]|xapp-|npm_|pypi-|dckr_[a-z]{3}_|ya29\."
    r"|GOCSPX-|1//|SG\.|tskey-|dapi|hv[sbr]\.|gsk_|r8_|pplx-|xai-|lin_api_|shp[a-z]{2}_|sq0[a-z]{3}-|do[opr]_v1_|key-(?=[0-9a-f]{32})"
    r"|ATATT|figd_|secret_(?=[A-Za-z0-9]{32})|ntn_|pul-"
    r"|sntry[su]_|NRAK-|dp\.[a-z]{2,5}\.|wandb_v1_|tgp_v1_|ops_eyJ|fw_|AGE-SECRET-KEY-|AIza|csk-(?=[a-z0-9]{40})|pcsk_|lsv2_|tvly-|xkeysib-|CCIPAT_"
    r"|(?:e2b|sbp|sq[pua]|rubygems)_(?=[0-9a-f]{40})|dt0[a-z]\d\d\.|LTAI(?=[A-Za-z0-9]{16})|ATCTT|ATBB(?=\w{28})|SWMTKN-1-|fm2_(?=[\w-]{40})"
)
#: Secrets by their own form: such keys, ids of access keys, signed tokens, hashes of passwords, keys in base64, addresses that are a secret.
FORMS = re.compile(
    rf"(?<![A-Za-z0-9])(?:(?:hf_(?!{_HF_WORDS}(?![A-Za-z0-9]))|sk-|gh[pousr]_|glpat-|nvapi-)[a-z]{{10,200}}"
    rf"|(?:{_BEGINS})(?=[\w.-]{{0,60}}[A-Z0-9])(?=[\w-]{{0,16}}[A-Za-z0-9]{{5}})[A-Za-z0-9][\w.-]{{6,400}}[\w-]"
    r"|(?:AKIA|ASIA|AROA)[A-Z0-9]{8,32}(?![a-z])|(?<![\w-])eyJ[\w-]{6,4000}\.[\w-]{2,8000}(?:\.[\w-]{0,4000}){0,3}|(?<![\w-])eyJ[\w+/=-]{40,8000}"
    r"|\d{8,11}:(?:AA[\w-]{30,60}|(?=[a-z0-9_-]{0,34}[A-Z])(?=[A-Z0-9_-]{0,34}[a-z])[\w-]{35}(?![\w-]))"
    r"|(?<![\w/.-])(?!sha\d)[a-z][a-z0-9]{1,9}[_-](?:[a-z0-9]{1,8}[_-]){0,2}(?=[A-Z0-9]{0,40}[a-z])(?=[a-z0-9]{0,40}[A-Z])(?=[A-Za-z]{0,40}\d)"
    r"[A-Za-z0-9]{32,200}(?![\w/+=-])"
    r"|[MNO][\w-]{22,28}\.[\w-]{6}\.[\w-]{27,40}|[\w-]{10,20}\.atlasv1\.[\w-]{20,80}|LS0tLS1CRUdJTi[A-Za-z0-9+/=]{1,20000})"
    r"|\$(?:[1567y]|2[abxy]|apr1|argon2\w{0,2})\$[\w./$=,+-]{8,300}|(?<=\bpbkdf2\.)sha\d{1,3}[\w.]{20,2000}"
    r"|(?<=://)[\w.-]{0,100}hook[\w.-]{0,100}/[^\s\"'<>`]{16,400}|(?<=hook)s?/(?=[\w/@-]{0,60}\d)(?=[\w/@-]{0,60}[A-Za-z0-9]{16})[\w/@-]{16,200}"
    r"|(?<=telegram\.org/bot)[\w:-]{16,100}"
)
#: The part of a URL that names a user: all before the last @, and a password with a slash in it; without a scheme the password only.
USER_INFO = re.compile(
    r"(?<=://)[^\s/\"'<>`]{1,400}(?=@)|(?<=:\\/\\/)[^\s/\"'<>`\\]{1,400}(?=@)"
    r"|(?<=://)[^\s/:@\"'<>`]{0,100}:(?!\d{1,5}/|//)[^\s\"'<>@`]{1,200}(?:@[^\s/\"'<>@`]{1,100}){0,3}(?=@)"
    r"|(?<![:\w/])//[^\s/:@\"'<>]{1,100}:[^\s/@\"'<>]{1,200}(?=@)"
    r"|(?<![\w.:/@-])[\w.+-]{1,64}:(?=[^\s:@\"'/]{0,60}\d)(?=[^\s:@\"'/]{0,60}[A-Za-z])[^\s:@\"'/<>]{6,200}(?=@(?!sha\d)[\w(.-])"
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PARTS = re.compile(r"[^a-z0-9]+")
_STRONG = frozenset((
    "apikey", "apikeys", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "passphrases", "passcode", "credential", "credentials",
    "creds", "authorization", "bearer", "cookie", "cookies", "jwt", "privatekey", "accesskey", "secretkey", "authkey", "presharedkey", "authtoken",
    "passwort", "kennwort", "mnemonic", "basicauth",
))  # fmt: skip
#: What a name without blanks, such as PGPASSWORD or HFTOKEN, ends in.
_ENDS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "secretkey", "accesskey", "credentials")
#: Passwords that are one word. Some are commands as well: in text, capitals make sure.
_PASSES = frozenset(("sshpass", "rootpass", "dbpass", "pgpass", "storepass", "keypass", "requirepass", "masterauth", "bindpw", "rootpw"))
#: Names that hold a secret if the value has the form of a generated one.
_WEAK = frozenset((
    "key", "keys", "pass", "pwd", "pw", "pat", "psk", "salt", "session", "sid", "sessid", "phpsessid", "jsessionid", "sessionid", "otp", "sig",
    "signature", "hmac", "ticket", "auth", "token", "tokens", "response", "samlresponse", "code", "account", "header",
)) | _PASSES  # fmt: skip
#: Words that make a count, a switch or a special token of a name with `token`.
_COUNTS = frozenset((
    "max", "min", "num", "number", "batched", "speculative", "tokenizer", "tokenizers", "id", "ids", "pad", "bos", "eos", "unk", "sep", "cls", "mask",
    "image", "audio", "video", "draft", "per", "count", "limit", "budget", "special", "think", "stop", "start", "end", "next", "disable", "implicit",
    "spec", "block", "chunk", "details",
))  # fmt: skip
#: A key with such a word before it needs no further proof.
_KEYS = frozenset((
    "api", "access", "private", "secret", "auth", "signing", "account", "master", "encryption", "shared", "subscription", "license", "storage", "session",
))  # fmt: skip
#: A key with such a word is public, or a place in a table.
_OPEN = frozenset(("public", "pub", "authorized", "host", "known", "cache", "kv", "primary", "foreign", "sort", "missing", "unexpected", "query", "value"))
#: A name that ends so tells where a secret is, or of what kind.
_ABOUT = frozenset((
    "path", "file", "dir", "folder", "name", "names", "type", "len", "length", "ttl", "timeout", "seconds", "url", "uri", "endpoint", "format", "mode",
    "enabled", "required", "count", "stdin", "parser", "ref",
))  # fmt: skip
_PLAIN = re.compile(r"(?:[-+]?\d[\d.,_\s]*(?:[eE][-+]?\d+)?[kKmMgG]?|None|null|true|false|auto|\[[\d\s,]*\])?", re.IGNORECASE)
_GENERATED = re.compile(r"(?<![\w/.-])(?=[\w+~-]{0,60}\d)(?=[\w+~-]{0,60}[A-Za-z])(?!\d{1,12}(?:[a-z]{1,3}|[kKMGTP]i?B)?(?![\w-]))[\w+/~.-]{6,4000}")
_CHANGES = re.compile(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])")
#: Why a build argument that is a secret is refused, and what to do; ends a sentence.
BUILD_ARGUMENT = (
    "looks like a secret, and a build argument is readable in the process list and in the image's history. Remove it, or rename it if it is not one. "
    "Give a proxy without user and password. For a private source, build the image elsewhere, and pull it after docker login on the nodes"
)


def is_secret(name: str, value: object = None) -> bool:
    """Whether the variable, argument or key of this name holds a secret; with a `value`, also whether that has the form of one.

    HF_TOKEN, api-key, accessTokens and WANDB_KEY do. MTP_NUM_TOKENS, HF_TOKEN_PATH and MAX_TOKENS do not.
    """
    text = "" if value is None else str(value)
    if len(text) > 3 and (FORMS.search(text) or USER_INFO.search(text)):
        return True
    words = _words(name)
    if not words or words[-1] in _ABOUT:
        return False
    if _is_strong(words):
        return True
    if words[-1] in ("key", "keys", "auth"):
        return _OPEN.isdisjoint(words)
    if words[-1] in ("pass", "pwd", "pw", "pat", "psk"):
        return len(words) > 1 or words[-1] == "psk"
    if words[-1] in _PASSES:
        return True
    if "token" in words:
        if words[-1] == "token":
            return _COUNTS.isdisjoint(words) or words[-2] == "id" or is_generated(text)
        return _COUNTS.isdisjoint(words) and (value is None or not is_plain(text))
    return "tokens" in words and _COUNTS.isdisjoint(words) and not is_plain(text)


def is_secret_in_text(name: str, value: str) -> bool:
    """Whether a name in a log and the value after it are a secret. After a name of other things too, such as `key`, the value has to look like one."""
    words = _words(name)
    if not words or _is_strong(words) or words[-1] not in _WEAK or (words[-1] == "tokens" and len(words) > 1):
        return is_secret(name, value)
    named = words[-1] in ("token", "psk") or (len(words) > 1 and words[-1] in ("auth", "pass", "pwd", "pw", "pat"))
    if named or (name.isupper() and ("_" in name or words[-1] in _PASSES) and is_secret(name, value)):
        return is_secret(name, value)
    return _OPEN.isdisjoint(words) and is_generated(value)


def is_parameter(name: str) -> bool:
    """Whether a parameter of a URL holds a secret with any value."""
    words = _words(name)
    return (bool(words) and _COUNTS.isdisjoint(words) and (words[-1] in _WEAK or _is_strong(words))) or words[-2:] == ["id", "token"]


@lru_cache(maxsize=1024)
def _words(name: str) -> list[str]:
    """Return the words of a name in lower case, without numbers at their ends."""
    parts = (word.rstrip("0123456789") for word in _PARTS.split(_CAMEL.sub("_", name).lower()))
    words = [word for word in parts if word]
    return words[:-1] if words[-1:] == ["id"] and words[-2:-1] in (["key"], ["session"]) else words


def _is_strong(words: list[str]) -> bool:
    if words[-1] in ("key", "keys") and len(words) > 1 and words[-2] in _KEYS:
        return True
    return not _STRONG.isdisjoint(words) or any(word.endswith(_ENDS) and word not in ("token", "nopasswd") for word in words)


def is_generated(value: str, least: int = 2) -> bool:
    """Whether a value contains a word that no person wrote: letters and digits that change at least so often."""
    return any(len(_CHANGES.findall(word[:200])) >= least for word in _GENERATED.findall(value[:400]))


def is_plain(value: str) -> bool:
    """Whether a value is empty, a number, a switch or nothing."""
    return _PLAIN.fullmatch(value.strip()) is not None
