"""A serving group is one unit: messages of a run on a part of it, and of one that cannot tell whether a rank runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml
from playbook import LOCAL_PAIR, REPO, ROLE_PLAY, Run, plays_of
from warm_playbook import run

CUT = {"serial": 1}


def play(folder: Path, tasks: str, *arguments: str, more: dict[str, int] | None = None, **variables: object) -> Run:
    (folder / "hosts.yml").write_text(LOCAL_PAIR.format(python=sys.executable), encoding="utf-8")
    plays = [{**each, **(more or {})} for each in yaml.safe_load(plays_of(tasks))]
    (folder / "play.yml").write_text(yaml.safe_dump(plays, sort_keys=False), encoding="utf-8")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "vllm_tp2_directory": str(folder / "node"), **variables}
    return run(folder, "play.yml", folder / "hosts.yml", *arguments, variables=given, env=env, project=folder)


@pytest.mark.parametrize(("tasks", "arguments", "more"), [("stop", ("--limit", "two"), None), ("main", (), CUT)], ids=["limit", "serial"])
def test_one_rank_alone_is_refused_before_anything(tmp_path: Path, tasks: str, arguments: tuple[str, ...], more: dict[str, int] | None) -> None:
    done = play(tmp_path, tasks, *arguments, more=more)
    assert done.rc != 0
    other = "one" if arguments else "two"
    assert done.last_message == (
        f"pair1 is one unit and {other} is not in this run: run without --limit and without serial, or limit to the whole group (pair1)."
    )
    assert not (tmp_path / "node").exists()


def test_run_without_head_asks_no_rank_and_reports_it(tmp_path: Path) -> None:
    done = play(tmp_path, "sanity", "--limit", "two")
    assert done.rc != 0
    assert "pair1 is asked through its head one, which is not in this run or does not answer: limit to pair1 instead" in done.last_message


@pytest.mark.skipif(not os.access("/var/run/docker.sock", os.R_OK), reason="reads the images of this machine's Docker Engine")
def test_an_image_that_one_rank_cannot_read_stops_the_other_with_a_sentence(tmp_path: Path) -> None:
    keep = "{{ 2 if inventory_hostname == 'one' else ('the engine of two is stopped' | int(default='x')) }}"
    (tmp_path / "hosts.yml").write_text(LOCAL_PAIR.format(python=sys.executable), encoding="utf-8")
    (tmp_path / "play.yml").write_text(ROLE_PLAY.replace("vllm_tp2", "image").format(tasks="validate"), encoding="utf-8")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "image_keep": keep}
    done = run(tmp_path, "play.yml", tmp_path / "hosts.yml", variables=given, env=env, project=tmp_path)
    assert done.rc != 0
    assert "two of pair1 failed (the message is above), so one stops as well: correct that and run again." in done.stdout.replace("\n", " ")
    assert "has no attribute" not in done.stdout
