"""What the readers returned, as findings and as a page: served, failed, wedged, half a pair, and every order of trouble at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL_KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._checks import judge
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import AREAS, PAIR, Group, Rank
from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import CHECKS, IDS
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import group_status
from unit.fixtures.node_facts import facts

HOSTS = ("spark-1", "spark-2")
PLACES = judge.Places(["inventories/mine"], True, {"spark-1": ["nvidia@10.0.0.11"], "spark-2": ["-p", "2222", "nvidia@10.0.0.12"]})
SERVES = {"outcome": "serves", "text": "a completion came back in 0.21 s", "http_status": 200}


def node(**more: Any) -> dict[str, Any]:
    return {"kernel": {"events": [], "skipped": {}, "unclean": ""}, "gpus": [], "gpu_error": "", "zones": [], "boot": {}, **more}


def info(rank: int, **more: Any) -> dict[str, Any]:
    container = {
        "name": f"gb10-pair1-rank{rank}", "running": True, "status": "running", "exit_code": 0, "started_at": "2026-11-22T20:00:00Z",
        "labels": {"gb10.cluster.release": "4f0c"},
    }  # fmt: skip
    return {
        "current": "4f0c", "containers": [container], "releases": [{"id": "4f0c", "good": True, "time": 1, "files": {}, "image": {}}], "engine_error": "",
        "processes": {"count": 3, "fault": ""}, "stopped": "", "receipt": {"passed": True, "release": "4f0c", "time": "2026-11-22T20:10:00Z"},
        "image": {"exists": True, "name": "i", "fingerprint": "f"}, "weights_differ": [], "memory": {"available_kib": 20 << 20, "free_kib": 8 << 20},
        "agent": {"version": "1", "state": {}}, **more,
    }  # fmt: skip


def rank(number: int, **more: Any) -> Rank:
    values: dict[str, Any] = {"facts": facts(rails=1), "node": node(), "info": info(number), "log": {"state": "ready", "failure": None}, **more}
    seen = {**values.pop("info"), "health": values.pop("node"), "boot_log": values.pop("log")}
    return Rank(HOSTS[number], number, info=seen, **values)


def lost(number: int, **failure: Any) -> Rank:
    return Rank(HOSTS[number], number, **(failure or FAILURES["unreachable"]), info={"unreachable": True, "msg": "timed out"})


def group(first: Rank | None = None, second: Rank | None = None, **more: Any) -> Group:
    ranks = [first or rank(0), second or rank(1)]
    values: dict[str, Any] = {"liveness": SERVES, "named": "4f0c", **more}
    head = {**ranks[0].info, "alive": values["liveness"]}
    status = group_status([head, *(each.info for each in ranks[1:])], "pair1", HOSTS)
    return Group("pair1", ranks, status=status, **values)


def report(each: Group) -> dict[str, Any]:
    return judge.report(each, judge.judge(each, preflight=False), PLACES, "2026-11-22T20:15:00Z")


def found(data: dict[str, Any]) -> dict[str, Any]:
    return {each["id"]: each for each in data["findings"]}


def test_a_pair_that_serves_has_one_line_for_each_area() -> None:
    data = report(group())
    assert (data["findings"], data["counts"]) == ([], {"error": 0, "warning": 0, "info": 0})
    lines = judge.lines(data)
    assert lines[0] == "pair1: no problem found. It serves."
    assert len(lines) < 15
    assert "ok           engine       pair1 serves: a completion came back in 0.21 s, release 4f0c" in lines
    assert "ok           drift        release 4f0c is the one of the inventory" in lines


def test_every_finding_has_an_area_and_a_command() -> None:
    for name, template in [*((each.id, each.command) for each in CHECKS.values()), *((name, kind.helps) for name, kind in KERNEL_KINDS.items())]:
        filled = PLACES.command(template.replace("{boot}", "0"), ["spark-2"], ["spark-1", "spark-2"])
        assert filled, name
        assert "{" not in filled, (name, filled)
    assert {each.area for each in CHECKS.values()} == set(AREAS)


def test_commands_are_those_of_the_checkout_or_of_the_installed_collection() -> None:
    away = judge.Places(["/etc/my pair"], False, {"spark-1": []})
    assert PLACES.command("{play}reboot{end} -e a=b", [], ["spark-1"]) == "ansible-playbook playbooks/reboot.yml -i inventories/mine -e a=b"
    assert away.command("{play}reboot{end}", [], ["spark-1"]) == "ansible-playbook gb10.cluster.reboot -i '/etc/my pair'"
    assert away.command("{site} --tags roce", [], ["spark-1"]) == "ansible-playbook gb10.cluster.site -i '/etc/my pair' --tags roce"
    assert PLACES.command("{on} 'df -h; sudo df'", ["spark-2"], ["spark-1", "spark-2"]) == "ssh -t -p 2222 nvidia@10.0.0.12 'df -h; sudo df'"
    assert away.command("{on} 'df -h; sudo df'", ["spark-1"], "spark-1") == "df -h; sudo df"
    reboot = PLACES.command(CHECKS["memory_stuck"].command, ["spark-2"], ["spark-1", "spark-2"])
    assert reboot == "ansible-playbook playbooks/reboot.yml -i inventories/mine -e reboot_all=true --limit spark-1,spark-2"


def test_a_failed_boot_is_named_with_its_verdict_once() -> None:
    verdict = {"passed": False, "class": "weights_missing", "msg": "pair1: rank 1 on spark-2: weights_missing: no config.json.", "finding": {"host": "spark-2"}}
    head = info(0, containers=[], receipt={}, agent={"state": {"outcome": {"final": True, "verdict": verdict}}})
    kept = {"label": "4f0c-1", "state": "failed", "stage": "weights", "failure": {"class": "weights_missing", "line": "no config.json", "remedy": "x"}}
    data = report(group(rank(0, info=head, log={}), rank(1, info=info(1, containers=[]), log={}, node=node(boot=kept)), liveness={}))
    assert list(found(data)) == ["boot_failed", "engine_down"]
    assert judge.verdict(data) == "pair1: 2 errors. It does not serve."
    entry = found(data)["boot_failed"]
    assert (entry["severity"], entry["hosts"], entry["command"]) == ("error", ["spark-2"], "ssh -t nvidia@10.0.0.11 sudo gb10 why")


def test_the_kept_boot_log_counts_if_the_agent_has_no_verdict() -> None:
    kept = {"label": "4f0c-1", "state": "failed", "stage": "weights", "failure": {"class": "weights_missing", "line": "no config.json", "remedy": "Copy them."}}
    data = report(group(second=rank(1, info=info(1, containers=[]), log={}, node=node(boot=kept))))
    entry = found(data)["boot_log"]
    assert entry["found"] == "weights_missing: no config.json (evidence 4f0c-1)"
    assert (entry["hosts"], entry["remedy"]) == (["spark-2"], "Copy them")


def test_a_wedged_engine_is_an_error_although_its_containers_run() -> None:
    wedged = {"outcome": "wedged", "text": "the engine is wedged: no completion came back within 30 s", "http_status": 0}
    entry = found(report(group(liveness=wedged)))["engine_wedged"]
    assert (entry["severity"], entry["command"]) == ("error", "ansible-playbook site.yml -i inventories/mine")


CHECKED = ("nodes", "versions", "docker", "fabric", "memory")
FAILURES: dict[str, dict[str, Any]] = {
    "unreachable": {"failure": "timed out", "unreachable": True},
    "sudo": {"failure": "sudo: a password is required"},
    "python": {"failure": "The module interpreter '/usr/bin/python3' was not found."},
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_pair_that_was_not_read_has_passed_nothing(failure: str) -> None:
    data = report(group(lost(0, **FAILURES[failure]), lost(1, **FAILURES[failure]), named="", liveness={}))
    assert data["passed"] == {}
    assert {each["area"] for each in data["not_checked"]} == set(AREAS)
    assert all(each["hosts"] == list(HOSTS) for each in data["not_checked"])
    lines = judge.lines(data)
    assert not [line for line in lines if line.startswith("ok ")]
    (line,) = [line for line in lines if line.startswith("not checked ")]
    assert line.endswith(" (spark-1, spark-2: the node was not read)")
    assert {"versions", "Docker", "fabric", "memory", "kernel log", "power, heat", "boot log", "drift"} <= {name for name in AREAS.values() if name in line}


def test_checks_of_half_a_pair_are_those_that_ran_on_the_other_half() -> None:
    """Comparisons need two nodes."""
    data = report(group(second=lost(1), named=""))
    assert found(data)["reachable"]["command"] == "ssh -p 2222 nvidia@10.0.0.12 true"
    assert {each["reason"] for each in data["not_checked"] if each["hosts"] == ["spark-2"]} == {"the node was not read"}
    down = found(report(group(rank(0, info=info(0, containers=[]), log={}), lost(1), named="", liveness={})))["engine_down"]
    assert down["remedy"].startswith("let spark-2 answer first")
    assert "site.yml" not in down["command"], "it is refused"
    texts = {area: data["passed"].get(area, "").split("; ")[0] for area in CHECKED}
    passed = {area: int(text.split()[0]) for area, text in texts.items() if text.endswith((" check", " checks"))}
    expected = {area: sum(CHECKS[name].area == area and CHECKS[name].of != PAIR for name in IDS) for area in CHECKED}
    assert passed == {area: number for area, number in expected.items() if area != "nodes"}, "the node that was not read is a finding of the area nodes"
    torn = facts(rails=1, driver={"loaded": "", "on_disk": "", "libraries": [], "gpus": [], "error": "", "present": False})
    away = report(group(rank(0, facts=torn | {"machine": {**torn["machine"], "gb10": False, "evidence": [], "product": "PC"}}), lost(1), named=""))
    assert away["passed"]["versions"] == f"{expected['versions'] - 2} checks", "without a driver, two more are not made"


@pytest.mark.parametrize(
    ("change", "name", "severity"),
    [
        ({"stopped": "2026-11-22T20:15:00Z", "containers": []}, "engine_stopped", "info"),
        ({"current": "", "releases": [], "containers": [], "receipt": {}}, "engine_absent", "info"),
        ({"processes": {"count": 2, "fault": "the engine process is stopped (PID 7, VLLM::Worker)"}}, "engine_down", "error"),
        ({"engine_error": "The Docker Engine is not running"}, "engine_unknown", "error"),
        ({"agent": {"state": {"watch": {"state": "recovering"}}}}, "engine_recovering", "error"),
    ],
)
def test_the_state_of_the_group_is_that_of_status(change: dict[str, Any], name: str, severity: str) -> None:
    data = report(group(rank(0, info=info(0, **change), log={}), rank(1, info=info(1, **change), log={}), liveness={}))
    assert found(data)[name]["severity"] == severity


def test_a_hold_and_restarts_of_the_agent_are_reported() -> None:
    state = {
        "holds": [{"name": "docker", "reason": "the role docker changes the Docker Engine"}],
        "watch": {"restarts": {"4f0c": 3}, "last": {"text": "it hung"}},
    }
    data = found(report(group(rank(0, info=info(0, agent={"state": state})))))
    assert data["agent_hold"]["found"] == "hold docker: the role docker changes the Docker Engine"
    assert data["restarts"]["found"] == "the agent has restarted the group 3 time(s), last because it hung"


def test_kernel_faults_of_both_boots_keep_the_severity_of_this_one() -> None:
    events = [{"id": "gpu_lost", "boot": boot, "count": 2, "first": "", "last": "2026-11-22T20:15:00+0000", "line": "NVRM: Xid 79"} for boot in (0, -1)]
    logs = {"events": events, "skipped": {}, "unclean": "2026-11-22T20:15:00+0000"}
    data = report(group(rank(0, node=node(kernel=logs))))
    shown = [(each["id"], each["severity"], each["area"]) for each in data["findings"]]
    assert shown == [("gpu_lost", "error", "kernel"), ("gpu_lost", "warning", "kernel"), ("unclean_end", "warning", "kernel")]
    assert "in the previous boot" in data["findings"][1]["found"]


def test_the_kernel_log_of_preflight_counts_only_without_a_journal() -> None:
    logged = facts(rails=1, kernel_log=[{"id": "gpu_lost", "count": 1, "line": "NVRM: Xid"}])
    without = node(kernel={"events": [], "skipped": {"this boot": "journalctl is not installed"}, "unclean": ""})
    data = report(group(rank(0, facts=logged), rank(1, facts=logged, node=without)))
    assert found(data)["kernel_log"]["hosts"] == ["spark-2"]


def test_drift_of_files_image_weights_and_settings_is_reported() -> None:
    settings = {
        "sysctl": {"changes": [f"vm.k{n}: 1 -> 2" for n in range(6)]},
        "gpu": {"failed": True, "msg": "nvidia-smi failed."},
        "readahead": {"changes": []},
    }
    image = {"exists": True, "id": "sha256:2", "name": "i", "fingerprint": "g"}
    kept = [{"id": "4f0c", "good": True, "time": 1, "files": {}, "image": {"reference": "i", "id": "sha256:1", "fingerprint": "f"}}]
    changed = info(0, weights_differ=["a", "b", "c", "d"], image=image, releases=kept)
    data = report(group(rank(0, info=changed, settings=settings, repairs=["compose.yaml of release 4f0c was missing"])))
    shown = found(data)
    assert set(shown) == {"release_files", "image_moved", "weights_differ", "settings_sysctl"}
    assert shown["settings_sysctl"]["found"].endswith("vm.k3: 1 -> 2 and 2 more")
    assert shown["weights_differ"]["found"] == "a; b; c and 1 more"
    assert {"area": "drift", "hosts": ["spark-1"], "reason": "settings of the role gpu: nvidia-smi failed"} in data["not_checked"]
    assert shown["release_files"]["hosts"] == ["spark-1"]


def test_another_release_of_the_inventory_is_drift_and_its_files_are_not_compared() -> None:
    data = found(report(group(rank(0, repairs=["the link current led to release 4f0c"]), named="aaaa")))
    assert list(data) == ["release_differs"]


def test_the_tests_that_were_asked_for_are_reported() -> None:
    slow = {"bandwidth_class": "hotplug_13g", "message": "13 Gb/s", "remedy": "Reboot both.", "changed": False}
    data = report(group(bandwidth={"spark-2": slow}, collective={"skipped": "the group runs"}))
    assert found(data)["bandwidth"]["remedy"] == "Reboot both"
    assert {"area": "fabric", "hosts": list(HOSTS), "reason": "collective test: the group runs"} in data["not_checked"]
    good = report(group(bandwidth={"spark-2": {**slow, "bandwidth_class": "healthy", "message": "95 Gb/s."}}, collective={"class": "", "msg": "3 GB/s."}))
    assert good["findings"] == []
    assert "95 Gb/s; 3 GB/s" in good["passed"]["fabric"]


def test_rails_that_are_wrong_after_the_set_up_are_reported_but_not_behind_a_missing_cable() -> None:
    def problems(*names: str) -> dict[str, Any]:
        return facts(problems=[{"id": name, "message": f"{name} found.", "remedy": "Do it."} for name in names])

    assert found(report(group(rank(0, facts=problems("gid_missing")))))["roce_problem"]["found"] == "gid_missing: gid_missing found"
    assert list(found(report(group(rank(0, facts=problems("gid_missing", "no_cable")))))) == ["cable"]


def test_old_evidence_is_not_a_finding_of_a_group_that_was_stopped() -> None:
    kept = {"label": "boot-7", "state": "failed", "stage": "weights", "failure": {"class": "weights_missing", "line": "x", "remedy": "y"}}
    ranks = [rank(n, info=info(n, containers=[], stopped="2026-11-22T21:00:00Z"), log={}, node=node(boot=kept)) for n in (0, 1)]
    assert "boot_log" not in found(report(group(*ranks, liveness={})))


@pytest.mark.parametrize(("liveness", "severity"), [(SERVES, "info"), ({}, "warning")])
def test_restarts_are_a_warning_only_while_the_group_does_not_serve(liveness: dict[str, Any], severity: str) -> None:
    head = info(0, agent={"state": {"watch": {"restarts": {"engine_dead": 1}}}})
    data = report(group(rank(0, info=head), liveness=liveness))
    assert found(data)["restarts"]["severity"] == severity
    assert ("engine" in data["passed"]) == (severity == "info"), "a finding for information hides nothing"


def test_a_rank_without_a_release_is_a_finding() -> None:
    data = report(group(second=rank(1, info=info(1, current="", releases=[])), named=""))
    assert (found(data)["release_files"]["hosts"], found(data)["release_files"]["severity"]) == (["spark-2"], "warning")
    assert {"area": "drift", "hosts": list(HOSTS), "reason": "the release was not rendered"} in data["not_checked"]


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ({"installed": False}, "its agent is not installed"),
        ({"installed": True, "group": "duo", "rank": 1, "active": True}, "its agent is that of rank 1 of duo"),
        ({"installed": True, "group": "pair1", "rank": 0, "active": True}, "its agent is that of rank 0 of pair1"),
    ],
)
def test_a_deployed_node_without_its_agent_is_an_error_while_the_group_serves(agent: dict[str, Any], text: str) -> None:
    data = report(group(second=rank(1, facts={**facts(rails=1), "agent": agent})))
    assert [(each["severity"], each["hosts"], each["found"]) for each in data["findings"] if each["id"] == "agent_missing"] == [("error", [HOSTS[1]], text)]
    fresh = rank(1, facts={**facts(rails=1), "agent": agent}, info=info(1, containers=[], current=""))
    assert "agent_missing" not in found(report(group(second=fresh)))
