"""The agent module on a node made of a folder, a small systemd and a small user database."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._agent import config, stamp, unit
from ansible_collections.gb10.cluster.plugins.module_utils._agent.install import Agent
from ansible_collections.gb10.cluster.plugins.module_utils._agent.place import InstallError
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._agent.sources import ROOT, collect, with_libraries
from ansible_collections.gb10.cluster.plugins.module_utils._agent.ssh_keys import KeyLineError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._watch.settings import DEFAULTS
from ansible_collections.gb10.cluster.plugins.modules.agent import PARTS

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKM9Z+WSGxabucjA93wQitw0LER6XqZSsEYnnCHxdIWL"
DIRECTORY = "/opt/gb10-cluster/vllm_tp2"
FILES = {"ansible_collections/__init__.py": "", "ansible_collections/gb10/cluster/plugins/module_utils/_agent/cli.py": "def main():\n    return 0\n"}
NEWER = {**FILES, "ansible_collections/new.py": "x = 1\n"}
NEWEST = {**FILES, "ansible_collections/new.py": "x = 2\n"}


class Machine:
    """One node of a serving group: files below `root`, units, users, and the service that the unit starts."""

    def __init__(self, root: Path, rank: int) -> None:
        self.root, self.rank = root, rank
        self.id = f"{rank + 1}" * 32
        self.active = self.enabled = self.silent = False
        self.users: dict[str, str] = {}
        self.groups: set[str] = set()
        self.owner: dict[str, str] = {}
        self.refusal = ""
        self.sshd = "port 2222\npubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2\nforcecommand none\n"
        self.sshd_error = ""
        self.commands: list[str] = []
        self.now = 0.0
        self.put("/etc/machine-id", self.id + "\n")
        self.put("/etc/ssh/ssh_host_ed25519_key.pub", f"{HOST_KEY} root@spark\n")
        self.put("/etc/ssh/ssh_host_dsa_key.pub", "ssh-dss AAAAB3Nz root@spark\n")
        for folder in ("usr/local/sbin", "etc/systemd/system", "opt", "var/lib", "run"):
            (root / folder).mkdir(parents=True)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def put(self, path: str, text: str) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).write_text(text)

    def tree(self) -> dict[str, tuple[str, str]]:
        """Return every path with its mode and content; neither is followed through a link."""
        found = {}
        for folder, folders, names in os.walk(self.root):
            for name in folders + names:
                path = Path(folder) / name
                mode = path.lstat().st_mode
                text = os.readlink(path) if path.is_symlink() else path.read_text() if stat.S_ISREG(mode) else ""
                found[str(path.relative_to(self.root))] = (oct(mode), text)
        return found

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.commands.append(" ".join(argv))
        done = (0, "", "")
        if argv[0] == "systemctl":
            return self.systemctl(list(argv[1:]))
        if argv[0] == "getent":
            known = self.users.get(argv[2]) if argv[1] == "passwd" else (f"{argv[2]}:x:990:\n" if argv[2] in self.groups else None)
            return (0, known, "") if known else (2, "", "")
        if argv[0] == "useradd":
            home, shell = argv[argv.index("--home-dir") + 1], argv[argv.index("--shell") + 1]
            self.users[argv[-1]] = f"{argv[-1]}:x:990:990:gb10.cluster agent:{home}:{shell}\n"
            self.groups.add(argv[-1])
            return done
        if argv[0] == "usermod":
            self.users[argv[-1]] = self.users[argv[-1]].rpartition(":")[0] + f":{argv[2]}\n"
            return done
        if argv[0] == "userdel":
            del self.users[argv[-1]]
            self.groups.discard(argv[-1])
            return done
        if argv[0] == "ssh-keygen" and "-t" in argv:
            where = argv[-1]
            Path(where).write_text("PRIVATE\n")
            Path(where).chmod(0o600)
            Path(f"{where}.pub").write_text(f"{HOST_KEY} {argv[argv.index('-C') + 1]}\n")
            return done
        if argv[0] == "sshd":
            if "privilege separation" in self.sshd_error and self.at("/run/sshd").is_dir():
                self.sshd_error = ""
            return (255, "", self.sshd_error) if self.sshd_error else (0, self.sshd, "") if self.sshd else (127, "", "sshd: command not found")
        if argv[0] == "journalctl":
            return 0, "Traceback\nModuleNotFoundError: nothing\n", ""
        return done if argv[0] in ("pkill", "id") else (127, "", f"{argv[0]}: command not found")

    def systemctl(self, words: list[str]) -> tuple[int, str, str]:
        wants = self.at("/etc/systemd/system/multi-user.target.wants/gb10-agent.service")
        if words[0] == "is-active":
            return (0, "active\n", "") if self.active else (3, "inactive\n", "")
        if words[0] == "is-enabled":
            return (0, "enabled\n", "") if wants.is_symlink() else (1, "disabled\n", "")
        if words[0] == "enable":
            wants.parent.mkdir(exist_ok=True)
            wants.symlink_to("../gb10-agent.service")
        if words[0] in ("start", "restart"):
            self.active = True
            self.put("/run/gb10-agent/admin.sock", "")
            self.put(f"{DIRECTORY}/pair1/agent/events.jsonl", "{}\n")
        if words[0] == "disable":
            self.active = False
            wants.unlink()
            wants.parent.rmdir()
            self.at("/run/gb10-agent/admin.sock").unlink()
            self.at("/run/gb10-agent").rmdir()
        return 0, "", ""

    def call(self, verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        if self.silent:
            raise RankLost("the connection was refused")
        found = json.loads(self.at(config.CONFIG).read_text())
        if verb == "own":
            if self.refusal:
                raise RankError(self.refusal, "refused")
            self.owner = {"group": arguments["group"], "head": arguments["head"]}
            self.put(f"{DIRECTORY}/pair1/agent/owner.json", json.dumps(self.owner))
        return {"group": found["group"], "rank": found["rank"], "owner": self.owner}

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def agent(self, check: bool = False, files: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
        given = {
            "state": "present", "group": {"name": "pair1", "rank": self.rank, "hosts": ["spark-1", "spark-2"], "size": 2}, "directory": DIRECTORY,
            "docker_socket": "/var/run/docker.sock", "head_id": "", "head_key": "", "head_addresses": ["192.168.200.11", "10.0.0.11"], "peers": [],
            "libraries": {}, "takeover": False, "stamp": "", **params,
        }  # fmt: skip
        return Agent(Node(str(self.root), self.run), given, FILES if files is None else files, self.call, check, pause=self.pause, clock=lambda: self.now).run()

    def changed(self, start: int) -> list[str]:
        """Return the commands since `start` that change the services."""
        return [line for line in self.commands[start:] if line.startswith("systemctl") and " is-" not in line]


HEAD: dict[str, Any] = {"head_id": "1" * 32, "head_key": f"{HOST_KEY} gb10-agent pair1"}
PEER = {"rank": 1, "host": "spark-2", "address": "192.168.200.12", "port": 2222, "bind": "192.168.200.11", "host_keys": [HOST_KEY]}
PEERS: dict[str, Any] = {"peers": [PEER]}


@pytest.fixture
def head(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "head", 0)


@pytest.fixture
def worker(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "worker", 1)


@pytest.fixture(params=[0, 1], ids=["head", "worker"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "node", request.param)


def second(machine: Machine) -> dict[str, Any]:
    """Return the options of the second run."""
    return PEERS if machine.rank == 0 else HEAD


def test_first_run_returns_what_the_other_nodes_need_and_does_not_start(node: Machine) -> None:
    result = node.agent()
    assert result["host_keys"] == [HOST_KEY]
    assert (result["head_id"], result["ssh_port"], result["active"], result["changed"]) == (node.id, 2222, False, True)
    assert result["public_key"] == (f"{HOST_KEY} gb10-agent pair1" if node.rank == 0 else "")
    assert not node.at(config.AUTHORIZED).exists()
    assert node.agent()["changed"] is False


def test_second_run_starts_the_service_and_stores_the_owner(node: Machine) -> None:
    node.agent()
    start = len(node.commands)
    result = node.agent(**second(node))
    assert node.changed(start) == [f"systemctl {verb} gb10-agent.service" for verb in ("enable", "start")]
    assert (result["active"], node.owner) == (True, {"group": "pair1", "head": "1" * 32})
    assert not node.at(config.PENDING).exists()


def test_third_and_fourth_run_change_nothing(node: Machine) -> None:
    node.agent()
    node.agent(**second(node))
    before, start = node.tree(), len(node.commands)
    results = [node.agent(), node.agent(**second(node)), node.agent(True), node.agent(True, **second(node))]
    assert [(each["changed"], each["changes"], each["diff"]) for each in results] == [(False, [], [])] * 4
    assert (node.changed(start), node.tree()) == ([], before)


def test_stamp_is_stored_when_the_installation_is_complete(node: Machine) -> None:
    node.agent(stamp="5e1c")
    assert stamp.read(str(node.root)) == {}, "the keys are not exchanged yet"
    node.agent(stamp="5e1d", **second(node))
    assert stamp.read(str(node.root)) == {"stamp": "5e1d", "ssh_port": 2222}
    before = node.tree()
    assert node.agent(stamp="5e1d", **second(node))["changed"] is False
    assert node.tree() == before
    node.agent(True, stamp="5e1e", **second(node))
    assert stamp.read(str(node.root))["stamp"] == "5e1d"
    node.silent = True
    with pytest.raises(InstallError):
        node.agent(stamp="5e1f", files=NEWER, **second(node))
    assert stamp.read(str(node.root)) == {}, "the installation is not complete"


def test_check_mode_writes_nothing_and_predicts_the_changes(node: Machine) -> None:
    runs: list[dict[str, Any]] = [{}, second(node), {**second(node), "files": NEWER}, {"state": "absent"}]
    for given in runs:
        before = node.tree()
        predicted = node.agent(True, **given)
        assert node.tree() == before
        done = node.agent(**given)
        assert predicted["changes"] == done["changes"] != []
        assert predicted["diff"] == done["diff"]


def test_the_head_has_a_key_and_pins_the_worker(head: Machine) -> None:
    head.agent(**PEERS)
    assert stat.S_IMODE(head.at(config.KEYS).stat().st_mode) == 0o700
    assert stat.S_IMODE(head.at(config.KEY).stat().st_mode) == 0o600
    assert head.at(config.KNOWN_HOSTS).read_text() == f"gb10-rank1 {HOST_KEY}\n"
    assert json.loads(head.at(config.CONFIG).read_text()) == {
        "protocol": 1, "group": "pair1", "rank": 0, "hosts": ["spark-1", "spark-2"], "directory": DIRECTORY, "head_id": "1" * 32,
        "docker_socket": "/var/run/docker.sock",
        "peers": [{"rank": 1, "host": "spark-2", "address": "192.168.200.12", "port": 2222, "bind": "192.168.200.11", "user": "gb10-agent"}],
    }  # fmt: skip
    assert json.loads(head.at(config.WATCH_CONFIG).read_text()) == DEFAULTS
    assert stat.S_IMODE(head.at(config.WATCH_CONFIG).stat().st_mode) == 0o600
    assert (head.users, head.at(config.HOME).exists()) == ({}, False)


def test_the_diff_does_not_show_the_private_key(head: Machine) -> None:
    assert "PRIVATE" not in json.dumps(head.agent(**PEERS))
    assert "PRIVATE" not in json.dumps(head.agent(state="absent"))


def test_a_worker_gives_the_heads_key_one_command(worker: Machine) -> None:
    worker.agent(**HEAD)
    line = f'restrict,command="/usr/local/sbin/gb10 connect",from="192.168.200.11,10.0.0.11" {HOST_KEY} gb10-agent pair1\n'
    assert worker.at(config.AUTHORIZED).read_text() == line
    assert [stat.S_IMODE(worker.at(path).stat().st_mode) for path in (config.HOME, config.SSH, config.AUTHORIZED)] == [0o755, 0o755, 0o644]
    (useradd,) = [line for line in worker.commands if line.startswith("useradd")]
    assert "--system" in useradd
    assert "--no-create-home --shell /bin/sh --password *" in useradd
    assert any(line.startswith("sshd -T -C user=gb10-agent,host=spark-1,addr=192.168.200.11") for line in worker.commands)
    assert not worker.at(config.KEYS).exists()


@pytest.mark.parametrize("key", ["ssh-dss AAAA", f'command="sh" {HOST_KEY}', f"{HOST_KEY}\n{HOST_KEY}"])
def test_a_head_key_with_options_is_refused(worker: Machine, key: str) -> None:
    with pytest.raises(KeyLineError, match="SSH public key"):
        worker.agent(**{**HEAD, "head_key": key})


def test_an_address_with_other_characters_is_refused(worker: Machine) -> None:
    before = worker.tree()
    with pytest.raises(KeyLineError, match="address"):
        worker.agent(**HEAD, head_addresses=['10.0.0.1" ssh-rsa'])
    assert worker.tree() == before


def test_wrong_modes_are_corrected(worker: Machine) -> None:
    worker.agent(**HEAD)
    worker.at(config.HOME).chmod(0o775)
    worker.at(config.AUTHORIZED).chmod(0o664)
    result = worker.agent(**HEAD)
    assert [phrase.partition(",")[0] for phrase in result["changes"]] == [f"{config.HOME}: mode 0775", f"{config.AUTHORIZED}: mode 0664"]
    assert stat.S_IMODE(worker.at(config.HOME).stat().st_mode) == 0o755
    assert worker.agent(**HEAD)["changed"] is False


def test_a_shell_that_refuses_logins_is_corrected(worker: Machine) -> None:
    worker.agent(**HEAD)
    worker.users["gb10-agent"] = "gb10-agent:x:990:990::/var/lib/gb10-agent:/usr/sbin/nologin\n"
    assert worker.agent(**HEAD)["changes"] == ["user gb10-agent: shell /usr/sbin/nologin -> /bin/sh"]


def test_a_user_of_the_same_name_with_another_home_is_refused(worker: Machine) -> None:
    worker.users["gb10-agent"] = "gb10-agent:x:1000:1000::/home/gb10-agent:/bin/bash\n"
    with pytest.raises(InstallError, match="exists with the home /home/gb10-agent"):
        worker.agent(**HEAD)


def test_an_update_switches_restarts_and_keeps_the_previous_version(node: Machine) -> None:
    first = node.agent(**second(node))["version"]
    start = len(node.commands)
    result = node.agent(files=NEWER, **second(node))
    assert result["changes"] == [f"agent {first} -> {result['version']}", "gb10-agent.service restarted"]
    assert node.changed(start) == ["systemctl restart gb10-agent.service"], "a daemon-reload can take the GPU away from containers"
    third = node.agent(files=NEWEST, **second(node))["version"]
    assert sorted(path.name for path in node.at(config.CODE).iterdir()) == sorted([third, result["version"], "current"])
    assert os.readlink(node.at(config.CURRENT)) == third
    assert re.fullmatch(r"[0-9a-f]{12}", third)
    assert stat.S_IMODE(node.at(f"{config.CURRENT}/ansible_collections/new.py").stat().st_mode) == 0o644


def test_a_changed_unit_is_loaded_and_the_service_restarted(node: Machine) -> None:
    node.agent(**second(node))
    node.put(config.UNIT_FILE, unit.UNIT_TEXT.replace("-900", "0"))
    start = len(node.commands)
    assert node.agent(**second(node))["changes"] == [f"{config.UNIT_FILE} updated", "gb10-agent.service restarted"]
    assert node.changed(start) == ["systemctl daemon-reload", "systemctl restart gb10-agent.service"]


def test_the_unit_bounds_the_agent_and_survives_a_command_that_the_kernel_ends(node: Machine) -> None:
    node.agent(**second(node))
    text = node.at(config.UNIT_FILE).read_text()
    for line in ("MemoryMax=2G", "TasksMax=512", "OOMPolicy=continue", "OOMScoreAdjust=-900"):
        assert f"\n{line}\n" in text


def test_a_damaged_version_is_written_again(node: Machine) -> None:
    version = node.agent(**second(node))["version"]
    path = f"{config.CODE}/{version}/ansible_collections/gb10/cluster/plugins/module_utils/_agent/cli.py"
    node.at(path).write_text("")
    assert node.agent(**second(node))["changes"] == [f"agent {version} repaired", "gb10-agent.service restarted"]
    assert node.at(path).read_text() == FILES[path.split(f"{version}/")[1]]
    assert sorted(each.name for each in node.at(config.CODE).iterdir()) == sorted([version, "current"])


def test_a_run_that_was_cut_short_is_repaired(node: Machine) -> None:
    node.agent(**second(node))
    node.silent = True
    with pytest.raises(InstallError, match="does not answer"):
        node.agent(files=NEWER, **second(node))
    node.put(f"{config.CODE}/.new-01234567/x.py", "")
    node.silent = False
    assert node.agent(files=NEWER, **second(node))["changes"] == ["gb10-agent.service restarted"]
    assert node.agent(files=NEWER, **second(node))["changed"] is False
    node.agent(files=NEWEST, **second(node))
    assert not node.at(f"{config.CODE}/.new-01234567").exists()


def test_a_service_that_does_not_answer_fails_with_its_log(node: Machine) -> None:
    node.silent = True
    with pytest.raises(InstallError, match=r"does not answer 30 s after its start \(the connection was refused\)[^|]*ModuleNotFoundError"):
        node.agent(**second(node))
    assert 30 <= node.now < 31


def test_a_stopped_service_is_started(node: Machine) -> None:
    node.agent(**second(node))
    node.active = False
    assert node.agent(**second(node))["changes"] == ["gb10-agent.service started"]


def test_another_owner_is_the_services_sentence(node: Machine) -> None:
    node.refusal = "spark-2 is owned by the group other. Run site.yml with -e takeover=true."
    with pytest.raises(InstallError, match=re.escape(node.refusal)):
        node.agent(**second(node))
    node.refusal = ""
    assert node.agent(**second(node), takeover=True)["changes"] == [f"owner: none -> group pair1, head {'1' * 32}"]


def test_ranks_can_be_swapped(head: Machine) -> None:
    head.agent(**PEERS)
    head.rank = 1
    group = {"name": "pair1", "rank": 1, "hosts": ["spark-2", "spark-1"], "size": 2}
    head.agent(group=group, **{**HEAD, "head_id": "2" * 32})
    assert not head.at(config.KEYS).exists()
    assert head.at(config.AUTHORIZED).exists()
    head.rank = 0
    head.agent(group={**group, "rank": 0, "hosts": ["spark-1", "spark-2"]}, **PEERS)
    assert (head.users, head.groups, head.at(config.HOME).exists()) == ({}, set(), False)


def test_absent_leaves_the_node_as_it_was(node: Machine) -> None:
    before = node.tree()
    node.agent()
    node.agent(**second(node))
    node.agent(files=NEWER, **second(node))
    node.put(f"{DIRECTORY}/pair1/evidence/boot/rank0-spark-1.txt", "x")
    result = node.agent(state="absent", group={}, files={})
    assert (result["changed"], result["active"], node.tree(), node.users, node.groups) == (True, False, before, {}, set())
    again = node.agent(state="absent", group={}, files={})
    assert (again["changed"], again["diff"], node.tree()) == (False, [], before)


def test_absent_keeps_releases_records_and_files_of_others(node: Machine) -> None:
    kept = {f"{DIRECTORY}/pair1/releases/abc/compose.yaml": "c", "/var/lib/gb10-cluster/docker.json": "{}", "/etc/gb10-cluster/site.json": "{}"}
    for path, text in kept.items():
        node.put(path, text)
    before = node.tree()
    node.agent(**second(node))
    node.agent(state="absent")
    assert node.tree() == before


def test_a_launcher_and_a_unit_of_others_stay(node: Machine) -> None:
    node.put(config.LAUNCHER, "#!/bin/sh\n")
    with pytest.raises(InstallError, match="/usr/local/sbin/gb10 exists and is not managed by gb10"):
        node.agent()
    node.put(config.UNIT_FILE, "[Service]\n")
    node.agent(state="absent")
    assert (node.at(config.LAUNCHER).read_text(), node.at(config.UNIT_FILE).read_text()) == ("#!/bin/sh\n", "[Service]\n")


LINKS = ["/opt/gb10-cluster", config.CODE, "/etc/gb10-cluster", config.HOME, config.SSH, config.LAUNCHER, config.UNIT_FILE, config.CONFIG]


@pytest.mark.parametrize("path", LINKS)
def test_a_link_in_place_of_a_directory_or_file_is_refused(worker: Machine, tmp_path: Path, path: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    worker.at(path).parent.mkdir(parents=True, exist_ok=True)
    worker.at(path).symlink_to(tmp_path / "elsewhere")
    for given in (HEAD, {}):
        with pytest.raises(InstallError, match=f"^{re.escape(path)} is a symbolic link"):
            worker.agent(**given)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("path", ["/opt/gb10-cluster", config.CODE, config.HOME, config.RUN, f"{DIRECTORY}/pair1", f"{DIRECTORY}/pair1/evidence"])
def test_absent_does_not_follow_a_link(worker: Machine, tmp_path: Path, path: str) -> None:
    (tmp_path / "elsewhere/agent").mkdir(parents=True)
    worker.at(path).parent.mkdir(parents=True, exist_ok=True)
    worker.at(path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InstallError, match=f"^{re.escape(path)} is a symbolic link"):
        worker.agent(state="absent")
    assert (tmp_path / "elsewhere/agent").is_dir()


def test_a_version_directory_that_is_a_link_is_refused(worker: Machine, tmp_path: Path) -> None:
    version = worker.agent(**HEAD)["version"]
    worker.agent(files=NEWER, **HEAD)
    shutil.rmtree(worker.at(f"{config.CODE}/{version}"))
    worker.at(f"{config.CODE}/{version}").symlink_to(tmp_path)
    with pytest.raises(InstallError, match="is a symbolic link"):
        worker.agent(**HEAD)


def test_sshd_settings_that_exclude_the_user_fail_before_anything_is_written(worker: Machine) -> None:
    worker.sshd = worker.sshd.replace("pubkeyauthentication yes", "pubkeyauthentication no\nallowusers admin")
    before = worker.tree()
    with pytest.raises(InstallError) as caught:
        worker.agent(**HEAD)
    assert [problem.split(" for user")[0] for problem in caught.value.problems] == ["sshd has PubkeyAuthentication no", "sshd has AllowUsers admin"]
    assert worker.tree() == before


def test_a_worker_without_a_working_sshd_is_refused(worker: Machine) -> None:
    worker.sshd = ""
    with pytest.raises(InstallError, match="install the package openssh-server"):
        worker.agent(**HEAD)
    worker.sshd_error = "/etc/ssh/sshd_config: line 3: Bad configuration option: Prot"
    with pytest.raises(InstallError, match=r"sshd -T failed on this node: .* Bad configuration option: Prot\. Correct /etc/ssh/sshd_config"):
        worker.agent(**HEAD)


def test_sshd_with_socket_activation_gets_its_run_directory(worker: Machine) -> None:
    worker.sshd_error = "Missing privilege separation directory: /run/sshd"
    before = worker.tree()
    assert worker.agent(True, **HEAD)["changed"]
    assert worker.tree() == before
    assert worker.agent(**HEAD)["ssh_port"] == 2222


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": {}}, "group needs name, rank and hosts"),
        ({"group": {"name": "../x", "rank": 0, "hosts": ["a"]}}, "not a valid name"),
        ({"group": {"name": "pair1", "rank": 2, "hosts": ["a", "b"]}}, "do not agree"),
        ({"peers": [{**PEER, "rank": 2}]}, r"peers has the ranks \[2\]. Give ranks 1 to 1, each once"),
    ],
)
def test_an_invalid_group_or_list_of_workers_is_refused(head: Machine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InstallError, match=message):
        head.agent(**options)


def test_a_worker_without_new_host_keys_keeps_the_pinned_ones(head: Machine) -> None:
    head.agent(**PEERS)
    assert head.agent(peers=[{**PEER, "host_keys": []}])["changed"] is False


def test_a_node_without_an_id_is_refused(head: Machine) -> None:
    head.put("/etc/machine-id", "uninitialized\n")
    with pytest.raises(InstallError, match="systemd-machine-id-setup"):
        head.agent()


def test_the_installed_tree_needs_nothing_but_python(head: Machine) -> None:
    files = with_libraries(collect(PARTS), {"jmespath/__init__.py": "name = 'jmespath'\n"})
    assert not [path for path in files if "/ansible/" in path]
    head.agent(files=files)
    code = f"""
import sys
sys.path.insert(0, {str(head.at(config.CURRENT))!r})
import {ROOT}._agent.cli, jmespath
assert {str(head.root)!r} in {ROOT}._agent.cli.__file__
assert not [name for name in sys.modules if name.split(".")[0] == "ansible"]
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_settings_of_the_watch_are_checked_and_the_metrics_removed(head: Machine) -> None:
    with pytest.raises(InstallError, match=r"restart of the watch|restart is not a setting of the watch"):
        head.agent(**PEERS, watch={"restart": 3})
    assert not head.at(config.CONFIG).exists()
    head.agent(**PEERS, watch={"textfile": "/var/metrics"}, webhook="https://example.org/T0K3N")
    assert "T0K3N" not in head.at(config.CONFIG).read_text()
    assert config.load(str(head.at(config.CONFIG)))["watch"]["webhook"] == "https://example.org/T0K3N"
    metrics = head.at("/var/metrics/gb10_pair1.prom")
    metrics.parent.mkdir(parents=True)
    metrics.write_text("gb10_rank_running 1\n")
    head.agent(state="absent")
    assert list(metrics.parent.iterdir()) == []
