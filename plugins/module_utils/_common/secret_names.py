# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What holds a secret: the one predicate of the inventory, the profiles, and the masking of text. Pure."""

from __future__ import annotations

import re

#: Words behind hf_ that are no key.
_HF_WORDS = r"(?:overrides|processors?|quantizer|transfer|datasets?|tokenizer|inference|endpoint|internal|transformers|accelerate|generation)"
#: Secrets by their own form: keys of hubs, clouds and services, signed tokens.
FORMS = re.compile(
    rf"(?<![A-Za-z0-9])(?:hf_(?!{_HF_WORDS}(?![A-Za-z0-9]))[A-Za-z0-9-]{{8,200}}|sk-[A-Za-z0-9_-]{{8,200}}|gh[pousr]_[A-Za-z0-9]{{12,200}}"
    r"|github_pat_[A-Za-z0-9_]{8,200}|glpat-[\w-]{8,200}|nvapi-[\w-]{8,200}|(?:AKIA|ASIA)[A-Z0-9]{8,32}(?![a-z])|xox[a-z]-[\w-]{8,200}"
    r"|AIza[\w-]{20,60}|(?<![\w-])eyJ[\w-]{6,4000}\.[\w-]{2,8000}(?:\.[\w-]{0,2000})?)"
)
#: The part of a URL that names a user.
USER_INFO = re.compile(r"(?<=://)[^\s/\"'<>`]{1,400}(?=@)")

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PARTS = re.compile(r"[^a-z0-9]+")
_STRONG = frozenset((
    "apikey", "apikeys", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "passphrases", "passcode", "credential", "credentials",
    "authorization", "bearer", "cookie", "cookies", "jwt", "privatekey", "accesskey", "secretkey",
))  # fmt: skip
#: Words that make a count, a switch or a special token of a name with `token`.
_COUNTS = frozenset((
    "max", "min", "num", "number", "batched", "speculative", "tokenizer", "tokenizers", "id", "ids", "pad", "bos", "eos", "unk", "sep", "cls", "mask",
    "image", "audio", "video", "draft", "per", "count", "limit", "budget", "special", "think", "stop", "start", "end", "next", "disable", "implicit",
    "spec", "block", "chunk",
))  # fmt: skip
#: A name that ends so tells where a secret is, or of what kind.
_ABOUT = frozenset((
    "path", "file", "dir", "folder", "name", "type", "len", "length", "ttl", "timeout", "seconds", "url", "uri", "endpoint", "format", "mode",
    "enabled", "required", "count", "stdin", "parser",
))  # fmt: skip
_PLAIN = re.compile(r"(?:[-+]?\d[\d.,_\s]*(?:[eE][-+]?\d+)?[kKmMgG]?|None|null|true|false|auto|\[[\d\s,]*\])?", re.IGNORECASE)
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
    if text and (FORMS.search(text) or USER_INFO.search(text)):
        return True
    words = [word for word in _PARTS.split(_CAMEL.sub("_", name).lower()) if word]
    if not words or words[-1] in _ABOUT:
        return False
    if not _STRONG.isdisjoint(words) or words[-1] in ("key", "keys", "auth"):
        return True
    if words[-1] in ("pass", "pwd"):
        return len(words) > 1
    if "token" in words:
        return _COUNTS.isdisjoint(words) and (words[-1] == "token" or value is None or not is_plain(text))
    return "tokens" in words and _COUNTS.isdisjoint(words) and not is_plain(text)


def is_plain(value: str) -> bool:
    """Whether a value is empty, a number, a switch or nothing."""
    return _PLAIN.fullmatch(value.strip()) is not None
