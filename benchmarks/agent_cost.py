"""What the agents cost on the container lab: memory and CPU on both nodes, while the pair serves and nothing happens, and over one boot.

Memory is that of the service's main process, VmRSS and its peak VmHWM. CPU is utime, stime and those of the children that have ended
(/proc/PID/stat) of all processes of gb10-agent.service and of the head's session on the worker, as a share of one core. Usage:

    .venv/bin/python benchmarks/agent_cost.py [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from acceptance.owner import wait_for  # noqa: E402  # as above
from container_lab import Lab, bring_up  # noqa: E402  # as above

from benchmarks import agents  # noqa: E402  # the checkout is not an installed package

MEMORY_MIB, IDLE_SHARE, BOOT_SHARE = 40.0, 0.02, 0.10

# Prints one JSON object: the main process's memory, and the CPU seconds of each process that works for the agent.
PROBE = r"""
import json, os, sys
tick = os.sysconf("SC_CLK_TCK")
main = int(sys.argv[1])
def read(pid, name):
    with open("/proc/%s/%s" % (pid, name), "rb") as handle:
        return handle.read().decode("utf-8", "replace")
cpu = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = read(pid, "cmdline").split("\0")
        session = words[0].startswith("sshd") and "gb10-agent" in words[0] or words[-3:] == ["/usr/local/sbin/gb10", "connect", ""]
        if not session and "/gb10-agent.service" not in read(pid, "cgroup"):
            continue
        fields = read(pid, "stat").rpartition(")")[2].split()
        cpu["%s-%s" % (pid, fields[19])] = sum(map(int, fields[11:15])) / tick
    except OSError:
        pass
memory = {line.split(":")[0]: int(line.split()[1]) for line in read(main, "status").splitlines() if line.startswith(("VmRSS", "VmHWM"))}
print(json.dumps({"cpu": cpu, "rss": memory["VmRSS"], "peak": memory["VmHWM"]}))
"""


@dataclass
class Cost:
    """What one agent has cost."""

    rss_mib: float
    peak_mib: float
    cpu_seconds: float
    share: float  # of one core


class Meter:
    """Measures one node's agent from now on."""

    def __init__(self, lab: Lab, node: int) -> None:
        self.lab, self.node = lab, node
        self.first, self.began = self._read(), time.monotonic()

    def _read(self) -> dict[str, Any]:
        pid = agents.pid(self.lab, self.node)
        assert pid, f"no agent runs on lab-{self.node}"
        return dict(json.loads(self.lab.on(self.node, f"python3 -I -c '{PROBE}' {pid}")))

    def cost(self) -> Cost:
        """Return the cost since the begin. A process that has ended is in the time of its parent."""
        last, seconds = self._read(), time.monotonic() - self.began
        spent = sum(used - self.first["cpu"].get(key, 0.0) for key, used in last["cpu"].items())
        return Cost(last["rss"] / 1024, last["peak"] / 1024, spent, spent / seconds)


def shown(what: str, node: int, cost: Cost, share: float) -> bool:
    """Print a line with its bars; return whether they hold."""
    good = cost.peak_mib <= MEMORY_MIB and cost.share <= share
    print(
        f"{what:5} lab-{node} ({'head' if node == 1 else 'worker'}): RSS {cost.rss_mib:5.1f} MiB, peak {cost.peak_mib:5.1f} MiB (bar {MEMORY_MIB:.0f});"
        f" CPU {cost.cpu_seconds:5.2f} s, {cost.share * 100:5.2f} % of a core (bar {share * 100:.0f} %): {'good' if good else 'ABOVE'}",
        flush=True,
    )
    return good


def main() -> int:
    """Print both measurements; exit 1 above a bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the idle measurement")
    options = parser.parse_args()
    bring_up(2)
    lab = Lab(REPO / "inventories/lab", Path(tempfile.mkdtemp(prefix="gb10-cost-")))
    first = lab.play("site.yml", "--tags", "vllm_tp2")
    if first.rc or not wait_for(lambda: agents.settled(lab), 60):
        print(first.stdout[-3000:], file=sys.stderr)
        return 1
    time.sleep(5)
    meters = [Meter(lab, node) for node in (1, 2)]
    time.sleep(options.seconds)
    held = [shown("idle", meter.node, meter.cost(), IDLE_SHARE) for meter in meters]
    meters = [Meter(lab, node) for node in (1, 2)]
    boot = lab.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_restart": True})
    held += [shown("boot", meter.node, meter.cost(), BOOT_SHARE) for meter in meters]
    if boot.rc:
        print(boot.stdout[-3000:], file=sys.stderr)
    return 0 if all(held) and not boot.rc else 1


if __name__ == "__main__":
    raise SystemExit(main())
