# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask for the two machines and make them reachable. See the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.lookup.profile import own_profiles, shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import SETUP_ANSWERS, default_of
from ansible_collections.gb10.cluster.plugins.module_utils._setup.inventory_text import LOGIN, host_names
from ansible_collections.gb10.cluster.plugins.module_utils._setup.questions import POLICY, STORE, WRITE, choice_fault
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_files
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_access import Access
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_terminal import Terminal

_ANSWERS = ("head", "worker", "user", "port", "key", "model_store", "accept_host_keys", "make_key", "local")


def _check_names(extra: Mapping[str, Any]) -> None:
    """Raise AnsibleActionFail for a misspelt extra variable of setup.yml. No inventory is there that the inventory check could check."""
    known = [f"setup_{name}" for name in SETUP_ANSWERS]
    for name in extra:
        if name not in known and (name.startswith("setup_") or did_you_mean(name, known, 0.85)):
            hint = did_you_mean(name, known) or f"; known are {', '.join(known)}"
            raise AnsibleActionFail(f"-e {name} is not a variable of setup.yml{hint}")


def _check_answers(extra: Mapping[str, Any]) -> None:
    """Raise AnsibleActionFail for an answer to a later question that is not valid, before a machine is reached."""
    folder = "gb10_profiles_directory"
    profiles = [*shipped_profiles(), *(own_profiles(extra.get(folder, default_of(folder)), extra.get("gb10_profiles") or {}) or {})]
    later = {
        "setup_profile": lambda text: "" if text.isdigit() else choice_fault(profiles)(text),  # a number of the list
        "setup_model_store": STORE.check,
        "setup_foreign_policy": POLICY.check,
        "setup_write": WRITE.check,
    }
    for name, check in later.items():
        text = str(extra.get(name) or "").strip()
        fault = check(text) if text and "{{" not in text else ""
        if fault:
            raise AnsibleActionFail(f"{name} {fault}")


# Variables that change how SSH reaches a machine, and have a place in ~/.ssh/config.
_UNUSED = ("ansible_ssh_common_args", "ansible_ssh_extra_args")


class ActionModule(ActionBase):
    """Runs on the controller, once."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the machines, with the passwords of sudo: no callback gets the result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        spec: dict[str, Any] = {"inventory": {"type": "path", "required": True}, **{name: {"type": "raw"} for name in _ANSWERS}}
        _validation, options = self.validate_argument_spec(argument_spec=spec)
        if self._task.check_mode:
            raise AnsibleActionFail("setup.yml has no check mode: it shows the files before it writes them. Run it without --check.")
        extra = load_extra_vars(self._loader)
        _check_names(extra)
        _check_answers(extra)
        existing = setup_files.read(Path(options["inventory"]))
        values = existing.values if existing else {}
        login = {key: values[key] for key in LOGIN[1:] if values.get(key)}
        known: list[Mapping[str, Any]] = [{"name": name, **login, **variables} for name, variables in existing.hosts] if existing else []
        unused = [f"{name} of {host['name']}" for host in known for name in _UNUSED if host.get(name)]
        if unused:
            raise AnsibleActionFail(f"{options['inventory']} sets {unused[0]}, which setup.yml does not use. Set it in ~/.ssh/config instead.")
        terminal = Terminal()
        user = str(values.get("ansible_user") or next((host["ansible_user"] for host in known if host.get("ansible_user")), ""))
        access = Access(terminal, {name: options[name] for name in _ANSWERS}, self._play_context)
        machines, store = access.machines(known, user), access.store(values.get("gb10_model_store"))
        names = [str(host["name"]) for host in known] or host_names([machine.hostname for machine in machines])
        passwords = [machine.password for machine in machines]
        equal = len({machine.password for machine in machines if machine.asks}) < 2
        found = [
            {"name": name, "same_password": equal, **{key: getattr(each, key) for key in ("address", "user", "port", "key", "local", "asks")}}
            for name, each in zip(names, machines)
        ]
        # Only the registered result has the passwords.
        result.update(changed=False, machines=found, model_store=store, passwords=passwords, _ansible_no_log=any(passwords))
        return result
