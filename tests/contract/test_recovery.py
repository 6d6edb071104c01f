"""How a start and a recovery run over the ranks: what runs afterwards, what was done in which order, and what the run reports."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import ansible.plugins.connection.local
import pytest
from playbook import REPO, Run, run

OLD, NEW = "aaa", "bbb"  # the release that serves, and the one that the run starts
HOSTS = """
gb10:
  vars: {{ansible_become: false, ansible_connection: gb10.cluster.flaky, ansible_python_interpreter: {python}}}
  children:
    pair1: {{hosts: {{one: {{ansible_host: 127.0.0.1}}, two: {{ansible_host: 127.0.0.2}}}}}}
"""
# What plan.yml decides, then the tasks under test.
PLAY = """
- name: Start
  hosts: gb10
  gather_facts: false
  vars:
    vllm_tp2_directory: "{folder}/nodes/{{{{ inventory_hostname }}}}"
    wanted: {release}
    proven: "{{{{ [hostvars.one.__vllm_tp2_info, hostvars.two.__vllm_tp2_info] | selectattr('receipt.passed', 'defined') | map(attribute='current') }}}}"
  tasks:
    - name: Read
      gb10.cluster.vllm_rank_info: {{group: pair1, directory: "{{{{ vllm_tp2_directory }}}}"}}
      register: __vllm_tp2_info
    - name: Reasons
      ansible.builtin.set_fact:
        reasons: "{{{{ __vllm_tp2_info | gb10.cluster.start_reasons(wanted, inventory_hostname, none, restart | default(false), wanted in proven) }}}}"
    - name: Plan
      ansible.builtin.set_fact:
        __vllm_tp2_release: "{{{{ wanted }}}}"
        __vllm_tp2_reasons: "{{{{ reasons }}}}"
        __vllm_tp2_start: "{{{{ hostvars.one.reasons + hostvars.two.reasons }}}}"
        __vllm_tp2_written: true
        __vllm_tp2_lost: []
        __vllm_tp2_sentence: pair1 serves
        __vllm_tp2_repairs: "{{{{ [] if __vllm_tp2_info.current == wanted else ['current'] }}}}"
        __vllm_tp2_good: "{{{{ [hostvars.one.__vllm_tp2_info, hostvars.two.__vllm_tp2_info] | gb10.cluster.last_good(wanted) }}}}"
    - name: Apply
      ansible.builtin.import_role:
        name: gb10.cluster.vllm_tp2
        tasks_from: {tasks}
