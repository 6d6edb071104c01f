"""What is printed, and when, from the events of a run."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.progress import Progress
from ansible_collections.gb10.cluster.plugins.plugin_utils import run_report
from ansible_collections.gb10.cluster.plugins.plugin_utils.run_report import RunReport

REASON = "pair1 is not ready, 2 errors (sudo, arch); nothing was changed."


class Run:
    """A report with a clock that only the test moves."""

    def __init__(self, **options: bool) -> None:
        self.now = 0.0
        self.report = RunReport(lambda: self.now, **options)
        self.report.play(linear=True)

    def task(self, part: str, key: str, **states: str) -> list[str]:
        """Run a task of a role on hosts, a second long, and return what its start has printed."""
        lines = self.report.task(part, True)
        for host in states:
            self.report.start(part, True, host, key, key)
        self.now += 1
        for host, state in states.items():
            self.report.end(part, True, host, key, state)
            if state == "changed":
                self.report.change(host, key, key)
        return [line.text for line in lines]

    def finish(self, *failed: str) -> list[str]:
        return [line.text for line in self.report.finish(failed)]


@pytest.fixture
def run() -> Run:
    return Run()


def test_hosts_are_named_up_to_four_and_counted_above(run: Run) -> None:
    run.task("docker", "a", **{f"h{number}": "changed" if number == 3 else "ok" for number in range(6)})
    assert run.finish() == ["  changed   h3: a", "docker      h3 changed   5 hosts ok   1 s", "Done in 1 s: 1 change on h3."]


def test_the_worst_state_of_a_host_counts_and_a_role_that_only_skips_has_a_line(run: Run) -> None:
    run.task("gpu", "a", one="skipped")
    assert run.task("roce", "b", one="changed") == ["gpu         one skipped   1 s"]
    assert run.task("roce", "c", one="ok") == ["  changed   one: b"]
    assert run.finish()[0] == "roce        one changed   2 s"


def test_a_fault_waits_for_the_other_hosts_and_is_printed_after_five_seconds_without_them(run: Run) -> None:
    run.report.task("roce", True)
    for host in ("one", "two"):
        run.report.start("roce", True, host, "k", "Check")
    run.report.end("roce", True, "one", "k", "failed")
    run.report.fault("roce", "one", "k", "Check", ["No link."])
    assert run.report.due() == []
    run.now += run_report.SETTLE_SECONDS
    assert [line.text for line in run.report.due()] == ["ERROR roce on one: No link."]
    run.report.end("roce", True, "two", "k", "failed")
    run.report.fault("roce", "two", "k", "Check", ["No link."])
    lines = run.finish("one", "two")
    assert lines[0] == "ERROR roce on two: the same fault as above"
    assert lines[-1] == "Failed after 5 s: roce on one, two."


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_rank_that_only_refers_to_the_list_of_another_adds_its_name(run: Run, order: tuple[int, int]) -> None:
    faults = [("one", [REASON, "error sudo (one): a", "error arch (one): b"]), ("two", [f"{REASON} They are listed at one."])]
    for index in order:
        run.report.start("preflight", True, faults[index][0], "k", "Report")
        run.report.fault("preflight", faults[index][0], "k", "Report", faults[index][1])
    text = run.finish("one", "two")
    assert sum(line.startswith("ERROR") for line in text) == 1
    assert sorted(text[0].partition(": ")[0].removeprefix("ERROR preflight on ").split(", ")) == ["one", "two"]
    assert text[1:3] == ["error sudo (one): a", "error arch (one): b"]


def test_a_note_that_a_fault_has_already_is_not_repeated(run: Run) -> None:
    run.task("vllm_tp2", "a", one="ok")
    run.report.text("vllm_tp2", "one", "t", ["Evidence: evidence/a"])
    run.report.end("vllm_tp2", True, "one", "k", "failed")
    run.report.fault("vllm_tp2", "one", "k", "Fail", ["It fails.", "Evidence: evidence/a."])
    assert "vllm_tp2    one failed   1 s" in run.finish("one")


def test_a_rescued_failure_is_forgotten_when_the_play_ends(run: Run) -> None:
    run.report.rescued("roce", "one", "k", "Try", ["First."], "block")
    run.report.play(linear=True)
    run.report.fault("roce", "one", "l", "Later", ["Second."], within=["block"])
    assert run.finish("one")[0] == "ERROR roce on one: Second."


def test_heartbeat_names_the_hosts_of_a_task_and_their_last_progress(run: Run) -> None:
    run.report.task("weights", True)
    for host in ("one", "two"):
        run.report.start("weights", True, host, "k", "get | Copy")
    run.report.progress(Progress("one", "copy", 45, "66 GiB", "148 GiB", 240))
    run.report.progress(Progress("three", "load", 10))
    run.now += 95
    lines = [line.text for line in run.report.heartbeat()]
    assert lines == ["weights     one, two, three: Copy, 95 s; one copy 45 %, 4 min left, 66 GiB of 148 GiB; three load 10 %"]
    for host in ("one", "two"):
        run.report.end("weights", True, host, "k", "ok")
    assert run.report.heartbeat() == []


def test_json_has_faults_only() -> None:
    run = Run(as_json=True)
    run.task("roce", "a", one="changed")
    run.report.fault("roce", "one", "k", "Check", ["No link.", "Remedy: plug it in."])
    (line,) = run.finish("one")
    assert json.loads(line) == {"failed": "No link.\nRemedy: plug it in.", "part": "roce", "hosts": ["one"], "task": "Check"}


def test_no_text_reaches_the_terminal_as_a_command(run: Run) -> None:
    run.task("ro\x1bce", "a\x1b[2J", one="changed")
    run.report.diff("one", "x", "x", "")
    run.report.text("ro\x1bce", "one", "t", ["\x1b[2J", "second"])
    run.report.fault("ro\x1bce", "one", "k", "Check", ["\x1b[2J"])
    assert "\x1b" not in "\n".join(run.finish("one"))


def test_what_is_not_printed_yet_is_not_lost_when_a_run_is_interrupted(run: Run) -> None:
    run.report.fault("roce", "one", "k", "Check", ["No link."])
    assert [line.text for line in run.report.rest()] == ["ERROR roce on one: No link."]


def test_a_longer_fault_of_another_host_is_not_lost(run: Run) -> None:
    for host, text in (("one", "disk full"), ("two", "disk full on /dev/sdb, see fsck")):
        run.report.start("g", True, host, "k", "Check")
        run.report.fault("g", host, "k", "Check", [text])
    faults = [line for line in run.finish("one", "two") if line.startswith("ERROR")]
    assert faults == ["ERROR g on one: disk full", "ERROR g on two: disk full on /dev/sdb, see fsck"]


def test_hosts_have_the_order_of_the_inventory(run: Run) -> None:
    run.report.play(linear=True, hosts=["one", "two"])
    run.task("g", "k", two="ok", one="ok")
    for host in ("two", "one"):
        run.report.text("g", host, "t", [f"a line of {host}"])
    assert run.finish()[:2] == ["one: a line of one", "two: a line of two"]
