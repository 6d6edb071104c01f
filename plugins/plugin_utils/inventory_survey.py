# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of an inventory: collects the faults, and places each in its file. Controller only."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import context as cli_context
from ansible.errors import AnsibleError
from ansible.inventory.manager import split_host_pattern
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import check, combinations, command_line, connection, names, rules
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import serving_groups
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC, PLAYBOOK_SPEC, ROOT_GROUP, Fault, Place
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_early, inventory_local, inventory_run, inventory_watch, lock_file, role_files
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import Located, Places, first_line, short
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_profiles import FLAGS, ProfileChecks
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import altered, in_another_base, scan

_TAGS = {"--tags": "ansible_run_tags", "--skip-tags": "ansible_skip_tags"}
# Values that all ranks of a serving group share.
_SHARED = ("roce_mtu", *FLAGS, "vllm_tp2_extra_args", "vllm_tp2_gate")
# A template that reads these can be made later.
_LATER = re.compile(r"hostvars|roce_env|_required\b|gb10\.cluster\.serving_group")
_ENVIRONMENT = re.compile(r"(?:lookup|query|q)\(\s*['\"](?:ansible\.builtin\.)?env['\"]")
# Why the template of a secret fails, without a part of it.
_KINDS = (
    ("file not found", "a file that it reads was not found"),
    ("could not locate file", "a file that it reads was not found"),
    ("no filter named", "it uses a filter that does not exist here"),
    ("undefined", "it uses a variable that is not defined"),
    ("syntax error", "it is not a valid template"),
)
_DIGITS = re.compile(r"\d")


