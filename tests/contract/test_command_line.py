"""The program ansible-playbook itself: what only its command line shows, and that the runs of the other contract tests are like its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
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


def test_an_inventory_that_does_not_exist_ends_the_command(tmp_path: Path) -> None:
    done = command(tmp_path, str(REPO / "site.yml"), "-i", "hosst.yml")
    assert done.returncode != 0
    assert "hosst.yml" in done.stdout + done.stderr
    assert "PLAY [Inventory]" not in done.stdout


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


def test_a_misspelt_variable_is_refused_without_an_inventory(tmp_path: Path) -> None:
    done = command(tmp_path, str(REPO / "playbooks/profiles.yml"), "-e", "gb10_profle=fp8-512k")
    assert done.returncode == 2
    assert "1. the extra variables (-e): gb10_profle: is not a variable of the cluster; did you mean gb10_profile?\n" in done.stdout


def test_setup_without_a_terminal_names_the_answer_that_it_needs(tmp_path: Path) -> None:
    done = command(tmp_path, str(REPO / "playbooks/setup.yml"), "-e", json.dumps({"setup_inventory": str(tmp_path / "mine")}))
    assert done.returncode == 2
    assert "setup.yml has no terminal to ask on, and setup_head is not set. Add -e setup_head=VALUE" in " ".join(done.stdout.split())
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("text", [PAIR, PAIR.replace("255.255.2", "255.255.1")], ids=["valid", "with a fault"])
def test_a_warm_run_is_like_one_of_the_program(tmp_path: Path, text: str) -> None:
    words = [str(REPO / "playbooks/inventory.yml"), "-i", inventory(tmp_path, text), "-v"]
    own = {key: value for key, value in warm_playbook.SETTINGS.items() if key.startswith("ANSIBLE_")}
    cold = command(tmp_path, *words, GB10_RECORD=str(tmp_path / "record"), **own)
    warm = warm_playbook.ansible(tmp_path, words, cwd=tmp_path, env={"GB10_RECORD": str(tmp_path / "unused"), "LANG": "C.UTF-8"})
    events = [json.loads(line) for line in (tmp_path / "record").read_text(encoding="utf-8").splitlines()]
    assert warm.rc == cold.returncode == (0 if text == PAIR else 2)
    assert sorted(warm.stdout.splitlines()) == sorted((cold.stdout + cold.stderr).splitlines())
    assert [each["event"] for each in warm.events] == [each["event"] for each in events] != []
    assert [each["event_data"]["res"] for each in warm.events] == [each["event_data"]["res"] for each in events]


def test_two_warm_runs_share_no_settings_and_variables(tmp_path: Path) -> None:
    """Variables, verbosity and the callback of the first one are not those of the second one."""
    words = [str(REPO / "playbooks/inventory.yml"), "-i", inventory(tmp_path)]
    first = warm_playbook.ansible(tmp_path, [*words, "-vv", "-e", "gb10_profil=x"], env={"ANSIBLE_STDOUT_CALLBACK": "minimal"})
    assert (first.rc, "PLAY RECAP" in first.stdout) == (2, False)
    second = warm_playbook.ansible(tmp_path, words)
    assert second.rc == 0, second.stdout
    assert re.search(r"^PLAY RECAP", second.stdout, re.M)
    assert "task path" not in second.stdout
