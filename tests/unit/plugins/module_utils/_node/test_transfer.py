"""A copy over the fabric: the files and scripts of both units. The script of the fetching end runs for real; only rsync is a stand-in, without a network."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import Job, JobError

#: Copies from the folder of the way, as rsync does with these options. A way without a folder is a rail without a link.
RSYNC = f"""#!{sys.executable}
import os, sys
way, sources = sys.argv[-2].partition(":")[0], os.environ["SOURCES"]
names = next(word for word in sys.argv if word.startswith("--files-from=")).partition("=")[2]
source = os.path.join(sources, way)
print(" ".join(sys.argv[1:]), file=open(os.path.join(sources, "calls"), "a"))
if not os.path.isdir(source):
    sys.exit("ssh: connect to host 192.168.200.11 port 5: Connection refused\\nrsync error: unexplained error (code 255) at io.c(232)")
moved = 0
for name in open(names, "rb").read().decode().split("\\0")[:-1]:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    if os.path.islink(os.path.join(source, name)):
        os.symlink(os.readlink(os.path.join(source, name)), name)
        continue
    data = open(os.path.join(source, name), "rb").read()
    have = open(name, "rb").read() if os.path.exists(name) else b""
    moved += len(data) - len(os.path.commonprefix([have, data]))
    open(name, "wb").write(data)
