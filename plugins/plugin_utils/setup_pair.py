# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Ask for two machines, make them reachable, and write their inventory: the option pair of the module inventory. Controller only."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import TRUE
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_login as login
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_proposal as proposal
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader
from ansible_collections.gb10.cluster.plugins.plugin_utils.settings import spec_of


class Setup:
    """Two machines: first without what they showed, then with it."""

    def __init__(self, options: Mapping[str, Any], given: Mapping[str, Any], sudo_password: str) -> None:
        """`given` are the extra variables."""
        self.options, self.given, self.sudo_password, self.folder = options, given, sudo_password, Path(options["folder"])
        self.known = self._known()

    def run(self) -> dict[str, Any]:
        """Return the machines and the answers, with the password of sudo; or write the inventory."""
        return self._write() if self.options["machines"] else self._access()

    def _ask(self, variable: str, default: str = "", **more: Any) -> str:
        return login.ask(variable, self.known.get(variable, default), self.given.get(variable), **more)

    def _known(self) -> dict[str, str]:
        """Return the answers of an earlier run, as far as the files in the folder have its form."""
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError):
            texts = [(self.folder / name).read_text(encoding="utf-8") for name in ("hosts.yml", "group_vars/gb10.yml")]
            tree, values = (yaml.load(text, Loader=SafeLoader) for text in texts)  # noqa: S506  a safe loader
            hosts = tree["gb10"]["children"]["pair1"]["hosts"].values()
            found = {**values, "setup_user": values["ansible_user"], **dict(zip(("setup_head", "setup_worker"), (each["ansible_host"] for each in hosts)))}
            return {name: found[name] for name in login.QUESTIONS if isinstance(found.get(name), str) and not login.fault_of(name, found[name])}
        return {}

    def _access(self) -> dict[str, Any]:
        """Return both machines after their login by key works."""
        addresses = [self._ask("setup_head", "spark-1.local", needed=True), self._ask("setup_worker", "spark-2.local", needed=True)]
        if addresses[0] == addresses[1]:
            raise AnsibleActionFail("setup_worker is the address of the first machine; give that of the second.")
        mine = login.configured_user(addresses[0])
        user = self._ask("setup_user", "nvidia" if mine == "root" else mine)
        values = {
            "ansible_user": user,
            "gb10_profile": self._profile(),
            "gb10_model_store": self._ask("gb10_model_store", spec_of("gb10_model_store")["default"]),
        }
        first, second = machines = [login.Machine(address, user) for address in addresses]
        for machine in machines:
            machine.reach()
            login.show(f"{machine.address} answers: {machine.name or 'no name'}.")
        # Machines that were installed from one image can share the machine id alone.
        if first.machine_id and (first.machine_id, first.name) == (second.machine_id, second.name):
            raise AnsibleActionFail(f"{first.address} and {second.address} are the same machine ({second.name}). Run again with the other one in setup_worker.")
        password = self._password(" and ".join(each.address for each in machines if each.asks))
        found = [{**vars(each), "name": name} for name, each in zip(proposal.host_names([each.name for each in machines]), machines)]
        # Only the registered result has the password.
        return {"changed": False, "machines": found, "variables": values, "password": password, "_ansible_no_log": bool(password)}

    def _password(self, names: str) -> str:
        if not names or self.sudo_password:
            return self.sudo_password
        why = f"sudo on {names} asks for a password."
        return login.typed(f"\n{why} It is used in this run only.\nPassword for sudo (it is not shown):", f"{why} Add -K (--ask-become-pass).", private=True)

    def _profile(self) -> str:
        choices = proposal.profile_choices(profiles := self.options["profiles"])

        def fault(text: str) -> str:
            name = proposal.chosen(text, choices)
            return "" if name in profiles else f"is {name!r}, expected one of {', '.join(profiles)}{did_you_mean(name, profiles)}"

        table = "\n".join(proposal.profile_table(profiles, choices))
        return proposal.chosen(self._ask("gb10_profile", choices[0] if choices else "", more=table, check=fault), choices)

    def _write(self) -> dict[str, Any]:
        """Show what was found, ask what is open, write, and print the next commands."""
        machines, nodes, fabrics = (self.options[name] for name in ("machines", "nodes", "fabrics"))
        names = [str(machine["name"]) for machine in machines]
        for name, facts in [*zip(names, nodes), *zip(names, fabrics)]:
            if facts.get("failed") or facts.get("unreachable"):
                raise AnsibleActionFail(f"{name} could not be read: {str(facts.get('msg') or 'no reason given').removeprefix(f'{name}: ')}")
        login.show("", "What the machines show:")
        for name, node, fabric in zip(names, nodes, fabrics):
            login.show(*proposal.machine_lines(name, node, fabric))
        login.show(proposal.cable_fault(names, fabrics), color="yellow")
        adopted, values = proposal.adoptable(fabrics), dict(self.options["variables"])
        policy = self._policy(adopted)
        values.update({"roce_foreign_policy": policy} if policy else {})
        hosts = {name: {"ansible_host": machine["address"]} for name, machine in zip(names, machines)}
        if policy == "adopt" and adopted:
            values["gb10_fabric_cidrs"] = adopted[0]
            hosts = {name: {**own, "gb10_fabric_addresses": addresses} for (name, own), addresses in zip(hosts.items(), adopted[1])}
        written = self._files({self.folder / name: text for name, text in proposal.files(hosts, values).items()})
        site = "site.yml" if os.path.exists("site.yml") else "gb10.cluster.site"
        command = f"  ansible-playbook {site} -i {shlex.quote(str(self.folder))}{' -K' if any(machine['asks'] for machine in machines) else ''}"
        activate = ["  . .venv/bin/activate"] if os.path.exists(".venv/bin/activate") and os.environ.get("VIRTUAL_ENV") is None else []
        login.show("", "Next:", *activate, f"{command} --check --diff   # what would change", f"{command}                  # set up and serve")
        return {"changed": bool(written), "written": written}

    def _policy(self, adopted: Any) -> str:
        if not self.given.get("roce_foreign_policy") and not any(fabric["foreign"] for fabric in self.options["fabrics"]):
            return ""
        both = f"Both machines have addresses on all rails ({', '.join(adopted[0])}), so they can be kept" if adopted else ""
        more = f"Another tool, such as NVIDIA Sync, has configured the QSFP ports. {both or 'Their addresses do not form one network for each rail'}."
        return self._ask("roce_foreign_policy", "adopt" if adopted else "replace", needed=True, more=more)

    def _files(self, texts: Mapping[Path, str]) -> list[str]:
        """Show the files that differ, and write them after the answer. What is replaced is kept next to it."""
        try:
            changes = {path: text for path, text in texts.items() if not path.exists() or path.read_bytes() != text.encode()}
            there = [path for path in changes if path.exists()]
            if not changes:
                login.show("", f"{self.folder} is up to date. Nothing was written.")
            for path, text in changes.items():
                login.show("", f"{path}:", *(f"  {line}" for line in text.splitlines()))
            more = "It replaces what is there, which is kept in files with ~ at the end of their names." if there else ""
            if changes and self._ask("setup_write", "no" if there else "yes", needed=bool(there), more=more).lower() not in TRUE:
                raise AnsibleActionFail(f"Nothing was written to {self.folder}, as you answered. Run setup.yml again for other answers.")
            for path, text in changes.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                if path in there:
                    names = (f"{path}{number or ''}~" for number in itertools.count())
                    shutil.copy2(path, next(name for name in names if not os.path.lexists(name)))
                write_atomically(str(path.resolve()), text, path.stat().st_mode & 0o777 if path.exists() else 0o644)
                login.show(f"Written: {path}", color="green")
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename} cannot be written: {error.strerror}. Add -e setup_inventory=FOLDER for another inventory.") from error
        return [str(path) for path in changes]
