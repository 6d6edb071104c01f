# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A frozen node reboots itself: systemd's drop-in for the hardware watchdog, and when the device cannot have it.

Process 1 resets the watchdog at half of its time. If process 1 does not run, the device resets the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node.sysctl import HEADER

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


def read(node: Node) -> dict[str, str]:
    """Return the attributes of the device, empty without one, and as `armed` what systemd uses."""
    texts = {name: node.read(f"{DEVICE}/{name}") for name in ATTRIBUTES}
    found = {name: text.strip() for name, text in texts.items() if text is not None}
    _rc, out, _err = node.run(["systemctl", "show", "--property", "RuntimeWatchdogUSec", "--value"])
    return {**found, "armed": out.strip()} if found or node.exists(DEVICE) else {}


def render(seconds: int, device: Mapping[str, str]) -> str:
    """Return the drop-in of systemd."""
    reboot = min(REBOOT_SECONDS, int(device.get("max_timeout") or 0) or REBOOT_SECONDS)
    return f"{HEADER}\n[Manager]\nRuntimeWatchdogSec={seconds}\nRebootWatchdogSec={reboot}\n"


def problem(device: Mapping[str, str], seconds: int) -> str:
    """Return why the watchdog cannot be set; empty if it can."""
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
    if device.get("state") == "active" and device["armed"] in ("", "0", "infinity"):
        return f"The watchdog device ({name}) is used by another program than systemd. Stop it, such as watchdog.service, or set leave."
    return ""


def mismatch(device: Mapping[str, str], seconds: int, later: Sequence[tuple[str, str]]) -> str:
    """Return how the device differs after systemd has read the drop-in; empty if it does not. `later` are the lines that systemd reads after it."""
    state, timeout = device.get("state", "active"), device.get("timeout", str(seconds))
    if (state, timeout) == ("active", str(seconds)) and device["armed"] not in ("", "0"):
        return ""
    places = [f"{place} ({line}) is read after it: remove that line" for place, line in later if line.startswith("RuntimeWatchdogSec")]
    return (
        f"The watchdog is not as {DROP_IN} sets it: systemd uses {device['armed']}, {DEVICE} is {state} with {timeout} s, expected {seconds} s. "
        f"{'; '.join(places) or 'Read `journalctl -b _PID=1 --grep watchdog`'}."
    )
