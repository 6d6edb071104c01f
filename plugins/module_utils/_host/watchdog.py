# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A frozen node reboots itself: systemd's drop-in for the hardware watchdog, and the sysctls that end a panic. Pure.

Process 1 resets the watchdog at half of its time. If process 1 does not run, the device resets the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import HostError
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import HEADER, LEAVE

DROP_IN = "/etc/systemd/system.conf.d/60-gb10-cluster.conf"
DEVICE = "/sys/class/watchdog/watchdog0"
ATTRIBUTES = ("identity", "state", "timeout", "min_timeout", "max_timeout", "nowayout")
LEAST_SECONDS, MOST_SECONDS = 10, 3600  # a node under load may not run process 1 for a few seconds
REBOOT_SECONDS = 120  # systemd's 600 is longer than any stop of a node that answers
PANIC_MOST_SECONDS = 600
RELOAD_PROBLEM = (
    f"systemd must be reloaded to change the watchdog ({DROP_IN}), and the container of a running engine can lose its GPU then. "
    "Stop the serving group first (playbooks/stop.yml), then run --tags sysctl again."
)
UNITS = {"h": 3600, "min": 60, "s": 1, "": 1}


def _number(name: str, option: str, low: int, high: int) -> int | None:
    text = str(option).strip()
    if text == LEAVE:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text) or not low <= int(text) <= high:
        raise HostError(f"{name} is {text!r}, expected seconds from {low} to {high}, or {LEAVE}.")
    return int(text)


def parse(option: str) -> int | None:
    """Return the seconds of the watchdog, None for `leave`. Raises HostError."""
    return _number("sysctl_watchdog_seconds", option, LEAST_SECONDS, MOST_SECONDS)


def panic_values(option: str) -> dict[str, str]:
    """Return the sysctls with which a panic, an oops or a locked processor reboots the node; empty for `leave`. Raises HostError.

    Memory that runs out must not be a panic: the OOM killer stops a process instead.
    """
    seconds = _number("sysctl_reboot_on_panic", option, 1, PANIC_MOST_SECONDS)
    if seconds is None:
        return {}
    return {"kernel.panic": str(seconds), "kernel.panic_on_oops": "1", "kernel.softlockup_panic": "1", "vm.panic_on_oom": "0"}


def span_seconds(text: str) -> int | None:
    """Return the seconds of systemd's `1min 30s` or `90`; None if it is not such a time."""
    parts = re.findall(r"(\d+) *(h|min|s|)(?: |$)", text.strip())
    return sum(int(number) * UNITS[unit] for number, unit in parts) if parts else None


def render(seconds: int, device: Mapping[str, str]) -> str:
    """Return the drop-in of systemd."""
    reboot = min(REBOOT_SECONDS, int(device.get("max_timeout") or 0) or REBOOT_SECONDS)
    return f"{HEADER}\n[Manager]\nRuntimeWatchdogSec={seconds}\nRebootWatchdogSec={reboot}\n"


def later_value(lines: Sequence[tuple[str, str]], seconds: int) -> str:
    """Return where a later drop-in sets another time; empty if none does. `lines` are those that systemd reads after ours."""
    for place, line in lines:
        key, _equals, value = line.partition("=")
        if key.strip() == "RuntimeWatchdogSec" and span_seconds(value) != seconds:
            return f"{place} sets RuntimeWatchdogSec to {value.strip()}"
    return ""


def problem(device: Mapping[str, str], seconds: int, armed: int, later: str) -> str:
    """Return why the watchdog cannot be set; empty if it can. `device` has its attributes, `armed` the seconds that systemd uses now."""
    wanted = f"sysctl_watchdog_seconds is {seconds}"
    if not device:
        return (
            f"{wanted}, but this node has no watchdog device ({DEVICE} does not exist). Load its driver now and at boot (on a GB10: modprobe sbsa_gwdt, "
            "and sbsa_gwdt in /etc/modules-load.d), or set the variable to leave."
        )
    name = device.get("identity") or "unknown"
    low, high = int(device.get("min_timeout") or 0), int(device.get("max_timeout") or 0)
    if seconds < low or 0 < high < seconds:
        return f"{wanted}, but the watchdog device ({name}) accepts {low} to {high or MOST_SECONDS} seconds. Choose such a value, or leave."
    if device.get("nowayout") == "1":
        return f"The watchdog device ({name}) cannot be stopped (nowayout is 1): sysctl_state: absent would reset the node. Load its driver with nowayout=0."
    if device.get("state") == "active" and not armed:
        return f"The watchdog device ({name}) is used by another program than systemd. Stop it, such as watchdog.service, or set {LEAVE}."
    if later:
        return f"{later}, and is read after {DROP_IN}. Remove the line, or set sysctl_watchdog_seconds to leave or to that value."
    return ""


def mismatch(device: Mapping[str, str], seconds: int, armed: int) -> str:
    """Return how the live watchdog differs after systemd has read the drop-in; empty if it does not."""
    state, timeout = device.get("state", "active"), device.get("timeout", str(seconds))
    if (armed, state, timeout) == (seconds, "active", str(seconds)):
        return ""
    return (
        f"The watchdog is not as {DROP_IN} sets it: systemd uses {armed} s, {DEVICE} is {state} with {timeout} s, expected {seconds} s. "
        "Read `journalctl -b _PID=1 --grep watchdog`."
    )
