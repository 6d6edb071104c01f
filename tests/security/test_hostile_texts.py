"""Replies of a hostile API, output of programs and files of the kernel, and damaged files of the agent: each ends in a value, or in a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._agent import report, standing
from ansible_collections.gb10.cluster.plugins.module_utils._agent.actor import DESIRED, OUTCOME, Actor
from ansible_collections.gb10.cluster.plugins.module_utils._agent.rank import RankService
from ansible_collections.gb10.cluster.plugins.module_utils._agent.replies import checked
from ansible_collections.gb10.cluster.plugins.module_utils._agent.store import EVENTS, Store
from ansible_collections.gb10.cluster.plugins.module_utils._agent.watch import WATCH, Watch
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, gate, measures, metrics, reply, speculation
from ansible_collections.gb10.cluster.plugins.module_utils._gate.judge import Judge
from ansible_collections.gb10.cluster.plugins.module_utils._host import gpu
from ansible_collections.gb10.cluster.plugins.module_utils._watch import settings as watch_settings
from ansible_collections.gb10.cluster.plugins.modules import preflight_info, vllm_liveness
from ansible_collections.gb10.cluster.plugins.plugin_utils import node_results
from hostile import ANY_JSON, EXAMPLES, FEW, MANY, places, replaced
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fixtures.roce.tree import Tree, spark

pytestmark = pytest.mark.slow

DEEP = "[" * 100_000
HUGE = st.sampled_from(["1e400", "-1", "NaN", "inf", "9" * 400, "", "\x00", DEEP, '{"a":' * 100_000, "\ufffd", "[]", "null", "5", '"x"'])


def changed(good: Any, data: st.DataObject) -> str:
    """Return the text of a JSON document with a lie, or another text."""
    if not data.draw(st.integers(0, 4)):
        return str(data.draw(HUGE | st.text(max_size=60)))
    path = data.draw(st.sampled_from(places(good)))
    return json.dumps(replaced(good, path, data.draw(ANY_JSON), bool(path) and data.draw(st.booleans())))


MODELS = {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}
USAGE = {"completion_tokens": 3, "prompt_tokens": 9}
TEXT = {"choices": [{"text": "Paris", "message": {"content": "Paris", "reasoning": "x"}, "finish_reason": "stop"}], "usage": USAGE}
METRICS = (
    'vllm:cache_config_info{{kv_cache_size_tokens="{0}",kv_cache_max_concurrency="{0}"}} 1\nvllm:generation_tokens_total{{}} {0}\n'
    "vllm:num_requests_running {0}\nvllm:num_requests_waiting {0}\nvllm:spec_decode_num_drafts_total {0}\nvllm:spec_decode_num_draft_tokens_total {0}\n"
    'vllm:spec_decode_num_accepted_tokens_total {0}\nvllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{0}"}} {0}\n'
)


@MANY
@given(data=st.data())
def test_any_reply_of_the_api_is_used_or_refused_with_a_sentence(data: st.DataObject) -> None:
    paths = {"/v1/models": MODELS, "/version": {"version": "0.3"}, "/tokenize": {"tokens": [1, 2]}, "/v1/completions": TEXT, "/v1/chat/completions": TEXT}
    statuses = st.sampled_from([200, 200, 200, 200, 404, 500, 0])
    answers = {path: (data.draw(statuses), changed(good, data)) for path, good in paths.items()}
    answers["/metrics"] = (data.draw(statuses), METRICS.format(data.draw(HUGE | st.just("7"))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_probe.Server, "call", lambda _self, _method, path, *_more, **_options: answers[path])
        requests = [{"prompt": "x", "prompt_tokens": data.draw(st.sampled_from([0, 300])), "chat": data.draw(st.booleans()), "cold": data.draw(st.booleans())}]
        found = api_probe.run({"url": "http://127.0.0.1:8000", "requests": requests, "concurrency": 1})
        json.dumps(found, allow_nan=False)
        for each in found["replies"]:
            assert isinstance(reply.faults("x", each, "Paris"), list)
        drafts = speculation.total([found])
        json.dumps([drafts, speculation.checks(drafts, {"min": 0.5, "positions_active": 2}, True)], allow_nan=False)
        json.dumps(measures.decode_checks(next((measures.speed(each) for each in found["replies"]), None), {"published_tok_s": 5.0}), allow_nan=False)
        ranks = Judge("pair1", ["one"], "", {}).states
        assert gate.checks(ranks, found, {"context": 4096, "served_names": ["m"], "effective_tokens": {"min": 5}, "concurrency": {"min": 1}})
        module = SimpleNamespace(
            params={
                "url": "http://x",
                "idle_power_w": 5.0,
                "idle_power_file": None,
                "request": {"prompt": "x"},
                "timeout": 5.0,
                "wedge_seconds": 1.0,
                "completion_timeout": 5.0,
            },
            get_bin_path=lambda _name: None,
        )
        alive = vllm_liveness.Watch(module, "").check()
    assert not node_results.received("one", "vllm_liveness", alive).get("failed")
    assert not node_results.received("one", "vllm_probe", {key: value for key, value in found.items() if value}).get("failed")


@FEW
@given(text=st.text(max_size=200) | HUGE)
def test_any_figure_of_a_page_or_of_nvidia_smi_is_finite(text: str) -> None:
    seen = metrics.sample(METRICS.format(text))
    assert seen is None or (seen.running >= 0 and metrics.requests_text(seen))
    for power, _share in gpu.readings(f"{text}, {text}\n{text}"):
        assert power is None or 0 <= power < 2**63


# --- a node's files and programs


FILES = {
    "proc/meminfo": "MemTotal: 9 kB\nMemFree: 5 kB\nMemAvailable: 5 kB\n", "proc/buddyinfo": "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 5\n",
    "proc/zoneinfo": "Node 0, zone Normal\n  min 5\n", "proc/swaps": "Filename Type Size Used Priority\n/s file 5 1 -2\n", "proc/cmdline": "quiet\n",
    "proc/sys/kernel/osrelease": "6.17.0\n", "proc/driver/nvidia/version": "NVRM version: NVIDIA  580.1  Release\n", "etc/fstab": "/s none swap sw 0 0\n",
    "sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n", "var/lib/dpkg/status": "Package: x\nStatus: install half ok\n", "etc/dgx-release": 'DGX_NAME="x"\n',
    "run/docker.pid": "900", "proc/900/limits": "Max locked memory   5   5   bytes\n", "proc/900/status": "CapBnd:\t00ff\n",
    "proc/net/tcp": "  sl\n   0: 00000000:1F40 00000000:0000 0A 0:0 0:0 0 0 0 4242 1 0\n", "cmd/nvidia-smi.txt": "NVIDIA GB10, 580.1\n",
    "cmd/modinfo-nvidia.txt": "580.1\n", "cmd/fwupdmgr.json": '{"Devices": [{"Name": "x", "Version": "1"}]}', "cmd/uname-m.txt": "aarch64\n",
    "cmd/docker-containers.json": "[]", "cmd/docker-image.json": "{}", "cmd/docker-info.json": '{"ServerVersion": "28", "Driver": "overlay2"}',
    "cmd/disks.json": '{"/var/lib/docker": {"device": "8:1", "free_gib": 5.0, "read_only": false}}', "cmd/dmesg.txt": "x\n", "cmd/ota-check.json": "{}",
    "proc/sys/net/ipv4/ip_forward": "1\n", "cmd/iptables-forward.txt": "-P FORWARD DROP\n", "run/reboot-required.pkgs": "linux\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    made = spark(tmp_path_factory.mktemp("node") / "root", {"enp1s0f0np0": ["192.168.200.11/24"], "enP2p1s0f0np0": ["192.168.201.11/24"]})
    for path, text in FILES.items():
        made.file(path, text)
    made.write()
    return made


@settings(FEW, max_examples=EXAMPLES // 10)
@given(data=st.data())
def test_any_output_on_a_node_is_read_or_named(tree: Tree, capsys: pytest.CaptureFixture[str], data: st.DataObject) -> None:
    names = sorted(str(each.relative_to(tree.root)) for each in tree.root.rglob("*") if each.is_file() and not each.is_symlink())
    name = data.draw(st.sampled_from(names))
    path = tree.root / name
    before = path.read_bytes()
    content = data.draw(st.binary(max_size=200) | HUGE.map(str.encode) | ANY_JSON.map(lambda value: json.dumps(value).encode()) | st.just(before * 3 + b"\xff"))
    path.write_bytes(content)
    arguments = {"root": str(tree.root), "image": "vllm:1", "ports": [8000], "fabric_addresses": ["192.168.200.11/24", "192.168.201.11/24"]}
    try:
        with patch_module_args(arguments), pytest.raises(SystemExit):
            preflight_info.main()
    finally:
        path.write_bytes(before)
    found = json.loads(capsys.readouterr().out)
    if not found.get("failed"):
        assert not node_results.received("one", "preflight_info", found).get("failed"), (name, content)
    assert "Traceback" not in json.dumps(found)


# --- files of the agent


CLOCK = SimpleNamespace(monotonic=lambda: 5.0, wall=lambda: 1.8e9, wait=lambda _seconds: None)
GOOD: dict[str, Any] = {
    DESIRED: {"generation": 7, "state": "serving", "release": "a", "by": "x", "at": "y", "reasons": [], "options": {}, "replaces": [6], "known_stop": 0},
    OUTCOME: {"generation": 7, "phase": "settled", "result": "serves", "final": True, "verdict": {"msg": "x", "finding": {"line": "y"}}, "evidence": ["b"],
              "warnings": [], "containers": {"0": "abc"}, "attempt": 1, "unserved_seconds": 1.0},
    WATCH: {"crashes": [{"at": "x", "text": "y"}], "restarts": {"oom": 1}, "episode": {"cause": "x", "since": 5.0}, "last": {}, "serving_since": 5.0},
    "owner.json": {"group": "pair1", "head": "id", "generation": 7, "stop_generation": 0},
    "holds.json": [{"name": "x", "reason": "y", "until": 2e9, "by": "z"}],
    EVENTS: {"n": 5, "at": "x", "kind": "step", "text": "y", "seconds": 1.0, "generation": 7},
}  # fmt: skip


def damage(path: Path, good: Any, data: st.DataObject) -> None:
    """Put something else in the place of a file."""
    kind = data.draw(st.sampled_from(["json", "json", "json", "bytes", "link", "fifo", "folder", "unreadable"]))
    if kind == "json":
        path.write_text(changed(good, data), encoding="utf-8")
    elif kind == "bytes":
        path.write_bytes(data.draw(st.binary(max_size=100)))
    elif kind == "link":
        path.symlink_to(data.draw(st.sampled_from(["/etc/passwd", "/dev/zero", "nowhere", path.name])))
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir(mode=0o700 if kind == "folder" else 0)


@FEW
@given(data=st.data())
def test_a_damaged_file_of_the_agent_counts_as_missing_or_is_named(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("g")
    state = folder / "pair1/agent"
    state.mkdir(parents=True, mode=0o700)
    hit = data.draw(st.sets(st.sampled_from(sorted(GOOD)), min_size=1, max_size=2))
    for name, good in GOOD.items():
        if name in hit:
            damage(state / name, good, data)
        else:
            (state / name).write_text(json.dumps(good) + "\n", encoding="utf-8")
    store = Store(str(state))
    actor = Actor("pair1", [SimpleNamespace(host="one", number=0, generation=0)], store, CLOCK)
    Watch(actor, watch_settings.merged({}))
    desired, outcome = actor.desired(), actor.outcome()
    lines = [report.desired_line("g", desired), report.outcome_line(outcome), *report.why_lines(outcome, store.events(), "/x")]
    assert all(isinstance(line, str) for line in lines + [report.event_line(each) for each in store.events()])
    standing.decide({"desired": desired, "outcome": outcome}, "a", [], "g")
    assert standing.line({"desired": desired, "outcome": outcome}) is not None
    actor.event("step", "x")
    service = RankService({"group": "pair1", "rank": 0, "hosts": ["one"], "directory": str(folder)}, docker_socket=str(folder / "none"))
    answer = service.handle({"verb": "hello", "group": "pair1", "head": "id", "generation": 7})
    assert checked("hello", answer["result"]) if answer["ok"] else "Error:" not in answer["error"]
    for name in hit:
        if (state / name).is_dir():
            (state / name).chmod(0o700)
