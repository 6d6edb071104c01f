# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: other tools that configure the ports of the card on this node. Pure: a `Capture` in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import CONFIG_PREFIXES, Capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import Device, foreign_files, read_files
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import Node

SPARK_PORTS = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1")


def config_texts(capture: Capture) -> dict[str, str]:
    """Return the network configuration of the node: {path without the leading slash: text}."""
    return {path: text for path, text in capture.files.items() if path.startswith(CONFIG_PREFIXES)}


def foreign_config(capture: Capture) -> list[dict[str, Any]]:
    """Return the files of others that configure a port of the card.

    If the card is powered down, these are the files that name the ports of a Spark.
    """
    devices = [Device(port.netdev, port.mac, port.driver) for port in Node(capture).ports]
    files = config_texts(capture)
    if not devices:
        devices = [Device(name) for name in SPARK_PORTS if any(name in text for text in files.values())]
    return [item.as_dict() for item in foreign_files(read_files(files, devices))]


def other_changes(before: Mapping[str, str], after: Mapping[str, str], rails: Sequence[str], devices: Sequence[Device]) -> list[str]:
    """Return the generated files whose part for interfaces other than the rails differs: the paths, never their content.

    `before` and `after` are all files that netplan generates: {path: text}. `devices` are all live interfaces.
    """
    generated = {path.lstrip("/"): text for files in (before, after) for path, text in files.items()}
    own = {_interface(path) for files in (before, after) for path in _of_rails(files, rails, devices)} | set(rails)
    others = ({device.name for device in devices} | {_interface(path) for path in generated}) - own - {""}
    changed = []
    for path in sorted({*before, *after}):
        texts = [before.get(path), after.get(path)]
        if _names("\n".join(text or "" for text in texts), own):
            texts = [_without_rails(text or "", own, others) for text in texts]
        if _interface(path) not in own and texts[0] != texts[1]:
            changed.append(path)
    return changed


def _interface(path: str) -> str:
    """Return the netplan id in the name of a generated file, empty if it is a file of several interfaces."""
    found = re.fullmatch(r"(?:\d\d-netplan-|netplan-|wpa-)(.+?)\.(?:network|link|netdev|nmconnection|conf|rules|service)", path.rpartition("/")[2])
    return re.sub(r"\Awpa-", "", found.group(1)) if found else ""


def _of_rails(files: Mapping[str, str], rails: Sequence[str], devices: Sequence[Device]) -> list[str]:
    """Return the generated files that match rails only; netplan names a file by its id, which need not be the interface."""
    found = []
    for item in read_files({path: text for path, text in files.items() if path.endswith((".network", ".nmconnection"))}, devices):
        if item.claims and {claim.interface for claim in item.claims} <= set(rails):
            found.append(item.path)
    return found


def _names(text: str, names: Iterable[str]) -> bool:
    return any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for name in names)


def _without_rails(text: str, rails: Iterable[str], others: Iterable[str]) -> str:
    """Return the words of a file of several interfaces: the sections that name others, without the rails."""
    kept: list[str] = []
    for section in re.split(r"(?m)^(?=\[)", text):
        for line in section.splitlines() if _names(section, others) else ():
            if _names(line, others) or not _names(line, rails):
                kept += [word for word in re.split(r"[\s,;=]+", line) if word not in ("", "-i") and not _names(word, rails)]
    return " ".join(kept)
