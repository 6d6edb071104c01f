"""From nothing to a served pair, as README.md has it: its own code blocks, word for word, by a user with a password and no SSH key.

Mapped are the URL of the clone (to this checkout), the folder of .venv (to the one that is there: an installation takes a minute of CI),
`make test` (it is the suite that this test is part of), and the login nvidia@192.168.1.11 (to that of the head of the lab).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
import yaml
from container_lab import Lab, bring_up
from playbook import REPO

USER = "newcomer"
HEAD, WORKER = "172.30.70.11", "172.30.70.12"
BOOT_SECONDS = 600
# What the user of a real pair does not need: values of nodes that are containers, and the profile of the lab.
LAB_VALUES = yaml.safe_load((REPO / "inventories/lab/group_vars/gb10.yml").read_text(encoding="utf-8"))
OWN = ("ansible_", "lab_dir", "gb10_profile", "gb10_model_store", "gb10_lock_file")


def blocks() -> list[str]:
    """Return the shell blocks of README.md in order."""
    return re.findall(r"^```sh\n(.*?)^```$", (REPO / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Newcomer:
    """A controller with an empty home: no key, no known host. OpenSSH takes its home from the account, so its programs get the files by -F."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.password, self.seen = folder, folder / "home", secrets.token_hex(8), ""
        self.hooks, programs = folder / "hooks", folder / "bin"
        for path in (self.home / ".ssh", self.hooks, programs):
            path.mkdir(parents=True)
        own = [f"UserKnownHostsFile {self.home}/.ssh/known_hosts", f"IdentityFile {self.home}/.ssh/id_ed25519", "IdentitiesOnly yes"]
        config = "\n".join([f"Host spark-1\n  HostName {HEAD}\n  User {USER}", "Host *", *(f"  {line}" for line in own)])
        (self.home / ".ssh/config").write_text(config + "\n", encoding="utf-8")
        scripts = {
            "ssh": f'printf "%s\\n" "$@" >>{folder}/calls; env >>{folder}/calls\nexec {shutil.which("ssh")} -F {self.home}/.ssh/config "$@"',
            "curl": f'exec {shutil.which("curl")} --silent --resolve spark-1:8000:{HEAD} "$@"',
            "make": f'[ "$1" = test ] || exec {shutil.which("make")} "$@"',
        }
        for name, script in scripts.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (self.hooks / "post-checkout").write_text(f"#!/bin/sh\nln -s {REPO}/.venv .venv\n", encoding="utf-8")
        for path in (*programs.iterdir(), *self.hooks.iterdir()):
            path.chmod(0o755)
        git = {"safe.directory": "*", f"url.{REPO}.insteadOf": "https://github.com/gb10-cluster/gb10.cluster.git", "core.hooksPath": str(self.hooks)}
        self.env = {
            **{key: value for key, value in os.environ.items() if key not in ("SSH_AUTH_SOCK", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")},
            "HOME": str(self.home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb", "ANSIBLE_NOCOLOR": "1",
            "GB10_LAB_DIR": os.environ.get("GB10_LAB_DIR") or str(REPO / ".lab"), "GIT_CONFIG_COUNT": str(len(git)),
            **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(git)},
            **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(git.values())},
        }  # fmt: skip

    def shell(self, block: str, cwd: Path, answers: dict[str, str], seconds: int = BOOT_SECONDS, **env: str) -> str:
        """Type a block into a shell on a terminal, answer each question that is asked, and return the screen."""
        screen, start = pexpect.spawn("bash", ["-euc", block], cwd=str(cwd), env={**self.env, **env}, encoding="utf-8", timeout=seconds), len(self.seen)
        with (self.folder / "screen").open("a", encoding="utf-8") as log:
            screen.logfile_read = log
            while (found := screen.expect([pexpect.EOF, *answers])) > 0:
                screen.send(list(answers.values())[found - 1] + "\r")
        screen.close()
        self.seen = (self.folder / "screen").read_text(encoding="utf-8")
        assert screen.exitstatus == 0, self.seen[-6000:]
        return self.seen[start:]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """The lab with the real engine: that is what `make demo` serves."""
    bring_up(2)
    return Lab(REPO / "inventories/lab", tmp_path)


@pytest.fixture
def newcomer(lab: Lab, tmp_path: Path) -> Iterator[Newcomer]:
    """A user of both nodes who logs in with a password, and may use sudo without one."""
    found = Newcomer(tmp_path)
    rule = f"Match User {USER}\\n  PasswordAuthentication yes\\n"
    for node in (1, 2):
        lab.on(node, f"userdel -rf {USER} 2>/dev/null; useradd -m -s /bin/bash {USER} && echo '{USER}:{found.password}' | chpasswd")
        lab.on(node, f"echo '{USER} ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/92-{USER}; chmod 440 /etc/sudoers.d/92-{USER}")
        lab.on(node, f"printf '{rule}' >/etc/ssh/sshd_config.d/20-{USER}.conf; systemctl reload ssh")
    yield found
    for node in (1, 2):
        lab.on(
            node,
            f"pkill -u {USER}; sleep 0.2; userdel -rf {USER}; rm -f /etc/sudoers.d/92-{USER} /etc/ssh/sshd_config.d/20-{USER}.conf; systemctl reload ssh",
            check=False,
        )


def test_the_blocks_of_the_readme_lead_from_nothing_to_a_served_pair(lab: Lab, newcomer: Newcomer, tmp_path: Path) -> None:
    demo, pair, _galaxy = blocks()
    assert demo.startswith("git clone https://github.com/gb10-cluster/gb10.cluster.git")
    assert "make pair" in pair
    newcomer.shell(demo, tmp_path, {})
    clone = tmp_path / "gb10.cluster"
    assert lab.complete() == (200, " Paris."), "make demo serves"
    removed = lab.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_state": "absent"})
    assert removed.rc == 0, removed.stdout[-3000:]
    assert lab.gone()

    mine = clone / "inventories/mine"
    values = {key: value for key, value in LAB_VALUES.items() if not key.startswith(OWN) or key == "gb10_profiles"}
    values["gb10_lock_file"] = str(tmp_path / "lock.yml")
    (mine / "group_vars").mkdir(parents=True)
    (mine / "group_vars/all.yml").write_text(yaml.safe_dump(values), encoding="utf-8")
    (tmp_path / "profiles.yml").write_text(yaml.safe_dump({"gb10_profiles": values["gb10_profiles"]}), encoding="utf-8")
    fingerprint = lab.on(1, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    answers = {
        r"first Spark[^\r]*:\r": HEAD,
        r"second Spark[^\r]*:\r": WORKER,
        r"Login on both[^\r]*:\r": USER,
        r"yes/no/\[fingerprint\][^\r]*:\r": "yes",
        r"Make an SSH key[^\r]*:\r": "",
        r"newcomer@[^\r]*password:\r": newcomer.password,
        r"Profile, its number[^\r]*:\r": "lab-tiny",
        r"Folder of the model[^\r]*:\r": "",
        r"Write it\?[^\r]*:\r": "",
    }
    screen = newcomer.shell(pair.replace("nvidia@192.168.1.11", f"{USER}@{HEAD}"), clone, answers, SETUP=f"-e @{tmp_path / 'profiles.yml'}")

    assert fingerprint in screen, "the fingerprint that the machine itself prints"
    assert "pair1 serves" in screen
    assert '"id":"lab-tiny"' in screen.replace('": "', '":"'), "the models that curl shows"
    assert lab.complete() == (200, " Paris.")
    hosts = yaml.safe_load((mine / "hosts.yml").read_text(encoding="utf-8"))["gb10"]["children"]["pair1"]["hosts"]
    assert hosts == {"lab-1": {"ansible_host": HEAD}, "lab-2": {"ansible_host": WORKER}}
    assert len((newcomer.home / ".ssh/known_hosts").read_text(encoding="ascii").splitlines()) == 2
    no_trace_of(newcomer)


def no_trace_of(newcomer: Newcomer) -> None:
    """The password is not on the screen, in an argument or the environment of ssh, or in a file."""
    files = [path for path in newcomer.folder.rglob("*") if path.is_file() and not path.is_symlink() and ".git" not in path.parts]
    assert newcomer.folder / "calls" in files
    assert newcomer.folder / "screen" in files
    assert [str(path) for path in files if newcomer.password.encode() in path.read_bytes()] == []
    assert "StrictHostKeyChecking=no" not in (newcomer.folder / "calls").read_text(encoding="utf-8", errors="replace")
