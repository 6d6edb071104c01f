# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what the tasks of this run changed on each host, and when the roles started. Controller only.

The callback next to the playbooks writes it in Ansible's main process. A task is a fork of that process, so an action plugin reads it here.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Tasks that changed something, by host; unreachable hosts; roles with their start. `kept` is False if no callback writes it.

    `shows` is True if the stdout callback prints what M(gb10.cluster.show) returns.
    """

    kept: bool = False
    shows: bool = False
    changed: dict[str, list[str]] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    roles: list[tuple[str, float]] = field(default_factory=list)


RUN = Tally()
