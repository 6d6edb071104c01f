"""What status.yml reports of a group, and the mark that stop.yml leaves. Both hosts are this machine; it may have a Docker Engine or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playbook import LOCAL_PAIR, REPO, Run, plays_of
from warm_playbook import run

pytestmark = pytest.mark.slow

SILENT = "{ansible_host: 127.0.0.2, ansible_connection: ssh, ansible_port: 1}"


def play(folder: Path, tasks: str, hosts: str = LOCAL_PAIR, **variables: object) -> Run:
    (folder / "hosts.yml").write_text(hosts.format(python=sys.executable), encoding="utf-8")
    (folder / "play.yml").write_text(plays_of(tasks), encoding="utf-8")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "vllm_tp2_directory": str(folder / "node"), **variables}
    return run(folder, "play.yml", folder / "hosts.yml", variables=given, env=env, project=folder)


def deploy(folder: Path, node: str = "node") -> Path:
    group = folder / node / "pair1"
    (group / "releases/4f0c").mkdir(parents=True)
    (group / "releases/4f0c/compose.yaml").write_text("services: {}\n", encoding="utf-8")
    (group / "current").symlink_to("releases/4f0c")
    return group


@pytest.mark.parametrize("fails", [True, pytest.param(False, marks=pytest.mark.long)])  # test_show.py has a status that does not fail
def test_a_group_with_a_silent_node_fails_after_all_ranks_are_reported(tmp_path: Path, fails: bool) -> None:
    deploy(tmp_path)
    done = play(tmp_path, "status", LOCAL_PAIR.replace("{{ansible_host: 127.0.0.2}}", "{" + SILENT + "}"), vllm_tp2_status_fail=fails)
    text = " ".join(done.stdout.split())
    assert done.rc == (2 if fails else 0), done.stdout
    why = "it is read through the agent of one, which does not answer"
    sentence = text.index(f"Rank 1 on two is not known: {why}.")
    assert sentence < text.index("group rank host container") < text.index("pair1 1 two not known") < text.index(f"pair1 rank 1 on two: {why}")
    if fails:
        assert "pair1" in done.last_message
        assert [host for host, task, _message in done.failures if "should serve" in task] == ["one"], "one sentence, not one for each rank"


def test_a_group_that_was_never_deployed_fails_nothing_that_is_known(tmp_path: Path) -> None:
    done = play(tmp_path, "status")
    if "the Docker Engine does not answer" in done.stdout:
        assert "It is not known whether pair1 serves." in done.stdout
    else:
        assert done.rc == 0, done.stdout
        assert "pair1 has never served: no release is current. Run site.yml." in " ".join(done.stdout.split())
