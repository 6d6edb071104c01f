# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the settings of the watch that an agent refuses, in ``vllm_tp2_watch`` of an inventory. Controller only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._watch.settings import DEFAULTS, SettingsError, merged


def faults(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (key, sentence) of numbers that the agent refuses, and a webhook to which it cannot send. The URL can contain a secret."""
    found: list[tuple[str, str]] = []
    webhook = value.get("webhook")
    if webhook and not re.fullmatch(r"https?://[^\s/]+(?:/\S*)?", str(webhook)):
        found.append(("webhook", "webhook is not a URL that begins with http:// or https:// and has a host, such as https://hooks.example.org/pair1"))
    textfile = str(value.get("textfile") or "")
    if textfile and (not textfile.startswith("/") or textfile.endswith(".prom")):
        found.append(("textfile", f"textfile is {textfile!r}, expected the folder of node_exporter's collector, such as /var/lib/prometheus/node-exporter"))
    numbers = {key: float(each) for key, each in value.items() if each is not None and isinstance(DEFAULTS.get(key), (int, float)) and key != "enabled"}
    try:
        merged(numbers)
    except SettingsError as error:
        text = str(error).rstrip(".")
        key = text.partition(" ")[0]
        found.append((key if key in numbers else "", text))
    return found
