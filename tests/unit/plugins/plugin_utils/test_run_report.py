"""What is printed, and when, from the events of a run."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils import run_report
from ansible_collections.gb10.cluster.plugins.plugin_utils.run_report import RunReport


class Run:
    """A report with a clock that only the test moves."""

    def __init__(self, **options: bool) -> None:
        self.now = 0.0
        self.report = RunReport(lambda: self.now, **options)
        self.report.play()

    def task(self, part: str, key: str, **states: str) -> list[str]:
        """Run a task of a role on hosts, a second long, and return what its start has printed."""
        lines = self.report.task(part, key, key)
        for host in states:
            self.report.start(host, key)
        self.now += 1
        for host, state in states.items():
            self.report.end(host, key, state)
            if state == "changed":
                self.report.change(host, key)
        return [line.text for line in lines]

    def finish(self, *failed: str) -> list[str]:
        return [line.text for line in self.report.finish(failed)]


@pytest.fixture
def run() -> Run:
    return Run()


def test_every_host_of_a_role_is_named_with_its_state(run: Run) -> None:
    run.task("docker", "a", one="changed", two="ok")
    assert run.finish() == ["  changed   one: a", "docker      one changed   two ok   1 s", "Done in 1 s: 1 change on one."]


def test_the_worst_state_of_a_host_counts_and_a_role_that_only_skips_has_a_line(run: Run) -> None:
    run.task("gpu", "a", one="skipped")
    assert run.task("roce", "b", one="changed") == ["gpu         one skipped   1 s"]
    assert run.task("roce", "c", one="ok") == ["  changed   one: b"]
    assert run.finish()[0] == "roce        one changed   2 s"


@pytest.mark.parametrize(("state", "lines"), [("ok", []), ("changed", ["  changed   one: a", "vllm_tp2    one changed   1 s"])])
def test_a_role_that_is_only_asked_has_a_line_if_it_changes_something(run: Run, state: str, lines: list[str]) -> None:
    run.report.task("vllm_tp2", "first", "first", is_asked=True)
    run.task("vllm_tp2", "a", one=state)
    assert run.finish()[:-1] == lines


def test_a_fault_waits_for_the_other_hosts_and_is_printed_after_five_seconds_without_them(run: Run) -> None:
    run.report.task("roce", "k", "Check")
    for host in ("one", "two"):
        run.report.start(host, "k")
    run.report.end("one", "k", "failed")
    run.report.add("failed", "one", "k", ["No link."])
    assert run.report.flush(always=False) == []
    run.now += run_report.SETTLE_SECONDS
    assert [line.text for line in run.report.flush(always=False)] == ["ERROR roce on one: No link."]
    run.report.end("two", "k", "failed")
    run.report.add("failed", "two", "k", ["No link."])
    lines = run.finish("one", "two")
    assert lines[0] == "ERROR roce on two: the same fault as above"
    assert lines[-1] == "Failed after 5 s: roce on one, two."


def test_a_note_that_a_fault_has_already_is_not_repeated(run: Run) -> None:
    run.task("vllm_tp2", "a", one="ok")
    run.report.task("vllm_tp2", "t", "t")
    run.report.add("text", "one", "t", ["Evidence: evidence/a"])
    run.report.task("vllm_tp2", "k", "Fail")
    run.report.end("one", "k", "failed")
    run.report.add("failed", "one", "k", ["It fails.", "Evidence: evidence/a."])
    assert "vllm_tp2    one failed   1 s" in run.finish("one")


def test_heartbeat_names_the_hosts_of_a_task_at_work(run: Run) -> None:
    run.report.task("weights", "k", "get | Copy")
    for host in ("one", "two"):
        run.report.start(host, "k")
    run.now += 95
    assert [line.text for line in run.report.heartbeat()] == ["weights     one, two: Copy, 95 s"]
    for host in ("one", "two"):
        run.report.end(host, "k", "ok")
    assert run.report.heartbeat() == []


def test_a_line_of_a_role_after_its_report_is_printed(run: Run) -> None:
    found: list[str] = []
    for key, lines in (("t", ["a table", "of two lines"]), ("u", ["The speeds are not kept."])):
        found += run.task("vllm_tp2", key, one="ok")
        run.report.report(lines)
        run.report.add("text", "one", key, lines)
    assert found + run.finish() == ["a table", "of two lines", "The speeds are not kept."]


def test_json_has_faults_only() -> None:
    run = Run(as_json=True)
    run.task("roce", "a", one="changed")
    run.report.task("roce", "k", "Check")
    run.report.add("failed", "one", "k", ["No link.", "Remedy: plug it in."])
    (line,) = run.finish("one")
    assert json.loads(line) == {"failed": "No link.\nRemedy: plug it in.", "part": "roce", "hosts": ["one"], "task": "Check"}


def test_no_text_reaches_the_terminal_as_a_command(run: Run) -> None:
    run.task("ro\x1bce", "a\x1b[2J", one="changed")
    run.report.task("ro\x1bce", "k", "x\x1b")
    run.report.add("changed", "one", "k")
    run.report.add("text", "one", "k", ["\x1b[2J", "second"])
    run.report.add("failed", "one", "k", ["\x1b[2J"])
    assert "\x1b" not in "\n".join(run.finish("one"))


def test_a_longer_fault_of_another_host_is_not_lost(run: Run) -> None:
    run.report.task("g", "k", "Check")
    for host, text in (("one", "disk full"), ("two", "disk full on /dev/sdb, see fsck")):
        run.report.start(host, "k")
        run.report.add("failed", host, "k", [text])
    faults = [line for line in run.finish("one", "two") if line.startswith("ERROR")]
    assert faults == ["ERROR g on one: disk full", "ERROR g on two: disk full on /dev/sdb, see fsck"]


def test_hosts_have_the_order_of_the_inventory(run: Run) -> None:
    run.report.play(hosts=["one", "two"])
    run.task("g", "k", two="ok", one="ok")
    for host in ("two", "one"):
        run.report.add("text", host, "k", [f"a line of {host}"])
    assert run.finish()[:2] == ["one: a line of one", "two: a line of two"]


def test_the_same_fault_of_two_hosts_is_printed_once_and_a_long_one_is_cut(run: Run) -> None:
    run.report.task("g", "k", "Check")
    for host in ("one", "two"):
        run.report.add("failed", host, "k", ["Nothing works.", *map(str, range(29))])
    lines = run.finish("one", "two")
    assert (lines[0], lines[7]) == ("ERROR g on one, two: Nothing works.", "... 23 more lines; -v prints them")
    assert len(lines) == 8, "the only fault of a run without a change needs no summary"


def test_a_failure_whose_rescue_was_left_out_by_the_tags_is_not_lost(run: Run) -> None:
    run.report.task("g", "k", "Try")
    run.report.rescued("one", "k", ["The only cause."])
    assert run.finish("one") == ["ERROR g on one: The only cause."]


def test_a_run_without_a_change_names_its_hosts() -> None:
    for is_check, text in ((False, "Done in 1 s: nothing changed on one."), (True, "Check mode, 1 s: nothing would change on one.")):
        run = Run(is_check=is_check)
        run.task("g", "k", one="ok", two="skipped", localhost="ok")
        assert run.finish()[-1] == text
