"""How the role serves by the agent: what it asks of whom, in which order, and what the run reports. The agent and the Docker Engine are stubs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ansible.plugins.connection.local
import pytest
import yaml
from playbook import REPO, Run, plays_of
from warm_playbook import run

OLD, NEW = "aaaaaaaaaaaa", "bbbbbbbbbbbb"  # the release that serves, and the one that the inventory makes
HOSTS = """
gb10:
  vars: {{ansible_become: false, ansible_connection: gb10.cluster.flaky, ansible_python_interpreter: {python}}}
  children:
    pair1: {{hosts: {{one: {{ansible_host: 127.0.0.1}}, two: {{ansible_host: 127.0.0.2}}}}}}
"""
# A local connection that fails while the node is away, and runs the stub of gb10.
FLAKY = """

def _checked(method):
    def call(self, first, *args, **kwargs):
        import os
        from ansible.errors import AnsibleConnectionFailure
        host = {"127.0.0.1": "one", "127.0.0.2": "two"}[self._play_context.remote_addr]
        if os.path.exists(os.path.join(os.environ["GB10_STUB"], host + ".dark")):
            raise AnsibleConnectionFailure("Failed to connect to the host via ssh")
        if isinstance(first, str):
            first = first.replace("/usr/local/sbin/gb10", "gb10")
        return method(self, first, *args, **kwargs)
    return call


Connection.exec_command = _checked(Connection.exec_command)
Connection.put_file = _checked(Connection.put_file)
"""
STUBS = ("agent", "gb10", "roce_test", "vllm_rank_info")
#: The role that makes users and units on a node. tests/acceptance runs it.
AGENT = """
- name: Install
  gb10.cluster.agent: {state: "{{ agent_state | default('present') }}"}
- name: Export
  ansible.builtin.set_fact: {agent_installed: true}
"""
FAILED = "pair1: rank 0 on one: kv_too_small: No room. Remedy: make room."
BACK = f"{FAILED} Release {OLD}, the last good one, serves again, after 48 s without service."


def desired(release: str = NEW, generation: int = 7, state: str = "serving") -> dict[str, Any]:
    return {"generation": generation, "state": state, "release": release, "by": "admin@ctl", "at": "2026-11-23T10:02:31Z"}


def outcome(passed: bool | None, **more: Any) -> dict[str, Any]:
    """An outcome of generation 7; without a verdict where `passed` is None."""
    receipt: dict[str, Any] = {"group": "pair1", "release": NEW, "time": "2026-11-23T10:03:00Z", "passed": passed, "pool": {}, "msg": "m", "seconds": 9.0}
    text, name = ("pair1 serves.", "") if passed else (FAILED, "kv_too_small")
    verdict: dict[str, Any] = {"passed": passed, "class": name, "msg": text, "seconds": 9.0, "checks": [], "receipt": receipt}
    return {
        "generation": 7, "phase": "settled", "result": "serves" if passed else "failed", "verdict": {} if passed is None else verdict, "final": True,
        "sentence": "", "warnings": [], "unserved_seconds": 48.2, "evidence": [], "delivered": False, **more,
    }  # fmt: skip


def reply(found: dict[str, Any], wanted: dict[str, Any] | None = None, text: str = "") -> dict[str, Any]:
    events = [{"n": 1, "generation": 7, "kind": "progress", "text": text, "seconds": 12.3}] if text else []
    return {"events": events, "next": 1, "outcome": found, "desired": wanted or desired()}


HALTS = [reply(outcome(False, final=False, phase="halting")), reply(outcome(False, final=False, phase="judging"))]


#: A profile without compile caches, whose record would be written below /var/lib of the machine that tests.
NO_CACHES: dict[str, Any] = {
    "gb10_profile": "bare",
    "gb10_profiles": {"bare": {"extends": "dspark-nvfp4-1m-seed", "summary": "No caches", "container": {"cache_dirs": []}}},
}
MODEL, IMAGE = "fraserprice/DeepSeek-V4-Flash-DSpark", "ghcr.io/drowzeys/vllm-dspark-nvfp4-stage-c:gb10"  # of dspark-nvfp4-1m-seed


class Pair:
    """Two nodes in a folder, on which release `OLD` serves and agents are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for host in ("one", "two"):
            (folder / f"nodes/{host}/pair1/releases/{OLD}").mkdir(parents=True)
            (folder / f"{host}.agent").touch()

    @property
    def log(self) -> list[str]:
        """What was done, in order."""
        return (self.folder / "log").read_text(encoding="utf-8").splitlines()

    def evidence(self, label: str) -> dict[str, str]:
        """The files of a label on the controller, which its owner alone can read."""
        folder = self.folder / f"evidence/pair1-{label}"
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}

    def play(self, *arguments: str, tasks: str = "main", runs: str = OLD, **scenario: Any) -> Run:
        """Run the tasks. `HOST_on_MODULE` is what goes wrong."""
        variables = scenario.pop("variables", {})
        (self.folder / "log").write_text("", encoding="utf-8")
        faults = {key.replace("_on_", " "): value for key, value in scenario.items()}
        (self.folder / "scenario.json").write_text(json.dumps({"runs": [runs] if runs else [], **faults}), encoding="utf-8")
        (self.folder / "hosts.yml").write_text(HOSTS.format(python=sys.executable), encoding="utf-8")
        lock = f"models: {{{MODEL}: {{code: abc}}}}\nimages: {{'{IMAGE}': {{fingerprint: f}}}}\n"  # as weights and image write it
        (self.folder / ".gb10.lock.yml").write_text(lock, encoding="utf-8")
        text = plays_of(tasks, vllm_tp2_directory=f"{self.folder}/nodes/{{{{ inventory_hostname }}}}")
        (self.folder / "play.yml").write_text(text, encoding="utf-8")
        env = {
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
            "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
            "GB10_STUB": str(self.folder),
            "PATH": f"{REPO / 'tests/contract/stubs'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        given = {
            "gb10_profile": "dspark-nvfp4-1m-seed", "gb10_evidence": str(self.folder / "evidence"), "gb10_receipts": str(self.folder / "receipts"),
            "vllm_tp2_plan": "off", "vllm_tp2_fabric_env": {"A": "b"}, "vllm_tp2_keep_releases": 9, "__vllm_tp2_command": "gb10",
            "__vllm_tp2_by": "admin@here", **variables,
        }  # fmt: skip
        return run(self.folder, "play.yml", self.folder / "hosts.yml", *arguments, variables=given, env=env, project=self.folder)