"""
STUBS = ("kv_pool_gate", "rank_evidence", "readahead", "vllm_rank_info")
PASSED: dict[str, Any] = {"passed": True}
FAILED: dict[str, Any] = {"passed": False, "class": "kv_too_small", "msg": "pair1: rank 0 on one: kv_too_small: No room. Remedy: make room."}


class Pair:
    """Two nodes in a folder, on which release `OLD` serves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for host in ("one", "two"):
            group = folder / "nodes" / host / "pair1"
            for release in (OLD, NEW):
                (group / "releases" / release).mkdir(parents=True)
                manifest = {"release": release, "profile": "p", "port": 8000, "lead": 0, "criteria": {}, "has_key": False}
                (group / "releases" / release / "release.json").write_text(json.dumps(manifest), encoding="utf-8")
                (group / "releases" / release / "compose.yaml").write_text("services: {engine: {image: i}}\n", encoding="utf-8")
            (group / "releases" / OLD / "receipt.json").write_text(json.dumps({"release": OLD, "passed": True}), encoding="utf-8")
            (group / "current").symlink_to(f"releases/{OLD}")
            (folder / "containers" / host).mkdir(parents=True)
            self.place(host, OLD)

    def place(self, host: str, release: str, **more: object) -> None:
        """Put a container on a node."""
        name = f"gb10-pair1-rank{('one', 'two').index(host)}"
        state = {"name": name, "running": True, "status": "running", "exit_code": 0, "labels": {"gb10.cluster.release": release}, **more}
        (self.folder / "containers" / host / name).write_text(json.dumps(state), encoding="utf-8")

    @property
    def runs(self) -> dict[str, list[str]]:
        """The releases that run on each node."""
        found = {}
        for host in ("one", "two"):
            states = [json.loads(path.read_text(encoding="utf-8")) for path in (self.folder / "containers" / host).iterdir()]
            found[host] = [state["labels"]["gb10.cluster.release"] for state in states if state["running"]]
        return found

    @property
    def log(self) -> list[str]:
        """What was done on the nodes, in order."""
        return (self.folder / "log").read_text(encoding="utf-8").splitlines() if (self.folder / "log").exists() else []

    def did(self, host: str) -> list[str]:
        """What was done on one node, in order."""
        return [line.partition(" ")[2] for line in self.log if line.startswith(host)]

    def current(self, host: str) -> str:
        """The release that a node has recorded."""
        return os.path.basename(os.readlink(self.folder / "nodes" / host / "pair1/current"))

    def play(self, scenario: dict[str, Any], release: str = NEW, tasks: str = "apply", **variables: object) -> Run:
        """Run the tasks; a node that is away answers again with the next run."""
        for path in [*self.folder.glob("*.dark"), *self.folder.glob("*.counts")]:
            path.unlink()
        (self.folder / "log").write_text("", encoding="utf-8")
        (self.folder / "scenario.json").write_text(json.dumps(scenario), encoding="utf-8")
        (self.folder / "hosts.yml").write_text(HOSTS.format(python=sys.executable), encoding="utf-8")
        (self.folder / "play.yml").write_text(PLAY.format(folder=self.folder, release=release, tasks=tasks), encoding="utf-8")
        env = {
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
            "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
            "GB10_STUB": str(self.folder),
            "PATH": f"{REPO / 'tests/contract/stubs'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        given = {
            "gb10_profile": "dspark-nvfp4-1m", "vllm_tp2_evidence": str(self.folder / "evidence"), "vllm_tp2_keep_releases": 9,
            "__vllm_tp2_launch_lead": 0, "__vllm_tp2_files": {}, "__vllm_tp2_judged": {"release": release, "passed": True},
            **variables,
        }  # fmt: skip
        return run(self.folder, "play.yml", self.folder / "hosts.yml", variables=given, env=env, project=self.folder)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """The collection with stubs for what meets a Docker Engine, and two nodes."""
    here = tmp_path / "collections/ansible_collections/gb10/cluster"
    (here / "plugins").mkdir(parents=True)
    for path in REPO.iterdir():
        if path.name in ("roles", "profiles", "meta", "galaxy.yml", "playbooks"):
            (here / path.name).symlink_to(path)
    for path in (REPO / "plugins").iterdir():
        if path.name not in ("action", "connection"):
            (here / "plugins" / path.name).symlink_to(path)
    stub = (REPO / "tests/contract/stubs/stub.py").read_text(encoding="utf-8")
    (here / "plugins/action").mkdir()
    for path in (REPO / "plugins/action").glob("*.py"):
        if path.stem not in STUBS:
            (here / "plugins/action" / path.name).symlink_to(path)
    for name in STUBS:
        (here / "plugins/action" / f"{name}.py").write_text(stub, encoding="utf-8")
    (here / "plugins/connection").mkdir()
    local = Path(ansible.plugins.connection.local.__file__).read_text(encoding="utf-8")
    (here / "plugins/connection/flaky.py").write_text(local + FLAKY, encoding="utf-8")
    docker = tmp_path / "collections/ansible_collections/community/docker/plugins/action"
    docker.mkdir(parents=True)
    (docker / "docker_compose_v2.py").write_text(stub, encoding="utf-8")
    return Pair(tmp_path)


# A local connection that fails while the node is away.
FLAKY = """

def _checked(method):
    def call(self, *args, **kwargs):
        import os
        from ansible.errors import AnsibleConnectionFailure
        host = {"127.0.0.1": "one", "127.0.0.2": "two"}[self._play_context.remote_addr]
        if os.path.exists(os.path.join(os.environ["GB10_STUB"], host + ".dark")):
            raise AnsibleConnectionFailure("Failed to connect to the host via ssh")
        return method(self, *args, **kwargs)
    return call


Connection.exec_command = _checked(Connection.exec_command)
Connection.put_file = _checked(Connection.put_file)
"""


def messages(done: Run) -> dict[str, str]:
    """Each host's last failure."""
    return {host: " ".join(text.split()) for host, _task, text in done.failures}


def test_a_release_that_passes_is_recorded_on_all_ranks(pair: Pair) -> None:
    done = pair.play({"gate": [PASSED]})
    assert done.rc == 0, done.stdout
    assert pair.runs == {"one": [NEW], "two": [NEW]}
    assert (pair.current("one"), pair.current("two")) == (NEW, NEW)
    assert not any("evidence" in line for line in pair.log), "nothing died"


