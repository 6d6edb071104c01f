# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Private documentation fragment: what the modules of the rails have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """The options of all, and those of the modules that read and write the configuration of the network."""

    DOCUMENTATION = r"""
options:
  interfaces:
    description:
      - The network devices that are the rails, in order. Empty finds them.
    type: list
    elements: str
    default: []
"""

    NETPLAN = r"""
requirements:
  - PyYAML on a node with netplan files (package python3-yaml, which netplan.io depends on)
options:
  mtu:
    description:
      - The wanted MTU of the rails in bytes.
    type: int
    default: 9000
  ssh_connection:
    description:
      - The value of E(SSH_CONNECTION) of the session that must not be cut (client, client port, server, server port).
      - Without it, it is looked for in this process and its ancestors.
    type: str
"""
