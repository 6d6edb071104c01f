# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a reply: empty, repeated, in another script, leaked markup, not the known answer. Pure."""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate.reply_markup import leaked, prose

# --- What a reply repeats: characters, words, phrases, lines, and phrases in which only a counter changes.
# A text is a row of numbers, one for each word. A phrase of n words is repeated where the row equals itself, moved by n. One XOR of the row as a long integer
# compares all places, so the time for a text grows with its length only.

LONGEST_PHRASE = 200  # words
_WIDTH = array("I").itemsize
# Scripts without spaces between words: each letter is a word.
_LETTER = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_LETTER}]|[^\s{_LETTER}]+")
_RUN = re.compile(r"(\S)\1{15,}|\s{200,}")
# A prompt that asks for a repetition, or for data to fill in. One that asks for digits.
_ASKED = re.compile(
    r"repeat|\b(?:\d+|two|three|four|five|six|ten|many|several) times|\bsongs?\b|\bsing\b|lyric|poem|verse|chant|rhyme|mantra|bottles"
    r"|template|dummy|sample|(?:test|example|fake) data|placeholder|wiederhol|copies",
    re.I,
)
_DIGITS = re.compile(r"digit|decimal|number|googol|power|\d", re.I)
_ORDER = (
    "one two three four five six seven eight nine ten eleven twelve",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    "一 二 三 四 五 六 七 八 九 十",
)
_CALENDAR = (
    "monday tuesday wednesday thursday friday saturday sunday",
    "january february march april may june july august september october november december",
    "jan feb mar apr may jun jul aug sep oct nov dec",
)
_COUNTED = {word: number for group in (*_ORDER, *_CALENDAR) for number, word in enumerate(group.split(), 1)}
_CALENDAR_WORDS = frozenset(word for group in _CALENDAR for word in group.split())
_EDGES = ".,;:!?()[]{}\"'\u201c\u201d\u2018\u2019«»*_#>|…。，：；！？、（）"
_COMPARED = 6  # copies of a phrase in which counters are compared
_BUDGET = 200_000  # words that are compared in all, which bounds the time for a hostile text
_FEW = 60  # copies of a phrase of up to three words and a counter: a list may have fewer

Value = tuple[object, ...]


def _needed(size: int) -> int:
    """Return how many words of a text must equal those one phrase earlier. A long phrase may be cut in its third copy."""
    return size * 9 // 5 if size >= 20 else size * (max(4, min(12, 24 // size)) - 1)


