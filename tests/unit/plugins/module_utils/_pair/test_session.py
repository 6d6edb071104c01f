"""Sessions to the ranks, end to end with a fake ssh that runs the real forced command against a real service."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol, session
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._pair.service import Service
from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer, Session, ssh_argv
from unit.fixtures.agent.wire import FakeRank, configuration, descriptors, fake_ssh, until

LIMIT = 30.0


class Wire:
    """A worker's service, and a session to it."""

    def __init__(self, folder: Path) -> None:
        self.rank, self.wakes = FakeRank(), threading.Semaphore(0)
        self.service = Service(configuration(folder, rank=1), run_dir=str(folder / "run"), rank=self.rank)
        self.service.start()
        self.peer = Peer(configuration(folder)["peers"][0], "pair1", "a1b2c3", self.wakes.release, keys_dir=str(folder), run_dir=str(folder))
        self.log = folder / "ssh.log"

    def pids(self) -> list[int]:
        return [int(word) for word in self.log.read_text().split()] if self.log.exists() else []

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return self.peer.begin(verb, LIMIT, **arguments).result()


@pytest.fixture
def wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    fake_ssh(monkeypatch, tmp_path, tmp_path / "run/session.sock")
    found = Wire(tmp_path)
    yield found
    found.service.close()


def test_argv_pins_the_host_key_and_uses_no_other_configuration() -> None:
    peer = {"rank": 1, "host": "lab-2", "address": "192.168.200.12", "port": 2222, "bind": "192.168.200.11", "user": "gb10-agent"}
    argv = ssh_argv(peer, "/keys", "/run/x")
    assert argv[:3] == ["ssh", "-F", "/dev/null"]
    assert argv[-5:] == ["-b", "192.168.200.11", "-p", "2222", "gb10-agent@192.168.200.12"]
    options = [argv[index + 1] for index, word in enumerate(argv) if word == "-o"]
    expected = {
        "BatchMode=yes", "IdentitiesOnly=yes", "UserKnownHostsFile=/keys/known_hosts", "StrictHostKeyChecking=yes", "HostKeyAlias=gb10-rank1",
        "ControlMaster=auto", "ControlPath=/run/x/control-1", "ControlPersist=60", "ConnectTimeout=10",
    }  # fmt: skip
    assert expected <= set(options)
    assert argv[argv.index("-i") + 1] == "/keys/id_ed25519"
    assert "ControlMaster=no" in ssh_argv(peer, "/keys", "/run/x", master=False)


def test_fills_the_envelope_and_wakes_the_actor(wire: Wire) -> None:
    wire.peer.generation = 7
    result = wire.ask("engine", release="abc", timeout=3)
    assert result["request"] == {
        "v": protocol.PROTOCOL, "verb": "engine", "group": "pair1", "head": "a1b2c3", "generation": 7, "release": "abc", "timeout": 3,
    }  # fmt: skip
    assert wire.wakes.acquire(timeout=LIMIT)
    assert wire.rank.requests[0]["local"] is False


def test_carries_large_requests_and_replies(wire: Wire) -> None:
    text = "x" * (protocol.MAX_LINE - 1000)
    assert len(wire.ask("record", receipt=text)["request"]["receipt"]) == len(text)


def test_a_verb_that_fails_is_the_error_of_a_rank_that_answers(wire: Wire) -> None:
    wire.rank.answers["start"] = lambda _request: protocol.failure("Another head owns lab-2.", "refused")
    with pytest.raises(RankError, match=r"^Another head owns lab-2\.$") as raised:
        wire.ask("start", release="abc")
    assert raised.value.kind == "refused"


def test_the_head_has_only_the_verbs_of_the_session(wire: Wire) -> None:
    for verb in ("stop_here", "hold", "own", "desire", "state", "__init__"):
        with pytest.raises(RankError, match=r"is not available to the head") as raised:
            wire.ask(verb)
        assert raised.value.kind == "unknown"
    assert wire.rank.requests == []


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        ("gb10-agent@192.168.200.12: Permission denied (publickey).\r\n", "Permission denied (publickey)"),
        ("No ED25519 host key is known for gb10-rank1 and you have requested strict checking.\r\nHost key verification failed.\r\n",
         "Host key verification failed"),
        ("ssh: connect to host 192.168.200.12 port 22: Connection timed out\r\n", "Connection timed out"),
        ("ssh: connect to host 192.168.200.12 port 22: No route to host\r\n", "No route to host"),
        ("connect failed: /run/gb10-agent/session.sock: Connection refused\n", "connect failed: /run/gb10-agent/session.sock: Connection refused"),
        ("Something new.\n", "Something new"),
        ("\n", "its connection over the rail has ended, exit code 255 of ssh"),
    ],
)  # fmt: skip
def test_a_failed_connection_is_a_lost_rank_with_its_cause(wire: Wire, monkeypatch: pytest.MonkeyPatch, stderr: str, cause: str) -> None:
    monkeypatch.setenv("FAKE_SSH_MODE", stderr)
    with pytest.raises(RankLost) as raised:
        wire.ask("hello")
    assert str(raised.value) == cause


