"""What an owner is told before a host is touched. The hosts of these rows do not exist, and a stand-in for ssh notes each attempt to reach one."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
import yaml
from acceptance import commands
from acceptance.commands import SETTINGS, misspelt
from acceptance.owner import REPO, STATE, Owner

GOOD, OTHER = "b12x-fp8-1m", "fp8-512k"
SECRET = "net-hunter2-7d1e"


class Desk(Owner):
    """An owner at the controller, before there is a node: the example inventory with addresses that nothing answers on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.inventory, self.attempts = folder, folder / "mine", folder / "attempts"
        shutil.copytree(REPO / "inventories/spark-pair", self.inventory)
        self.inventory_file("hosts.yml", lambda text: text.replace("192.0.2.", "10.255.255."))
        ssh = folder / "bin/ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\necho "$*" >>{self.attempts}\nexit 255\n', encoding="utf-8")
        ssh.chmod(0o755)

    def write(self, name: str, values: dict[str, Any]) -> Path:
        """Write a YAML file of the owner's own, next to the inventory or in it."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """An owner without a node, who has reached no host when the row is over."""
    found = Desk(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ANSIBLE_SSH_RETRIES", "0")
    yield found
    assert not found.attempts.exists(), "a host was contacted"


@pytest.mark.quick
def test_all_mistakes_of_all_files_are_told_in_one_run(desk: Desk) -> None:
    """With the mistakes mended, the same command goes to the hosts."""
    files = ("group_vars/gb10.yml", "hosts.yml")
    before = {name: (desk.inventory / name).read_text(encoding="utf-8") for name in files}
    rank = "          gb10_rnk: 1\n          # For the machine where you run the playbooks"
    desk.inventory_file("hosts.yml", lambda text: text.replace("          # For the machine where you run the playbooks", rank))
    chosen, folder = f"{SETTINGS['profile']}: own", f"{SETTINGS['profiles folder']}: {desk.folder}/own"
    desk.inventory_file(
        "group_vars/gb10.yml", lambda text: text.replace(f"{SETTINGS['profile']}: {GOOD}", f"{chosen}\n{folder}\n{misspelt('locked memory')}: 1")
    )
    desk.write("mine/host_vars/spark-1.yml", {SETTINGS["first address"]: "eleven"})
    desk.write("own/own.yml", {"extends": GOOD, "engine": {"arg": {"max-model-len": 4096}}})
    more = desk.write("more.yml", {misspelt("context"): 4096})
    command = ("bring up", "-e", f"@{more}")
    told = desk.run(*command).failed("no host was touched", rf"host_vars/spark-1\.yml:1: {SETTINGS['first address']}: .*'eleven'.*whole number")
    mean = {
        r"mine/hosts\.yml:\d+": ("gb10_rnk", "gb10_rank"),
        r"group_vars/gb10\.yml:\d+": (misspelt("locked memory"), SETTINGS["locked memory"]),
        r"more\.yml:1": (misspelt("context"), SETTINGS["context"]),
        r"own/own\.yml:3": (r"engine\.arg", "args"),
    }
    for place, (wrong, right) in mean.items():
        told.shows(rf"{place}: {wrong}: [^:]*did you mean {right}\?")
    number = 1 + (desk.inventory / "hosts.yml").read_text(encoding="utf-8").splitlines().index("          gb10_rnk: 1")
    told.shows(rf"hosts\.yml:{number}: ")
    assert len(re.findall(r"^\d+\. ", told.text, re.M)) == 5
    assert not desk.attempts.exists()
    for name, text in before.items():
        (desk.inventory / name).write_text(text, encoding="utf-8")
    (desk.inventory / "host_vars/spark-1.yml").unlink()
    more.unlink()
    desk.run("bring up").failed("spark-1", "spark-2")
    assert desk.attempts.exists()
    desk.attempts.unlink()


@pytest.mark.quick
def test_a_part_of_the_pair_is_refused_with_the_remedy(desk: Desk) -> None:
    desk.run("bring up", "--limit", "spark-1").failed("--limit", "pair1", "spark-2 is not in this run", "--limit pair1", "--skip-tags", "no host was touched")


def test_the_example_addresses_are_told(desk: Desk) -> None:
    desk.inventory_file("hosts.yml", lambda text: text.replace("10.255.255.", "192.0.2."))
    for what in ("bring up", "status"):
        told = desk.run(what).failed("no host was touched")
        for number, rank in ((1, 1), (2, 2)):
            told.shows(rf"hosts\.yml:\d+: ansible_host: spark-{number} .*192\.0\.2\.1{rank}")


def test_a_secret_of_a_wrong_type_or_place_is_told_without_its_value(desk: Desk) -> None:
    wrong = {
        "api key": ([SECRET], "expected a string"),
        "secret environment": (SECRET, "expected a mapping"),
        "extra environment": ({"HF_TOKEN": SECRET}, rf"HF_TOKEN .*{SETTINGS['secret environment']}"),
        "build arguments": ({"PIP_PASSWORD": SECRET}, "PIP_PASSWORD"),
        "extra arguments": ({"api-key": SECRET}, r"api-key .*VLLM_API_KEY"),
    }
    more = desk.write("more.yml", commands.settings({what: value for what, (value, _words) in wrong.items()}))
    told = desk.run("bring up", "-vvv", "-e", f"@{more}").failed(
        "no host was touched", *(f"{SETTINGS[what]}: .*{words}" for what, (_value, words) in wrong.items())
    )
    assert SECRET not in told.text


def test_a_wrong_profile_and_a_context_that_does_not_fit_are_told(desk: Desk) -> None:
    desk.run("bring up", profile="fp8-513k").failed("fp8-513k", rf"did you mean {OTHER}\?", "no host was touched")
    told = desk.run("bring up", context=90_000_000).failed(SETTINGS["context"], r"Estimated KV pool: [1-9][\d,]+ tokens", "90,000,000", "no host was touched")
    remedy = re.search(rf"set {SETTINGS['context']} to (\d+) or less", told.flat)
    assert remedy
    desk.run("validate", context=int(remedy.group(1))).passed()


def test_a_good_inventory_is_rendered_for_both_ranks(desk: Desk) -> None:
    run = desk.run("validate", rendered=str(desk.folder / "out")).passed().shows(r"pair1: valid", r"Estimated KV pool: [1-9][\d,]+ tokens", GOOD)
    assert "fault" not in run.text
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((desk.folder / "out").rglob("compose.y*ml"))]
    services = [service for document in found for service in document["services"].values()]
    assert [service["environment"]["NODE_RANK"] for service in services] == ["0", "1"]
    assert len({service["image"] for service in services}) == 1


def test_the_profiles_are_listed_and_the_selected_one_is_marked(desk: Desk) -> None:
    shipped = {path.stem for path in (REPO / "profiles").glob("*.yml")}
    desk.inventory_file("group_vars/gb10.yml", lambda text: text.replace(GOOD, OTHER, 1))
    desk.write("own/own.yml", {"extends": GOOD, "summary": "One of the owner's own"})
    run = desk.run("list profiles", profiles_folder=str(desk.folder / "own")).passed()
    rows = re.findall(r"^([a-z0-9][\w.-]*)( \*)? +(?:pull|build|missing)\b", run.text, re.M)
    assert {name for name, _mark in rows} == {*shipped, "own"}
    assert [name for name, mark in rows if mark] == [OTHER]
    run.shows(rf"{OTHER}: \S+")


def test_a_recipe_becomes_a_valid_profile_without_its_secret(desk: Desk) -> None:
    token = "hf_netAbCdEfGhIjKlMnOpQr12"
    words = "--model org/model --tensor-parallel-size 2 --max-model-len 65536 --gpu-memory-utilization 0.8 --served-model-name mine"
    service = {"image": "vllm/vllm-openai:v0.11.0", "privileged": True, "network_mode": "host", "environment": {"HF_TOKEN": token, "NCCL_DEBUG": "INFO"}}
    recipe = desk.write("recipe/docker-compose.yml", {"services": {"vllm": {**service, "volumes": ["/srv/models:/root/.cache/huggingface"], "command": words}}})
    own: dict[str, Any] = {"profiles_folder": str(desk.folder / "own")}
    made = (
        desk.run("import a recipe", "-vvv", recipe=str(recipe), profile_name="imported", **own)
        .passed()
        .shows("HF_TOKEN", "privileged", SETTINGS["secret environment"])
    )
    [profile] = (desk.folder / "own").iterdir()
    assert "65536" in profile.read_text(encoding="utf-8")
    valid = desk.run("validate", "-vvv", profile="imported", rendered=str(desk.folder / "out"), **own).passed().shows("pair1: valid", "imported")
    assert token not in made.text + valid.text
    assert [path for path in desk.folder.rglob("*") if path.is_file() and token in path.read_text(encoding="utf-8", errors="replace")] == [recipe]


def test_an_inventory_that_is_not_there_is_told(desk: Desk) -> None:
    for what in ("bring up", "status", "validate"):
        screen = desk.shell(commands.play(what, desk.folder / "mien")).screen().failed("mien does not exist", r"did you mean \S*mine\?", "no host was touched")
        assert "PLAY" not in screen.text
    (desk.folder / "empty").mkdir()
    desk.shell(commands.play("bring up", desk.folder / "empty")).screen().failed("empty", "no group gb10|no hosts", "no host was touched")


def test_questions_without_a_terminal_are_told_with_the_variable_that_answers(desk: Desk) -> None:
    target = desk.folder / "new"
    desk.run("set up", set_up_inventory=str(target)).failed("no terminal", rf"-e {SETTINGS['set up head']}=")
    desk.run("set up", "-e", f"{misspelt('set up head')}=10.255.255.1").failed(rf"did you mean {SETTINGS['set up head']}\?")
    assert not target.exists()


def test_the_questions_on_a_terminal_lead_to_an_inventory_that_is_valid(owner: Owner, tmp_path: Path) -> None:
    """On the two nodes of the lab: the owner's SSH key is theirs already, their host keys are unknown."""
    addresses = [host["ansible_host"] for host in hosts_of(owner.inventory).values()]
    mine, ssh = tmp_path / "new", tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    known, key = tmp_path / "known_hosts", STATE / "id_ed25519"
    (tmp_path / "config").write_text(f"Host *\n  UserKnownHostsFile {known}\n  IdentityFile {key}\n  IdentitiesOnly yes\n", encoding="utf-8")
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n', encoding="utf-8")
    ssh.chmod(0o755)
    answers = {"first Spark": addresses[0], "second Spark": addresses[1], "Login": "admin", "fingerprint": "yes", "Profile": "1", "Folder": "", "Write it": ""}
    path = os.pathsep.join((str(ssh.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "TERM": "dumb", "ANSIBLE_NOCOLOR": "1"}
    command = [commands.PLAYBOOKS["set up"], "-e", json.dumps({SETTINGS["set up inventory"]: str(mine)})]
    screen = pexpect.spawn("ansible-playbook", command, cwd=str(REPO), env=environment, encoding="utf-8", timeout=300)
    log = io.StringIO()
    screen.logfile_read = log
    while (found := screen.expect([pexpect.EOF, *(rf"{question}[^\r\n]*:\r" for question in answers)])) > 0:
        screen.send(list(answers.values())[found - 1] + "\r")
    screen.close()
    assert screen.exitstatus == 0, log.getvalue()
    assert owner.on(1, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1] in log.getvalue()
    assert [host["ansible_host"] for host in hosts_of(mine).values()] == addresses
    owner.shell(commands.play("validate", mine)).screen().passed().shows("pair1: valid")


def hosts_of(inventory: Path) -> dict[str, Any]:
    """Return the hosts of the pair of an inventory."""
    found = yaml.safe_load((inventory / "hosts.yml").read_text(encoding="utf-8"))
    return dict(found["gb10"]["children"]["pair1"]["hosts"])
