"""The rulebook in the real ansible-rulebook: which playbook starts for which events, and for which group. A fake ssh replays the agent's replies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from eda_fakes import calls, event, reply, write_ssh
from playbook import LOCAL_PAIR, REPO

pytestmark = pytest.mark.slow

RULEBOOK = REPO / "extensions/eda/rulebooks/keep_serving.yml"
PROGRAM = shutil.which(os.environ.get("GB10_ANSIBLE_RULEBOOK", "ansible-rulebook"))
SECOND_PAIR = """    pair2:
      vars: {{gb10_fabric_cidrs: [192.168.202.0/24, 192.168.203.0/24]}}
      hosts:
        three: {{ansible_host: 127.0.0.3}}
        four: {{ansible_host: 127.0.0.4}}
"""
SECONDS = 120


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inventory: dict[str, Any] = yaml.safe_load((LOCAL_PAIR + SECOND_PAIR).format(python=sys.executable))
    inventory["gb10"]["vars"].update(gb10_profile="dspark-nvfp4-1m-seed", gb10_evidence=f"{tmp_path}/evidence", vllm_tp2_directory=f"{tmp_path}/node")
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    (tmp_path / "heads.yml").write_text("gb10_heads: [{group: pair1, host: one, user: admin}]\n", encoding="utf-8")
    return tmp_path


def output(folder: Path) -> Iterator[str]:
    """Run the rulebook and yield its output, once a second, until it ends or the time is over."""
    bins = [str(folder / "fake/bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {**os.environ, "PATH": os.pathsep.join(bins), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    words = [str(PROGRAM), "--rulebook", "gb10.cluster.keep_serving", "-i", "hosts.yml", "--vars", "heads.yml"]
    with (folder / "output").open("wb") as file:
        process = subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            for _second in range(SECONDS):
                yield (folder / "output").read_text(encoding="utf-8", errors="replace")
                if process.poll() is not None:
                    break
                time.sleep(1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    yield (folder / "output").read_text(encoding="utf-8", errors="replace")


@pytest.mark.skipif(PROGRAM is None, reason="ansible-rulebook is not installed (it needs Java 17); set GB10_ANSIBLE_RULEBOOK to its path")
def test_each_event_starts_its_playbook_for_its_group_only(folder: Path) -> None:
    harmless = [event(1, "fault", cause="wedge"), event(2, "lasts", cause="node_lost", seconds=599.0), event(3, "unreachable", cause="ssh", seconds=299.0)]
    urgent = [event(4, "lasts", cause="node_lost", seconds=600.0), event(5, "lasts", cause="node_lost", seconds=660.0), event(6, "unreachable", seconds=300.0)]
    held: dict[str, Any] = {"final": True, "result": "held", "at": "2026-11-23T10:00:00Z", "sentence": "pair1 is held."}
    write_ssh(folder / "fake", [reply(), reply(*harmless), reply(*urgent), reply(event(7, "fault", cause="crash_loop")), reply(**held)])
    text = ""
    for text in output(folder):
        ended = text.count("PLAY RECAP")
        if ended >= 3 and len(calls(folder / "fake")) >= 6:
            break
    assert text.count("PLAY [Report each serving group and its ranks]") == 2, text
    assert text.count("PLAY [Collect evidence from all ranks]") == 1, text
    assert text.count("PLAY RECAP") == 3, text
    assert sorted(path.name for path in (folder / "evidence/pair1-7").iterdir()) == ["pair1-rank0-one.txt", "pair1-rank1-two.txt"]
    assert "pair2" not in text


def test_the_rulebook_names_the_event_source_and_playbooks_of_the_collection() -> None:
    (rules,) = yaml.safe_load(RULEBOOK.read_text(encoding="utf-8"))
    for source in rules["sources"]:
        (name,) = set(source) - {"name"}
        assert (REPO / "extensions/eda/plugins/event_source" / f"{name.removeprefix('gb10.cluster.')}.py").is_file()
    for rule in rules["rules"]:
        name = rule["action"]["run_playbook"]["name"].removeprefix("gb10.cluster.")
        plays = yaml.safe_load((REPO / f"playbooks/{name}.yml").read_text(encoding="utf-8"))
        imports = [play["ansible.builtin.import_playbook"] for play in plays if "ansible.builtin.import_playbook" in play]
        assert imports == ["gb10.cluster.inventory"], "ansible-rulebook runs a copy of the file alone"