def test_evidence_is_kept_after_the_stop_and_before_the_removal(pair: Pair) -> None:
    done = pair.play({"gate": [FAILED, PASSED]})
    assert done.rc != 0
    assert pair.runs == {"one": [OLD], "two": [OLD]}
    for host in ("one", "two"):
        expected = ["removes", f"starts {NEW}", f"gate {NEW}", "stops", f"evidence of {NEW} exited", "removes", f"starts {OLD}", f"gate {OLD}"]
        assert pair.did(host) == expected
        assert messages(done)[host].startswith(FAILED["msg"] + f" Release {OLD}, the last good one, serves again, after ")
        assert f"Evidence: {pair.folder}/evidence/pair1-{NEW}/" in messages(done)[host]


@pytest.mark.parametrize(
    ("scenario", "cause"),
    [
        ({"two docker_compose_v2:absent 1": "no permission"}, "rank 1 on two: no permission"),
        pytest.param({"one readahead:load 1": "no timer"}, "rank 0 on one: no timer", marks=pytest.mark.long),
    ],
    ids=["compose down on the worker", "load phase on the head"],
)
def test_one_ranks_failure_before_the_start_starts_no_container(pair: Pair, scenario: dict[str, Any], cause: str) -> None:
    done = pair.play({**scenario, "gate": [PASSED]})
    assert done.rc != 0
    assert not any(f"starts {NEW}" in line for line in pair.log)
    assert pair.runs == {"one": [OLD], "two": [OLD]}, "recovered together"
    for host in ("one", "two"):
        assert messages(done)[host].startswith(f"pair1: {cause}")
        assert f"Release {OLD}, the last good one, serves again" in messages(done)[host]


@pytest.mark.parametrize("call", [pytest.param("docker_compose_v2:absent 1", marks=pytest.mark.long), "docker_compose_v2:present 1"])
def test_an_unreachable_worker_starts_no_head_and_no_recovery(pair: Pair, call: str) -> None:
    done = pair.play({f"two {call}": "dark", "gate": [PASSED]})
    assert done.rc != 0
    assert not any("one starts" in line or "gate" in line for line in pair.log)
    assert pair.runs["one"] == []
    assert messages(done)["one"].startswith("pair1: rank 1 on two does not answer.")
    assert "No release is started: rank 1 on two does not answer. It is not known whether a container of pair1 runs there." in messages(done)["one"]
    assert "nothing serves" not in messages(done)["one"]


@pytest.mark.parametrize(
    ("host", "fault"),
    [
        pytest.param("one", "No space left on device", marks=pytest.mark.long),
        ("two", "No space left on device"),
        pytest.param("two", "dark", marks=pytest.mark.long),
    ],
)
def test_a_pair_that_passed_keeps_serving_when_a_rank_cannot_record_it(pair: Pair, host: str, fault: str) -> None:
    """Rows 9b and 10 of the day-2 table."""
    if fault != "dark":
        (pair.folder / "nodes" / host / "pair1/releases" / NEW / "receipt.json").mkdir()  # cannot be written
    done = pair.play({"gate": [PASSED], f"{host} readahead:steady 1": fault if fault == "dark" else ""})
    assert done.rc != 0
    assert pair.runs == {"one": [NEW], "two": [NEW]}
    assert not any("stops" in line for line in pair.log)
    other = "two" if host == "one" else "one"
    assert (pair.current(host), pair.current(other)) == (OLD, NEW)
    assert set(messages(done)) == {host}
    assert messages(done)[host].startswith(f"pair1 serves release {NEW}, and nothing was stopped. {host} could not record the release: ")
    if fault != "dark":
        (pair.folder / "nodes" / host / "pair1/releases" / NEW / "receipt.json").rmdir()
    again = pair.play({"gate": []})
    assert again.rc == 0, again.stdout
    assert pair.log == [], "nothing is stopped or started"
    assert (pair.current("one"), pair.current("two")) == (NEW, NEW)
    assert json.loads((pair.folder / "nodes" / host / "pair1/current/receipt.json").read_text(encoding="utf-8"))["passed"]


@pytest.mark.parametrize(("lost", "left"), [("one", "two"), pytest.param("two", "one", marks=pytest.mark.long)])
def test_no_lone_rank_is_started_when_a_node_is_lost_during_the_gate(pair: Pair, lost: str, left: str) -> None:
    """Row 28."""
    verdict = {"passed": False, "class": "node_lost", "msg": f"pair1: rank on {lost}: node_lost.", "dark": [lost]}
    done = pair.play({"gate": [verdict, PASSED]})
    assert done.rc != 0
    assert not any(f"starts {OLD}" in line for line in pair.log)
    assert pair.runs[left] == []
    assert f"on {lost} does not answer. It is not known whether a container of pair1 runs there." in messages(done)[left]
    assert "serves" not in messages(done)[left]