def test_a_worker_without_its_agent_is_a_lost_rank(wire: Wire) -> None:
    wire.service.close()
    with pytest.raises(RankLost, match=r"^connect failed: .*/session\.sock: No such file or directory$"):
        wire.ask("hello")


@pytest.mark.parametrize("mode", ["die", "banner"])
def test_an_answer_that_is_not_a_reply_is_a_lost_rank(wire: Wire, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("FAKE_SSH_MODE", mode)
    with pytest.raises(RankLost):
        wire.ask("hello")


def test_kills_ssh_when_the_time_is_over(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SSH_MODE", "silent")
    with pytest.raises(RankLost, match=r"^no reply within 0\.\d+ s$"):
        wire.peer.begin("hello", 0.1).result()
    monkeypatch.setenv("FAKE_SSH_MODE", "")
    assert all(not Path(f"/proc/{pid}").exists() for pid in wire.pids())
    assert wire.ask("hello")["request"]["verb"] == "hello"


def test_ssh_that_dies_during_a_call_is_a_lost_rank(wire: Wire) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def block(_request: Mapping[str, Any]) -> dict[str, Any]:
        begun.set()
        return protocol.success({"late": go_on.wait(LIMIT)})

    wire.rank.answers["slice"] = block
    job = wire.peer.begin("slice", LIMIT)
    assert begun.wait(LIMIT)
    assert not job.done()
    os.kill(wire.pids()[0], signal.SIGKILL)
    with pytest.raises(RankLost, match="exit code -9"):
        job.result()
    go_on.set()
    assert wire.ask("hello")["request"]["verb"] == "hello"


def test_a_reply_longer_than_the_limit_is_refused(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.service._listeners[1], "answer", lambda _line: b"x" * (protocol.MAX_LINE + 10))
    with pytest.raises(RankLost, match="longer than 8388608 bytes"):
        wire.ask("hello")


def test_leaks_no_descriptors_and_no_processes(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    for mode in ["", "Permission denied (publickey)"] * 8:
        monkeypatch.setenv("FAKE_SSH_MODE", mode)
        job = wire.peer.begin("hello", LIMIT)
        if mode:
            with pytest.raises(RankLost):
                job.result()
        else:
            job.result()
    until(lambda: descriptors() == before)
    assert not any(Path(f"/proc/{pid}").exists() for pid in wire.pids())


def local(handle: Callable[[dict[str, Any]], dict[str, Any]], wake: Callable[[], None] = lambda: None) -> Session:
    return Session(0, "lab-1", "pair1", "a1b2c3", lambda request, _timeout: handle(request), wake)


def test_rank_0_is_lost_if_its_verb_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GRACE", 0.0)
    go_on = threading.Event()
    job = local(lambda _request: protocol.success({"late": go_on.wait(LIMIT)})).begin("look", 0.05)
    with pytest.raises(RankLost, match=r"^no reply within 0\.05 s$"):
        job.result()
    assert job.done()
    go_on.set()


# --- What the output of `sshd -T -C` means for the head's key.

USUAL = """port 22
addressfamily any
listenaddress [::]:22
permitrootlogin without-password
pubkeyauthentication yes
passwordauthentication no
authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2
authenticationmethods any
chrootdirectory none
forcecommand none
pubkeyacceptedalgorithms ssh-ed25519-cert-v01@openssh.com,ssh-ed25519,rsa-sha2-512
subsystem sftp /usr/lib/openssh/sftp-server
"""
ARGUMENTS: dict[str, Any] = {"groups": ["gb10-agent"], "host": "spark-1", "address": "192.168.200.11"}


def problems(*lines: str, without: str = "") -> list[str]:
    kept = [line for line in USUAL.splitlines() if not (without and line.startswith(without))]
    return session.sshd_problems("\n".join([*kept, *lines]) + "\n", **ARGUMENTS)


ALLOWED = {
    "factory default": [],
    "the user": ["allowusers admin", "allowusers gb10-agent"],
    "several in one line": ["allowusers admin gb10-agent"],
    "a pattern": ["allowusers gb10-*"],
    "the user from the rail": ["allowusers gb10-agent@192.168.200.0/24"],
    "the user from the address": ["allowusers gb10-agent@192.168.200.*"],
    "the user from the host": ["allowusers *@Spark-?"],
    "another user from anywhere": ["denyusers gb10-agent2", "denyusers guest@*"],
    "the user from another network": ["denyusers gb10-agent@10.0.0.0/8"],
    "the group": ["allowgroups sudo", "allowgroups gb10-*"],
    "another group": ["denygroups guests"],
    "fewer sessions": ["maxsessions 4"],
}


@pytest.mark.parametrize("lines", ALLOWED.values(), ids=ALLOWED.keys())
def test_settings_that_let_the_head_in(lines: list[str]) -> None:
    assert problems(*lines) == []


REFUSED = {
    "keys are off": (["pubkeyauthentication no"], "pubkeyauthentication", "PubkeyAuthentication no", "Set PubkeyAuthentication yes in a block"),
    "other users": (["allowusers admin", "allowusers root"], "", "AllowUsers admin root", "Add gb10-agent to AllowUsers"),
    "the user from elsewhere": (["allowusers gb10-agent@10.0.0.0/8"], "", "AllowUsers gb10-agent@10.0.0.0/8", "Add gb10-agent to AllowUsers"),
    "denied": (["denyusers gb10-*"], "", "DenyUsers gb10-*", "Change DenyUsers so that it does not match gb10-agent"),
    "other groups": (["allowgroups sudo"], "", "AllowGroups sudo", "Add the group gb10-agent to AllowGroups"),
    "denied group": (["denygroups *"], "", "DenyGroups *", "Change DenyGroups so that it does not match the group gb10-agent"),
    "keys elsewhere": (["authorizedkeysfile /etc/ssh/keys/%u"], "authorizedkeysfile", "AuthorizedKeysFile /etc/ssh/keys/%u", "Add .ssh/authorized_keys"),
    "no key files": (["authorizedkeysfile none"], "authorizedkeysfile", "AuthorizedKeysFile none", "Add .ssh/authorized_keys"),
    "a command": (["forcecommand internal-sftp"], "forcecommand", "ForceCommand internal-sftp", "Set ForceCommand none in a block Match User gb10-agent"),
    "a root": (["chrootdirectory /srv/%u"], "chrootdirectory", "ChrootDirectory /srv/%u", "Set ChrootDirectory none"),
    "two factors": (["authenticationmethods publickey,password"], "authenticationm", "AuthenticationMethods publickey,", "Set AuthenticationMethods"),
    "refused": (["refuseconnection yes"], "", "RefuseConnection yes", "Set RefuseConnection no"),
    "key types": (["pubkeyacceptedalgorithms rsa-sha2-512"], "pubkeyaccepted", "PubkeyAcceptedAlgorithms rsa-sha2-512", "Add ssh-ed25519"),
}


@pytest.mark.parametrize(("lines", "without", "found", "remedy"), REFUSED.values(), ids=REFUSED.keys())
def test_settings_that_keep_the_head_out(lines: list[str], without: str, found: str, remedy: str) -> None:
    (problem,) = problems(*lines, without=without)
    assert problem.startswith(f"sshd has {found}")
    assert f" for user gb10-agent from spark-1 (192.168.200.11). {remedy}" in problem
    assert problem.endswith(" in /etc/ssh/sshd_config, and reload sshd.")


def test_every_violation_is_reported() -> None:
    assert len(problems("pubkeyauthentication no", "allowusers admin", "denygroups gb10-agent", without="pubkeyauthentication")) == 3


def test_the_command_of_the_agent_in_a_match_block_lets_the_head_in() -> None:
    """`Match User gb10-agent` with its own values: sshd -T prints the effective ones only."""
    assert problems("forcecommand /usr/local/sbin/gb10 connect", without="forcecommand") == []


@pytest.mark.parametrize(("text", "port"), [(USUAL, 22), ("port 2222\nport 22\n", 2222), ("", 22), ("port 0\n", 22), ("Port 2022\n", 2022)])
def test_the_port(text: str, port: int) -> None:
    assert session.sshd_port(text) == port


@pytest.mark.parametrize(("verb", "wrong"), [("hello", {}), ("watch", {"hello": {}}), ("halt", {"left": "x"}), ("look", {"containers": []})])
def test_a_reply_of_another_type_is_refused(verb: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(RankError, match=f"its reply to {verb} has no valid"):
        session.checked(verb, wrong)
