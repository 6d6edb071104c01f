# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What lets a node suspend by itself: logind, the lid, GNOME. Read from files, because a login session is not needed for it.

A user's own settings of GNOME are not read: they are in a binary file. The remedy covers them.
"""

from __future__ import annotations

import re

from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, first_of_name
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import SUSPEND

_ACTIONS = ("suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "sleep")
_FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
_DCONF = "/etc/dconf/db"
_GREETER = ("/etc/gdm3/greeter.dconf-defaults", "/etc/gdm/greeter.dconf-defaults")
_OVERRIDES = "/usr/share/glib-2.0/schemas/*.gschema.override"
#: What GNOME does on mains power without input if no file sets it: suspend after 15 minutes.
_GNOME = {"sleep-inactive-ac-type": "suspend", "sleep-inactive-ac-timeout": "900"}


def reasons(node: Node, log: str) -> list[str]:
    """Return why a node may suspend by itself, each as a phrase; empty if it does not, or cannot. `log` is the kernel log of this boot."""
    if _masked(node, "sleep.target"):
        return []
    logind, may = _settings(node, "logind.conf"), _may(node, "suspend")
    entries = len(re.findall(SUSPEND, log)) if may else 0
    found = [f"it has suspended {entries} time(s) since the boot"] if entries else []
    if _may(node, logind.get("IdleAction", "ignore")):
        found.append(f"logind has IdleAction={logind['IdleAction']}")
    lid = logind.get("HandleLidSwitchExternalPower", logind.get("HandleLidSwitch", "suspend"))
    if node.listdir("/proc/acpi/button/lid") and _may(node, lid):
        found.append(f"the machine has a lid switch, and logind has HandleLidSwitch={lid}")
    return found + (_gnome(node) if may else [])


def _may(node: Node, action: str) -> bool:
    """Return whether an action of logind or GNOME suspends the node."""
    if action not in _ACTIONS or _masked(node, f"{action}.target"):
        return False
    return action != "suspend" or _settings(node, "sleep.conf").get("AllowSuspend", "yes").lower() not in ("no", "false", "off", "0")


def _masked(node: Node, unit: str) -> bool:
    """Return whether a unit is masked: a link to /dev/null, or an empty file."""
    for folder in _FOLDERS:
        path = f"{folder}/system/{unit}"
        if (node.link(path) or "").endswith("/dev/null") or node.read(path) == "":
            return True
    return False


def _settings(node: Node, name: str) -> dict[str, str]:
    """Return the settings of a file of systemd and its drop-ins."""
    main = next((path for path in (f"{folder}/{name}" for folder in _FOLDERS) if node.exists(path)), "")
    folders = [f"{folder}/{name}.d" for folder in _FOLDERS]
    drop_ins = first_of_name([path for folder in folders for path in node.glob(f"{folder}/*.conf")], folders, ".conf")
    return _keys(node, [main, *drop_ins.values()])


def _keys(node: Node, paths: list[str]) -> dict[str, str]:
    """Return the keys of ini files, the last one counts. An empty value is the default."""
    found: dict[str, str] = {}
    for path in filter(None, paths):
        for key, value in re.findall(r"^[ \t]*([\w-]+)[ \t]*=[ \t]*(.*?)[ \t]*$", node.read(path) or "", re.MULTILINE):
            found[key] = value.strip("'\"").removeprefix("uint32 ")
    return {key: value for key, value in found.items() if value}


def _gnome(node: Node) -> list[str]:
    """Return what suspends in GNOME, if the node starts it: the login screen, and a session whose user has not changed it."""
    manager = node.link("/etc/systemd/system/display-manager.service") or ""
    target = node.link("/etc/systemd/system/default.target") or node.link("/usr/lib/systemd/system/default.target") or ""
    if "gdm" not in manager or "graphical" not in target:
        return []
    system, greeter = node.glob(_OVERRIDES), [*node.glob(f"{_DCONF}/gdm.d/*"), *_GREETER]
    session = [path for path in node.glob(f"{_DCONF}/*.d/*") if "/gdm.d/" not in path]
    found = []
    for what, paths in (("the login screen of GNOME", [*system, *greeter]), ("GNOME", [*system, *session])):
        keys = {**_GNOME, **_keys(node, paths)}
        if keys["sleep-inactive-ac-type"] in _ACTIONS and keys["sleep-inactive-ac-timeout"] != "0":
            kind, seconds = keys["sleep-inactive-ac-type"], keys["sleep-inactive-ac-timeout"]
            found.append(f"{what} suspends the node after {seconds} s without input (sleep-inactive-ac-type is {kind})")
    return found
