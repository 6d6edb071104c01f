"""Results of modules from a compromised node: what reads them on the controller gets the form that it expects, or the task fails with a sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import kv_pool_gate, preflight_report, weights_copy
from ansible_collections.gb10.cluster.plugins.filter import image, release, weights
from ansible_collections.gb10.cluster.plugins.module_utils._checks import judge, page
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Group, Rank, Requirements
from ansible_collections.gb10.cluster.plugins.module_utils._gate import load_test
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import LOG_SIGNS
from ansible_collections.gb10.cluster.plugins.module_utils._release import summary
from ansible_collections.gb10.cluster.plugins.plugin_utils import node_results, preflight_ranks
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown as printing
from hostile import ANY_JSON, MANY, TEXTS, harmless, places, replaced
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

HOSTS = ["one", "two"]
FILTERS: dict[str, Callable[..., Any]] = {
    **image.FilterModule().filters(), **release.FilterModule().filters(), **weights.FilterModule().filters(),
}  # fmt: skip
SHA = "a" * 64
RECEIPT = {
    "group": "pair1", "release": "new", "passed": True, "time": TEXTS[-1], "class": "", "msg": "serves", "seconds": 90.0, "profile": "p", "drift": [],
    "pool": {"tokens": 7, "effective_tokens": 7, "concurrency": 1.5, "context": 5, "source": "log"}, "version": "0.3", "image_id": "sha256:1", "image": "f",
    "checks": [{"name": "pool", "ok": True}], "ranks": [{"rank": 0, "stages": [["load", 1.0], ["ready", 80.0]]}], "path": "/r/x.json",
    "weights": {"proof": SHA, "files": {"a.safetensors": [1, SHA]}},
}  # fmt: skip
OUTCOME = {
    "generation": 7, "phase": "judging", "result": "serves", "final": True, "sentence": "serves", "evidence": ["boot-7"], "warnings": ["w"],
    "unserved_seconds": 3.0, "verdict": {"passed": True, "class": "", "msg": "good", "seconds": 9.0, "checks": [{"name": "x", "ok": None}], "receipt": RECEIPT},
}  # fmt: skip
STATE = {
    "desired": {"generation": 7, "state": "serving", "release": "new", "by": "me", "at": TEXTS[-1], "replaces": [6]}, "outcome": OUTCOME,
    "holds": [{"name": "x", "reason": "y", "until": 5.0}], "busy": False, "owner": {"group": "pair1", "head": "id"},
    "watch": {"state": "fault", "missing": ["x"], "fault": {"cause": "a", "at": "b", "text": "c"}, "restarts": {"oom": 1}, "last": {"cause": "x", "at": "y"}},
}  # fmt: skip
CONTAINER = {
    "id": "abc", "name": "gb10-pair1-rank0", "status": "running", "running": True, "pid": 5, "exit_code": 0, "oom_killed": False, "error": "", "image": "v",
    "started_at": TEXTS[-1], "finished_at": "", "restart_count": 0, "image_id": "sha256:1", "image_fingerprint": "f", "labels": {"gb10.cluster.release": "new"},
}  # fmt: skip
RANK = {
    "current": "old", "containers": [CONTAINER], "weights": RECEIPT["weights"], "weights_differ": [], "stopped": "", "receipt": RECEIPT,
    "releases": [
        {"id": each, "good": True, "time": 5, "files": {"compose.yaml": "0640 x"}, "image": {"reference": "v", "id": "i", "fingerprint": "f", "gone": False}}
        for each in ("new", "old")
    ],
    "processes": {"count": 1, "fault": "", "cpu_seconds": 1.0}, "model_config": {}, "devices": ["/dev/infiniband"], "engine_error": "", "inputs": "x",
    "image": {"exists": True, "id": "sha256:1", "name": "v", "fingerprint": "f", "repo_digests": ["v@sha256:1"]},
    "memory": {"total_kib": 9, "free_kib": 9, "available_kib": 9},
    "agent": {
        "version": "1", "state": STATE, "converges": False, "public_key": "ssh-ed25519 A", "head_id": "id", "host_keys": ["ssh-ed25519 A"], "ssh_port": 22,
        "stamp": "",
    },
}  # fmt: skip
IMAGE = {
    "reference": "v", "exists": True, "id": "sha256:1", "repo_digests": ["v@sha256:1"], "layers": ["sha256:2"], "fingerprint": "f", "store": "classic",
    "architecture": "arm64", "build": "", "chains": ["sha256:2"], "served": "", "surplus": 0, "free_bytes": 1, "size": 1,
}  # fmt: skip
MODEL = {
    "path": "/m", "exists": True, "layout": "directory", "commit": "", "files": {"a.safetensors": {"size": 1, "sha256": SHA, "mtime_ns": 1}},
    "links": {"l": "a.safetensors"}, "selected": ["a.safetensors", "l"], "missing": [], "incomplete": [], "damaged": [], "problems": [],
    "agreed": {"a.safetensors": [1, SHA, 1]}, "copied": ["a.safetensors"], "free_bytes": 10**9, "staged": {SHA: 1}, "bytes": 1,
}  # fmt: skip
CLOCK = {"before": 1.0, "after": 2.0}  # the action plugin adds it
PREFLIGHT = {
    "time": 5.0, "python": "3.12.3", "container": "", "machine": {"arch": "aarch64", "product": "x", "gb10": True, "evidence": ["y"], "id": "5f70"},
    "kernel": {"release": "6.17.0", "cmdline": "quiet", "reboot_required": True, "reboot_packages": ["linux"]},
    "dgx": {"present": True, "base": "7.2", "ota": "7.6"}, "broken_packages": ["x"], "ota_check": {"torn": 1}, "firmware": {"ConnectX-7": "28.45"},
    "driver": {"loaded": "580.1", "on_disk": "580.2", "libraries": ["580.2"], "gpus": ["GB10"], "error": "", "present": True},
    "memory": {"total_kb": 127600000, "problems": [{"id": "memory_stuck", "message": "m", "remedy": "r"}]},
    "fabric": {
        "management": {"interface": "wl0", "reason": "r", "wireless": True, "address": "192.168.1.9", "prefix": 16}, "macs": ["4c:bb:47:00:00:11"],
        "rails": [{"netdev": "enp1s0f0np0", "ipv4": "192.168.200.1", "prefix": 24}],
        "problems": [{"id": "no_cable", "message": "m", "remedy": "r", "interface": "x"}],
    },
    "exposure": {
        "forwarding": "net.ipv4.ip_forward=1", "policy": "ACCEPT", "firewall": False, "neighbors": [{"netdev": "enp1s0f0np0", "mac": "4c:bb:47:00:00:12"}],
    },
    "docker": {"error": "", "installed": True, "root": "/var/lib/docker", "image_present": True, "image_store": "g", "driver": "overlay2",
               "cgroup_driver": "systemd", "cdi": True},
    "containers": [{"name": "c", "image": "vllm", "state": "running", "labels": {}, "vllm": True, "gpu": True, "restart": "always"}],
    "disks": [{"path": "/var/lib/docker", "device": "8:1", "free_gib": 5.0, "read_only": False}], "model": {"present_gib": 1.0},
    "listening": [{"port": 8000, "address": "*", "pid": 5, "process": "x", "container": ""}], "memlock": {"known": True, "bytes": 5, "may_raise": False},
    "kernel_log": [{"id": next(iter(LOG_SIGNS)), "count": 1, "line": "l"}], "suspends": ["it has suspended"],
    "agent": {
        "installed": True, "group": "pair1", "rank": 0, "pending": False, "active": True, "error": "", "sshd_problems": ["A. B"],
        "peers": [{"rank": 1, "host": "two", "address": "192.0.2.2", "ok": False, "error": "no route"}],
    },
}  # fmt: skip
DOCTOR = {
    "kernel": {
        "events": [{"id": "gpu_lost", "boot": 0, "count": 2, "first": "", "last": "2026-11-22T20:15:00+0000", "line": "NVRM: Xid"}],
        "skipped": {"the previous boot": "the journal has no kernel messages of it"}, "unclean": "2026-11-22T20:15:00+0000",
    },
    "gpus": [{"temperature_c": 91.0, "power_w": 14.0, "utilization": 96.0, "sm_mhz": 611.0, "max_mhz": 3003.0, "reasons": 32}], "gpu_error": "x",
    "zones": [{"name": "acpitz", "temperature_c": 104.0, "critical_c": 105.0}],
    "boot": {"label": "new-1", "file": "f", "state": "failed", "stage": "load", "failure": {"class": "x", "line": "y", "remedy": "z"}},
}  # fmt: skip
LIVENESS = {"outcome": "dead", "text": "refused", "http_status": 0, "starting": False, "seconds": 1.0, "running": 1, "waiting": 1}
LOG = {"state": "starting", "stage": "load", "failure": {"class": "x", "line": "y"}, "kv_cache": {"tokens": 5, "max_concurrency": 1.0, "available_gib": 2.0}}
REPLIES = {"models": [{"id": "m"}], "error": "", "replies": [{"ok": True, "status": 200, "text": "Lisbon", "completion_tokens": 1, "seconds": 1.0}]}


def use_rank(found: dict[str, Any]) -> list[Any]:
    """Call what reads the result of vllm_rank_info."""
    other = {**RANK, "containers": []}
    out: list[Any] = []
    for infos in ([found, other], [other, found]):
        state = FILTERS["group_status"](infos, "pair1", HOSTS, LIVENESS, LOG)
        good = FILTERS["last_good"](infos, "new")
        judged = FILTERS["judged_receipt"](infos, "new")
        lost = FILTERS["lost_ways"](infos, HOSTS, "new", judged, "pair1")
        documents = [FILTERS["status_document"](state, "pair1", HOSTS, infos, [LOG, LOG]), FILTERS["releases_document"](infos[0], "pair1", "one")]
        out += [state, good, judged, lost, documents, *map(printing.text_of, documents)]
        reasons = FILTERS["start_reasons"](infos[0], "new", "rank 0", LIVENESS, False, judged)
        decision = FILTERS["agent_decision"](infos[0]["agent"]["state"], "new", reasons, "pair1", False, False)
        out += [reasons, decision, FILTERS["agent_line"](infos[0]["agent"]["state"])]
        out += [FILTERS["release_repairs"](infos[0], "new", {"compose.yaml": "x"}, judged), FILTERS["stale_releases"](infos[0], 2, ["new"])]
        result = {"group": "pair1", "head": "one", "release": "new", "profile": "p", "port": 8000, "changes": ["x"], "receipt": judged or infos[0]["receipt"]}
        out.append(summary.group_text(result, "192.0.2.1", []))
    return [*out, *report_of(info=found)]


def use_preflight(found: dict[str, Any]) -> list[Any]:
    """Judge the ranks and print."""
    ranks = [
        preflight_ranks.rank_of({"hostvars": {"one": {"x": each}}}, "x", "one", number, True)
        for number, each in enumerate(({**found, "clock": CLOCK}, PREFLIGHT))
    ]
    group = Group("pair1", ranks, Requirements(head_ports={8000: "API"}, model_gib=1.0))
    verdict = judge.judge(group)
    return [preflight_report._text(group, verdict, ""), verdict.data(), [each.line() for each in verdict.findings], *report_of(facts=found)]


def use_image(found: dict[str, Any]) -> list[Any]:
    other = {**IMAGE, "fingerprint": "g", "id": "sha256:9", "repo_digests": []}
    out = []
    for infos in ([found["info"], other], [other, found["info"]]):
        for how in ("auto", "pull", "send"):
            out.append(FILTERS["image_plan"](infos, HOSTS, distribution=how))
        out.append(FILTERS["image_run"](infos, "v", "sha256:1"))
    return out


def use_model(found: dict[str, Any]) -> list[Any]:
    other = {**MODEL, "exists": False, "files": {}, "selected": [], "links": {}, "agreed": {}}
    ranks = ([found], [{"manifest": other}])
    return [FILTERS["weights_plan"](each, HOSTS, [{"size_gib": 1}]) for each in (ranks, ranks[::-1])]


def use_offer(found: dict[str, Any]) -> list[Any]:
    group = {"members": [{"host": host, "fabric": [f"192.0.2.{number}"]} for number, host in enumerate(HOSTS, 1)]}
    return [FILTERS["weights_ways"](group, [found, None], 1)]


def use_progress(found: dict[str, Any]) -> list[Any]:
    action = weights_copy.ActionModule.__new__(weights_copy.ActionModule)
    action.began = time.monotonic()
    return [action.progress({"state": "running", **found["report"]})] if found.get("report") else []


def use_replies(found: dict[str, Any]) -> list[Any]:
    row = load_test.row_of(1, [{"prompt": "x", "expect": "Lisbon"}], list(found.get("replies") or []))
    return [load_test.table([row]), load_test.stream_lines(row), load_test.fault_lines([row]), load_test.complaint("g", [row])]


def use_status(found: dict[str, Any]) -> list[Any]:
    state = FILTERS["group_status"]([RANK, RANK], "pair1", HOSTS, found, LOG)
    return [state, FILTERS["status_document"](state, "pair1", HOSTS, [RANK, RANK], [LOG, LOG]), FILTERS["start_reasons"](RANK, "new", "rank 0", found)]


def use_log(found: dict[str, Any]) -> list[Any]:
    state = FILTERS["group_status"]([RANK, RANK], "pair1", HOSTS, LIVENESS, found)
    return [printing.text_of(FILTERS["status_document"]({**state, "state": "starting"}, "pair1", HOSTS, [RANK, RANK], [found, found]))]


def report_of(**readers: dict[str, Any]) -> list[Any]:
    """Return the report of two ranks and its page; `readers` replaces what those of the first rank returned."""
    good: dict[str, Any] = {"facts": PREFLIGHT, "node": DOCTOR, "info": RANK, "log": {}, "settings": {"sysctl": {"changes": ["x"]}}}
    ranks = [Rank(host, number, **{**good, **(readers if number == 0 else {})}) for number, host in enumerate(HOSTS)]
    status = FILTERS["group_status"]([rank.info for rank in ranks], "pair1", HOSTS, LIVENESS, {})
    group = Group("pair1", ranks, status=status, liveness=LIVENESS, named="new")
    verdict = judge.judge(group, preflight=False)
    data = node_results.plain(page.report(group, verdict, page.Places(["i"], True, {host: [host] for host in HOSTS}), "t"))
    return [data, page.lines(data)]


def use_doctor(found: dict[str, Any]) -> list[Any]:
    without = {**RANK, "containers": []}
    return [*report_of(node=found), *report_of(node=found, info=without)]


REPORT = {"state": "running", "total": 5, "done": 2, "moved": 2, "hashed": 1, "files": 2, "files_done": 1, "copy_seconds": 1.0}
#: Module, a good result, what reads it.
ENTRIES: dict[str, tuple[Any, Callable[[dict[str, Any]], list[Any]]]] = {
    "vllm_rank_info": (RANK, use_rank), "preflight_info": (PREFLIGHT, use_preflight), "image_info": ({"info": IMAGE}, use_image),
    "weights_manifest": ({"manifest": MODEL, "complaints": []}, use_model), "weights_copy": ({"report": REPORT}, use_progress),
    "weights_serve": ({"unit": "u", "listen": [{"address": "192.0.2.1", "port": 5}]}, use_offer), "vllm_probe": (REPLIES, use_replies),
    "vllm_liveness": (LIVENESS, use_status), "vllm_boot_log_info": (LOG, use_log), "doctor_info": (DOCTOR, use_doctor),
}  # fmt: skip


def texts_of(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else "".join(map(texts_of, [*value, *value.values()] if isinstance(value, dict) else value))
        if isinstance(value, (dict, list, tuple))
        else ""
    )


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep what is printed, and print nothing."""
    lines: list[str] = []
    for name in ("display", "warning"):
        monkeypatch.setattr(Display, name, lambda _self, text, **_more: lines.append(text))
    return lines


