#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's memory policy in one go: a sysctl drop-in with its live values, swap, out-of-memory daemons; recorded and undone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: uma_tuning
short_description: Harden a node with unified memory, read it back, and say what that costs
version_added: 0.1.0
description:
  - Plans and applies one drop-in, C(/etc/sysctl.d/60-gb10-cluster.conf), together with the live values, the swap policy and the
    out-of-memory policy, then reads everything back from the live system.
  - A file that is read later at boot and says something else is named, and nothing is changed.
  - What stood before the first run is recorded in C(/var/lib/gb10-cluster/sysctl.json); O(state=absent) gives it back.
  - In a container, where C(vm.*) belongs to the host, it changes nothing and says so in RV(skipped_reason).
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Live values appear as pseudo files beside the real ones, and so does what is done to units and swap.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) sets, V(absent) gives back what stood before.
    type: str
    choices: [present, absent]
    default: present
  min_free_kbytes:
    description:
      - C(vm.min_free_kbytes) in KiB; V(auto) chooses by the node's size, V(leave) does not touch it.
    type: str
    default: auto
  min_free_by_size:
    description:
      - The floor in KiB that V(auto) takes for the sizes V(121) and V(119).
    type: dict
    default: {'119': 3145728, '121': 3145728}
  min_free_percent_other:
    description:
      - The floor that V(auto) takes on a node of another size, in percent of its memory.
    type: float
    default: 2.5
  settings:
    description:
      - Further values, C(vm.key) to a number, or to V(leave). C(vm.swappiness) also takes V(auto), which is 0 with
        O(swap_policy=swappiness0) and else V(leave).
    type: dict
    default: {}
  extra:
    description:
      - Any other sysctl of the user's.
    type: dict
    default: {}
  swap_policy:
    description:
      - V(off) switches swap off and silences what brings it back, V(swappiness0) keeps it for emergencies, V(leave) does not touch it.
      - Going from V(off) to another policy gives swap back.
    type: str
    choices: ['off', swappiness0, leave]
    default: leave
  lru_gen_min_ttl_ms:
    description:
      - Milliseconds whose working set the kernel keeps in memory, else the OOM killer runs (multi-generational LRU, C(min_ttl_ms)); 0 is the
        kernel's default and switches the guard off, V(leave) does not touch it. On a kernel without it, RV(message) says so.
    type: str
    default: leave
  oom_policy:
    description:
      - V(earlyoom) runs earlyoom and stops systemd-oomd, V(no_earlyoom) stops both, V(leave) does not touch them.
    type: str
    choices: [leave, earlyoom, no_earlyoom]
    default: leave
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: A floor under the page cache, no swap
  gb10.cluster.uma_tuning:
    min_free_kbytes: auto
    settings:
      vm.watermark_boost_factor: 0
    swap_policy: "off"
  become: true

- name: Everything as it was
  gb10.cluster.uma_tuning:
    state: absent
  become: true
"""

RETURN = r"""
changes:
  description: What was changed, or would be, one sentence each.
  returned: always
  type: list
  elements: str
  sample: ["vm.min_free_kbytes: 45167 -> 3145728"]
message:
  description: What the settings cost and which gpu_memory_utilization still starts.
  returned: always
  type: str
  sample: >-
    vm.min_free_kbytes 3145728 (for a 121 GiB node) costs 4.11 GiB of MemAvailable; vLLM from PR 35356 on (MemAvailable) starts up to
    gpu_memory_utilization 0.89, older images (MemFree) up to 0.93; swap is off
skipped_reason:
  description: Why nothing was touched; empty when the node is a machine of its own.
  returned: always
  type: str
  sample: ""
sysctl:
  description: The sysctl values that are set.
  returned: always
  type: dict
  sample: {vm.min_free_kbytes: "3145728"}
floor_cost_gib:
  description: What the floor costs in GiB of MemAvailable against the values before the first run.
  returned: always
  type: float
  sample: 4.11
