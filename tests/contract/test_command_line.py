# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of the other contract tests is like one of the program ansible-playbook."""

from __future__ import annotations

from pathlib import Path

import playbook
import warm_playbook
from playbook import PAIR


def test_a_warm_run_is_like_one_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(PAIR.replace("255.255.2", "255.255.1"), encoding="utf-8")
    cold, warm = (each.run(tmp_path, "playbooks/inventory.yml", tmp_path / "hosts.yml", "-v") for each in (playbook, warm_playbook))
    assert cold.rc == warm.rc == 2
    assert sorted(cold.stdout.splitlines()) == sorted(warm.stdout.splitlines())
    shown = [[(each["event"], each["event_data"]["res"]) for each in run.events] for run in (cold, warm)]
    assert shown[0] == shown[1] != []