def _periods(row: Sequence[int], factor: int, longest: int = LONGEST_PHRASE) -> Iterator[tuple[int, int, int]]:
    """Yield (size, start, end) of each place where the row repeats itself often enough. Its numbers are not 0."""
    number, words = int.from_bytes(array("I", row).tobytes(), "little"), len(row)
    for size in range(1, min(longest, words // 2) + 1):
        needed = _needed(size) * factor
        if needed + size > words:
            continue
        same = (number ^ (number >> (8 * _WIDTH * size))).to_bytes(_WIDTH * words, "little")
        zeros, place = bytes(_WIDTH * (needed - 1) + 1), 0
        while True:
            place = same.find(zeros, place)
            if place < 0:
                break
            start = -(-place // _WIDTH)
            end = start + (len(same) - _WIDTH * start - len(same[_WIDTH * start :].lstrip(b"\0"))) // _WIDTH
            if end - start >= needed:
                yield size, start, end + size
            place = _WIDTH * max(end, start + 1)


def _numbered(items: Sequence[str]) -> list[int]:
    """Return a number for each item, the same for the same item."""
    known: dict[str, int] = {}
    return [known.setdefault(item, len(known) + 1) for item in items]


def _counter(word: str) -> tuple[str, Value]:
    """Return a word without its counter, and the counter: a number, a date, a numeral, a single letter, or the name of a day."""
    if word in _COUNTED:
        return "#", (_COUNTED[word],)
    if re.fullmatch(r"[^\W\d_]", word) and word.isascii():
        return "#", (ord(word),)
    if re.fullmatch(r"[ivx]{2,5}", word):
        return "#", (word,)
    numbers = re.findall(r"\d+", word)
    return (re.sub(r"\d+", "#", word), tuple(int(each[:18]) for each in numbers)) if numbers else (word, ())


def _only_counts(values: Sequence[Value], raw: Sequence[str], start: int, size: int, copies: int) -> bool:
    """Return whether the copies of a phrase differ in one counter only. Rows of data differ in more."""
    slots: list[list[Value]] = []
    last = -2
    for place in range(size):
        row = [values[start + copy * size + place] for copy in range(min(copies, _COMPARED))]
        if len(set(row)) > 1:
            if any(raw[start + copy * size + place] in _CALENDAR_WORDS for copy in range(2)) and copies <= 12:
                return False  # the days of a week, the months of a year
            slots = [*slots[:-1], [a + b for a, b in zip(slots[-1], row)]] if last == place - 1 else [*slots, row]
            last = place
    return bool(slots) and all(_moves_with(slots[0], slot) for slot in slots[1:])


def _moves_with(first: Sequence[Value], other: Sequence[Value]) -> bool:
    """Return whether two counters are the same, or always differ by the same number."""
    if list(first) == list(other):
        return True
    steps = [b[-1] - a[-1] if isinstance(a[-1], int) and isinstance(b[-1], int) else None for a, b in zip(first, other)]
    return None not in steps and len(set(steps)) == 1


def _flows(keys: Sequence[str], spelled: str, copies: int, asked: bool) -> bool:
    """Return whether the words of a phrase are a sentence, not code, data, or an entry of a list."""
    if 3 * len(re.findall(r"[{}\[\]()<>=;|\\_/\"]", spelled)) >= len(keys):
        return False
    letters = sum(1 for key in set(keys) if re.fullmatch(f"[{_LETTER}]", key))
    words = sum(1 for key in set(keys) if len(key) > 1 and key.isalpha()) + letters // 2
    lines, labels = len(spelled.strip().splitlines()), len(re.findall(r"\w:(?=\s)", spelled))
    if words < 4 or (lines > 1 and (len(keys) < 3 * lines or 4 * labels >= len(keys))):
        return words > 0 and copies >= _FEW and not asked
    return copies >= 6 or len(keys) < 20 or len(keys) >= 5 * lines


def _counted(text: str, prompt: str) -> str:
    """Return a phrase of which only a counter changes; empty if there is none."""
    if _ASKED.search(prompt):
        return ""
    found = list(_TOKEN.finditer(text))
    raw = [each.group().strip(_EDGES).lower() or each.group() for each in found]
    known = {word: _counter(word) for word in set(raw)}
    keys, values = [known[word][0] for word in raw], [known[word][1] for word in raw]
    data: list[tuple[int, int, int]] = []
    left = _BUDGET
    for size, start, end in _periods(_numbered(keys), 1, 120):
        if any(begin <= start and end <= stop + size and size % other == 0 for other, begin, stop in data):
            continue
        left -= min(end - start, _COMPARED * size)
        if left < 0:
            break
        copies = (end - start) // size
        spelled = text[found[start].start() : found[start + size - 1].end()]
        counts = _only_counts(values, raw, start, size, copies)
        if counts and _flows(keys[start : start + size], spelled, copies, bool(_DIGITS.search(prompt))):
            return " ".join(spelled.split())[:60]
        data.append((size, start, end))
    return ""


def _verbatim(text: str, factor: int) -> str:
    """Return a phrase that follows itself again and again; empty if there is none."""
    found = list(_TOKEN.finditer(text))
    words = [each.group().strip(_EDGES).lower() or each.group() for each in found]
    for size, start, end in _periods(_numbered(words), factor):
        if any(letter.isalpha() for word in words[start : start + size] for letter in word) or end - start >= 128 * factor:
            return " ".join(text[found[start].start() : found[start + size - 1].end()].split())[:60]
    return ""


def _unspaced(text: str, factor: int) -> str:
    """Return letters that follow themselves without a space."""
    for token in (found.group() for found in re.finditer(rf"[^\s{_LETTER}]{{24,}}", text)):
        for size, start, end in _periods(_numbered(token), factor, 60):
            unit = token[start : start + size]
            code = re.search(r"[\W\d_]", unit.strip(_EDGES)) is not None or re.fullmatch(r"[0-9a-fA-F]+", unit) is not None
            copies = (end - start) // size
            if len(set(unit)) > 1 and any(letter.isalpha() or letter >= "\U0001f300" for letter in unit) and copies >= (12 if code else 4):
                return unit
    return ""


def _run(prompt: str, text: str) -> str:
    """Return the character of a run that is too long."""
    bare = text.strip()
    if len(bare) >= 16 and len(set(bare)) == 1:
        return bare[0]
    for found in _RUN.finditer(text):
        letter, length = found.group()[0], len(found.group())
        if letter.isspace() or length >= 1000:
            return letter
        if letter.isdigit():
            few = length < 40 or _DIGITS.search(prompt) is not None
        elif letter in "abcdefABCDEF":
            few = length < 18 or _in_number(text, found.start(), found.end())
        else:
            few = length < 200 and not letter.isalpha() and letter not in "!?@$%&\ufffd"
        if not few:
            return letter
    return ""


def _in_number(text: str, start: int, end: int) -> bool:
    """Return whether letters from a to f are a part of a hexadecimal number or of base64."""
    left, right = re.search(r"\S*\Z", text[max(0, start - 80) : start]), re.match(r"\S*", text[end : end + 80])
    return re.search(r"[\d+/=#]", (left.group() if left else "") + (right.group() if right else "")) is not None


def repeated(prompt: str, text: str) -> str:
    """Return what a text repeats, empty if nothing."""
    character = _run(prompt, text)
    if character:
        return "white space" if character.isspace() else f"the character {character!r}"
    factor = 3 if _ASKED.search(prompt) else 1
    words = prose(text)
    phrase = _verbatim(text, factor) or _unspaced(text, factor) or _counted(words, prompt)
    return f"{phrase!r} over and over" if phrase else ""


# --- What is wrong with a reply: empty, repeated, in another script, leaked markup, not the known answer.

MISSING = "no completion came back"  # the fault of a missing reply begins with it
EMPTY, LEAKED = "the reply is empty", "the reply has leaked markup"
# Scripts that a single letter shows, for they have no letters in common with others.
_IDEOGRAPHS = frozenset(("CJK", "HIRAGANA", "KATAKANA", "HANGUL"))
# A prompt that names a language, its country or its script asks for other letters than its own.
_LANGUAGE = (
    r"\b(?:chin(?:[ae]|oi)|mandarin|cantonese|taiwan|japan|japon|korea|cor[eé]e|russ(?:i|e\b)|ukrain|belarus|bulgar|serb|macedon|mongol|kazakh|kyrgyz|tajik"
    r"|uzbek|greek|griech"
    r"|arab|hebr|yiddish|israel|persian|farsi|iran|urdu|pashto|dari\b|kurd|hindi|marathi|nepal|sanskrit|bengal|bangla|assamese|punjab|gujarat|odia|oriya|tamil"
    r"|telugu|kannada|malayalam|sinhal|thai|lao\b|lao[ts]ian|khmer|cambod|burm|myanmar|tibet|dzongkha|georgian|armen|amhar|tigri|ethiop|cyrill|devanagari|kanji"
    r"|kana\b|hiragana|katakana|hangul|hanzi|pinyin|unicode)"
)
_NAMED = re.compile(_LANGUAGE, re.I)
_ASKS = re.compile(_LANGUAGE + r"|translat|übersetz|language|sprache|\bscripts?\b|alphabet|multilingual|bilingual", re.I)
_BRACKETS = re.compile(r"[(\[（][^()\[\]（）]{1,60}[)\]）]")
_QUOTED = re.compile(
    r"""(["'*_])(?=\S)[^\s"'*_]{1,24}\1|"(?=\S)[^"\n]{1,24}"|[\u201c\u2018«„「『][^\u201c\u201d\u2018\u2019«»„「」『』\n]{1,24}[\u201d\u2019»\u201c」』]"""
)
# Markdown and HTML without ink, and characters that have a width and no ink.
_MARKS = re.compile(
    r"^[ \t>]*(?:`{3,}|~{3,})[ \t]*\w*[ \t]*$|^[ \t]*(?:-{3,}|\*{3,}|_{3,}|#{2,6})[ \t]*$"
    r"|<br ?/?>|[\u115f\u1160\u2800\u3164\uffa0\ufe0e\ufe0f]",
    re.M,
)


@functools.lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """Return the script of a letter, as Unicode names it. Formulas are full of Greek letters, and of letters in other faces."""
    if not letter.isalpha() or "\u2100" <= letter <= "\u214f":
        return "LATIN"
    name = unicodedata.name(unicodedata.normalize("NFKC", letter)[0], "LATIN").split(" ")[0].split("-")[0]
    return "LATIN" if name in ("GREEK", "MICRO", "MATHEMATICAL", "MODIFIER", "FEMININE", "MASCULINE") else name


def _strange(text: str) -> list[str]:
    """Return the letters that are not Latin."""
    return [letter for letter in text if letter > "\u024f" and _script(letter) != "LATIN"]


def _drift(prompt: str, text: str) -> str:
    """Return letters of a script that the prompt neither uses nor asks for. One word in quotation marks, or named as foreign, is not drift."""
    if text.isascii() or _ASKS.search(prompt) or _strange(prompt):
        return ""
    text = _BRACKETS.sub(" ", text)
    if text.lstrip()[:1] not in ("{", "["):
        text = _QUOTED.sub(" ", prose(text))
    strange = _strange(text)
    words = [word for word in text.split() if _strange(word)]
    if len(words) == 1 and len(strange) <= 12 and _NAMED.search(text):
        return ""
    found = len(strange) >= 2 or any(_script(letter) in _IDEOGRAPHS for letter in strange)
    return "".join(strange[:12]) if found else ""


def _blank(text: str) -> bool:
    """Return whether a client that renders a text shows nothing."""
    return all(unicodedata.category(letter)[0] in "CZ" for letter in html.unescape(_MARKS.sub("", text)))


def _holds(text: str, expect: str) -> bool:
    """Return whether a text holds the known answer. A part of a longer number is not the answer."""
    before = r"(?<!\d)(?<!\d[.,])" if expect[:1].isdigit() else ""
    after = r"(?!\d)(?![.,]\d)" if expect.isdigit() else ""  # more digits of a fraction are the same number
    return re.search(before + re.escape(expect) + after, text) is not None


def shown(reply: dict[str, Any]) -> str:
    """Return the text of a reply of api_probe, else its reasoning."""
    text = str(reply.get("text") or "")
    return text if not _blank(text) else str(reply.get("reasoning") or text)


def cut_while_reasoning(reply: dict[str, Any]) -> bool:
    """Return whether a reply was cut at its length before its answer began."""
    return bool(reply.get("ok")) and _reasons(reply) and reply.get("finish_reason") == "length"


def _reasons(reply: dict[str, Any]) -> bool:
    return _blank(str(reply.get("text") or "")) and not _blank(str(reply.get("reasoning") or ""))


def _empty(reply: dict[str, Any]) -> str:
    """Return the fault of a reply in which a client sees nothing, with what makes it so."""
    if _reasons(reply):
        return f"{EMPTY}: the model ended after its reasoning, which clients do not show as the answer"
    cut = reply.get("finish_reason") == "length" and reply.get("completion_tokens")
    return f"{EMPTY}, and ended at max_tokens ({reply['completion_tokens']} tokens)" if cut else EMPTY


def remedy(found: list[str]) -> str:
    """Return what to do about faults of parsers, not of the engine; empty if there are others."""
    if found and all(fault.startswith(LEAKED) for fault in found):
        return (
            "set reasoning-parser and tool-call-parser of engine.args to those of the model, and compare its chat template."
            " If both are right, its image has a parser that does not know this form. See docs/tuning.md#garbled-replies"
        )
    if found and all(fault.startswith(f"{EMPTY}: ") for fault in found):
        return (
            "check reasoning-parser in engine.args: the parser of another model takes the answer as reasoning."
            " Else turn the reasoning off with chat_template_kwargs. See docs/tuning.md#garbled-replies"
        )
    if found and all(fault.startswith(f"{EMPTY}, ") for fault in found):
        return "raise max_tokens if the model reasons, or turn its reasoning off with chat_template_kwargs in the body. See docs/tuning.md#garbled-replies"
    return ""


def faults(prompt: str, reply: dict[str, Any], expect: str | None = None) -> list[str]:
    """Return what is wrong with a reply of api_probe, one short phrase each; empty for a good one.

    `expect` is the known answer, which the reply must contain. A reply that was cut at its length before its answer is judged by its reasoning,
    which may be in any language, and the answer is not known.
    """
    if not reply.get("ok"):
        return [f"{MISSING} ({reply.get('error') or 'no reason given'})"]
    cut, text = cut_while_reasoning(reply), shown(reply)
    if not cut and _blank(str(reply.get("text") or "")):
        return [_empty(reply)]
    out = []
    if expect is not None and not _holds(text, expect.strip()) and not cut:
        out.append(f"the reply is {text.strip()[:80]!r}, and the known answer is {expect.strip()[:80]!r}")
    again = repeated(prompt, text)
    if again:
        out.append(f"the reply repeats {again}")
    markup = leaked(prompt, text)
    if markup:
        out.append(f"{LEAKED} {markup[:40]!r}")
    strange = "" if cut else _drift(prompt, text)
    if strange:
        out.append(f"the reply drifts into another language ({strange!r})")
    broken = next((letter for letter in text if letter == "\ufffd" or (unicodedata.category(letter) == "Cc" and not letter.isspace())), "")
    if broken:
        out.append(f"the reply has broken characters (U+{ord(broken):04X})")
    return out