print("Literal data: %d bytes" % moved)
"""
NAMES = {"a.safetensors": b"a" * 3000, "sub/it's b.json": b"{}", "back\\slash": b"x", "-dash": b"y"}
PLACES = {"listen": [{"address": "192.168.200.11", "port": 5}, {"address": "fd00::11", "port": 5}], "host_key": "ssh-ed25519 HOST"}


class Copy:
    """One copy of NAMES and a link: the files of the job, the staging folder, the folder of the model, and what the other rank has."""

    def __init__(self, path: Path) -> None:
        self.folder, self.staging, self.sources, self.target = path / "job", path / "staging", path / "sources", path / "it's m"
        for each in (self.folder, self.staging, self.sources, path / "bin"):
            each.mkdir()
        (path / "bin/rsync").write_text(RSYNC)
        (path / "bin/rsync").chmod(0o755)
        self.path = f"{path / 'bin'}:{os.environ['PATH']}"

    def offer(self, *ways: str) -> None:
        for way in ways:
            for name, data in NAMES.items():
                (self.sources / way / name).parent.mkdir(parents=True, exist_ok=True)
                (self.sources / way / name).write_bytes(data)
            (self.sources / way / "link").symlink_to("a.safetensors")

    def run(self) -> tuple[int, str]:
        parts = transfer.shares({**{name: len(data) for name, data in NAMES.items()}, "link": 0}, 2)
        transfer.prepare(str(self.folder), transfer.client_files(str(self.folder), parts, PLACES, ["192.168.200.12", "fd00::12"]))
        owner = f"{os.geteuid()}:{os.getegid()}"
        script = transfer.client_script(str(self.folder), str(self.staging), str(self.target), owner, len(parts), 2)
        script = script.replace("sleep 1", ":").replace("sync -d", "true")
        done = subprocess.run(
            ["sh", "-c", script], env={"PATH": self.path, "SOURCES": str(self.sources)}, capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout + done.stderr

    def calls(self) -> list[str]:
        return (self.sources / "calls").read_text().splitlines()

    def arrived(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.target)): path.read_bytes() for path in self.target.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


BOTH, SIZE = ("rail0", "rail1"), sum(map(len, NAMES.values()))
#: name: (rails with a link, what an earlier run left of the first file, the bytes that the copy moves)
COPIES: dict[str, tuple[tuple[str, ...], bytes, int]] = {
    "over both rails": (BOTH, b"", SIZE),
    "an interrupted one goes on where it stopped": (BOTH, b"a" * 2000, SIZE - 2000),
    "over the rail that has a link": (("rail1",), b"", SIZE),
}


@pytest.mark.parametrize(("rails", "part", "moved"), COPIES.values(), ids=COPIES.keys())
def test_a_copy_arrives_over_the_rails_and_reports_what_it_moved(copy: Copy, rails: tuple[str, ...], part: bytes, moved: int) -> None:
    copy.offer(*rails)
    (copy.target / "sub").mkdir(parents=True)
    (copy.target / "-dash").write_text("an older one")
    if part:
        (copy.staging / "a.safetensors").write_bytes(part)
    code, log = copy.run()
    assert (code, copy.arrived()) == (0, NAMES), log
    assert os.readlink(copy.target / "link") == "a.safetensors"
    assert {call.split()[-2] for call in copy.calls()} == {"rail0:.", "rail1:."}
    assert transfer.figures(log)["moved_bytes"] == moved
    assert not copy.staging.exists()


def test_nothing_is_moved_to_its_place_before_all_is_there(copy: Copy) -> None:
    (copy.staging / "a.safetensors").write_bytes(b"a")
    code, log = copy.run()
    assert (code, copy.target.exists(), (copy.staging / "a.safetensors").exists()) == (1, False, True), log


def test_a_file_that_cannot_be_moved_fails_the_copy(copy: Copy) -> None:
    copy.offer(*BOTH)
    (copy.target / "link/x").mkdir(parents=True)
    code, log = copy.run()
    assert code == 1
    assert "cannot overwrite directory" in log


def test_files_without_their_owner_stay_for_the_next_run(copy: Copy) -> None:
    copy.offer(*BOTH)
    chown = Path(copy.path.split(":")[0]) / "chown"
    chown.write_text("#!/bin/sh\nexit 1\n")
    chown.chmod(0o755)
    code, log = copy.run()
    assert (code, (copy.staging / "a.safetensors").read_bytes()) == (1, NAMES["a.safetensors"]), log


def test_the_fetching_end_pins_the_host_key_and_uses_no_other_configuration(copy: Copy) -> None:
    copy.offer("rail0", "rail1")
    copy.run()
    assert all(f"-e ssh -F {copy.folder}/ssh_config" in call for call in copy.calls())
    config = (copy.folder / "ssh_config").read_text().splitlines()
    assert {"StrictHostKeyChecking yes", "GlobalKnownHostsFile none", "IdentityAgent none", "BatchMode yes", "BindAddress fd00::12"} <= set(config)
    assert config.count("HostKeyAlias gb10-copy") == 2
    assert (copy.folder / "known_hosts").read_text() == "gb10-copy ssh-ed25519 HOST\n"
    done = subprocess.run(["ssh", "-G", "-F", str(copy.folder / "ssh_config"), "rail1"], capture_output=True, text=True, check=True)
    assert {"hostname fd00::11", "port 5", "user root", "stricthostkeychecking true"} <= set(done.stdout.splitlines())


def test_the_server_is_for_these_keys_addresses_and_one_folder() -> None:
    files = transfer.server_files("/run/x", "/srv/it's", 5, ["10.0.0.1", "10.1.0.1"], ["10.0.0.2", "10.1.0.2"], ["ssh-ed25519 A", "ssh-ed25519 B"])
    lines = files["sshd_config"].splitlines()
    assert "ForceCommand rrsync -ro '/srv/it'\"'\"'s'" in lines
    assert [line for line in lines if line.startswith("ListenAddress")] == ["ListenAddress 10.0.0.1", "ListenAddress 10.1.0.1"]
    assert {"PermitRootLogin prohibit-password", "AuthenticationMethods publickey", "AuthorizedKeysFile /run/x/authorized_keys"} <= set(lines)
    assert files["authorized_keys"] == "".join(f'restrict,from="10.0.0.2,10.1.0.2" ssh-ed25519 {key}\n' for key in "AB")


def test_a_unit_sees_its_folders_only_and_is_bounded() -> None:
    properties = transfer.sandbox("/run/gb10-cluster/copy-x", ['/srv/a "b" 5%:c'], ["/srv/store"])
    assert 'BindReadOnlyPaths="/srv/a \\"b\\" 5%%\\:c"' in properties
    assert 'BindPaths="/run/gb10-cluster" "/srv/store"' in properties
    assert {"TemporaryFileSystem=/ /run/sshd", "PrivateDevices=yes", "NoNewPrivileges=yes", *transfer.BOUNDS} <= set(properties)
    assert not [line for line in properties if "/etc" in line and "copy-x/etc" not in line]


def test_shares_have_about_the_same_size() -> None:
    sizes = {str(size) + more: size for size, more in ((9, ""), (7, ""), (5, ""), (4, ""), (4, "b"), (3, ""))}
    assert [sorted(sizes[path] for path in part) for part in transfer.shares(sizes, 2)] == [[3, 4, 9], [4, 5, 7]]
    assert transfer.shares({"9": 9}, 4) == [["9"]]


def test_the_files_of_a_job_have_the_accounts_that_its_unit_sees(tmp_path: Path) -> None:
    transfer.prepare(str(tmp_path), {"x": "y"})
    assert (tmp_path / "etc/passwd").read_text().startswith("root:x:0:0::/:/bin/sh\n")
    assert stat.S_IMODE((tmp_path / "etc").stat().st_mode) & 0o055 == 0o055


# --- Jobs as transient units: what they run. Commands run for real; only systemd is replaced.


class Systemd:
    """Runs a unit's command in the foreground when it is started."""

    refuses = False

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        if argv[:2] == ["systemctl", "is-active"]:
            return 3, "", ""
        if argv[0] == "systemd-run":
            if self.refuses:
                return 1, "", "Failed to connect to bus\n"
            subprocess.run([word for word in argv[1:] if not word.startswith("--")], check=False)
        return 0, "", ""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("x", Systemd(), str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("script", "rc", "output"),
    [
        (transfer.script_of(["echo", "a b"], ["echo", "it's"]), 0, "a b\nit's\n"),
        (transfer.script_of(["false"], ["echo", "x"]), 1, ""),
        ("echo 'it is'\nfalse & p=$!\nwait $p\nexit 3", 3, "it is\n"),
    ],
    ids=["all", "failure", "script"],
)
def test_a_job_runs_from_a_private_folder_and_leaves_its_code_and_output(job: Job, script: str, rc: int, output: str) -> None:
    job.prepare()
    job.start(script, 60, "test")
    assert Path(job.folder).stat().st_mode & 0o777 == 0o700
    assert (job.rc(), job.output()) == (rc, output)
    assert job.stop()
    assert (job.rc(), job.output()) == (None, "")
    assert not Path(job.folder).parent.exists()
    assert not job.stop()


def test_unit_that_cannot_start_leaves_nothing(job: Job) -> None:
    job.run.refuses = True  # type: ignore[attr-defined]
    job.prepare()
    with pytest.raises(JobError, match="Failed to connect to bus"):
        job.start("true", 60, "test")
    assert not Path(job.folder).exists()
