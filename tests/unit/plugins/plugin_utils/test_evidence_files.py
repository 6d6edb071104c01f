"""The evidence of failed boots on the controller."""

from __future__ import annotations

import os
from pathlib import Path

from ansible_collections.gb10.cluster.plugins.plugin_utils import evidence_files


def test_oldest_evidence_of_the_agent_goes_and_that_of_a_user_and_of_other_groups_stays(tmp_path: Path) -> None:
    others = {"before", "pair1-before", "pair1-x-4f0c90b09081-attempt2"}
    made = [f"pair1-{number:012x}-attempt2" for number in range(evidence_files.MOST_FOLDERS)] + ["pair1-crash-20261127T120000", "pair1-restart-20261127T120000"]
    for number, name in enumerate([*others, *made]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank0-lab-1.txt").write_text("old\n", encoding="utf-8")
        os.utime(tmp_path / name, (number, number))
    evidence_files.prune(tmp_path, "pair1")
    assert {path.name for path in tmp_path.iterdir()} == {*others, *made[2:]}
