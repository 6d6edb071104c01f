# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of an inventory: collects the faults, and places each in its file. Controller only."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible import context as cli_context
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import groups, rules, ssh, variables
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import serving_groups
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC, PLAYBOOK_SPEC, ROOT_GROUP, Fault, Place, value_of
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import DEFAULTS, SettingsError, merged_settings
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_files, inventory_run
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import EXTRA, Located, Places, first_line, origin_of
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_profiles import FLAGS, ProfileChecks

_TAGS = {"--tags": "ansible_run_tags", "--skip-tags": "ansible_skip_tags"}
# Values that all ranks of a serving group share.
_SHARED = ("gb10_profile", "roce_mtu", *FLAGS, "vllm_tp2_extra_args", "vllm_tp2_gate")
# A template that reads these can be made later.
_LATER = re.compile(r"hostvars|roce_env|_required\b|gb10\.cluster\.serving_group")
_ENVIRONMENT = re.compile(r"(?:lookup|query|q)\(\s*['\"](?:ansible\.builtin\.)?env['\"]")
_DIGITS = re.compile(r"\d")
# Options of vllm_tp2 that define which group there is and where, not what it serves.
_NO_RELEASE = ("vllm_tp2_directory", "vllm_tp2_group", "vllm_tp2_state")


class Survey:
    """The check of one inventory.

    :param group_stages: tags of this run that need all hosts of a serving group.
    :param inventory_only: whether this run checks the inventory alone. Faults of an image or of memory count there, and in a run that needs it or starts.
    :param loader: Ansible's reader of files, for profiles that are files.
    """

    def __init__(
        self, task_vars: Mapping[str, Any], extra: Mapping[str, Any], loader: Any, group_stages: Sequence[str] = (), inventory_only: bool = False
    ) -> None:
        self.groups: dict[str, list[str]] = {name: list(hosts) for name, hosts in task_vars["groups"].items()}
        self.hosts = self.groups.get(ROOT_GROUP, [])
        self.hostvars = task_vars["hostvars"]
        self.extra = extra
        self.group_stages = group_stages
        self.sources = [
            str(source) for source in task_vars.get("ansible_inventory_sources") or [] if source and str(source) not in inventory_run.DEFAULT_SOURCES
        ]
        playbooks = [os.path.dirname(os.path.abspath(each)) for each in cli_context.CLIARGS.get("args") or () if os.path.exists(str(each))]
        self.folders = [*playbooks, str(task_vars.get("playbook_dir") or ".")]
        roles = inventory_files.load_specs()
        self.specs: dict[str, Mapping[str, Any]] = {**CLUSTER_SPEC, **{name: spec for options in roles.values() for name, spec in options.items()}}
        self.prefixes = {"gb10_": "the cluster", **{f"{role}_": f"the role {role}" for role in roles}}  # the first one wins in a hint
        played = {str(host) for host in task_vars.get("ansible_play_hosts_all") or ()}
        self.tags = {option: [str(tag) for tag in task_vars.get(key) or ()] for option, key in _TAGS.items()}
        self.in_run = [host for host in self.hosts if host in played] if cli_context.CLIARGS.get("subset") else self.hosts
        self.found: list[Fault] = []
        self.raw: dict[str, Mapping[str, Any]] = {}
        self.values: dict[str, dict[str, Any]] = {}
        self.places = Places(self.sources, self.groups, self.raw, extra)
        image, starts = (inventory_only or stage in group_stages for stage in ("image", "vllm_tp2"))
        self.profiles = ProfileChecks(self._add, self.values, self.specs, loader, image, starts)

    # --- collecting -----------------------------------------------------------------------------------------------------

    def run(self) -> list[Located]:
        """Return every fault, in the order in which they were found."""
        if self._check_run():
            return [self.places.locate(fault) for fault in self.found]
        options = [str(each) for each in cli_context.CLIARGS.get("extra_vars") or ()]
        unread = inventory_files.faults(self.sources, self.folders, options)
        self._check_files()
        # If a file cannot be read, Ansible fails on the first variable without its name. Other faults follow from it.
        if not any(each.key == "YAML" for each in unread) and self._read_values():
            self._check()
        return [*unread, *dict.fromkeys(self.places.locate(fault) for fault in self.found)]

    def run_extra(self) -> list[Located]:
        """Return the faults of the extra variables alone, for a playbook that needs no inventory."""
        self._check_extra()
        for name, value in self.extra.items():
            if name in self.specs and not variables.is_computed(value):
                for below, fault in rules.faults(name, value, self.specs[name]):
                    self._add("run", EXTRA, name, fault, below)
        return [self.places.locate(fault) for fault in self.found]

    def _add(self, kind: str, name: str, key: str, text: str, below: tuple[str | int, ...] = ()) -> None:
        self.found.append(Fault(Place(kind, name, key, below), text))

    def _check_run(self) -> bool:
        """The inventories and tags of the command line. Return whether there is no inventory to check."""
        text = inventory_run.source_fault(self.sources, bool(self.hosts))
        if text:
            self._add("run", "the command line", "-i", text)
            return True
        for option, text in inventory_run.tag_faults(self.tags, list(inventory_files.load_specs()), bool(inventory_run.own_playbooks())):
            self._add("run", "the command line", option, text)
        return False

    def _check_files(self) -> None:
        """Files of variables that no host reads, because their name is nearly that of a group or host, or because of their ending."""
        names_of = {"group": [*self.groups, "all"], "host": [host for hosts in self.groups.values() for host in hosts]}
        for path, kind, owner in inventory_files.variable_files(self.sources, self.folders):
            known, stem = names_of[kind], path.name.partition(".")[0]
            hint = ""
            if stem in known:  # next to the file that is read, this one is a backup
                hint = "" if owner in known or path.with_name(f"{stem}.yml").exists() else f"; rename it to {stem}.yml"
            elif owner not in known and _DIGITS.sub("", owner) not in {_DIGITS.sub("", each) for each in known if each != ROOT_GROUP}:
                hint = did_you_mean(owner, known, 0.7)  # spark-3 next to spark-1 is a host of another time, not a misspelt one
            if hint:
                self._add("file", str(path), owner, f"no host reads this file: there is no {kind} {owner}{hint}", (0,))

    def _check(self) -> None:
        serving = serving_groups(self.groups, self.values[self.hosts[0]].get("gb10_serving_groups") if self.hosts else None)
        self._check_names()
        before = len(self.found)
        for host in self.hosts:
            self._check_host(host)
        wrong = {fault.place.key for fault in self.found[before:]}
        # A wrong type is one fault, although the check of addresses reports it too.
        self.found += [fault for fault in groups.group_faults(self.groups, self.values) if fault.place.key not in wrong]
        for name, members in serving.items():
            present = [host for host in members if host in self.values]
            for key in _SHARED:
                given = {host: str(value_of(self.values[host], key) if key in CLUSTER_SPEC else self.values[host].get(key)) for host in present}
                self.found += groups.equal_faults(key, given, name)
            self.profiles.check(present)
            self._check_limit(name, members)
        self._check_extra()

    def _read_values(self) -> bool:
        """Template the variables of each host; one whose template fails is a fault and counts as undefined. False if Ansible cannot read the files."""
        for host in self.hosts:
            try:
                self.raw[host] = self.hostvars.raw_get(host)
            except AnsibleError as error:
                self._add_unreadable(host, first_line(error))
                return False
            view, raw = self.hostvars[host], self.raw[host]
            self.values[host] = {}
            for name in raw:
                if name in ("ansible_host", "ansible_port") or name in self.specs:
                    try:
                        self.values[host][str(name)] = view[name]
                    except AnsibleError as error:
                        self._add_template_fault(host, name, raw[name], first_line(error))
                    if self.values[host].get(name) == "" and _ENVIRONMENT.search(str(raw[name])):
                        self._add("host", host, name, "reads a variable of the environment that is not set here, or is empty; export it, or remove the line")
        return True

    def _add_unreadable(self, host: str, reason: str) -> None:
        is_vault = re.search("vault|decrypt", reason, re.IGNORECASE)
        self._add("host", host, host, f"one of its files {inventory_files.NOT_DECRYPTED}" if is_vault else f"Ansible cannot read its variables: {reason}")

    def _add_template_fault(self, host: str, name: str, raw: Any, reason: str) -> None:
        if "vault" in reason.lower():
            self._add("host", host, name, inventory_files.NOT_DECRYPTED)
        elif not _LATER.search(str(raw)):
            if variables.is_secret(name, self.specs.get(name)):
                reason = "the reason is not shown, because the value is a secret"
            elif "ansible_" in str(raw):
                reason = "it reads a fact of a machine, and these playbooks gather none; write the value"
            self._add("host", host, name, f"its template fails: {reason}")

    def _foreign(self) -> list[str]:
        """Return the patterns of the variables that belong to other collections. Without the password of a vault there are none: the files are not read."""
        lists = []
        with contextlib.suppress(AnsibleError):
            lists = [self.values.get(host, self.hostvars[host]).get("gb10_foreign_variables") for host in self.hosts]
        return [str(each) for value in lists if isinstance(value, list) for each in value]

    def _check_names(self) -> None:
        """Names that look like variables of the collection, or of Ansible, and are not. One that only has the prefix of a role can be another role's."""
        foreign = self._foreign()
        for host in self.hosts:
            for name, value in self.raw[host].items():
                if name in self.extra or not (origin_of(name) or origin_of(value)) or self.places.is_of_role(name):
                    continue
                text, near = variables.unknown_variable(name, self.specs, self.prefixes, foreign)
                if text:
                    self.found.append(Fault(Place("host", host, str(name)), text, warning=not near))

    def _check_host(self, host: str) -> None:
        """Types, ranges, and what does not fit together."""
        values, before = self.values[host], len(self.found)
        address, port = values.get("ansible_host") or host, values.get("ansible_port")
        for key, text in (("ansible_host", ssh.host_fault(address)), ("ansible_port", ssh.port_fault(port))):
            if text:
                self._add("host", host, key if key in values else host, text)
        for name, value in values.items():
            for below, text in rules.faults(name, value, self.specs[name]) if name in self.specs else ():
                self._add("host", host, name, text, below)
        wrong = {fault.place.key for fault in self.found[before:]}
        for name, text in groups.combination_faults(values):
            if name not in wrong and name in values:
                self._add("host", host, name, text)
        given = values.get("vllm_tp2_failure_classes")
        if given and isinstance(given, list):
            # Few have one, and Ansible compiles a collection's files at each start.
            from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import check_user_class

            for number, entry in enumerate(given):
                text = check_user_class(entry) if isinstance(entry, Mapping) else ""
                if text:
                    self._add("host", host, "vllm_tp2_failure_classes", text.replace(" in extra_classes", ""), (number,))
        watch = values.get("vllm_tp2_watch")
        for key, text in watch_faults(watch) if isinstance(watch, Mapping) and "vllm_tp2_watch" not in wrong else ():
            self._add("host", host, "vllm_tp2_watch", text, (key,))

    def _check_extra(self) -> None:
        """Extra variables (-e): the names of all, and the values of those that only a playbook reads."""
        known, foreign = {**self.specs, **PLAYBOOK_SPEC}, self._foreign()
        for name, value in self.extra.items():
            spec = PLAYBOOK_SPEC.get(name)
            text, near = variables.unknown_variable(name, known, self.prefixes, foreign, typed=True)
            if name == "_raw_params":  # a word can be a part of a secret
                self._add("run", EXTRA, "-e", "a word has no name and '='; expected NAME=VALUE, and a value with spaces in quotes: -e \"NAME='two words'\"")
            elif text:
                self.found.append(Fault(Place("run", EXTRA, name), text, warning=not near))
            elif spec:
                given = value.split(",") if spec.get("type") == "list" and isinstance(value, str) else value
                found = rules.faults(name, given, spec)
                for below, fault in found or (against_faults(given) if name == "soak_against" else ()):
                    self._add("run", EXTRA, name, fault, below)

    def _check_limit(self, name: str, members: Sequence[str]) -> None:
        """A stage that needs all hosts of a serving group, in a run without some of them."""
        missing = [host for host in members if host not in self.in_run]
        if self.group_stages and missing and len(missing) < len(members):
            text = (
                f"{name} is one unit and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in this run; limit to the whole group "
                f"(--limit {name}), or skip the stages that need all its hosts (--skip-tags {','.join(self.group_stages)})"
            )
            self._add("run", "the command line", "--limit", text)


