"""The inventory is checked before any host is touched: all faults together, each with file, line and key, and never with a secret.

tests/unit/plugins/plugin_utils/test_inventory_survey.py has the sentences, in one process. Here is what only a run of ansible-playbook shows.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from playbook import PAIR, REPO, Run
from warm_playbook import run


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that the stand-in for ssh creates on the first connection."""
    marker = tmp_path / "contacted"
    script = tmp_path / "ssh"
    script.write_text(f"#!/bin/sh\ntouch {marker}\nexit 255\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return marker


def play(tmp_path: Path, files: dict[str, str], *arguments: str) -> tuple[Run, Path]:
    """Write the inventory and run a playbook that checks it and then contacts every host."""
    inventory = tmp_path / "inv"
    for name, text in files.items():
        path = inventory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    ask = {"name": "Ask", "ansible.builtin.raw": "true", "changed_when": False}
    plays = [
        {"name": "First", "ansible.builtin.import_playbook": str(REPO / "playbooks" / "inventory.yml")},
        {"name": "Speak", "hosts": "gb10", "gather_facts": False, "tags": ["docker"], "tasks": [ask]},
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    env = {"ANSIBLE_SSH_EXECUTABLE": str(tmp_path / "ssh"), "ANSIBLE_SSH_RETRIES": "0"}
    return run(tmp_path / "runner", str(tmp_path / "play.yml"), inventory, *arguments, env=env), inventory


def vaulted(text: str) -> str:
    """Return a text as Ansible encrypts it."""
    secret = VaultSecret(b"open sesame")
    return str(VaultLib([("default", secret)]).encrypt(text, secret).decode().strip())


@pytest.mark.parametrize(
    "text",
    ["vllm_tp2_api_key: !vault |\n  VAULTED\nvllm_tp2_secret_env: {HF_TOKEN: hunter2 {{ nothing }}}\n", "vllm_tp2_api_key: hunter2\nvllm_tp2_state: [\n"],
    ids=["template", "file"],
)
def test_a_broken_template_or_file_never_shows_the_secret_next_to_it(text: str, tmp_path: Path, marker: Path) -> None:
    """Not with -vvv, and not a value that Ansible has decrypted."""
    text = text.replace("VAULTED", vaulted("hunter2-api-key").replace("\n", "\n  "))
    (tmp_path / "password").write_text("open sesame\n", encoding="utf-8")
    done, _inventory = play(tmp_path, {"hosts.yml": PAIR, "group_vars/gb10.yml": text}, f"--vault-password-file {tmp_path / 'password'}", "-vvv")
    assert done.rc != 0
    assert "no host was touched" in done.text()
    assert "hunter2" not in done.text()
    assert not marker.exists()


def test_a_valid_inventory_of_eight_pairs_is_checked_in_seconds_and_the_next_play_runs(tmp_path: Path, marker: Path) -> None:
    """Ansible's own start is not in the bound: alone it takes less than one second. Numbers and booleans may be text of the command line."""
    lines, files = ["gb10:", "  children:"], dict[str, str]()
    for pair in range(8):
        lines += [f"    pair{pair}:", "      hosts:"]
        lines += [f"        spark-{pair}{rank}: {{ansible_host: 10.255.{pair}.{rank + 1}}}" for rank in range(2)]
        files[f"group_vars/pair{pair}.yml"] = f"gb10_fabric_cidrs: [10.1.{pair}.0/24, 10.2.{pair}.0/24]\n"
    text = {"hosts.yml": "\n".join(lines) + "\n", **files}
    done, _inventory = play(tmp_path, text, "-e vllm_tp2_context=4096", "-e docker_cdi_refresh=no", "--limit spark-00")
    (event,) = [e["event_data"] for e in done.events if e["event"] == "runner_on_ok" and e["event_data"]["task"] == "Check the inventory"]
    assert event["res"]["msg"] == "The inventory is valid: 16 hosts."
    assert event["duration"] < 5
    assert {task for _host, task, _message in done.failures} == {"Ask"}
    assert marker.exists()
