"""What logs.yml prints, and how it ends. Both hosts are this machine; the command `gb10` of each is a script of the test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from playbook import LOCAL_PAIR, REPO, ROLE_PLAY, Run
from warm_playbook import run

pytestmark = pytest.mark.slow

SILENT = LOCAL_PAIR.replace("{{ansible_host: 127.0.0.1}}", "{{ansible_host: 127.0.0.1, ansible_connection: ssh, ansible_port: 1}}")
LINES = ("2026-11-23T10:00:00.000Z one | a 'quoted' \x1b[32mINFO\x1b[0m {{ line }}", "2026-11-23T10:00:00.010Z two | NCCL: $HOME")


def logs(folder: Path, text: str = LOCAL_PAIR, *arguments: str, **variables: object) -> Run:
    (folder / "hosts.yml").write_text(text.format(python=sys.executable), encoding="utf-8")
    (folder / "play.yml").write_text(ROLE_PLAY.format(tasks="logs"), encoding="utf-8")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "__vllm_tp2_command": f"{folder}/{{{{ inventory_hostname }}}}", **variables}
    return run(folder, "play.yml", folder / "hosts.yml", *arguments, variables=given, env=env, project=folder)


def gb10(folder: Path, host: str, rc: int, *lines: str, error: str = "") -> None:
    """Install the command of a host. It records its arguments."""
    record = f"import json, sys\njson.dump(sys.argv[1:], open({f'{folder}/{host}.argv'!r}, 'w'))\n"
    output = f"print({chr(10).join(lines)!r}) if {bool(lines)} else None\nsys.stderr.write({error!r})\nraise SystemExit({rc})\n"
    (folder / host).write_text(f"#!{sys.executable}\n{record}{output}", encoding="utf-8")
    (folder / host).chmod(0o755)


def printed(done: Run) -> list[str]:
    """The lines that the task has printed. All are on the screen."""
    results = [event["event_data"] for event in done.events if event["event"] == "runner_on_ok"]
    lines = [line for data in results if data["task"] == "logs | Print the lines" for line in data["res"]["lines"]]
    assert set(lines) <= set(done.stdout.splitlines())
    return lines


def test_the_head_prints_the_lines_of_all_ranks(tmp_path: Path) -> None:
    gb10(tmp_path, "one", 0, *LINES, error="12 earlier lines are not shown. The limit is 2000 lines.")
    gb10(tmp_path, "two", 0)
    done = logs(tmp_path, since="1h", grep="a|$HOME ;'\"")
    assert done.rc == 0, done.stdout
    assert done.changed == set()
    shown = printed(done)
    assert shown == [LINES[0].replace("\x1b", "\\x1b"), LINES[1], "12 earlier lines are not shown. The limit is 2000 lines."]
    assert json.loads((tmp_path / "one.argv").read_text()) == ["logs", "--number=2000", "--since=1h", "--grep=a|$HOME ;'\""]
    assert not (tmp_path / "two.argv").exists()


def test_a_rank_that_the_head_does_not_reach_prints_its_own_lines(tmp_path: Path) -> None:
    gb10(tmp_path, "one", 3, LINES[0], error="two does not answer: No route to host.\n")
    gb10(tmp_path, "two", 0, LINES[1])
    done = logs(tmp_path)
    assert done.rc == 0, done.stdout
    assert "two does not answer: No route to host." in printed(done)
    assert LINES[1] in done.stdout


def test_without_the_head_each_rank_that_answers_prints_its_own_lines(tmp_path: Path) -> None:
    gb10(tmp_path, "two", 0, LINES[1])
    done = logs(tmp_path, SILENT)
    assert done.rc == 0, done.stdout
    assert "one cannot be read: " in done.stdout
    assert LINES[1] in done.stdout


@pytest.mark.parametrize("limit", ["two", "one"])
def test_a_part_of_the_group_may_be_asked_alone(tmp_path: Path, limit: str) -> None:
    gb10(tmp_path, limit, 0)
    done = logs(tmp_path, LOCAL_PAIR, "--limit", limit)
    assert done.rc == 0, done.stdout
    assert printed(done) == ["No line matches."]


def test_fails_if_no_rank_can_be_read(tmp_path: Path) -> None:
    gb10(tmp_path, "two", 1, error="There is no container gb10-pair1-rank1 on two.\n")
    done = logs(tmp_path)
    assert done.rc == 2
    assert done.last_message == "pair1: no log can be read. The messages above have the cause for each rank."
    assert "one cannot be read: " in done.stdout
    assert "There is no container gb10-pair1-rank1 on two." in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("since", "soon", "since: is 'soon', expected a duration such as 90s, 10m, 2h or 1d"),
        ("grep", "(", "grep: is '(', expected a valid regular expression"),
        ("evidence_lable", "x", "evidence_lable: looks like a variable of this collection, but is not one; did you mean evidence_label?"),
    ],
)
def test_a_wrong_value_is_refused_before_a_host_is_touched(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    (tmp_path / "hosts.yml").write_text(LOCAL_PAIR.format(python=sys.executable), encoding="utf-8")
    done = run(tmp_path, "playbooks/logs.yml", tmp_path / "hosts.yml", variables={name: value})
    assert done.rc == 2
    assert f"extra.json:1: {sentence}" in done.last_message
    assert done.hosts == {"localhost"}