highest_utilization:
  description: Highest gpu_memory_utilization that still starts, for images that check MemAvailable and for those that check MemFree;
    C(estimate) is true while something uses the GPU.
  returned: always
  type: dict
  sample: {memavailable: 0.89, memfree: 0.93, estimate: false}
packages:
  description: Packages that O(oom_policy) needs and that are missing; the caller installs them and calls again.
  returned: always
  type: list
  elements: str
  sample: []
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, memory_facts, mglru, swap, sysctl
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Changes
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import FileChange, Node, RecordError, runner
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import SysctlError

RECORD = "sysctl"


class UmaTuning:
    """The memory policy of one node."""

    def __init__(self, node: Node, params: Mapping[str, Any], check_mode: bool) -> None:
        """Keep the node and the options."""
        self.node = node
        self.params = params
        self.check_mode = check_mode
        self.changes = Changes()
        self.facts = memory_facts.gather(node)
        self.record = node.load_record(RECORD)

    def command(self, *argv: str) -> tuple[int, str]:
        """Run a command; its output, or its complaint."""
        rc, out, err = self.node.run(argv)
        return rc, out if rc == 0 else (err or out)

    def must(self, *argv: str) -> None:
        """Run a command that has to work, unless this is check mode. Raises SysctlError."""
        if self.check_mode:
            return
        rc, text = self.command(*argv)
        if rc != 0:
            last = (text.strip().splitlines() or ["no output"])[-1]
            raise SysctlError(f"{' '.join(argv)} failed (rc {rc}: {last})")

    def write(self, path: str, after: str | None, said: str) -> None:
        """Write or remove a file, and say so."""
        change = FileChange(path, self.node.read(path), after)
        if not change.changed:
            return
        self.changes.file(change, said)
        if not self.check_mode:
            self.node.apply(change)

    def live(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the live values of the keys that the kernel has."""
        found = {}
        for key in keys:
            text = self.node.read(sysctl.proc_path(key))
            if text is not None:
                found[key] = sysctl.squeeze(text)
        return found

    def live_of(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the live values of what is set, of its twins and of what is recorded."""
        keys = {*values, *(sysctl.TWINS[key] for key in values if key in sysctl.TWINS), *self.record.get("live", {})}
        return self.live(sorted(keys))

    def write_live(self, writes: Mapping[str, str], live: Mapping[str, str]) -> None:
        """Write live values. Raises SysctlError."""
        if not writes:
            return
        self.changes.live(
            "live kernel",
            "".join(f"{key} = {live.get(key, '')}\n" for key in writes),
            "".join(f"{key} = {value}\n" for key, value in writes.items()),
            (f"{key}: {live.get(key, 'not set')} -> {value}" for key, value in writes.items()),
        )
        if self.check_mode:
            return
        for key, value in writes.items():
            path = sysctl.proc_path(key)
            try:
                self.node.write_live(path, value + "\n")
            except OSError as error:
                raise SysctlError(
                    f"the kernel refuses {value} for {key} ({error.strerror} on {path}): correct the value, or see whether /proc/sys is read-only"
                ) from error

    # The guard against thrashing.

    def thrash(self, value: str) -> tuple[dict[str, Any], str]:
        """Bring the guard to a value, or back to what it was; the record to keep, and a phrase about it. Raises SysctlError."""
        old = self.record.get("thrash", {})
        text = self.node.read(mglru.LIVE)
        live = None if text is None else text.strip()
        wanted = mglru.wanted(value)
        problem = mglru.unavailable(live, self.node.read(mglru.ENABLED))
        standing = self.node.read(mglru.TMPFILES)
        if wanted is None or problem:
            if standing is not None and sysctl.MARKER in standing:
                self.write(mglru.TMPFILES, None, f"{mglru.TMPFILES} removed")
            if "before" in old and live is not None:
                self.write_thrash(old["before"], live)
            return {}, "" if wanted is None else problem
        record = {"before": old.get("before", live)}
        self.save({**self.record, "thrash": record})
        self.write(mglru.TMPFILES, mglru.render(wanted), f"{mglru.TMPFILES} written")
        self.write_thrash(wanted, str(live))
        return record, f"thrashing ends in an OOM kill after {wanted} ms" if wanted != "0" else "the guard against thrashing is off"

    def write_thrash(self, value: str, live: str) -> None:
        """Write the live value and read it back. Raises SysctlError."""
        if value == live:
            return
        self.changes.live(mglru.LIVE, f"{live}\n", f"{value}\n", [f"min_ttl_ms: {live} -> {value}"])
        if self.check_mode:
            return
        self.node.write_live(mglru.LIVE, value + "\n")
        found = (self.node.read(mglru.LIVE) or "").strip()
        if found != value:
            raise SysctlError(f"{mglru.LIVE} is {found} although {value} was written: set sysctl_lru_gen_min_ttl_ms to leave, and look who else writes it")

    # Swap and the out-of-memory daemons.

    def units(self) -> dict[str, swap.Unit]:
        """Return the units that have to do with swap or with running out of memory."""
        found = {os.path.basename(path) for folder in swap.UNIT_FOLDERS for path in self.node.glob(f"{folder}/*.swap")}
        names = sorted(found | {*swap.SERVICES, swap.EARLYOOM, *swap.OOMD} | set(self.record.get("swap", {}).get("silenced", {})))
        rc, text = self.command("systemctl", "show", "-p", swap.UNIT_PROPERTIES, "--", *names)
        return {unit.name: unit for unit in swap.parse_units(text)} if rc == 0 else {}

    def reload(self) -> None:
        """Reload systemd, but not under a running engine: containers without CDI would lose their GPU. The next boot reads it anyway."""
        if not self.facts.gpu_users:
            self.must("systemctl", "daemon-reload")

    def swap_off(self, units: Mapping[str, swap.Unit]) -> dict[str, Any]:
        """Switch swap off and keep it off; the record to keep. Raises SysctlError."""
        have = [
            name
            for name in units
            if self.node.read(swap.drop_in_path(name)) == swap.drop_in_text() or self.node.link(f"/etc/systemd/system/{name}") == "/dev/null"
        ]
        plan = swap.to_silence(list(units.values()), have)
        fstab = self.node.read(swap.FSTAB)
        quiet = swap.fstab_off(fstab)
        swaps = self.facts.swaps
        old = self.record.get("swap", {})
        record = {
            "silenced": {**old.get("silenced", {}), **{step.unit: {"method": step.method, "active": step.active} for step in plan}},
            "devices": sorted(set(old.get("devices", [])) | {entry.device for entry in swaps}),
        }
        self.save({**self.record, "swap": record})
        if quiet is not None and quiet != fstab:
            self.write(swap.FSTAB, quiet, "swap commented out in /etc/fstab")
        for step in plan:
            if step.active:  # before it is masked: systemd cannot stop a swap unit whose file it no longer reads
                self.must("systemctl", "stop", step.unit)
        for step in plan:
            if step.method == "mask":
                self.changes.step(f"{step.unit} masked")
                self.must("systemctl", "mask", "--no-reload", step.unit)
            else:
                self.write(swap.drop_in_path(step.unit), swap.drop_in_text(), f"{step.unit} switched off by a drop-in")
        if plan or quiet != fstab:
            self.reload()
        if swaps:
            self.changes.step(f"swap off: {', '.join(entry.device for entry in swaps)}")
        if not self.check_mode:
            for entry in memory.parse_swaps(self.node.read("/proc/swaps")):
                self.must("swapoff", entry.device)
        return record

    def swap_back(self, units: Mapping[str, swap.Unit]) -> bool:
        """Give swap back as it was before it was switched off, if any was; a unit that its owner has removed since stays removed."""
        old = self.record.get("swap")
        if not old:
            return False
        fstab = self.node.read(swap.FSTAB)
        if swap.fstab_on(fstab) != fstab:
            self.write(swap.FSTAB, swap.fstab_on(fstab), "swap back in /etc/fstab")
        started = []
        for unit, how in sorted(old.get("silenced", {}).items()):
            self.changes.step(f"{unit} as before us")
            if how["method"] == "mask":
                self.must("systemctl", "unmask", "--no-reload", unit)
            else:
                self.write(swap.drop_in_path(unit), None, f"drop-in of {unit} removed")
                folder = os.path.dirname(swap.drop_in_path(unit))
                if not self.check_mode and self.node.exists(folder) and not self.node.listdir(folder):
                    os.rmdir(self.node.at(folder))
            if how["active"] and (unit not in units or units[unit].load != "not-found"):
                started.append(unit)
        self.reload()
        for unit in started:
            self.must("systemctl", "start", unit)
        if old.get("devices"):
            self.changes.step(f"swap on again: {', '.join(old['devices'])}")
            on = [] if self.check_mode else [entry.device for entry in memory.parse_swaps(self.node.read("/proc/swaps"))]
            for device in old["devices"]:
                if device not in on and self.node.exists(device) and not device.startswith("/dev/zram"):
                    self.must("swapon", device)
        return bool(old.get("devices"))

    def oom(self, units: dict[str, swap.Unit], policy: str) -> tuple[dict[str, Any], list[str]]:
        """Bring the out-of-memory daemons, and what `units` says of them, to a policy; the record to keep and the packages that are missing.

        Raises SysctlError.
        """
        old = self.record.get("oom", {})
        steps, packages = swap.oom_plan(policy, units)
        record = swap.oom_record(units, steps, old)
        wishes = swap.oom_wishes(policy)
        back = {name: state for name, state in old.items() if name not in wishes}
        self.save({**self.record, "oom": record})
        for name, on in steps:
            self.changes.step(f"{name} {'enabled and started' if on else 'stopped and disabled'}")
            if packages and name.partition(".")[0] in packages:
                continue
            self.must("systemctl", "enable" if on else "disable", "--now", name)
            units[name] = units[name]._replace(active=on)
        for name, state in back.items():
            unit = units.get(name)
            if unit is None or (unit.file_state.startswith("enabled"), unit.active) == (state["enabled"], state["active"]):
                continue
            self.changes.step(f"{name} as before us")
            self.must("systemctl", "enable" if state["enabled"] else "disable", name)
            self.must("systemctl", "start" if state["active"] else "stop", name)
            units[name] = unit._replace(active=state["active"])
        return {name: state for name, state in record.items() if name in wishes}, packages

    def save(self, record: Mapping[str, Any]) -> None:
        """Keep the record, before what it describes is changed."""
        self.record = dict(record)
        if not self.check_mode:
            self.node.save_record(RECORD, {key: value for key, value in record.items() if value})

    # The two states.

    def present(self) -> dict[str, Any]:
        """Set everything. Raises SysctlError, RecordError, OSError."""
        meminfo, zones = self.facts.meminfo, self.facts.zones
        total = meminfo.get("MemTotal", 0)
        by_size = {str(key): int(value) for key, value in self.params["min_free_by_size"].items()}
        stock = int(self.record.get("live", {}).get("vm.min_free_kbytes", self.facts.vm.get("min_free_kbytes", 0)))
        floor = sysctl.choose_floor(str(self.params["min_free_kbytes"]), total, by_size, self.params["min_free_percent_other"], stock)
        policy = self.params["swap_policy"]
        tuning = sysctl.tuning({key: str(value) for key, value in self.params["settings"].items()}, floor, policy, self.params["extra"])
        if self.facts.container:
            return self.skipped(tuning.values)
        files = self.facts.files
        standing = files.get(sysctl.DROP_IN)
        if standing is not None and sysctl.MARKER not in standing:
            raise SysctlError(f"{sysctl.DROP_IN} exists and is not ours (it lacks our first line): move it away, then run again")
        found = sysctl.overrides(files, tuning.values)
        if found:
            raise SysctlError(sysctl.override_message(found))
        live = self.live_of(tuning.values)
        writes = sysctl.live_writes(tuning.values, live)
        now = (self.facts.vm.get("min_free_kbytes", 0), self.facts.vm.get("watermark_scale_factor", 10))
        then = (int(tuning.values.get("vm.min_free_kbytes", now[0])), int(tuning.values.get("vm.watermark_scale_factor", now[1])))
        move = memory.floor_cost_kb(meminfo, zones, now, then)
        problem = sysctl.headroom_problem(meminfo, move, str(then[0]))
        if policy == "off" and not problem:
            left = meminfo.get("MemAvailable", 0) - max(0, move)
            problem = swap.room_problem(self.facts.swaps, {**meminfo, "MemAvailable": left})
        if problem:
            raise SysctlError(problem)
        if mglru.wanted(self.params["lru_gen_min_ttl_ms"]) is not None:
            standing = self.node.read(mglru.TMPFILES)
            if standing is not None and sysctl.MARKER not in standing:
                raise SysctlError(f"{mglru.TMPFILES} exists and is not ours (it lacks our first line): move it away, then run again")
        units = self.units()

        before = sysctl.record_before(self.record, tuning.values, live)
        self.save({**self.record, "live": before})
        back = sysctl.given_back(before, tuning.values, live)
        self.write(sysctl.DROP_IN, sysctl.render(tuning.values), f"{sysctl.DROP_IN} written")
        self.write_live({**back, **writes}, live)
        kept = {key: value for key, value in before.items() if key not in back}
        swap_record = self.swap_off(units) if policy == "off" else {}
        swap_again = policy != "off" and self.swap_back(units)
        thrash_record, guard = self.thrash(self.params["lru_gen_min_ttl_ms"])
        oom_record, packages = self.oom(units, self.params["oom_policy"])
        self.save({"live": kept, "swap": swap_record, "thrash": thrash_record, "oom": oom_record})
        self.read_back(tuning.values)

        first = (stock, int(before.get("vm.watermark_scale_factor", now[1])))
        cost = memory.floor_cost_kb(meminfo, zones, first, then)
        result = self.result(tuning.values, packages)
        result["floor_cost_gib"] = memory.gib(cost)
        result["highest_utilization"] = self.utilization(move)
        result["message"] = self.message(result, tuning, units, swap_again) + (f"; {guard}" if guard else "")
        return result

    def absent(self) -> dict[str, Any]:
        """Give everything back. Raises SysctlError, RecordError, OSError."""
        if self.facts.container:
            return self.skipped({})
        live = self.live_of({})
        units = self.units()
        before = self.record.get("live", {})
        standing = self.facts.files.get(sysctl.DROP_IN)
        if standing is not None and sysctl.MARKER in standing:
            self.write(sysctl.DROP_IN, None, f"{sysctl.DROP_IN} removed")
        writes = sysctl.given_back(before, {}, live)
        self.write_live(writes, live)
        self.swap_back(units)
        self.thrash(sysctl.LEAVE)
        self.oom(units, "leave")
        if not self.check_mode:
            problem = sysctl.mismatch_message(writes, self.live(list(writes)))
            if problem:
                raise SysctlError(problem)
        self.save({})
        result = self.result({}, [])
        result["highest_utilization"] = self.utilization(0)
        result["message"] = "memory settings are as they were before the first run" if self.changes.messages else "there was nothing of ours to take away"
        return result

    def skipped(self, values: dict[str, str]) -> dict[str, Any]:
        """Report a node whose kernel is not its own."""
        result = self.result(values, [])
        result["skipped_reason"] = (
            f"this node is a container ({self.facts.container}), where vm.* and swap belong to the host: nothing was applied, "
            "run the sysctl role on the host itself"
        )
        result["message"] = result["skipped_reason"]
        return result

    def read_back(self, values: Mapping[str, str]) -> None:
        """Compare with the live system. Raises SysctlError."""
        if self.check_mode:
            return
        live = self.live(list(values))
        problem = sysctl.mismatch_message(values, live)
        if problem:
            rc, _out = self.command("systemctl", "is-active", "tuned.service")
            tuned = [f"tuned ({(self.node.read('/etc/tuned/active_profile') or 'unknown profile').strip()})"] if rc == 0 else []
            raise SysctlError(sysctl.mismatch_message(values, live, tuned))
        if self.params["swap_policy"] == "off":
            swaps = memory.parse_swaps(self.node.read("/proc/swaps"))
            problem = swap.still_on_message(swaps, list(self.units().values()) if swaps else [])
            if problem:
                raise SysctlError(problem)

    def utilization(self, move_kb: int) -> dict[str, Any]:
        """Return the highest utilization that starts after `move_kb` of MemAvailable are gone; an estimate while the GPU is in use."""
        meminfo = self.facts.meminfo
        if not self.check_mode and self.changes.messages:
            meminfo, move_kb = memory.parse_meminfo(self.node.read("/proc/meminfo")), 0
        total = meminfo.get("MemTotal", 0)
        held = memory.unaccounted_kb(meminfo) if self.facts.gpu_users else 0
        return {
            "memavailable": memory.highest_utilization(meminfo.get("MemAvailable", 0) - move_kb + held, total),
            "memfree": memory.highest_utilization(meminfo.get("MemFree", 0) + held, total),
            "estimate": bool(self.facts.gpu_users),
        }

    def message(self, result: Mapping[str, Any], tuning: sysctl.Tuning, units: Mapping[str, swap.Unit], swap_again: bool) -> str:
        """Return the sentence that a user acts on, of the node as it is afterwards; `swap_again` says that swap was given back."""
        highest = result["highest_utilization"]
        if "vm.min_free_kbytes" in tuning.values:
            floor = f"vm.min_free_kbytes {tuning.values['vm.min_free_kbytes']} ({tuning.floor_reason}) costs {result['floor_cost_gib']} GiB of MemAvailable"
        else:
            floor = "vm.min_free_kbytes is left as it is"
        swaps = self.facts.swaps if self.check_mode else memory.parse_swaps(self.node.read("/proc/swaps"))
        off = self.params["swap_policy"] == "off"
        state = "off" if off else f"on ({memory.gib(sum(entry.size_kb for entry in swaps))} GiB)" if swaps else "on again" if swap_again else "off"
        when = ", estimated while the GPU is in use" if highest["estimate"] else ""
        return (
            f"{floor}; vLLM from PR 35356 on (MemAvailable) starts up to gpu_memory_utilization {highest['memavailable']:.2f}, "
            f"older images (MemFree) up to {highest['memfree']:.2f}{when}; swap is {state}; {swap.oom_said(units)}"
        )

    def result(self, values: dict[str, str], packages: list[str]) -> dict[str, Any]:
        """Return the module's result, still without figures."""
        return {
            "changed": bool(self.changes.messages),
            "changes": self.changes.messages,
            "diff": self.changes.diff,
            "sysctl": values,
            "packages": packages,
            "skipped_reason": "",
            "floor_cost_gib": 0.0,
            "highest_utilization": {"memavailable": 0.0, "memfree": 0.0, "estimate": False},
            "message": "",
        }


def main() -> None:
    """Read, plan, apply, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "min_free_kbytes": {"type": "str", "default": "auto"},
            "min_free_by_size": {"type": "dict", "default": {"119": 3145728, "121": 3145728}},
            "min_free_percent_other": {"type": "float", "default": 2.5},
            "settings": {"type": "dict", "default": {}},
            "extra": {"type": "dict", "default": {}},
            "swap_policy": {"type": "str", "choices": ["off", "swappiness0", "leave"], "default": "leave"},
            "lru_gen_min_ttl_ms": {"type": "str", "default": "leave"},
            "oom_policy": {"type": "str", "choices": ["leave", "earlyoom", "no_earlyoom"], "default": "leave"},
        },
        supports_check_mode=True,
    )

    changes: list[str] = []
    try:
        tuning = UmaTuning(Node("/", runner(module, optional=True)), module.params, module.check_mode)
        changes = tuning.changes.messages
        result = tuning.present() if module.params["state"] == "present" else tuning.absent()
    except (SysctlError, RecordError, memory.UmaError) as error:
        module.fail_json(msg=str(error), changes=changes)
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}): run with become, and look for a read-only file system", changes=changes)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
