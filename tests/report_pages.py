"""Pages of report.yml: of a composed GB10 pair, and of states of the container lab that were recorded with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data, report_page

RECORDED = Path(__file__).parent / "unit/fixtures/report"
PROFILE = "dspark-nvfp4-1m-seed"
HOSTS = ["spark-1", "spark-2"]
#: The seconds at which the stages of a boot begin; a worker prints those up to the graphs.
STAGES: list[tuple[str, float]] = [
    ("args", 2.1), ("config", 14.0), ("rendezvous", 30.2), ("load", 44.0), ("kv", 520.5), ("graphs", 601.0), ("init", 690.0), ("listen", 760.0),
    ("ready", 765.0),
]  # fmt: skip
#: Figures of the seed, as the profile has them.
PUBLISHED = [
    {"tool": "gb10", "case": "code", "prompt": 512, "output": 256, "figures": {"decode_tok_s": 54.22}},
    {"tool": "gb10", "case": "chat", "output": 256, "concurrency": [2, 4, 6], "figures": {"aggregate_tok_s": [60.95, 83.21, 104.11]}},
    {"measured_by": "gate", "figures": {"kv_pool_tokens": 1990142, "max_concurrency": 1.90}},
]


def series(load: float, end: float, step: int = 5) -> str:
    """Return the memory of a GB10 that loads weights of 74 GiB, and then makes a KV cache of 13 GiB."""
    out = []
    for second in range(0, int(end), step):
        weights = 74 * min(1.0, max(0.0, (second - 40) / load))
        used = 6 + weights + (16 if second > load + 90 else 0) + 1.5 * math.sin(second / 17) ** 2
        cache = min(34.0, weights) if second < load + 60 else 3
        available = 119.6 - used
        out.append(f"{second} {int(max(1.3, available - cache) * 1024)} {int(available * 1024)} {16384 - int(max(0.0, weights - 60) * 8)}")
    return ";".join(out)


def boot(release: str, at: str, seconds: float, pool: int, decode: float, failed: str = "") -> dict[str, Any]:
    """Return the receipt of a boot; `failed` is the class of a failure."""
    stages = [list(each) for each in STAGES if each[1] < seconds]
    ranks = [
        {"rank": rank, "host": host, "stages": stages[:6] if rank else stages, "memory_series": series(470 - 15 * rank, seconds)}
        for rank, host in enumerate(HOSTS)
    ]
    sentence = f"pair1: rank 0 on spark-1: {failed}: the KV cache is too small for the context (line 412 of its log). Remedy: lower max-model-len."
    figures = {} if failed else {
        "pool": {"effective_tokens": pool, "concurrency": round(pool / 2**20, 2), "context": 2**20}, "measured": {"decode_tok_s": decode},
    }  # fmt: skip
    return {
        "release": release, "profile": PROFILE, "time": at, "passed": not failed, "class": failed, "seconds": seconds, "ranks": ranks, "version": "0.21.1",
        "msg": sentence if failed else "pair1 serves: every criterion holds.", "models": ["deepseek-v4-flash"],
        **figures,
    }  # fmt: skip


def level(streams: int, rate: float) -> dict[str, Any]:
    """Return a measured row of bench.yml."""
    case = {"case": "chat", "quantity": "aggregate_tok_s"} if streams > 1 else {"case": "code", "prompt": 512, "quantity": "decode_tok_s"}
    return {"tool": "gb10", **case, "output": 256, "concurrency": streams, "runs": [rate - 0.5, rate, rate + 0.5], "mean": rate, "spread": 0.41}


def node(rank: int, **more: Any) -> dict[str, Any]:
    """Return what a report reads of a node."""
    rails = [
        {"netdev": netdev, "hca": hca, "ipv4": f"192.168.{100 + place}.{10 + rank}", "carrier": True, "speed_mbps": 200000, "mtu": 9000, "gid_index": 3}
        for place, (netdev, hca) in enumerate((("enp1s0f0np0", "rocep1s0f0"), ("enP2p1s0f0np0", "roceP2p1s0f0")))
    ]
    day = ";".join(
        f"{1795000000 + 60 * n} {int(3300 + 700 * math.sin(n * 1.7))} {int(11700 + 1600 * math.sin(n / 90) + 400 * math.sin(n * 2.3))} 15900"
        for n in range(1380) if not 700 < n < 714
    )  # fmt: skip
    return {
        "read_at": "2026-11-25T08:00:00Z", "problem": "", "state": "its container runs, 11.2 GiB of memory available", "receipts": [], "events": [],
        "memory": {"day": day, "recent": "", "source": "agent"}, "fabric": {"rails": rails, "problems": []}, "bandwidth": {}, "soaks": [], **more,
    }  # fmt: skip


def events() -> list[dict[str, Any]]:
    """Return events of an agent."""
    found = [
        ("09:46:50", "step", "pair1 starts release 9b1e61d2a9be"), ("10:00:00", "verdict", "pair1 serves: every criterion holds."),
        ("10:00:01", "settled", "pair1 serves release 9b1e61d2a9be."),
        ("21:12:09", "fault", "rank 1 on spark-2: the engine process is dead (VLLM::Worker_TP1)"),
        ("21:25:31", "recovered", "pair1 serves again after 802 s without service"),
    ]  # fmt: skip
    return [{"n": n, "at": f"2026-11-24T{at}Z", "kind": kind, "text": text, "seconds": 0.0} for n, (at, kind, text) in enumerate(found)]


def pair() -> dict[str, Any]:
    """Return the arguments of report_data.plan() of a GB10 pair. It is composed of published figures; no such pair was measured."""
    tested = {
        "class": "healthy", "when": "2026-11-20T09:40:00Z", "message": "RDMA write over 2 rail(s) at once: 92.6 Gb/s, 92.4 Gb/s; wanted are 85 Gb/s a rail.",
        "rails": [{"hca": "rocep1s0f0", "gbps": 92.6}, {"hca": "roceP2p1s0f0", "gbps": 92.4}],
    }  # fmt: skip
    profiles = {PROFILE: {"name": PROFILE, "gate": {"effective_tokens": {"min": 1890000}}, "published": PUBLISHED}}
    return {
        "group": "pair1", "hosts": HOSTS, "made": "2026-11-25 08:00",
        "status": {"state": "serves", "ok": True, "sentence": "pair1 serves: a completion came back within 0.4 s, release 9b1e61d2a9be."},
        "nodes": {"spark-1": node(0, events=events()), "spark-2": node(1, bandwidth=tested)},
        "receipts": [
            boot("4f0c61d2a9be", "2026-11-20T10:00:00Z", 812.4, 1900142, 52.1), boot("77aa02c3b1d4", "2026-11-22T10:00:00Z", 610.4, 0, 0.0, "kv_too_small"),
            boot("9b1e61d2a9be", "2026-11-24T10:00:00Z", 790.4, 1990142, 54.9),
        ],
        "profiles": profiles,
        "bench": {"at": "2026-11-24 11:00", "release": "9b1e61d2a9be", "rows": [level(1, 53.9), level(2, 62.1), level(4, 80.0), level(6, 101.2)]},
    }  # fmt: skip


def html(arguments: dict[str, Any]) -> str:
    """Return the page of arguments of report_data.plan()."""
    return report_page.render(report_data.plan(**arguments))


def recorded(state: str) -> dict[str, Any]:
    """Return the arguments for a state of the container lab. A folder has receipts, report-nodes.json, bench results, and what status.yml reported."""
    folder = RECORDED / state
    hosts = ["lab-1", "lab-2"]
    receipts = report_data.receipts_in(folder)
    nodes = report_data.nodes_of(hosts, {}, folder)
    found = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    for host, problem in found.pop("problems", dict.fromkeys(hosts, "")).items():
        nodes[host]["problem"] = problem
    return {
        "group": "pair1", "hosts": hosts, "made": "2026-11-25 08:00", "status": found, "nodes": nodes, "receipts": receipts,
        "profiles": {}, "bench": report_data.bench_in(folder, "pair1"),
    }  # fmt: skip
