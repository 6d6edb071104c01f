# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask for two machines, make them reachable, and write their inventory. See the module of the same name."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_files, setup_proposal, setup_questions, setup_ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_files import GROUP, HOSTS
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_questions import Terminal, login_of
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_ssh import Machine

_TRIES = 3  # of the password of sudo


class ActionModule(ActionBase):
    """Runs on the controller: first without what the machines showed, then with it."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the machines, with the password of sudo; or write the inventory."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        lists = {name: {"type": "list", "elements": "dict"} for name in ("machines", "nodes", "fabrics")}
        spec = {"inventory": {"type": "path", "required": True}, "profiles": {"type": "dict"}, "model_store": {"type": "str"}, **lists}
        _validation, self.options = self.validate_argument_spec(argument_spec=spec)
        if self._task.check_mode:
            raise AnsibleActionFail("setup.yml has no check mode: it shows the files before it writes them. Run it without --check.")
        extra = load_extra_vars(self._loader)
        for name in extra:
            if name not in setup_questions.VARIABLES and name.startswith("setup_"):
                hint = did_you_mean(name, setup_questions.VARIABLES) or f"; known are {', '.join(setup_questions.VARIABLES)}"
                raise AnsibleActionFail(f"-e {name} is not a variable of setup.yml{hint}")
        self.given = {name: extra.get(name) for name in setup_questions.VARIABLES}
        self.terminal, self.folder = Terminal(), Path(self.options["inventory"])
        self.hosts, self.values = setup_files.read(self.folder)
        result.update(self._write() if self.options["machines"] else self._access())
        return result

    def _access(self) -> dict[str, Any]:
        """Return both machines after their login by key and their sudo work."""
        for question in (setup_questions.POLICY, setup_questions.WRITE):
            if self.given[question.variable]:
                self.terminal.ask(question, given=self.given[question.variable])
        if self.given["gb10_profile"]:
            self._profile()
        machines = self._machines()
        store = self.terminal.ask(setup_questions.STORE, "/srv/models", self.given["gb10_model_store"] or self.values.get("gb10_model_store"))
        for machine in machines:
            if not machine.local:
                machine.reach(self._answer, partial(self.terminal.confirm, setup_questions.MAKE_KEY))
            elif machine.look():
                raise AnsibleActionFail(f"{machine.address}: {machine.look()}.")
            self.terminal.show(f"{machine.address} answers: {machine.name or 'no name'}.")
        first, second = machines
        # Machines that were installed from one image can share the machine id alone.
        if first.machine_id and (first.machine_id, first.name) == (second.machine_id, second.name):
            raise AnsibleActionFail(f"{first.address} and {second.address} are the same machine ({second.name}). Run again with the other one in setup_worker.")
        password = self._sudo([machine for machine in machines if machine.asks])
        names = list(self.hosts) or setup_files.host_names([machine.name for machine in machines])
        found = [{**vars(machine), "name": name} for name, machine in zip(names, machines)]
        # Only the registered result has the password.
        return {"changed": False, "machines": found, "model_store": store, "password": password, "_ansible_no_log": bool(password)}

    def _machines(self) -> list[Machine]:
        """Return both machines by the answers: of -e, of the inventory, of the user."""
        known = [{"ansible_host": name, **self.values, **variables} for name, variables in self.hosts.items()] or [{}, {}]
        product = Path("/sys/class/dmi/id/product_name")
        here = setup_ssh.default_address() if product.is_file() and "spark" in product.read_text(encoding="utf-8", errors="replace").lower() else ""
        asked = zip((setup_questions.HEAD, setup_questions.WORKER), (here or "spark-1.local", "spark-2.local"), known)
        answers = [
            login_of(self.terminal.ask(question, default, self.given[question.variable] or there.get("ansible_host"), needed=True))
            for question, default, there in asked
        ]
        if answers[0][1] == answers[1][1]:
            raise AnsibleActionFail("setup_worker is the address of the first machine; give that of the second.")
        users = [user or self.given["setup_user"] or there.get("ansible_user") for (user, _address), there in zip(answers, known)]
        if not all(users):
            mine = str(users[0] or users[1] or setup_ssh.configured_user(answers[0][1]))
            login = self.terminal.ask(setup_questions.USER, "nvidia" if mine == "root" else mine)
            users = [user or login for user in users]
        machines = []
        for (_user, address), user, there in zip(answers, users, known):
            own = setup_ssh.own(address)
            port, key = (str(there.get(name) or "") for name in ("ansible_port", "ansible_ssh_private_key_file"))
            machines.append(Machine(own or address, self.terminal.ask(setup_questions.USER, given=user), port, key, bool(own)))
        return machines

    def _answer(self, text: str) -> str:
        """Return what the user types for a question of OpenSSH."""
        kind = re.search(r"(\w+) key fingerprint", text)
        compare = f"ssh-keygen -lf /etc/ssh/ssh_host_{kind[1].lower()}_key.pub" if kind else ""
        why = f"Compare it on the machine itself, at its screen or in NVIDIA Sync: {compare}\n" if kind else ""
        return self.terminal.typed(f"\n{why}" + re.sub(r"[?:]?\s*$", ":", text, count=1), "", private=not re.search(r"\(yes/no|type 'yes'", text))

    def _sudo(self, machines: list[Machine]) -> str:
        """Return the password with which sudo works on these machines: that of -K, else what the user types."""
        names, fault = " and ".join(f"{each.user}@{each.address}" for each in machines), ""
        password = str(self._play_context.become_pass or "")
        for _try in range(_TRIES if machines else 0):
            if fault or not password:
                what = f"\n{fault}sudo on {names} asks for a password. It is used in this run only, to read the machines.\nPassword for sudo (it is not shown):"
                missing = f"{fault or f'sudo on {names} asks for a password. '}Add -K (--ask-become-pass) or --become-password-file FILE."
                password = self.terminal.typed(what, missing, private=True)
            refused = [machine.address for machine in machines if not machine.sudo(password)]
            if not refused:
                self.terminal.show(f"sudo on {names} asks for a password: add -K to the commands.")
                return password
            other = " -K takes one password for both machines: set the same one with `passwd`." if len(refused) < len(machines) else ""
            fault = f"{' and '.join(refused)}: sudo does not accept the password.{other} "
        if fault:
            raise AnsibleActionFail(fault.strip())
        return ""

    def _write(self) -> dict[str, Any]:
        """Show what was found, ask what is open, write, and print the next commands."""
        machines, nodes, fabrics = (self.options[name] for name in ("machines", "nodes", "fabrics"))
        names = [str(machine["name"]) for machine in machines]
        for name, facts in [*zip(names, nodes), *zip(names, fabrics)]:
            if facts.get("failed") or facts.get("unreachable"):
                raise AnsibleActionFail(f"{name} could not be read: {str(facts.get('msg') or 'no reason given').removeprefix(f'{name}: ')}")
        self.terminal.show("", "What the machines show:")
        for name, node, fabric in zip(names, nodes, fabrics):
            self.terminal.show(*setup_proposal.machine_lines(name, node, fabric))
        self.terminal.show(*filter(None, [setup_proposal.cable_fault(names, fabrics)]), color="yellow")
        adopted = setup_proposal.adoptable(fabrics)
        values = {
            **self.values, "ansible_user": machines[0]["user"], "gb10_profile": self._profile(), "gb10_model_store": self.options["model_store"],
        }  # fmt: skip
        policy = self._policy(adopted)
        adopts = policy == "adopt" and adopted is not None and "gb10_fabric_cidrs" not in self.values
        values.update({"roce_foreign_policy": policy} if policy else {}, **({"gb10_fabric_cidrs": adopted.cidrs} if adopts and adopted else {}))
        hosts = {}
        for rank, machine in enumerate(machines):
            there = self.hosts.get(machine["name"], {})
            own: dict[str, Any] = {"ansible_host": machine["address"]}
            if machine["user"] != values["ansible_user"]:
                own["ansible_user"] = machine["user"]
            own.update({key: there[key] for key in ("ansible_port", "ansible_ssh_private_key_file", "gb10_fabric_addresses") if key in there})
            if machine["local"]:  # the Python of the system, not that of .venv
                own.update(ansible_connection="local", ansible_python_interpreter="/usr/bin/python3")
            if adopts and adopted:
                own["gb10_fabric_addresses"] = adopted.addresses[rank]
            hosts[str(machine["name"])] = own
        written = self._files({HOSTS: setup_files.hosts_text(hosts), GROUP: setup_files.group_text(values)})
        self._next(any(machine["asks"] for machine in machines))
        return {"changed": bool(written), "written": written}

    def _profile(self) -> str:
        profiles, there = self.options["profiles"], self.values.get("gb10_profile")
        if there and not self.given["gb10_profile"]:
            return str(there)
        choices = setup_proposal.profile_choices(profiles)
        known = setup_questions.choice([*choices, *(name for name in profiles if name not in choices)])
        table = "\n".join(setup_proposal.profile_table(profiles, choices))
        question = setup_questions.PROFILE._replace(
            reason=f"{setup_questions.PROFILE.reason}\n{table}", check=lambda text: known(setup_proposal.chosen(text, choices))
        )
        return setup_proposal.chosen(self.terminal.ask(question, choices[0] if choices else "", self.given["gb10_profile"]), choices)

    def _policy(self, adopted: setup_proposal.Adopted | None) -> str:
        """Return the policy for configuration of other tools; empty if there is none."""
        given = self.given["roce_foreign_policy"] or self.values.get("roce_foreign_policy")
        if not given and not any(fabric["foreign"] for fabric in self.options["fabrics"]):
            return ""
        why = "The addresses of the two machines do not form one network for each rail, so they cannot be kept."
        if adopted:
            why = f"Both machines have addresses on all rails ({', '.join(adopted.cidrs)}), so they can be kept."
        question = setup_questions.POLICY
        reason = f"Another tool has configured the QSFP ports, such as NVIDIA Sync. {why}\n{question.reason}"
        return self.terminal.ask(question._replace(reason=reason), "adopt" if adopted else "replace", given, needed=True)

    def _files(self, texts: Mapping[str, str]) -> list[str]:
        """Show the files that do not have these values, and write them after the answer."""
        changes = {self.folder / name: (text, *setup_files.change(self.folder / name, text)) for name, text in texts.items()}
        changes = {path: each for path, each in changes.items() if each[1]}
        if not changes:
            self.terminal.show("", f"{self.folder} is up to date. Nothing was written.")
            return []
        for path, (text, _changed, lost) in changes.items():
            self.terminal.show("", f"{path}:", *(f"  {line}" for line in text.splitlines()))
            if lost:
                self.terminal.show(f"It replaces the whole file. What the file sets otherwise is not kept: {', '.join(lost)}", color="yellow")
        there = any(path.exists() for path in changes)
        question = setup_questions.WRITE._replace(text="Write it over what is there?") if there else setup_questions.WRITE
        if not self.terminal.confirm(question, "no" if there else "yes", self.given["setup_write"], needed=there):
            raise AnsibleActionFail(f"Nothing was written to {self.folder}, as you answered. Run setup.yml again for other answers.")
        for path, (text, *_rest) in changes.items():
            setup_files.write(path, text)
            self.terminal.show(f"Written: {path}", color="green")
        return [str(path) for path in changes]

    def _next(self, asks: bool) -> None:
        """Print the commands to copy."""
        site = "site.yml" if os.path.exists("site.yml") else "gb10.cluster.site"
        command = f"  ansible-playbook {site} -i {shlex.quote(str(self.folder))}{' -K' if asks else ''}"
        activate = ["  . .venv/bin/activate"] if os.path.exists(".venv/bin/activate") and os.environ.get("VIRTUAL_ENV") is None else []
        self.terminal.show("", "Next:", *activate, f"{command} --check --diff   # what would change", f"{command}                  # set up and serve")
