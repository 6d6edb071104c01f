# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the gate's receipts on the controller. Writing them never fails a boot: what goes wrong is a warning. Controller only."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._gate.gate import finite

MOST_FILES = 200  # of a group. The oldest go; a node keeps the receipt of each release that it has
_NAME = re.compile(r"[0-9A-Za-z]{1,40}-[0-9A-Za-z]{1,40}-(passed|failed)\.json")


def in_order(folder: Path) -> list[Path]:
    """Return the receipts in a group's folder, the oldest first. Those that count are the last MOST_FILES."""
    return sorted(path for path in folder.glob("*.json") if _NAME.fullmatch(path.name))


def keep(receipts: str | None, receipt: dict[str, Any]) -> dict[str, Any]:
    """Write a receipt below the folder `receipts`; return what the group adds to it: `path` and `drift` where known, and `warning`."""
    kept: dict[str, Any] = {}
    if not receipts:
        return kept
    folder = Path(receipts) / str(receipt["group"])
    good = folder / "last-good.json"
    if receipt.get("passed"):
        try:
            kept["drift"] = drift(receipt, json.loads(good.read_text(encoding="utf-8")))
        except FileNotFoundError:
            kept["drift"] = []
        except (OSError, ValueError) as error:
            kept["warning"] = f"{good} is not a readable receipt ({error}). The verdict does not depend on it; nothing was compared with the last good boot."
    stamp, release = (re.sub(r"[^A-Za-z0-9]", "", str(receipt.get(key) or "")) for key in ("time", "release"))
    path = folder / f"{stamp[:40]}-{release[:40] or 'boot'}-{'passed' if receipt.get('passed') else 'failed'}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(receipt | kept | {"path": str(path)}, indent=2, sort_keys=True, default=str) + "\n"
        write_atomically(str(path), text, 0o600)
        kept["path"] = str(path)
        for old in in_order(folder)[:-MOST_FILES]:
            with contextlib.suppress(OSError):
                old.unlink()
        if receipt.get("passed"):
            write_atomically(str(good), text, 0o600)
    except (OSError, ValueError) as error:
        kept["warning"] = f"The receipt cannot be written below {folder} on the controller ({error}). The verdict does not depend on it: see gb10_receipts."
    return kept


def drift(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Compare a receipt with the last good one and return what changed, as phrases; pool and concurrency count from 3 % on, the speed from 15 %."""
    out = []
    for key, label, form in (("effective_tokens", "KV pool", "{:,.0f}"), ("concurrency", "concurrency", "{:,.2f}")):
        new, old = finite((now.get("pool") or {}).get(key)), finite((before.get("pool") or {}).get(key))
        if new and old and abs(new - old) / old >= 0.03:
            out.append(f"{label} {form.format(old)} -> {form.format(new)}")
    new_speed, old_speed = (finite((each.get("measured") or {}).get("decode_tok_s")) for each in (now, before))
    if new_speed and old_speed and abs(new_speed - old_speed) / old_speed >= 0.15:
        out.append(f"decode speed {old_speed:.1f} -> {new_speed:.1f} tokens/s")
    new_share, old_share = (finite(((each.get("measured") or {}).get("speculation") or {}).get("acceptance")) for each in (now, before))
    if new_share is not None and old_share is not None and abs(new_share - old_share) >= 0.1:
        out.append(f"accepted draft tokens {old_share:.0%} -> {new_share:.0%}")
    for key in ("version", "image", "attention_backend", "moe_backend", "kv_cache_dtype"):
        new_text, old_text = (now.get(key) or ""), (before.get(key) or "")
        if new_text and old_text and new_text != old_text:
            out.append(f"{key} {str(old_text)[:24]} -> {str(new_text)[:24]}")
    new_s, old_s = finite(now.get("seconds")), finite(before.get("seconds"))
    if new_s and old_s and new_s > 1.5 * old_s and new_s - old_s > 30:
        out.append(f"boot {old_s:.0f} s -> {new_s:.0f} s")
    return out
