"""The inventory is checked before any host is touched: all faults together, each with file, line and key, with any tags."""

from __future__ import annotations

import re
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from playbook import PAIR as VALID
from playbook import REPO, Run
from warm_playbook import run

TWO_PAIRS = """
gb10:
  children:
    pair1:
      hosts:
        spark-1: {ansible_host: 10.255.255.1}
        spark-2: {ansible_host: 10.255.255.2}
    pair2:
      hosts:
        spark-3: {ansible_host: 10.255.255.3}
        spark-4: {ansible_host: 10.255.255.4}
"""
SECOND_FABRIC = "gb10_fabric_cidrs: [192.168.202.0/24, 192.168.203.0/24]\n"
# Encrypted with a password that is not given.
VAULTED = """!vault |
  $ANSIBLE_VAULT;1.1;AES256
  61333761616561626366623338393937306362656163313037636137366566323034306433303061
  3232323066636634303438393835623939313461336337350a663530656630373965636439353333
  32313636343164343739343964303036303564393533313031343432653632333333366661366361
  3636396236653161380a333961643861653061663637633034656664623833336637353466643630
  3363
"""


@dataclass
class Case:
    """Files of an inventory, arguments, and the place, key and a part of each sentence; {inv} is the folder of the inventory.

    ``early``: the run ends before a play, because Ansible cannot read a file.
    """

    name: str
    sentences: list[str]
    files: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    early: bool = False


def hosts(text: str, **files: str) -> dict[str, str]:
    """An inventory directory: hosts.yml and, for each keyword, a file of group_vars."""
    return {"hosts.yml": text, **{f"group_vars/{name}.yml": content for name, content in files.items()}}


