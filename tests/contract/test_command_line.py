"""The program ansible-playbook itself: what only its command line shows, and that the runs of the other contract tests are like its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import warm_playbook
from playbook import PAIR, REPO

PROGRAM = str(Path(sys.executable).parent / "ansible-playbook")


def command(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook without a terminal and with nothing but these settings in its environment."""
    environment = {"ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", **settings}
    return subprocess.run([PROGRAM, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240)


def inventory(folder: Path, text: str = PAIR) -> str:
    (folder / "hosts.yml").write_text(text, encoding="utf-8")
    return str(folder / "hosts.yml")


def test_files_of_variables_limits_and_tags_of_the_command_line_are_judged(tmp_path: Path) -> None:
    (tmp_path / "more.yml").write_text("gb10_profil: x\n", encoding="utf-8")
    words = ["-i", inventory(tmp_path), "-e", "@more.yml", "--limit", "spark-1", "--tags", "sysctl,roce"]
    done = command(tmp_path, str(REPO / "site.yml"), *words)
    text = " ".join(done.stdout.split())
    assert done.returncode == 2, text
    assert "The inventory has 2 faults; no host was touched." in text
    assert "more.yml:1: gb10_profil: " in text
    assert "--limit: pair1 is one unit and spark-2 is not in this run; " in text
    assert "(--skip-tags roce)" in text


def test_a_warm_run_is_like_one_of_the_program(tmp_path: Path) -> None:
    words = [str(REPO / "playbooks/inventory.yml"), "-i", inventory(tmp_path, PAIR.replace("255.255.2", "255.255.1")), "-v"]
    own = {key: value for key, value in warm_playbook.SETTINGS.items() if key.startswith("ANSIBLE_")}
    cold = command(tmp_path, *words, GB10_RECORD=str(tmp_path / "record"), **own)
    warm = warm_playbook.ansible(tmp_path, words, cwd=tmp_path, env={"GB10_RECORD": str(tmp_path / "unused"), "LANG": "C.UTF-8"})
    events = [json.loads(line) for line in (tmp_path / "record").read_text(encoding="utf-8").splitlines()]
    assert warm.rc == cold.returncode == 2
    assert sorted(warm.stdout.splitlines()) == sorted((cold.stdout + cold.stderr).splitlines())
    assert [each["event"] for each in warm.events] == [each["event"] for each in events] != []
    assert [each["event_data"]["res"] for each in warm.events] == [each["event_data"]["res"] for each in events]