def links(name: str, here: Path, *but: str) -> None:
    """Link what a folder of the checkout holds, but some."""
    (here / name).mkdir(parents=True)
    for path in (REPO / name).iterdir():
        if path.name not in but:
            (here / name / path.name).symlink_to(path)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """The collection with stubs for what meets a Docker Engine or an agent, and two nodes."""
    here = tmp_path / "collections/ansible_collections/gb10/cluster"
    links("roles", here, "agent")
    links("plugins", here, "action", "connection")
    links("plugins/action", here, *(f"{name}.py" for name in STUBS))
    for name in ("profiles", "galaxy.yml", "playbooks"):
        (here / name).symlink_to(REPO / name)
    runtime = yaml.safe_load((REPO / "meta/runtime.yml").read_text(encoding="utf-8"))
    runtime["plugin_routing"]["modules"] = {name: route for name, route in runtime["plugin_routing"]["modules"].items() if name not in STUBS}
    stub = (REPO / "tests/contract/stubs/stub.py").read_text(encoding="utf-8")
    local = Path(ansible.plugins.connection.local.__file__).read_text(encoding="utf-8")
    texts = {"meta/runtime.yml": yaml.safe_dump(runtime), "roles/agent/tasks/main.yml": AGENT, "plugins/connection/flaky.py": local + FLAKY}
    for name, text in {**texts, **{f"plugins/action/{name}.py": stub for name in STUBS}}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text, encoding="utf-8")
    return Pair(tmp_path)


def messages(done: Run) -> dict[str, str]:
    """Each host's last failure."""
    return {host: " ".join(text.split()) for host, _task, text in done.failures}


ACKNOWLEDGED = 'call acknowledge {"generation": 7}'


def test_rank_whose_settings_do_not_work_ends_the_others_before_the_collectives(pair: Pair) -> None:
    """They would wait a minute for it there."""
    cause = "CUDA does not start (cuInit returns 100, NO_DEVICE): the container has no GPU."
    done = pair.play(runs="", two_on_probe=cause)
    assert done.rc != 0
    found = messages(done)
    assert set(found) == {"one", "two"}
    assert found["two"].endswith(f"was tried, and nothing was stopped: {cause}")
    assert found["one"] == "two failed earlier in this run, so pair1 is left as it is: correct that first."
    assert pair.log == [], "no test of the collectives, no agent, no start"
    assert "has no attribute" not in done.stdout