@pytest.mark.long
def test_a_rank_that_cannot_be_stopped_keeps_the_last_good_release_from_starting(pair: Pair) -> None:
    done = pair.play({"gate": [FAILED], "two docker_compose_v2:absent 2": "busy", "two vllm_rank_info 5": "two: gb10-pair1-rank1 still runs"})
    assert done.rc != 0
    assert not any(f"starts {OLD}" in line for line in pair.log)
    for host in ("one", "two"):
        assert "No release is started: rank 1 on two cannot be read: two: gb10-pair1-rank1 still runs" in messages(done)[host]


def test_a_failed_rollback_stops_what_it_started(pair: Pair) -> None:
    done = pair.play({"gate": [FAILED, {**FAILED, "class": "killed", "msg": "pair1: rank 1 on two: killed."}]})
    assert done.rc != 0
    assert pair.runs == {"one": [], "two": []}
    for host in ("one", "two"):
        assert pair.did(host)[-3:] == ["stops", f"evidence of {OLD} exited", "removes"]
        assert f"The last good release {OLD} did not start again either (pair1: rank 1 on two: killed)." in messages(done)[host]
        assert "All ranks of pair1 are stopped: nothing serves now." in messages(done)[host]


@pytest.mark.long
def test_a_rollback_that_loses_a_node_does_not_report_that_nothing_serves(pair: Pair) -> None:
    lost = {"passed": False, "class": "node_lost", "msg": "pair1: rank 1 on two: node_lost.", "dark": ["two"]}
    done = pair.play({"gate": [FAILED, lost]})
    assert done.rc != 0
    assert pair.runs == {"one": [], "two": [OLD]}
    assert "rank 1 on two does not answer. It is not known whether a container of pair1 runs there." in messages(done)["one"]
    assert "nothing serves" not in messages(done)["one"]


def test_a_group_that_another_process_stops_during_the_boot_stays_stopped(pair: Pair) -> None:
    """Row 27."""
    done = pair.play({"gate": [{"passed": False, "class": "stopped", "msg": "pair1: rank 0 on one: stopped.", "removed": True}]})
    assert done.rc != 0
    assert pair.runs == {"one": [], "two": []}
    assert not any(f"starts {OLD}" in line for line in pair.log)
    for host in ("one", "two"):
        assert "pair1 was stopped by another process during this start, and no release is started." in messages(done)[host]


@pytest.mark.long
def test_a_release_that_passed_before_and_fails_its_restart_is_named(pair: Pair) -> None:
    """Row 19b: nothing else to return to."""
    done = pair.play({"gate": [FAILED]}, release=OLD, restart=True, vllm_tp2_restart=True)
    assert done.rc != 0
    assert pair.runs == {"one": [], "two": []}
    assert f"Release {OLD} passed its gate before; this start of it failed." in messages(done)["one"]
    assert "All ranks of pair1 are stopped, and no earlier release passed its gate on all of them." in messages(done)["one"]


@pytest.mark.parametrize("tasks", ["apply", "down"])
def test_what_died_while_serving_leaves_evidence_before_it_is_removed(pair: Pair, tasks: str) -> None:
    pair.place("two", OLD, running=False, status="exited", exit_code=1, finished_at="2026-11-22T20:30:00.123Z")
    done = pair.play({"gate": [PASSED]}, release=OLD, tasks=tasks)
    assert done.rc == 0, done.stdout
    assert pair.did("one")[:3] == ["stops", f"evidence of {OLD} exited", "removes"]
    assert pair.did("two")[:2] == [f"evidence of {OLD} exited", "removes"]
    assert f"{pair.folder}/evidence/pair1-crash-20261122T203000/" in done.stdout
    assert pair.runs == ({"one": [OLD], "two": [OLD]} if tasks == "apply" else {"one": [], "two": []})


@pytest.mark.long
def test_evidence_that_cannot_be_written_does_not_block_the_stop(pair: Pair) -> None:
    done = pair.play({"gate": [FAILED, PASSED], "two rank_evidence 1": "Permission denied"})
    assert done.rc != 0
    assert pair.runs == {"one": [OLD], "two": [OLD]}
    assert "(without two: the evidence could not be collected or written)" in messages(done)["one"]


def test_a_container_whose_release_is_lost_is_removed_by_its_name(pair: Pair) -> None:
    """Row 8."""
    group = pair.folder / "nodes/two/pair1"
    (group / "current").unlink()
    shutil.rmtree(group / "releases" / OLD)
    done = pair.play({"gate": []}, release=OLD, tasks="down")
    assert done.rc == 0, done.stdout
    assert pair.runs == {"one": [], "two": []}
    assert (pair.did("one"), pair.did("two")) == (["removes"], ["removes by name"])
