"""The rulebook in the real ansible-rulebook: which playbook starts for which events of the agents' webhook, and for which group."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._pair import outside
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import KINDS
from playbook import LOCAL_PAIR, REPO

RULEBOOK = REPO / "extensions/eda/rulebooks/keep_serving.yml"
PROGRAM = shutil.which(os.environ.get("GB10_ANSIBLE_RULEBOOK", "ansible-rulebook"))
SECOND_PAIR = """    pair2:
      vars: {{gb10_fabric_cidrs: [192.168.202.0/24, 192.168.203.0/24]}}
      hosts:
        three: {{ansible_host: 127.0.0.3}}
        four: {{ansible_host: 127.0.0.4}}
"""
SECONDS = 120


def event(kind: str, **more: object) -> dict[str, Any]:
    """An event of an agent, as its webhook sends it."""
    return {"n": 1, "at": "2026-11-23T10:00:00Z", "generation": 7, "kind": kind, "text": "", "group": "pair1", "host": "one", **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inventory: dict[str, Any] = yaml.safe_load((LOCAL_PAIR + SECOND_PAIR).format(python=sys.executable))
    inventory["gb10"]["vars"].update(gb10_profile="dspark-nvfp4-1m-seed", gb10_evidence=f"{tmp_path}/evidence", vllm_tp2_directory=f"{tmp_path}/node")
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    return tmp_path


def output(folder: Path) -> Iterator[str]:
    """Run the rulebook and yield its output, once a second, until it ends or the time is over."""
    bins = [str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {**os.environ, "PATH": os.pathsep.join(bins), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    words = [str(PROGRAM), "--rulebook", "gb10.cluster.keep_serving", "-i", "hosts.yml", "--vars", "eda.yml"]
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


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="ansible-rulebook is not installed (it needs Java 17); set GB10_ANSIBLE_RULEBOOK to its path")
def test_each_event_starts_its_playbook_for_its_group_only(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "eda.yml").write_text(f"{{gb10_eda_host: 127.0.0.1, gb10_eda_port: {port}, gb10_eda_token: t0k3n}}\n", encoding="utf-8")
    harmless = [event("fault", cause="wedge"), event("settled", result="serves"), event("recovered", cause="node_lost", seconds=3.0)]
    sent = [*harmless, event("fault", cause="node_lost"), event("head_lost", cause="node_lost"), event("settled", result="held")]
    text = ""
    for text in output(folder):
        while sent and not outside.notify({"webhook": f"http://t0k3n@127.0.0.1:{port}/"}, sent[0]):
            sent.pop(0)
        if text.count("PLAY RECAP") >= 2:
            break
    refused = outside.notify({"webhook": f"http://127.0.0.1:{port}/"}, harmless[0])
    assert refused, text
    assert text.count("PLAY [Report each serving group and its ranks]") == 1, text
    assert text.count("PLAY [Collect evidence from all ranks]") == 1, text
    assert text.count("PLAY RECAP") == 2, text
    assert {path.name.split(".")[0] for path in (folder / "evidence/pair1-7").iterdir()} == {"pair1-rank0-one", "pair1-rank1-two"}
    assert "pair2" not in text


def test_the_rulebook_names_kinds_of_the_webhook_and_playbooks_of_the_collection() -> None:
    (rules,) = yaml.safe_load(RULEBOOK.read_text(encoding="utf-8"))
    assert {"head_lost", "fault", "settled"} <= set(KINDS)
    for rule in rules["rules"]:
        name = rule["action"]["run_playbook"]["name"].removeprefix("gb10.cluster.")
        plays = yaml.safe_load((REPO / f"playbooks/{name}.yml").read_text(encoding="utf-8"))
        assert not any("ansible.builtin.import_playbook" in play for play in plays), "ansible-rulebook runs a copy of the file alone"
