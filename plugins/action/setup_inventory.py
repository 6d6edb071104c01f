# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Propose and write the inventory of two machines. See the module of the same name."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._setup import inventory_text, proposal, questions
from ansible_collections.gb10.cluster.plugins.module_utils._setup.inventory_text import GROUP, HOSTS, Host
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_files
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import short
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_terminal import Terminal

_ANSWERS = ("profile", "model_store", "foreign_policy", "write")


class ActionModule(ActionBase):
    """Runs on the controller, once."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Show what was found, ask what is open, write, and print the next commands."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        spec: dict[str, Any] = {
            "inventory": {"type": "path", "required": True},
            "machines": {"type": "list", "elements": "dict", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "fabrics": {"type": "list", "elements": "dict", "required": True},
            "profiles": {"type": "dict", "required": True},
            **{name: {"type": "raw"} for name in _ANSWERS},
        }
        _validation, options = self.validate_argument_spec(argument_spec=spec)
        self.options, self.terminal = options, Terminal()
        self.names = [str(machine["name"]) for machine in options["machines"]]
        for name, facts in [*zip(self.names, options["nodes"]), *zip(self.names, options["fabrics"])]:
            if facts.get("failed") or facts.get("unreachable"):
                raise AnsibleActionFail(f"{name} could not be read: {str(facts.get('msg') or 'no reason given').removeprefix(f'{name}: ')}")
        folder = Path(options["inventory"])
        existing = setup_files.read(folder)
        self.terminal.show("", "What the machines show:")
        for name, node, fabric in zip(self.names, options["nodes"], options["fabrics"]):
            self.terminal.show(*proposal.machine_lines(name, node, fabric))
        fault = proposal.cable_fault(self.names, options["fabrics"])
        if fault:
            self.terminal.show(fault, color="yellow")
        adopted = proposal.adoptable(options["fabrics"])
        values = self._values(existing, adopted)
        hosts = self._hosts(existing, values, adopted if values.get("roce_foreign_policy") == "adopt" and "gb10_fabric_cidrs" in values else None)
        before, after = self._texts(folder, existing, hosts, values)
        written = self._write(folder, existing is None, before, after)
        self._next(folder)
        result.update(changed=bool(written), written=written, answers=values)
        return result

    def _values(self, existing: setup_files.Existing | None, adopted: proposal.Adopted | None) -> dict[str, Any]:
        """Return the variables of the group that are to be written: those that are new or were given."""
        there = {**existing.elsewhere, **existing.values} if existing else {}
        values: dict[str, Any] = {}
        user = str(self.options["machines"][0]["user"])
        if not existing or (there.get("ansible_user") != user and not any("ansible_user" in variables for _name, variables in existing.hosts)):
            values["ansible_user"] = user
        profile = self._profile(there)
        if profile:
            values["gb10_profile"] = profile
        if there.get("gb10_model_store") != self.options["model_store"]:
            values["gb10_model_store"] = str(self.options["model_store"])
        policy = self._policy(there, adopted)
        if policy:
            values["roce_foreign_policy"] = policy
        if policy == "adopt" and adopted and "gb10_fabric_cidrs" not in there:
            values["gb10_fabric_cidrs"] = adopted.cidrs
        return values

    def _profile(self, there: Mapping[str, Any]) -> str:
        """Return the profile that was chosen; empty if the inventory has one that is known."""
        profiles = self.options["profiles"]
        present, given = str(there.get("gb10_profile") or ""), self.options["profile"]
        if present and not given:
            if present not in profiles:
                self.terminal.show(f"The inventory has the profile {present}, which setup.yml does not know. It is kept.", color="yellow")
            return ""
        choices = proposal.profile_choices(profiles)
        known = questions.choice_fault([*choices, *(name for name in profiles if name not in choices)])
        question = questions.PROFILE._replace(check=lambda text: known(proposal.chosen(text, choices)), text="Profile, its number or name")
        table = "\n".join(proposal.profile_table(profiles, choices, self.names, self.options["nodes"]))
        answer = self.terminal.ask(question, choices[0] if choices else "", given, reason=f"{question.reason}\n{table}")
        name = proposal.chosen(answer, choices)
        for line in proposal.shortages(profiles[name], self.names, self.options["nodes"]):
            self.terminal.show(line, color="yellow")
        return name

    def _policy(self, there: Mapping[str, Any], adopted: proposal.Adopted | None) -> str:
        """Return the policy for configuration of other tools; empty if there is none, or if the inventory has one."""
        given = self.options["foreign_policy"]
        found = any(fabric["foreign"] for fabric in self.options["fabrics"])
        if not given and (not found or there.get("roce_foreign_policy")):
            return ""
        why = (
            f"Both machines have addresses on all rails ({', '.join(adopted.cidrs)}), so they can be kept."
            if adopted
            else "The addresses of the two machines do not form one network for each rail, so they cannot be kept."
        )
        reason = f"Another tool has configured the QSFP ports, such as NVIDIA Sync. {why}\n{questions.POLICY.reason}"
        return self.terminal.ask(questions.POLICY, "adopt" if adopted else "replace", given, reason=reason, needed=True)

    def _hosts(self, existing: setup_files.Existing | None, values: Mapping[str, Any], adopted: proposal.Adopted | None) -> list[Host]:
        """Return both machines. What the group sets for both is not repeated."""
        addresses: list[list[str]] = adopted.addresses if adopted else [[], []]
        group = {**(existing.values if existing else {}), **values}
        own: list[Mapping[str, Any]] = [variables for _name, variables in existing.hosts] if existing else [{}, {}]
        hosts = []
        for machine, variables, rails in zip(self.options["machines"], own, addresses):
            found = dict(zip(inventory_text.LOGIN, (machine["user"], machine["port"], machine["key"])))
            login = {key: str(value) for key, value in found.items() if value and (key in variables or group.get(key) != value)}
            hosts.append(Host(str(machine["name"]), str(machine["address"]), bool(machine["local"]), rails, login))
        return hosts

    @staticmethod
    def _texts(folder: Path, existing: setup_files.Existing | None, hosts: list[Host], values: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the files before and after."""
        if existing is None:
            return {HOSTS: "", GROUP: ""}, {HOSTS: inventory_text.hosts_text(hosts), GROUP: inventory_text.group_text(values)}
        new = {key: value for key, value in values.items() if key not in existing.elsewhere}
        for key in set(values) - set(new):
            raise AnsibleActionFail(f"{key} is set in {existing.elsewhere[key]}. Change it there, or leave its variable out of the command.")
        after = {
            HOSTS: setup_files.edited_hosts(existing, hosts, folder / HOSTS),
            GROUP: setup_files.edited_group(existing.texts[GROUP], new, folder / GROUP),
        }
        return existing.texts, after

    def _write(self, folder: Path, is_new: bool, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
        """Show the change, and write it after the answer."""
        if before == after:
            self.terminal.show("", f"{folder} is up to date. Nothing was written.")
            return []
        if is_new:
            shown = [line for name, text in after.items() for line in ("", f"{folder / name}:", *(f"  {line}" for line in text.splitlines()))]
        else:
            shown = ["", *setup_files.diff(folder, before, after)]
        self.terminal.show(*shown)
        if not self.terminal.confirm(questions.WRITE, given=self.options["write"]):
            raise AnsibleActionFail(f"Nothing was written to {folder}, as you answered. Run setup.yml again for other answers.")
        written = setup_files.write(folder, before, after)
        self.terminal.show(*(f"Written: {path}" for path in written), color="green")
        return written

    def _next(self, folder: Path) -> None:
        """Print the commands to copy."""
        ask = " -K" if any(machine["asks"] for machine in self.options["machines"]) else ""
        site = "site.yml" if os.path.exists("site.yml") else "gb10.cluster.site"
        where = shlex.quote(short(folder))
        lines = ["", "Next:"]
        if os.path.exists(".venv/bin/activate") and os.environ.get("VIRTUAL_ENV") is None:
            lines.append("  . .venv/bin/activate")
        lines += [
            f"  ansible-playbook {site} -i {where}{ask} --check --diff   # what would change",
            f"  ansible-playbook {site} -i {where}{ask}                  # set up and serve",
        ]
        if not all(machine["same_password"] for machine in self.options["machines"]):
            lines.append("The two machines have different passwords for sudo, and -K takes one. Set the same one on both.")
        self.terminal.show(*lines)