def test_node_that_cannot_take_part_fails_all_ranks_with_one_sentence_and_nothing_is_written(pair: Pair) -> None:
    done = pair.play(one_on_key="The key is a link.")
    assert messages(done) == dict.fromkeys(("one", "two"), "one: The key is a link.")
    assert pair.log == []
    assert [path.name for path in (pair.folder / "nodes/one/pair1/releases").iterdir()] == [OLD]


def test_failed_boot_fails_all_ranks_with_one_sentence_and_copies_the_evidence(pair: Pair) -> None:
    """Evidence that a rank does not give changes no verdict, and a template is printed and not evaluated."""
    sentence = f"{BACK} {{{{ lookup('pipe', 'touch {pair.folder}/PWNED') }}}} {{% for a in [1] %}}x{{% endfor %}}"
    follow = [*HALTS, reply(outcome(False, sentence=sentence, evidence=["../no-label", NEW]))]
    done = pair.play(follow=follow, two_on_gb10="Permission denied", variables=NO_CACHES)
    assert done.rc != 0
    lacks = "(without two: the evidence could not be collected or written)"
    assert messages(done) == dict.fromkeys(("one", "two"), f"{sentence} Evidence: {pair.folder}/evidence/pair1-{NEW}/ {lacks}")
    assert not (pair.folder / "PWNED").exists()
    assert pair.evidence(NEW) == {"rank0-one.txt": "shown by one\n", "rank1-two.txt": "No evidence could be read: Permission denied\n"}
    assert ACKNOWLEDGED in pair.log
    assert list((pair.folder / "receipts/pair1").glob("*-failed.json"))


STOPPED = [reply(outcome(None, result="stopped", sentence="pair1 is stopped."), desired(state="stopped"))]


def test_stop_without_the_head_stops_the_other_rank(pair: Pair) -> None:
    done = pair.play(tasks="stop", one_on_vllm_rank_info="dark")
    assert done.rc != 0
    assert set(messages(done)) == {"one"}
    assert pair.log == ["stop --here"]


def test_stop_names_the_rank_whose_docker_engine_does_not_answer_and_stops_the_other(pair: Pair) -> None:
    done = pair.play(tasks="stop", follow=STOPPED, two_on_engine="The Docker Engine is not running.")
    assert messages(done) == {
        "two": "two: The Docker Engine is not running. Then run this again: nothing was removed on two, and it may still have its rank of pair1."
    }
    assert "one desires stopped" in pair.log


@pytest.mark.long
def test_stop_installs_a_missing_agent(pair: Pair) -> None:
    for host in ("one", "two"):
        (pair.folder / f"{host}.agent").unlink()
    done = pair.play(tasks="stop", follow=STOPPED)
    assert done.rc == 0, done.stdout
    assert sorted(pair.log[:2]) == ["one agent present", "two agent present"]
    assert pair.log[2:] == ["one desires stopped", "follow --generation 7 --since 0 --wait 20", ACKNOWLEDGED]


# --- playbooks/logs.yml

LINES = ["2026-11-23T10:00:00.000Z one | a 'quoted' \x1b[32mINFO\x1b[0m {{ line }}", "2026-11-23T10:00:00.010Z two | NCCL: $HOME"]