@pytest.mark.parametrize("module", ENTRIES)
def test_a_good_result_is_used(module: str) -> None:
    good, use = ENTRIES[module]
    found = node_results.received("one", f"gb10.cluster.{module}", good)
    assert not found.get("failed"), found
    assert use(found)


def change(good: Any, data: st.DataObject) -> Any:
    """Return a result in which a node lies at up to two places."""
    for _each in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(places(good)))
        good = replaced(good, path, data.draw(ANY_JSON), bool(path) and data.draw(st.booleans()))
        if not isinstance(good, dict):
            return {}
    return good


@MANY
@given(data=st.data())
def test_any_result_of_a_module_is_used_or_refused_with_a_sentence(shown: list[str], data: st.DataObject) -> None:
    shown.clear()
    module = data.draw(st.sampled_from(sorted(ENTRIES)))
    good, use = ENTRIES[module]
    found = node_results.received("one", f"gb10.cluster.{module}", change(good, data))
    if found.get("failed"):
        assert found["msg"].startswith("one: the result of") or found["failed"] is not True
        return
    try:
        used = use(found)
    except AnsibleFilterError as error:
        used = [error.message]
    text = texts_of(used) + "".join(shown)
    assert "Error:" not in text
    assert harmless(text)


class Head(kv_pool_gate.ActionModule):
    """The action, against a node that answers from a list; the last answer is repeated."""

    def __init__(self, answers: list[str], until: str) -> None:
        self._task = SimpleNamespace(check_mode=False)
        self.answers, self.until = answers, until

    def validate_argument_spec(self, argument_spec: Any) -> Any:
        return None, {"generation": 7, "group": "pair1", "receipts": self.receipts, "until": self.until, "since": 0}

    def _low_level_execute_command(self, command: str, **_more: Any) -> dict[str, Any]:
        return {"rc": 0, "stdout": self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]}

    receipts = ""


