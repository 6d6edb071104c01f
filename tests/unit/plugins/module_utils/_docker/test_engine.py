"""Docker's outputs, limits, packages and the decision to restart."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import engine as docker_engine
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.engine import PER_SERVICE, Engine, choose_packages, decide_restart

NONE = Engine(False, False, False, 0, "", (), None, None, None, None)
UP = Engine(True, True, True, 9, "x", (), -1, -1, "28.2.2", "2.26.1")

LIMITS: dict[str, tuple[str, int | None]] = {
    "unlimited": ("unlimited", -1),
    "infinity": ("infinity", -1),
    "minus one": ("-1", -1),
    "bytes": ("8388608", 8388608),
    "a size": ("64m", 64 << 20),
    "a size with i": ("2GiB", 2 << 30),
    "leave": ("leave", None),
}


@pytest.mark.parametrize(("text", "expected"), LIMITS.values(), ids=LIMITS.keys())
def test_limits(text: str, expected: int | None) -> None:
    assert docker_engine.parse_limit(text, "docker_memlock") == expected


@pytest.mark.parametrize("text", ["", "lots", "0", "-2", "8 potatoes"])
def test_a_bad_limit_is_one_sentence(text: str) -> None:
    with pytest.raises(DockerError, match=r"docker_memlock is .*, which is no limit: write unlimited"):
        docker_engine.parse_limit(text, "docker_memlock")


VERSIONS: dict[str, tuple[str | None, bool]] = {
    "debian trixie": ("2.26.1-4", True),
    "with a v": ("v2.18.0", True),
    "long wording": ("Docker Compose version v2.40.3", True),
    "ubuntu": ("2.37.1+ds1-0ubuntu2~24.04.1", True),
    "epoch": ("1:2.20.0", True),
    "exactly": ("2.18", True),
    "older": ("2.17.3", False),
    "v1": ("1.29.2-3", False),
    "missing": (None, False),
    "nonsense": ("dev", False),
}


@pytest.mark.parametrize(("found", "enough"), VERSIONS.values(), ids=VERSIONS.keys())
def test_compose_versions(found: str | None, enough: bool) -> None:
    assert docker_engine.compose_enough(found, "2.18") is enough


POLICY = """docker.io:
  Installed: (none)
  Candidate: 26.1.5+dfsg1-9+b4
  Version table:
     26.1.5+dfsg1-9+b4 500
docker-cli:
  Installed: (none)
  Candidate: 26.1.5+dfsg1-9+b4
docker-compose:
  Installed: (none)
  Candidate: 2.26.1-4
"""
VENDOR = """docker-ce:
  Installed: 5:28.5.1-1~ubuntu.24.04~noble
  Candidate: 5:28.5.1-1~ubuntu.24.04~noble
docker-compose-plugin:
  Installed: (none)
  Candidate: 2.40.0-1~ubuntu.24.04~noble
docker-compose-v2:
  Installed: (none)
  Candidate: 2.37.1+ds1-0ubuntu2~24.04.1