class Survey:
    """The check of one inventory.

    :param group_stages: tags of this run that need all hosts of a serving group.
    :param inventory_only: whether this run checks the inventory alone. Faults of an image or of memory count there, and in a run that needs it or starts.
    """

    def __init__(self, task_vars: Mapping[str, Any], extra: Mapping[str, Any], group_stages: Sequence[str] = (), inventory_only: bool = False) -> None:
        self.groups = {str(name): [str(host) for host in hosts] for name, hosts in task_vars["groups"].items()}
        self.hosts = self.groups.get(ROOT_GROUP, [])
        self.hostvars = task_vars["hostvars"]
        self.extra = extra
        self.group_stages = group_stages
        self.inventory_only = inventory_only
        self.sources = [
            str(source) for source in task_vars.get("ansible_inventory_sources") or [] if source and str(source) not in inventory_run.DEFAULT_SOURCES
        ]
        playbooks = [os.path.dirname(os.path.abspath(each)) for each in cli_context.CLIARGS.get("args") or () if os.path.exists(str(each))]
        given = [str(each) for each in cli_context.CLIARGS.get("extra_vars") or ()]
        self.index = scan(self.sources, [*playbooks, str(task_vars.get("playbook_dir") or "."), *playbooks], inventory_early.extra_files(given))
        roles = role_files.load_specs()
        self.specs: dict[str, Mapping[str, Any]] = {**CLUSTER_SPEC, **{name: spec for options in roles.values() for name, spec in options.items()}}
        self.short = names.short_names(self.specs)
        self.prefixes = {"gb10_": "the cluster", **{f"{role}_": f"the role {role}" for role in roles}}  # the first one wins in a hint
        played = {str(host) for host in task_vars.get("ansible_play_hosts_all") or ()}
        self.tags = {option: [str(tag) for tag in task_vars.get(key) or ()] for option, key in _TAGS.items()}
        self.in_run = [host for host in self.hosts if host in played] if cli_context.CLIARGS.get("subset") else self.hosts
        self.found: list[Fault] = []
        self.warned: list[Located] = []
        self.values: dict[str, dict[str, Any]] = {}
        self.serving: dict[str, list[str]] = {}
        self.places = Places(self.index, self.sources, self.groups, extra, inventory_early.extra_places(given, self.index))
        image, starts = (inventory_only or stage in group_stages for stage in ("image", "vllm_tp2"))
        self.profiles = ProfileChecks(self._add, self.values, self.specs, image, starts)

    # --- collecting -----------------------------------------------------------------------------------------------------

    def run(self) -> list[Located]:
        """Return every fault, in the order in which they were found."""
        if self._check_run():
            return [self.places.locate(fault) for fault in self.found]
        repeated = inventory_early.unreadable(self.index) + [self._repeated(*each) for each in self.index.repeated]
        self._check_files()
        # If a file cannot be read, Ansible fails on the first variable without its name. Other faults follow from it.
        if not self.index.unreadable and self._read_values():
            self._check()
        return self.warned + repeated + list(dict.fromkeys(self.places.locate(fault) for fault in self.found))

    def run_extra(self) -> list[Located]:
        """Return the faults of the extra variables alone, for a playbook that needs no inventory."""
        self.values = {host: {"gb10_foreign_variables": self.hostvars[host].get("gb10_foreign_variables")} for host in self.hosts}
        known, foreign = {**self.specs, **self.short}, self._foreign()
        for name, value in self.extra.items():
            text = names.unknown_variable(name, known, self.prefixes, foreign)
            if text:
                self._add("run", inventory_early.EXTRA, name, text)
            elif name in self.specs and not names.is_computed(value):
                for below, fault in rules.faults(name, value, self.specs[name]):
                    self._add("run", inventory_early.EXTRA, name, fault, below)
        self._check_extra()
        return [self.places.locate(fault) for fault in self.found]

    def _add(self, kind: str, name: str, key: str, text: str, below: tuple[str | int, ...] = (), among: tuple[str, ...] = (), example: bool = False) -> None:
        self.found.append(Fault(Place(kind, name, key, below), text, example, among))

    def _check_run(self) -> bool:
        """The inventories and tags of the command line. Return whether there is no inventory to check."""
        missing = inventory_run.missing_sources(self.sources)
        if missing or not self.hosts:
            text = command_line.source_fault(self.sources, missing, inventory_run.siblings(missing), inventory_run.inventory_writer())
            if text:
                self._add("run", "the command line", "-i", text)
                return True
        limit = split_host_pattern(cli_context.CLIARGS.get("subset") or "all")
        for text in command_line.limit_faults(limit, [*self.groups, *self.groups.get("all", self.hosts)]):
            self._add("run", "the command line", "--limit", text)
        if not {tag for tags in self.tags.values() for tag in tags} <= set(command_line.SPECIAL_TAGS):
            known = inventory_run.tags_of([str(each) for each in cli_context.CLIARGS.get("args") or ()])
            for option, text in command_line.tag_faults(self.tags, known):
                self._add("run", "the command line", option, text)
        return False

    def _repeated(self, path: Path, line: int, key: str, first: int) -> Located:
        """A key that stands twice in a mapping. Of a secret it is a warning, because Ansible takes the last one and no value is compared or shown."""
        return Located(short(path), line, key, f"is set twice, first in line {first}; remove one", warning=names.is_secret(key, self.specs.get(key)))

    def _check_files(self) -> None:
        """Files of variables whose names are nearly those of a group or host, and which Ansible does not read therefore."""
        names_of = {"group": [*self.groups, "all"], "host": [host for hosts in self.groups.values() for host in hosts]}
        for path, kind, owner in self.index.owners:
            if kind == "group" and owner == ROOT_GROUP:  # an inventory without this group has that fault
                continue
            other_kind = "host" if kind == "group" else "group"
            if owner in names_of[other_kind] and owner not in names_of[kind]:
                self._add("file", str(path), owner, f"no host reads this file: {owner} is a {other_kind}; move the file to {other_kind}_vars", (0,))
                continue
            named = next((host for host in names_of[kind] if kind == "host" and self._address(host) == owner != host), "")
            if named and owner not in names_of[kind]:
                self._add("file", str(path), owner, f"no host reads this file: {owner} is the address of {named}; rename it to {named}.yml", (0,))
                continue
            hint = did_you_mean(owner, names_of[kind], 0.7)
            # spark-3 next to spark-1 and spark-2 is a host of another time, not a misspelt one.
            numbered = {_DIGITS.sub("", each) for each in names_of[kind] if each != ROOT_GROUP}
            if owner not in names_of[kind] and hint and _DIGITS.sub("", owner) not in numbered and not self._is_in_another_inventory(owner):
                self._add("file", str(path), owner, f"no host reads this file: there is no {kind} {owner}{hint}", (0,))
            elif owner not in names_of[kind] and any(re.match(rf"{re.escape(name)}(?![0-9-]|[A-Za-z])", owner) for name in names_of[kind]):
                self.warned.append(Located(short(path), 0, owner, f"no host reads this file: there is no {kind} {owner}", warning=True))
        read = {(kind, owner) for _path, kind, owner in self.index.owners}  # next to a file that is read, another one is a backup
        for path, kind, owner in self.index.unread:
            if owner in names_of[kind] and path.is_symlink() and not path.exists():
                self._add("file", str(path), owner, "the file is a link to a file that does not exist; correct the link, or remove it", (0,))
            elif owner in names_of[kind] and (kind, owner) not in read:
                self._add("file", str(path), owner, f"Ansible does not read this file, because of its ending; rename it to {owner}.yml", (0,))

    def _address(self, host: str) -> str:
        """The address of a host as a file has it; values are not read yet."""
        found = self.index.find(host, "ansible_host", self.groups)
        return str(getattr(found[2].node, "value", "")) if found else ""

    def _is_in_another_inventory(self, owner: str) -> bool:
        """Whether a file next to the inventory has this name: it can be another inventory that shares the variables."""
        files = [each for folder in self.index.directories for each in folder.iterdir() if each.is_file() and each.stat().st_size < 1_000_000]
        return any(re.search(rf"(?<![\w-]){re.escape(owner)}(?![\w-])", path.read_text(encoding="utf-8", errors="replace")) for path in files)

    def _check(self) -> None:
        self.serving = serving_groups(self.groups, self.values[self.hosts[0]].get("gb10_serving_groups") if self.hosts else None)
        self._check_names()
        before = len(self.found)
        self._check_values()
        wrong = [self.places.subject(fault.place) for fault in self.found[before:]]
        # A wrong type is one fault, although the check of addresses reports it too.
        self.found += [fault for fault in check.faults(self.groups, self.values) if self.places.subject(fault.place) not in wrong]
        for name, members in self.serving.items():
            present = [host for host in members if host in self.values]
            for key in _SHARED:
                given = {host: self.values[host].get(key) for host in present}
                if len({str(value) for value in given.values()}) > 1:
                    self.found += check.equal_faults(key, given, name)
            self.profiles.check(name, present)
            self._check_limit(name, members)
            here = inventory_local.all_here({host: self.values[host] for host in present}, cli_context.CLIARGS)
            if here:
                text = f"is local for {', '.join(here)}, so each of them would be this computer; set it only for the machine on which you run Ansible"
                in_file = "ansible_connection" in self.values[here[-1]]
                self._add(*(("host", here[-1], "ansible_connection") if in_file else ("run", "the command line", "-c")), text)
        addresses = [str(self.values[host].get("ansible_host") or host) for host in self.hosts if host in self.values]
        for option, text in inventory_local.command_line_faults(cli_context.CLIARGS, [*self.hosts, *addresses]):
            self._add("run", "the command line", option, text)
        text = command_line.forks_fault(int(cli_context.CLIARGS.get("forks") or 0) or len(self.hosts), self.serving)
        if text:
            self._add("run", "the command line", "--forks", text)
        self._check_lock()
        self._check_extra()
        self._check_failure_classes()
        self._check_watch()
        self._check_open_api()

    def _read_values(self) -> bool:
        """Template the variables of each host; one whose template fails is a fault and counts as undefined. False if Ansible cannot read the files."""
        for host in self.hosts:
            try:
                raw = self.hostvars.raw_get(host)
            except AnsibleError as error:
                self._add_unreadable(host, first_line(error))
                return False
            view = self.hostvars[host]
            self.values[host] = {}
            for name in map(str, view):
                if name in connection.NAMES or name in self.specs:
                    try:
                        self.values[host][name] = view[name]
                    except AnsibleError as error:
                        self._add_template_fault(host, name, raw.get(name), first_line(error))
                    if self.values[host].get(name) == "" and _ENVIRONMENT.search(str(raw.get(name))):
                        self._add("host", host, name, "reads a variable of the environment that is not set here, or is empty; export it, or remove the line")
        return True

    def _add_unreadable(self, host: str, reason: str) -> None:
        if not self.index.encrypted or not re.search("vault|decrypt", reason, re.IGNORECASE):
            self._add("host", host, host, f"Ansible cannot read its variables: {reason}")
            return
        for path in self.index.encrypted:
            self._add("file", str(path), "vault", f"the file {inventory_early.NOT_DECRYPTED}", (0,))

    def _add_template_fault(self, host: str, name: str, raw: Any, reason: str) -> None:
        if "vault" in reason.lower():
            self._add("host", host, name, inventory_early.NOT_DECRYPTED)
        elif _LATER.search(str(raw)):
            return
        elif "ansible_" in str(raw):
            text = "its template reads a variable of Ansible that is not set here, and these playbooks gather no facts of a machine; write the value"
            self._add("host", host, name, text)
        else:
            secret = names.is_secret(name, self.specs.get(name))
            kind = next((text for part, text in _KINDS if part in reason.lower()), "the reason is not shown, because the value is a secret")
            self._add("host", host, name, f"its template fails; {kind}" if secret else f"its template fails: {reason}")

    def _foreign(self) -> list[str]:
        """Return the patterns of the variables that belong to other collections."""
        lists = [self.values[host].get("gb10_foreign_variables") for host in self.hosts]
        return [str(each) for value in lists if isinstance(value, list) for each in value]

    def _check_names(self) -> None:
        """Names that look like variables of the collection and are not."""
        foreign = self._foreign()
        written = self.index.variables() | set(self.extra)
        texts: dict[str, str] = {}
        hosts = {owner for kind, owner, key in self.index.entries if kind == "host" and key == owner}
        for kind, owner, name in self.index.entries:
            right = name.replace("-", "_")
            if name not in (owner, right, *hosts) and (right in self.specs or right.startswith(tuple(self.prefixes))):
                self._add(kind, owner, name, f"is not the name of a variable, because of its dashes; write {right}")
        for host in self.hosts:
            for name in map(str, self.hostvars[host]):
                if not (f"{name}_".startswith(tuple(self.prefixes)) or name in written):
                    continue
                if f"{name}_" in self.prefixes:
                    texts.setdefault(name, names.mapping_fault(name, self.hostvars.raw_get(host).get(name), self.specs))
                if name.startswith("ansible"):
                    texts.setdefault(name, connection.name_fault(name))
                if name not in texts:
                    known = {**self.specs, **self.short} if name in self.extra else self.specs
                    texts[name] = names.unknown_variable(name, known, self.prefixes, foreign)
                    if texts[name] and name not in written and name in role_files.load_exports():
                        texts[name] = ""
                if texts[name]:
                    self._add("host", host, name, texts[name])

    def _check_values(self) -> None:
        """Types and ranges."""
        for host in self.hosts:
            for key, text in connection.faults(host, self.values[host]):
                self._add("host", host, key if key in self.values[host] else host, text)
            with_key = not self.inventory_only and not cli_context.CLIARGS.get("ask_pass") and not cli_context.CLIARGS.get("connection_password_file")
            for key, text in inventory_local.faults(self.values[host], with_key):
                self._add("host", host, key, text)
            for name, value in self.values[host].items():
                for below, text in rules.faults(name, value, self.specs[name]) if name in self.specs else ():
                    self._add("host", host, name, text, below)
            wrong = {fault.place.key for fault in self.found}
            self._check_verbatim(host, wrong)
            self._check_bases(host)
            for name, text in combinations.faults(self.values[host], self.specs):
                if name not in wrong and name in self.values[host]:
                    self._add("host", host, name, text)
            for word in self.short.keys() & self.extra.keys():
                name, value = self.short[word], self.extra[word]
                if self.specs[name].get("type") == "list" and isinstance(value, str):
                    value = value.split(",")
                found = rules.faults(name, value, self.specs[name])
                for below, text in found:
                    self._add("host", host, word, text, below)
                text = inventory_local.folder_fault(value) if name in inventory_local.FOLDERS and not found else ""
                if text:
                    self._add("host", host, word, text)

    def _check_verbatim(self, host: str, wrong: set[str]) -> None:
        """Strings that YAML reads as numbers, and that would arrive with other digits."""
        for name in rules.VERBATIM:
            known = name in self.values[host] and name not in self.extra and name not in wrong
            definition = self.places.definition(Place("host", host, name)) if known else None
            for below, number in altered(definition[2].node) if definition else ():
                what, value = (f"{below[0]} " if below else ""), "another number" if names.is_secret(name, self.specs[name]) else number
                self._add("host", host, name, f"{what}has no quotes, and YAML reads it as {value}; put it in quotes", below)

    def _check_bases(self, host: str) -> None:
        """Numbers that YAML reads in another base: octal ones, and those with a colon."""
        for name in self.values[host]:
            definition = self.places.definition(Place("host", host, name)) if name in self.specs and name not in self.extra else None
            for below, text, number in in_another_base(definition[2].node) if definition and name not in rules.VERBATIM else ():
                self._add("host", host, name, f"is {text}, which YAML reads as {number}; write the number without a 0 in front and without colons", below)

    def _check_extra(self) -> None:
        """Extra variables (-e) of playbooks, and those that nothing reads."""
        known, foreign = {**self.specs, **PLAYBOOK_SPEC}, self._foreign()
        reported = {fault.place.key for fault in self.found}
        for name, value in self.extra.items():
            if name in PLAYBOOK_SPEC:
                for _path, text in rules.faults(name, value, PLAYBOOK_SPEC[name]):
                    self._add("run", "the extra variables (-e)", name, text)
            elif name == "_raw_params":
                self._add("run", "the extra variables (-e)", "-e", command_line.raw_fault(str(value), [*known, *self.short]))
            elif not name.startswith(("ansible", *self.prefixes)) and name not in reported and not any(fnmatch.fnmatchcase(name, each) for each in foreign):
                text = command_line.extra_fault(name, self.specs, [*self.short, *PLAYBOOK_SPEC], self.prefixes)
                if text:
                    self._add("run", "the extra variables (-e)", name, text)

    def _check_lock(self) -> None:
        """The lock files, which a run reads when images and weights are there."""
        folder = self.index.directories[0] if self.index.directories else "."
        for path in sorted({lock_file.path_of(each.get("gb10_lock_file") or "", folder) for each in self.values.values()}):
            try:
                lock_file.read(path)
            except AnsibleError:
                self._add("file", path, "gb10_lock_file", "is not a lock file of this collection, or cannot be read; correct or delete it", (0,))

    def _check_failure_classes(self) -> None:
        """The user's failure classes, which the gate reads during a boot."""
        for host in self.hosts:
            given = self.values[host].get("vllm_tp2_failure_classes")
            if not given or not isinstance(given, list):
                continue
            # Few have one, and Ansible compiles a collection's files at each start.
            from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import check_user_class

            for number, entry in enumerate(given):
                text = check_user_class(entry) if isinstance(entry, Mapping) else ""
                if text:
                    self._add("host", host, "vllm_tp2_failure_classes", text.replace(" in extra_classes", ""), (number,))

    def _check_watch(self) -> None:
        """Settings of the watch, which the agents read. Values of a wrong type are faults of their own."""
        wrong = {fault.place.key for fault in self.found}
        for host in self.hosts:
            given = self.values[host].get("vllm_tp2_watch")
            for key, text in inventory_watch.faults(given) if isinstance(given, Mapping) and "vllm_tp2_watch" not in wrong else ():
                self._add("host", host, "vllm_tp2_watch", text, (key,))

    def _check_open_api(self) -> None:
        """An API that is open and has a key: the owner has to choose."""
        for host in self.hosts:
            values = self.values[host]
            secret = values.get("vllm_tp2_secret_env")
            keys = [values.get("vllm_tp2_api_key"), secret.get("VLLM_API_KEY") if isinstance(secret, Mapping) else None]
            if boolean(values.get("vllm_tp2_api_open") or False, strict=False) and any(keys):
                where = "vllm_tp2_api_key" if keys[0] else "VLLM_API_KEY in vllm_tp2_secret_env"
                self._add("host", host, "vllm_tp2_api_open", f"is true, and {where} sets a key; remove one of them")

    def _check_limit(self, name: str, members: Sequence[str]) -> None:
        """A stage that needs all hosts of a serving group, in a run without some of them."""
        missing = [host for host in members if host not in self.in_run]
        if self.group_stages and missing and len(missing) < len(members):
            text = (
                f"{name} is one unit and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in this run; limit to the whole group "
                f"(--limit {name}), or skip the stages that need all its hosts (--skip-tags {','.join(self.group_stages)})"
            )
            self._add("run", "the command line", "--limit", text)