def against_faults(value: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield what is wrong with soak_against: each key must be a variable of the role vllm_tp2 that changes a release, and its value a valid one."""
    options = inventory_files.load_specs()["vllm_tp2"]
    known = [each for each in options if each not in _NO_RELEASE and not variables.is_secret(each, options[each])]
    for name, given in value.items():
        if name not in known:
            hint = did_you_mean(name, known) or ", expected such as vllm_tp2_max_num_seqs"
            yield (name,), f"{name} is not a variable of the role vllm_tp2 that another release can have{hint}"
        else:
            yield from (((name, *below), f"{name} {text}") for below, text in rules.faults(name, given, options[name]))


def watch_faults(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (key, sentence) of what the agent refuses in vllm_tp2_watch, and a webhook to which it cannot send. The URL can contain a secret."""
    numbers = {key: float(each) for key, each in value.items() if each is not None and isinstance(DEFAULTS.get(key), (int, float)) and key != "enabled"}
    webhook, text = value.get("webhook"), ""
    try:
        merged_settings(numbers)
    except SettingsError as error:
        text = str(error).rstrip(".")
    found = [(key if (key := text.partition(" ")[0]) in numbers else "", text)] if text else []
    if webhook and not re.fullmatch(r"https?://[^\s/]+(?:/\S*)?", str(webhook)):
        found.append(("webhook", "webhook is not a URL that begins with http:// or https:// and has a host, such as https://hooks.example.org/pair1"))
    return found
