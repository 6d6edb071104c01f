# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: other tools that configure the ports of the card on this node. Pure: a `Capture` in."""

from __future__ import annotations

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