CASES = [
    Case(
        "no group gb10",
        ["{inv}/hosts.yml: gb10: no group gb10"],
        hosts("pair1:\n  hosts:\n    spark-1:\n    spark-2:\n"),
    ),
    Case(
        "no worker",
        ["{inv}/hosts.yml:3: pair1: no worker, only spark-1"],
        hosts("gb10:\n  children:\n    pair1:\n      hosts:\n        spark-1: {ansible_host: 10.255.255.1}\n"),
    ),
    Case(
        "a host in no serving group",
        ["{inv}/hosts.yml:4: spark-9: serving group"],
        hosts(VALID.replace("gb10:\n", "gb10:\n  hosts:\n    spark-9: {ansible_host: 10.255.255.9}\n")),
    ),
    Case(
        "an open API with a key",
        [
            "{inv}/group_vars/pair1.yml:1: vllm_tp2_api_open: vllm_tp2_api_key sets a key; remove one of them",
            "{inv}/group_vars/pair2.yml:1: vllm_tp2_api_open: VLLM_API_KEY in vllm_tp2_secret_env sets a key; remove one of them",
        ],
        hosts(
            TWO_PAIRS,
            pair1="vllm_tp2_api_open: true\nvllm_tp2_api_key: hunter2\n",
            pair2=f"vllm_tp2_api_open: 'yes'\nvllm_tp2_secret_env: {{VLLM_API_KEY: hunter2}}\n{SECOND_FABRIC}",
        ),
    ),
    Case(
        "templates that fail",
        [
            "{inv}/group_vars/gb10.yml:1: vllm_tp2_directory: its template fails: 'my_own' is undefined",
            "{inv}/group_vars/gb10.yml:2: vllm_tp2_context: its template reads a variable of Ansible that is not set here, and these playbooks gather no facts",
        ],
        hosts(VALID, gb10='vllm_tp2_directory: "{{ my_own }}/x"\nvllm_tp2_context: "{{ ansible_facts[\'memtotal_mb\'] * 10 }}"\n'),
    ),
    Case(
        "a vaulted value without its password",
        [
            "{inv}/group_vars/gb10.yml:1: vllm_tp2_api_key: run with --ask-vault-pass or --vault-password-file",
        ],
        hosts(VALID, gb10="vllm_tp2_api_key: " + VAULTED.replace("\n  ", "\n    ")),
    ),
    Case(
        "a serving group that is none",
        ["{inv}/group_vars/gb10.yml:1: gb10_serving_groups: pear1"],
        hosts(VALID, gb10="gb10_serving_groups: [pair1, pear1]\n"),
    ),
    Case(
        "files of variables that cannot be read",
        [
            "{inv}/group_vars/gb10.yml:2: YAML: a second colon in one line",
            "{inv}/host_vars/spark-1.yml:1: YAML: a list",
        ],
        {**hosts(VALID, gb10="a: 1\n b: [\n"), "host_vars/spark-1.yml": "- vllm_tp2_context: 4096\n"},
        early=True,
    ),
    Case(
        "a vaulted file without its password",
        [
            "{inv}/group_vars/gb10.yml: vault: run with --ask-vault-pass or --vault-password-file",
        ],
        hosts(VALID, gb10="\n".join(line.strip() for line in VAULTED.splitlines()[1:]) + "\n"),
    ),
    Case(
        "all at once, under a tag and a limit",
        [
            "{inv}/group_vars/gb10.yml:1: gb10_profile: 'nothing-like-it' is not a known profile",
            "{inv}/group_vars/pair2.yml: gb10_fabric_cidrs: pair2 and pair1 share the fabric network 192.168.200.0/24",
            "{inv}/hosts.yml:6: vllm_tp2_contxt: did you mean vllm_tp2_context?",
            "{inv}/hosts.yml:11: ansible_host: 10.255.255.1",
        ],
        hosts(TWO_PAIRS.replace("255.255.1}", "255.255.1, vllm_tp2_contxt: 1}").replace("255.4}", "255.1}"), gb10="gb10_profile: nothing-like-it\n"),
        ("--tags docker", "--limit pair2"),
    ),
]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that the stand-in for ssh creates on the first connection."""
    marker = tmp_path / "contacted"
    script = tmp_path / "ssh"
    script.write_text(f"#!/bin/sh\ntouch {marker}\nexit 255\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return marker


def play(tmp_path: Path, files: dict[str, str], *arguments: str, playbook: str = "") -> tuple[Run, Path]:
    """Write the inventory and run a playbook that checks it and then contacts every host."""
    inventory = tmp_path / "inv"
    for name, text in files.items():
        path = inventory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if not playbook:
        playbook = str(tmp_path / "play.yml")
        plays = [
            {"name": "First", "ansible.builtin.import_playbook": str(REPO / "playbooks" / "inventory.yml")},
            {
                "name": "Speak",
                "hosts": "gb10",
                "gather_facts": False,
                "tags": ["docker"],
                "tasks": [{"name": "Ask", "ansible.builtin.raw": "true", "changed_when": False}],
            },
        ]
        Path(playbook).write_text(yaml.safe_dump(plays), encoding="utf-8")
    env = {"ANSIBLE_SSH_EXECUTABLE": str(tmp_path / "ssh"), "ANSIBLE_SSH_RETRIES": "0"}
    return run(tmp_path / "runner", playbook, inventory, *arguments, env=env), inventory


def listed(done: Run) -> list[str]:
    """The sentences of the failure, without their numbers."""
    message = done.last_message if done.failures else done.stdout.partition("[ERROR]: ")[2].rstrip()
    head, *lines = message.splitlines()
    count = len(lines)
    assert head == f"The inventory has {count} fault{'' if count == 1 else 's'}; no host was touched."
    return [re.sub(r"^\d+\. ", "", line) for line in lines]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reports_file_line_and_key_of_every_fault(case: Case, tmp_path: Path, marker: Path) -> None:
    """In the order of the files, before a host is contacted."""
    done, inventory = play(tmp_path, case.files, *(each.replace("{inv}", str(tmp_path / "inv")) for each in case.arguments))
    assert done.rc != 0
    found = listed(done)
    expected = [sentence.replace("{inv}", str(inventory)) for sentence in case.sentences]
    assert len(found) == len(expected), "\n".join(found)
    for sentence, wanted in zip(found, expected, strict=True):
        place, key, part = wanted.split(": ", 2)
        assert sentence.startswith(f"{place}: {key}: ")
        assert part in sentence
    tasks = {event["event_data"]["task"] for event in done.events if event["event"].startswith("runner_on_")}
    assert tasks == (set() if case.early else {"Check the inventory"})
    assert not case.early or len(done.stdout.strip().splitlines()) == 1 + len(found), "each fault is one line"
    assert not re.search("Traceback|hunter2", done.stdout)
    assert not marker.exists()


def test_a_valid_inventory_passes_and_the_next_play_runs(tmp_path: Path, marker: Path) -> None:
    """With numbers as text from the command line. The stand-in for ssh is called."""
    done, _rest = play(tmp_path, hosts(VALID), "-e vllm_tp2_context=4096", "-e docker_cdi_refresh=no")
    assert {task for _rest, task, _rest in done.failures} == {"Ask"}
    assert marker.exists()


def test_site_refuses_a_part_of_a_group_unless_each_stage_works_on_one_node(tmp_path: Path, marker: Path) -> None:
    """The refusal comes before any host is asked."""
    site = str(REPO / "playbooks" / "site.yml")
    done, _inventory = play(tmp_path, hosts(VALID), "--limit", "spark-1", playbook=site)
    (sentence,) = listed(done)
    assert sentence.startswith("the command line: --limit: pair1 is one unit and spark-2 is not in this run; ")
    assert sentence.endswith("(--skip-tags roce,image,weights,vllm_tp2)")
    assert not marker.exists()
    done, _inventory = play(tmp_path, hosts(VALID), "--limit", "spark-1", "--tags", "sysctl,roce", playbook=site)
    assert listed(done)[0].endswith("(--skip-tags roce)")
    done, _inventory = play(tmp_path, hosts(VALID), "--limit", "spark-1", "--tags", "preflight,sysctl,readahead,docker", playbook=site)
    assert "Check the inventory" not in {task for _host, task, _message in done.failures}
    assert marker.exists()


def test_a_decrypted_value_is_checked_and_never_shown(tmp_path: Path, marker: Path) -> None:
    """Not with -vvv and not next to a fault."""
    secret = VaultSecret(b"open sesame")
    vaulted = VaultLib([("default", secret)]).encrypt("hunter2-api-key", secret).decode().strip().replace("\n", "\n  ")
    (tmp_path / "password").write_text("open sesame\n", encoding="utf-8")
    files = hosts(VALID, gb10=f"vllm_tp2_api_key: !vault |\n  {vaulted}\nvllm_tp2_secret_env: {{HF_TOKEN: hunter2-token}}\nvllm_tp2_statt: x\n")
    done, inventory = play(tmp_path, files, f"--vault-password-file {tmp_path / 'password'}", "-vvv")
    (sentence,) = listed(done)
    assert sentence.endswith("did you mean vllm_tp2_state?")
    assert sentence.startswith(f"{inventory}/group_vars/gb10.yml:")
    assert "hunter2" not in done.text()


@pytest.mark.parametrize(
    "text",
    [
        'vllm_tp2_api_key: "hunter2 {{ nothing }}"\n',
        'vllm_tp2_api_key: "hunter2 {{ 1 + "\n',
        "vllm_tp2_secret_env: {HF_TOKEN: hunter2 {{ nothing }}}\n",
        "vllm_tp2_api_key: hunter2\nvllm_tp2_state: [\n",
        "vllm_tp2_api_key: hunter2: x\n",
        "vllm_tp2_api_key: 'hunter2\nvllm_tp2_state: present\n",
    ],
)
def test_a_broken_template_or_file_never_shows_the_secret_next_to_it(text: str, tmp_path: Path, marker: Path) -> None:
    done, _inventory = play(tmp_path, hosts(VALID, gb10=text), "-vvv")
    assert done.rc != 0
    assert "hunter2" not in done.text()
    assert not marker.exists()


def test_example_addresses_may_be_warnings(tmp_path: Path, marker: Path) -> None:
    shutil.copytree(REPO / "inventories" / "spark-pair", tmp_path / "inv")
    done, inventory = play(tmp_path, {}, "-e inventory_check_examples=warn")
    assert {task for _rest, task, _rest in done.failures} == {"Ask"}
    assert f"{inventory}/hosts.yml:8: ansible_host: spark-1 has the example address 192.0.2.11" in " ".join(done.stdout.split())


@pytest.mark.parametrize("tag", ["docker", "vllm_tp2"])
def test_site_checks_the_inventory_first_with_any_tag(tag: str, tmp_path: Path, marker: Path) -> None:
    done, _rest = play(tmp_path, hosts(VALID.replace("255.255.2", "255.255.1")), f"--tags {tag}", playbook="site.yml")
    assert len(listed(done)) == 1
    assert done.roles == set()
    assert not marker.exists()


@pytest.mark.parametrize("playbook", ["inventory", "reboot", "upgrade"])
def test_settings_that_freeze_nodes_are_refused_before_any_host(playbook: str, tmp_path: Path, marker: Path) -> None:
    """These playbooks start a group, or check the inventory alone."""
    done, _rest = play(tmp_path, hosts(VALID, gb10="vllm_tp2_gpu_memory_utilization: 0.95\n"), playbook=f"playbooks/{playbook}.yml")
    (sentence,) = listed(done)
    assert "gb10.yml:1: vllm_tp2_gpu_memory_utilization: " in sentence
    assert done.failures[0][1] == "Check the inventory"
    assert not marker.exists()


def test_the_check_is_quick(tmp_path: Path, marker: Path) -> None:
    """Under two seconds for eight pairs, Ansible's own start included in the time of the run but not in the bound."""
    lines = ["gb10:", "  children:"]
    files: dict[str, str] = {}
    for pair in range(8):
        lines += [f"    pair{pair}:", "      hosts:"]
        lines += [f"        spark-{pair}{rank}: {{ansible_host: 10.255.{pair}.{rank + 1}}}" for rank in range(2)]
        files[f"group_vars/pair{pair}.yml"] = f"gb10_fabric_cidrs: [10.1.{pair}.0/24, 10.2.{pair}.0/24]\n"
    done, _rest = play(tmp_path, {"hosts.yml": "\n".join(lines) + "\n", **files})
    (event,) = [e["event_data"] for e in done.events if e["event"] == "runner_on_ok" and e["event_data"]["task"] == "Check the inventory"]
    assert event["res"]["msg"] == "The inventory is valid: 16 hosts."
    assert event["duration"] < 2