"""
BOOKWORM = "docker.io:\n  Installed: (none)\n  Candidate: 20.10.24\ndocker-compose:\n  Installed: (none)\n  Candidate: 1.29.2-3\n"

PACKAGES: dict[str, tuple[Engine, str, str, list[str], list[str]]] = {
    "all there": (UP, "", "debian", [], []),
    "stopped is there": (UP._replace(active=False, version=None, pid=0), "", "debian", [], []),
    "trixie, nothing": (NONE, POLICY, "debian", [], ["docker.io", "docker-cli", "docker-compose"]),
    "vendor engine, no compose": (UP._replace(compose=None), VENDOR, "ubuntu", [], ["docker-compose-plugin"]),
    "old compose": (UP._replace(compose="2.3.3"), POLICY, "debian", [], ["docker-compose"]),
    "chosen": (NONE, POLICY, "debian", ["docker-ce"], ["docker-ce"]),
    "apt lists empty, ubuntu": (NONE, "", "ubuntu", [], ["docker.io", "docker-compose-v2"]),
    "apt lists empty, debian": (NONE, "", "debian", [], ["docker.io", "docker-compose"]),
}


@pytest.mark.parametrize(("engine", "policy", "distribution", "chosen", "expected"), PACKAGES.values(), ids=PACKAGES.keys())
def test_packages(engine: Engine, policy: str, distribution: str, chosen: list[str], expected: list[str]) -> None:
    assert choose_packages(engine, docker_engine.parse_policy(policy), distribution, "2.18", chosen) == expected


def test_no_recent_compose_anywhere_is_refused() -> None:
    with pytest.raises(DockerError, match=r"compose plugin is missing, 2\.18 or later is needed, and apt offers none of"):
        choose_packages(NONE, docker_engine.parse_policy(BOOKWORM), "debian", "2.18")


def test_no_engine_anywhere_is_refused() -> None:
    with pytest.raises(DockerError, match=r"apt offers no docker\.io: run apt-get update"):
        choose_packages(NONE, docker_engine.parse_policy(VENDOR), "ubuntu", "2.18")


ATTAINABLE: dict[str, tuple[int | None, int, bool, bool]] = {
    "unlimited, root may raise": (-1, 8388608, True, True),
    "unlimited, container": (-1, 8388608, False, False),
    "more than the container's": (8388609, 8388608, False, False),
    "the container's own": (8388608, 8388608, False, True),
    "host without a limit": (-1, -1, False, True),
    "leave": (None, 8388608, False, True),
}


@pytest.mark.parametrize(("wanted", "hard", "raisable", "fine"), ATTAINABLE.values(), ids=ATTAINABLE.keys())
def test_attainable(wanted: int | None, hard: int, raisable: bool, fine: bool) -> None:
    if fine:
        docker_engine.check_attainable(wanted, hard, raisable)
        return
    with pytest.raises(DockerError, match=r"cannot lock more than 8388608 bytes \(EPERM: .* set docker_memlock: 8388608 for it"):
        docker_engine.check_attainable(wanted, hard, raisable)


def test_proc_limits() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         8388608              unlimited            bytes     \n"
    )
    assert docker_engine.parse_proc_limits(text) == (8388608, -1)
    assert docker_engine.parse_proc_limits("Limit\n") is None


def test_unit_limits() -> None:
    assert [docker_engine.parse_unit_limit(text) for text in ("infinity", "18446744073709551615", "8388608", "", None)] == [-1, -1, 8388608, None, None]


def test_limits_file_is_in_kib() -> None:
    assert "root hard memlock 8192" in docker_engine.render_limits(8388608)
    assert "* soft memlock unlimited" in docker_engine.render_limits(-1)


def test_serving_containers_are_told_from_others() -> None:
    assert docker_engine.parse_containers("vllm-pair1-rank0\tpair1\nregistry\t\n\n") == (["vllm-pair1-rank0"], ["registry"])


RESTARTS: dict[str, tuple[list[str], bool, list[str], str, list[str], tuple[bool, bool], str]] = {
    "nothing waits": ([], True, [], "needed", [], (False, False), ""),
    "not running": (["daemon.json"], False, [], "needed", [], (False, False), ""),
    "waits, idle node": (["daemon.json"], True, [], "idle", [], (True, True), "restarted for daemon.json"),
    "waits, serving": (["daemon.json"], True, ["r0"], "needed", [], (True, False), "r0 is serving: run playbooks/stop.yml"),
    "waits, others run": (["daemon.json", "LimitMEMLOCK"], True, [], "needed", ["web"], (True, True), "restarted for daemon.json, LimitMEMLOCK"),
    "waits, others run, idle wanted": (["daemon.json"], True, [], "idle", ["web"], (True, False), "web would stop with it"),
    "Compose gives it, idle node": (["LimitMEMLOCK"], True, [], "idle", [], (True, True), "restarted for LimitMEMLOCK"),
    "Compose gives it, others run": (list(PER_SERVICE), True, [], "needed", ["web"], (False, False), ""),
    "Compose gives it, serving": (list(PER_SERVICE), True, ["r0"], "needed", [], (False, False), ""),
    "Compose gives it, never": (list(PER_SERVICE), True, [], "never", [], (False, False), ""),
    "never": (["daemon.json"], True, [], "never", [], (True, False), "docker_restart is never"),
}


@pytest.mark.parametrize(("pending", "running", "serving", "policy", "others", "expected", "why"), RESTARTS.values(), ids=RESTARTS.keys())
def test_restart(pending: list[str], running: bool, serving: list[str], policy: str, others: list[str], expected: tuple[bool, bool], why: str) -> None:
    decision = decide_restart(pending, running, serving, policy, others)
    assert (decision.needed, decision.now) == expected
    assert why in decision.why


LIVE: dict[str, tuple[Engine, bool, list[str]]] = {
    "well": (UP, False, []),
    "silent": (NONE._replace(unit=True, compose="2.26", silent="Cannot connect"), False, ["no Docker Engine answers on this node (Cannot connect)"]),
    "old compose": (UP._replace(compose="1.29.2"), False, ["the compose plugin is 1.29.2, 2.18 or later is needed"]),
    "another drop-in wins": (UP._replace(unit_memlock=8388608), False, ["LimitMEMLOCK 8388608 bytes where unlimited was set"]),
    "the daemon is older than its unit": (UP._replace(memlock=8388608), False, ["the running Docker daemon (pid 9) may lock 8388608 bytes"]),
    "the same, restart already announced": (UP._replace(memlock=8388608), True, []),
}


@pytest.mark.parametrize(("engine", "due", "expected"), LIVE.values(), ids=LIVE.keys())
def test_live(engine: Engine, due: bool, expected: list[str]) -> None:
    problems = docker_engine.check_live(engine, -1, "2.18", due)
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))


@pytest.mark.parametrize(
    ("version", "units", "message"),
    [("podman version 4.9.3", [], "Podman's imitation"), ("", ["snap.docker.dockerd.service"], "runs here as a snap")],
)
def test_foreign_engines_are_refused(version: str, units: list[str], message: str) -> None:
    with pytest.raises(DockerError, match=message):
        docker_engine.check_foreign(version, units)
    docker_engine.check_foreign("Docker version 28.2.2, build e6534b4", ["docker.service"])
