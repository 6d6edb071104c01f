# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a report shows of a boot: the part of its receipt without log facts and checks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYS = (
    "release", "profile", "time", "passed", "class", "msg", "seconds", "pool", "measured", "drift", "version", "attention_backend", "kv_cache_dtype", "models",
)  # fmt: skip
RANK_KEYS = ("rank", "host", "stages", "memory", "memory_series", "lost", "start_error")


def brief(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a receipt. A value that is null or missing is left out, and the models are their names."""
    out = {key: receipt[key] for key in KEYS if receipt.get(key) is not None}
    ranks = receipt.get("ranks")
    out["ranks"] = [
        {key: each[key] for key in RANK_KEYS if each.get(key) is not None} for each in (ranks if isinstance(ranks, list) else []) if isinstance(each, dict)
    ]
    models = out.get("models")
    out["models"] = [str(each.get("id") if isinstance(each, dict) else each) for each in (models if isinstance(models, list) else [])][:4]
    return out