FOLLOWED = {"events": [{"n": 1, "kind": "progress", "text": "loads", "seconds": 1.0}], "next": 1, "outcome": OUTCOME, "desired": STATE["desired"]}


@MANY
@given(data=st.data())
def test_any_answer_of_the_heads_agent_ends_the_task_and_stays_in_the_folder_of_receipts(
    shown: list[str], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shown.clear()
    place, now = tmp_path_factory.mktemp("run"), [0.0]
    changed = json.dumps(change(FOLLOWED, data)) if data.draw(st.integers(0, 3)) else data.draw(st.text(max_size=50))
    action = Head([changed, json.dumps(FOLLOWED)] if data.draw(st.booleans()) else [changed], data.draw(st.sampled_from(["verdict", "settled"])))
    action.receipts = str(place / "receipts")

    def later(seconds: float = 3600.0) -> float:
        now[0] += seconds
        return now[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActionBase, "run", lambda *_a, **_k: {})
        patch.setattr(kv_pool_gate, "time", SimpleNamespace(monotonic=later, sleep=later))
        found = action.run(None, {"inventory_hostname": "one"})
    assert isinstance(found["failed"], bool)
    assert harmless(texts_of(found) + "".join(shown))
    assert [each.name for each in place.iterdir()] in ([], ["receipts"])
    assert {each.parent for each in place.rglob("*.json")} <= {place / "receipts/pair1"}
