"""A run of the other contract tests is like one of the program ansible-playbook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import warm_playbook
from playbook import PAIR, REPO


def test_a_warm_run_is_like_one_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(PAIR.replace("255.255.2", "255.255.1"), encoding="utf-8")
    words = [str(REPO / "playbooks/inventory.yml"), "-i", f"{tmp_path}/hosts.yml", "-v"]
    own = {key: value for key, value in warm_playbook.SETTINGS.items() if key.startswith("ANSIBLE_")}
    environment = {**own, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8", "GB10_RECORD": str(tmp_path / "record")}
    program = [str(Path(sys.executable).parent / "ansible-playbook"), *words]
    cold = subprocess.run(program, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240)
    warm = warm_playbook.ansible(tmp_path, words, cwd=tmp_path, env={"GB10_RECORD": str(tmp_path / "unused"), "LANG": "C.UTF-8"})
    events = [json.loads(line) for line in (tmp_path / "record").read_text(encoding="utf-8").splitlines()]
    assert warm.rc == cold.returncode == 2
    assert sorted(warm.stdout.splitlines()) == sorted((cold.stdout + cold.stderr).splitlines())
    assert [each["event"] for each in warm.events] == [each["event"] for each in events] != []
    assert [each["event_data"]["res"] for each in warm.events] == [each["event_data"]["res"] for each in events]