def found(host: str, *lines: str, rc: int = 0, read: tuple[str, ...] = (), problems: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the module returns on a host."""
    document = {"schema": "gb10.cluster/logs/1", "group": "pair1", "host": host, "read": read, "lines": lines, "problems": problems}
    return {f"{host} gb10 logs": {"rc": rc, "document": document, "problems": problems}}


def printed(done: Run) -> list[str]:
    """The lines that the task has printed. All are on the screen."""
    results = [event["event_data"] for event in done.events if event["event"] == "runner_on_ok"]
    lines = [line for data in results if data["task"] == "Print the lines" for line in data["res"]["lines"]]
    assert set(lines) <= set(done.stdout.splitlines())
    return lines


def test_a_rank_that_the_head_does_not_reach_prints_its_own_lines(pair: Pair) -> None:
    cause = "two does not answer: No route to host."
    lost = found("one", LINES[0], rc=3, read=("one",), problems=(cause,))
    done = pair.play("-e", "output=json", tasks="logs", **lost, **found("two", LINES[1], read=("two",)))
    assert done.rc == 0, done.stdout
    assert sorted((each["host"], len(each["lines"]), each["problems"]) for each in done.documents) == [("one", 1, [cause]), ("two", 1, [])]


def test_without_the_head_each_rank_that_answers_prints_its_own_lines(pair: Pair) -> None:
    done = pair.play(tasks="logs", one_on_gb10="dark", **found("two", LINES[1], read=("two",)))
    assert done.rc == 0, done.stdout
    own, lost = sorted(printed(done))
    assert own == LINES[1]
    assert lost.startswith("one cannot be read: ")


def test_fails_if_no_rank_can_be_read(pair: Pair) -> None:
    missing: dict[str, Any] = {"two gb10 logs": {"failed": True, "rc": 1, "document": {}, "problems": ["There is no container gb10-pair1-rank1 on two."]}}
    done = pair.play(tasks="logs", one_on_gb10="sudo: a password is required", **missing)
    assert done.rc == 2
    assert done.last_message == "pair1: no log can be read. The messages above have the cause for each rank."
    assert sorted(printed(done)) == ["There is no container gb10-pair1-rank1 on two.", "one cannot be read: sudo: a password is required"]


# --- playbooks/soak.yml with soak_against

LABEL = '{"vllm_tp2_max_num_seqs": 3}'
RUNS = {"schema": "gb10.cluster/soak/1", "verdict": "unclear", "sentence": "", "lines": ["It runs."]}
PAGE = {**RUNS, "lines": ["page"], "compared": [{"name": "s1", "notes": []}, {"name": "s2", "notes": ["Release a serves again."]}]}


def soak_both(pair: Pair, status: dict[str, Any], rc: int = 0, **scenario: Any) -> tuple[Run, list[str]]:
    """Run the command for an A/B test while `gb10 soak status` returns this, and return what the head was asked for."""
    asked: Any = {"soak status": {"document": status}, "soak start": {"document": RUNS}, "soak verdict": {"document": PAGE, "rc": rc}, **scenario}
    given = {**NO_CACHES, "soak_against": json.loads(LABEL), "soak_seed": "x", "gb10_bench": str(pair.folder / "bench"), "__vllm_tp2_seconds": 0}
    done = pair.play(tasks="soak", variables=given, follow=[reply(outcome(True), desired())], **asked)
    return done, [line.partition(" soak ")[2] for line in pair.log if " soak " in line]


def test_one_command_soaks_two_releases_and_continues_what_was_interrupted(pair: Pair) -> None:
    done, asked = soak_both(pair, {})
    assert done.rc == 0, done.stdout
    [served] = [line.split()[-1] for line in pair.log if line.startswith("one desires serving ")]
    other = asked[1].split()[1].removeprefix("--against=")
    for host in ("one", "two"):
        folder = pair.folder / f"nodes/{host}/pair1/releases"
        found = {path.parent.name: json.loads(path.read_text())["settings"]["max-num-seqs"] for path in folder.glob("*/release.json")}
        assert found == {served: 6, other: 3}
    options = "--json --hours=12.0 --seed=x --interval=60.0 --pause=15.0"
    assert asked == ["status --json", f"start --against={other} --label={LABEL} {options}", "verdict --wait --json"]
    assert (pair.folder / "bench/pair1-s1-s2.soak.txt").read_text() == "page\n"
    done, again = soak_both(pair, {"label": LABEL, "state": "ended", "name": "s4", "first": "s3"}, rc=2)
    assert again == ["status --json"], "its page is not here, so nothing is started"
    assert done.last_message == "pair1: Release a serves again.", "rc 2 is for one that does not"
    done, _asked = soak_both(pair, {"label": LABEL, "state": "ended", "name": "s2", "first": "s1"}, one_on_vllm_rank_info="unread")
    assert "unread" in messages(done)["one"], "its page is here, so this is a new test"


def test_a_soak_of_another_command_is_not_disturbed(pair: Pair) -> None:
    done, asked = soak_both(pair, {"label": "{}", "state": "running", "name": "s1"})
    assert done.last_message == "pair1: the soak s1 has not ended, and is not that of this command. Run this with -e soak=stop to end it."
    assert asked == ["status --json"]
