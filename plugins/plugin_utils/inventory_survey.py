# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of an inventory: collects the faults, and places each in its file. Controller only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import jmespath
except ImportError:  # only expressions of the gate need it
    jmespath = None

from ansible import context as cli_context
from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.lookup.profile import own_profiles, shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import check_user_class
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import check, command_line, connection, names, rules
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import serving_groups
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.value_types import type_faults
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import (
    CLUSTER_SPEC,
    PLAYBOOK_SPEC,
    ROOT_GROUP,
    Fault,
    Place,
    split_by_majority,
    value_of,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.build_data import missing_image
from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import ProfileError
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.mounts import writable_weights
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import adjusted, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_run, role_files
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import Entry, scan

# Variables of the role vllm_tp2 that set an argument of the engine.
FLAGS = {"vllm_tp2_context": "max-model-len", "vllm_tp2_max_num_seqs": "max-num-seqs", "vllm_tp2_gpu_memory_utilization": "gpu-memory-utilization"}
_NOT_DECRYPTED = "is encrypted, and the vault password is missing or wrong; run with --ask-vault-pass or --vault-password-file"
_CONNECTION = ("ansible_host", "ansible_port")
_DEFAULT_SOURCES = ("/etc/ansible/hosts", "localhost,")  # without -i
# Values that all ranks of a serving group share.
_TAGS = {"--tags": "ansible_run_tags", "--skip-tags": "ansible_skip_tags"}
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_SHARED = ("roce_mtu", *FLAGS, "vllm_tp2_extra_args", "vllm_tp2_gate")
# A template that reads these needs the facts of a host.
_NEEDS_FACTS = re.compile(r"ansible_|hostvars|roce_env|_required\b|gb10\.cluster\.serving_group")


def expression_fault(expression: str) -> str:
    """Return why the gate cannot evaluate an expression; empty if it can."""
    if jmespath is None:
        return "gate.expressions need jmespath on this computer, which is not installed: pip install jmespath"
    try:
        jmespath.compile(expression)
    except jmespath.exceptions.JMESPathError as error:
        reason = " ".join(str(error).split()).partition(", for expression")[0]
        return f"the expression {expression!r} is not valid JMESPath: {reason}; write it like pool.concurrency >= `4`"
    return ""


@dataclass(frozen=True)
class Located:
    """A fault with the place to change; ``line`` is 0 if only the file is known."""

    file: str
    line: int
    key: str
    text: str
    example: bool = False
    warning: bool = False

    def sentence(self) -> str:
        """Return the fault as one sentence."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.text}"


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
        self.image, self.starts = (inventory_only or stage in group_stages for stage in ("image", "vllm_tp2"))
        self.sources = [str(source) for source in task_vars.get("ansible_inventory_sources") or [] if source and str(source) not in _DEFAULT_SOURCES]
        playbooks = [os.path.dirname(os.path.abspath(each)) for each in cli_context.CLIARGS.get("args") or () if os.path.exists(str(each))]
        self.index = scan(self.sources, [*playbooks, str(task_vars.get("playbook_dir") or "."), *playbooks])
        roles = role_files.load_specs()
        self.specs: dict[str, Mapping[str, Any]] = {**CLUSTER_SPEC, **{name: spec for options in roles.values() for name, spec in options.items()}}
        self.short = names.short_names(self.specs)
        self.prefixes = {**{f"{role}_": f"the role {role}" for role in roles}, "gb10_": "the cluster"}
        played = {str(host) for host in task_vars.get("ansible_play_hosts_all") or ()}
        self.tags = {option: [str(tag) for tag in task_vars.get(key) or ()] for option, key in _TAGS.items()}
        self.in_run = [host for host in self.hosts if host in played] if cli_context.CLIARGS.get("subset") else self.hosts
        self.found: list[Fault] = []
        self.values: dict[str, dict[str, Any]] = {}
        self.serving: dict[str, list[str]] = {}

    # --- collecting -----------------------------------------------------------------------------------------------------

    def run(self) -> list[Located]:
        """Return every fault, in the order in which they were found."""
        if self._check_run():
            return [self.locate(fault) for fault in self.found]
        for path, line, problem in self.index.unreadable:
            self._add("file", str(path), "YAML", problem, (line,))
        repeated = [self._repeated(*each) for each in self.index.repeated]
        self._check_files()
        # If a file cannot be read, Ansible fails on the first variable without its name. Other faults follow from it.
        if not self.index.unreadable and self._read_values():
            self._check()
        return repeated + list(dict.fromkeys(self.locate(fault) for fault in self.found))

    def _add(self, kind: str, name: str, key: str, text: str, below: tuple[str | int, ...] = (), among: tuple[str, ...] = ()) -> None:
        self.found.append(Fault(Place(kind, name, key, below), text, among=among))

    def _check_run(self) -> bool:
        """The inventories and tags of the command line. Return whether there is no inventory to check."""
        if not self.hosts:
            missing = inventory_run.missing_sources(self.sources)
            text = command_line.source_fault(self.sources, missing, inventory_run.siblings(missing))
            if text:
                self._add("run", "the command line", "-i", text)
                return True
        known = inventory_run.tags_of([str(each) for each in cli_context.CLIARGS.get("args") or ()])
        for option, text in command_line.tag_faults(self.tags, known):
            self._add("run", "the command line", option, text)
        return False

    def _repeated(self, path: Path, line: int, key: str, first: int) -> Located:
        """A key that stands twice in a mapping. Of a secret it is a warning, because Ansible takes the last one and no value is compared or shown."""
        return Located(_short(path), line, key, f"is set twice, first in line {first}; remove one", warning=names.is_secret(key, self.specs.get(key)))

    def _check_files(self) -> None:
        """Files of variables whose names are nearly those of a group or host, and which Ansible does not read therefore."""
        names_of = {"group": [*self.groups, "all"], "host": [host for hosts in self.groups.values() for host in hosts]}
        other = " ".join(path.read_text(encoding="utf-8", errors="replace") for path in self._inventories())
        for path, kind, owner in self.index.owners:
            hint = did_you_mean(owner, names_of[kind], 0.7)
            if owner not in names_of[kind] and hint and not re.search(rf"(?<![\w-]){re.escape(owner)}(?![\w-])", other):
                self._add("file", str(path), owner, f"no host reads this file: there is no {kind} {owner}{hint}", (0,))
        for path, kind, owner in self.index.unread:
            if owner in names_of[kind]:
                self._add("file", str(path), owner, f"Ansible does not read this file, because of its ending; rename it to {owner}.yml", (0,))

    def _inventories(self) -> Iterator[Path]:
        """Files next to the inventory, which can have groups of another one that shares the variables."""
        for folder in self.index.directories:
            yield from (each for each in folder.iterdir() if each.is_file() and each.stat().st_size < 1_000_000)

    def _check(self) -> None:
        self.serving = serving_groups(self.groups, self.values[self.hosts[0]].get("gb10_serving_groups") if self.hosts else None)
        self._check_names()
        before = len(self.found)
        self._check_values()
        wrong = [self._subject(fault.place) for fault in self.found[before:]]
        # A wrong type is one fault, although the check of addresses reports it too.
        self.found += [fault for fault in check.faults(self.groups, self.values) if self._subject(fault.place) not in wrong]
        for name, members in self.serving.items():
            present = [host for host in members if host in self.values]
            for key in _SHARED:
                given = {host: self.values[host].get(key) for host in present}
                if len({str(value) for value in given.values()}) > 1:
                    self.found += check.equal_faults(key, given, name)
            self._check_profiles(name, present)
            self._check_limit(name, members)
        text = command_line.forks_fault(int(cli_context.CLIARGS.get("forks") or 0) or len(self.hosts), self.serving)
        if text:
            self._add("run", "the command line", "--forks", text)
        self._check_extra()
        self._check_failure_classes()
        self._check_open_api()

    def _read_values(self) -> bool:
        """Template the variables of each host; one whose template fails is a fault and counts as undefined. False if Ansible cannot read the files."""
        for host in self.hosts:
            try:
                raw = self.hostvars.raw_get(host)
            except AnsibleError as error:
                self._add_unreadable(host, _first_line(error))
                return False
            view = self.hostvars[host]
            self.values[host] = {}
            for name in map(str, view):
                if name in connection.NAMES or name in self.specs:
                    try:
                        self.values[host][name] = view[name]
                    except AnsibleError as error:
                        self._add_template_fault(host, name, raw.get(name), _first_line(error))
        return True

    def _add_unreadable(self, host: str, reason: str) -> None:
        if not self.index.encrypted or not re.search("vault|decrypt", reason, re.IGNORECASE):
            self._add("host", host, host, f"Ansible cannot read its variables: {reason}")
            return
        for path in self.index.encrypted:
            self._add("file", str(path), "vault", f"the file {_NOT_DECRYPTED}", (0,))

    def _add_template_fault(self, host: str, name: str, raw: Any, reason: str) -> None:
        if "vault" in reason.lower():
            self._add("host", host, name, _NOT_DECRYPTED)
        elif not _NEEDS_FACTS.search(str(raw)):
            secret = names.is_secret(name, self.specs.get(name))
            self._add(
                "host", host, name, "its template fails; the reason is not shown, because the value is a secret" if secret else f"its template fails: {reason}"
            )

    def _check_names(self) -> None:
        """Names that look like variables of the collection and are not."""
        lists = [self.values[host].get("gb10_foreign_variables") for host in self.hosts]
        foreign = [str(each) for value in lists if isinstance(value, list) for each in value]
        written = self.index.variables() | set(self.extra)
        texts: dict[str, str] = {}
        for (kind, owner, name), _entries in self.index.entries.items():
            right = name.replace("-", "_")
            if name not in (owner, right) and (right in self.specs or right.startswith(tuple(self.prefixes))):
                self._add(kind, owner, name, f"is not the name of a variable, because of its dashes; write {right}")
        for host in self.hosts:
            for name in map(str, self.hostvars[host]):
                if not (name.startswith(tuple(self.prefixes)) or name in written):
                    continue
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
            for name, value in self.values[host].items():
                for below, text in rules.faults(name, value, self.specs[name]) if name in self.specs else ():
                    self._add("host", host, name, text, below)
            for short in self.short.keys() & self.extra.keys():
                name = self.short[short]
                for below, text in rules.faults(name, self.extra[short], self.specs[name]) if name in rules.RULES else ():
                    self._add("host", host, short, text, below)

    def _check_extra(self) -> None:
        """Extra variables (-e) of playbooks, and those that nothing reads."""
        known = {**self.specs, **PLAYBOOK_SPEC}
        for name, value in self.extra.items():
            if name in PLAYBOOK_SPEC:
                for _path, text in type_faults(name, value, PLAYBOOK_SPEC[name]):
                    self._add("run", "the extra variables (-e)", name, text)
            elif not name.startswith(("ansible", *self.prefixes)):
                text = command_line.extra_fault(name, known, self.short, self.prefixes)
                if text:
                    self._add("run", "the extra variables (-e)", name, text)

    def _check_failure_classes(self) -> None:
        """The user's failure classes, which the gate reads during a boot."""
        for host in self.hosts:
            given = self.values[host].get("vllm_tp2_failure_classes")
            for number, entry in enumerate(given if isinstance(given, list) else ()):
                text = check_user_class(entry) if isinstance(entry, Mapping) else ""
                if text:
                    self._add("host", host, "vllm_tp2_failure_classes", text.replace(" in extra_classes", ""), (number,))

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

    # --- profiles -------------------------------------------------------------------------------------------------------

    def _check_profiles(self, name: str, members: Sequence[str]) -> None:
        """The selected profile of a serving group, and every profile of the user. Values of a wrong type are faults of their own."""
        given = {host: value_of(self.values[host], "gb10_profile") for host in members}
        chosen = {host: str(value) for host, value in given.items() if not isinstance(value, (list, Mapping))}
        same, odd = split_by_majority(chosen)
        for host in odd:
            text = f"{name} has the profiles {chosen[same[0]]} and {chosen[host]}; set one profile for the whole group"
            self._add("host", host, "gb10_profile", text, among=tuple(same))
        for host, selected in chosen.items():
            for key in rules.SOURCES:
                value = self.values[host].get(key)
                text = rules.source_fault(key, value, members) if isinstance(value, str) else ""
                if text:
                    self._add("host", host, key, text)
            users = self._own_profiles(host)
            for profile in dict.fromkeys([selected, *map(str, users)]) if isinstance(users, Mapping) else ():
                self._check_profile(host, profile, users, len(members) if profile == selected else 0)

    def _own_profiles(self, host: str) -> Any:
        given = self.values[host].get("gb10_profiles") or {}
        try:
            return own_profiles(value_of(self.values[host], "gb10_profiles_directory"), given)
        except AnsibleError as error:
            self._add("host", host, "gb10_profiles_directory", _first_line(error))
            return given

    def _check_profile(self, host: str, name: str, users: Mapping[str, Any], size: int) -> None:
        """A profile; ``size`` is that of the serving group, 0 if the profile is not selected."""
        try:
            profile = resolve(name, shipped_profiles(), users)
        except ProfileError as error:
            for text in error.faults:
                self._add_profile_fault(host, text)
            return
        self._check_ports(host, profile)
        if not size:
            self._check_expressions(host, profile, False)
            return
        store = self.values[host].get("vllm_tp2_model_store") or value_of(self.values[host], "gb10_model_store")
        if not boolean(self.values[host].get("vllm_tp2_weights_writable") or False, strict=False):
            for text in writable_weights(profile, str(store)):
                self._add_profile_fault(host, text)
        owned = self.values[host].get("image_build_context") or self.values[host].get("image_distribution") == "send"
        if self.image and profile["image"]["build"] and profile["image"]["build"]["missing"] and not owned:
            self.found.append(Fault(Place("host", host, "gb10_profile"), missing_image(profile), example=True))
        self._check_adjusted(host, profile, size)

    def _add_profile_fault(self, host: str, text: str) -> None:
        key, _colon, rest = text.partition("gb10_profile: ")
        if not key and rest:
            nearest, known, _sep = rest.partition("?; known are: ")
            self._add("host", host, "gb10_profile", f"{nearest}?" if known else rest)
            return
        match = re.match(r"profile ([^\s:]+): (\S*)", text)
        if match and match.group(1) not in (self.values[host].get("gb10_profiles") or {}) and match.group(1) not in shipped_profiles():
            folder = Path(str(value_of(self.values[host], "gb10_profiles_directory"))).expanduser()
            self._add("file", str(folder / f"{match.group(1)}.yml"), match.group(1), text, (0,))
            return
        self._add("host", host, "gb10_profiles", text, (match.group(1), *_steps(match.group(2))) if match else ())

    def _check_adjusted(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        """What the inventory changes in its profile: arguments, then criteria."""
        values = self.values[host]
        layers: dict[str, Any] = {}
        for key, flag in FLAGS.items():
            if values.get(key) not in (None, "") and not rules.faults(key, values[key], self.specs[key]):
                layers[key] = {"engine": {"args": {flag: values[key]}}}
        if isinstance(values.get("vllm_tp2_extra_args"), Mapping):
            layers["vllm_tp2_extra_args"] = {"engine": {"args": values["vllm_tp2_extra_args"]}}
            for flag in map(str, values["vllm_tp2_extra_args"]):
                text = command_line.flag_fault(flag, profile["engine"]["args"])
                if text:
                    self._add("host", host, "vllm_tp2_extra_args", text, (flag,))
        given = values.get("vllm_tp2_gate")
        if isinstance(given, Mapping):
            layers["vllm_tp2_gate"] = {"gate": given}
        for key, layer in layers.items():
            try:
                profile = adjusted(profile, layer)
            except ProfileError as error:
                for text in error.faults:
                    self._add("host", host, key, text)
        if self.starts:  # a group whose profile is refused can be stopped and read
            self._check_memory(host, profile, size)
        self._check_fit(host, profile, size)
        self._check_expressions(host, profile, isinstance(given, Mapping) and "expressions" in given)

    def _check_expressions(self, host: str, profile: Mapping[str, Any], own: bool) -> None:
        """The gate's expressions, of the profile, or of the inventory's own gate."""
        for number, entry in enumerate(profile["gate"]["expressions"]):
            text = expression_fault(entry["expression"] if isinstance(entry, Mapping) else entry)
            below = ("expressions", number) if own else (profile["name"], "gate", "expressions", number)
            if text:
                self._add("host", host, "vllm_tp2_gate" if own else "gb10_profiles", text, below)

    def _check_memory(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        """Settings that are reported to freeze nodes, with the factory-default memory. The plan judges them again with that of the nodes."""
        values = self.values[host]
        allow = boolean(values.get("vllm_tp2_allow_unsafe_memory") or False, strict=False)
        ranks = [{"host": "a factory-default node", "total_kib": SPARK_GIB * kv_estimate.KIB_PER_GIB}] * size
        plan: dict[str, Any] = {}
        try:
            plan = kv_estimate.make_plan(profile, ranks, allow_unsafe=allow)
            text = plan["unsafe"]
        except kv_estimate.PlanError as error:
            text = str(error)
        if not text and values.get("vllm_tp2_context") and plan.get("verdict") == "refused" and values.get("vllm_tp2_plan", "enforce") == "enforce":
            self._add("host", host, "vllm_tp2_context", f"{plan['msg'].rstrip('.')}; vllm_tp2_plan=report boots in spite of it")
        elif text:
            keys = ("vllm_tp2_extra_args", "vllm_tp2_gpu_memory_utilization")
            own = "gb10_profiles" if profile["name"] in (values.get("gb10_profiles") or {}) else "gb10_profile"
            self._add("host", host, next((key for key in keys if values.get(key) not in (None, "", {})), own), text)

    def _check_fit(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        """Whether a serving group can run its profile."""
        text = compose.group_fault(profile, size) if size > 1 else ""  # a group without a worker is a fault of its own
        if text:
            flag = next((each for each in _PARALLEL if each in (self.values[host].get("vllm_tp2_extra_args") or {})), "")
            self._add("host", host, "vllm_tp2_extra_args" if flag else "gb10_profile", text, (flag,) if flag else ())

    def _check_ports(self, host: str, profile: Mapping[str, Any]) -> None:
        """Whether the ports of the head are different ones."""
        port = self.values[host].get("ansible_port") or 22
        key, text = compose.port_fault(profile, port) if not connection.port_fault(port) else ("", "")
        if text:
            own = profile["name"] in (self.values[host].get("gb10_profiles") or {})
            below = (profile["name"], *key.split(".")) if own else ()
            self._add("host", host, "gb10_profiles" if own else "gb10_profile", f"{text}; change it in the profile {profile['name']}", below)

    # --- placing --------------------------------------------------------------------------------------------------------

    def _definition(self, place: Place) -> tuple[str, str, Entry] | None:
        """The definition that a fault is about; None if no file has one."""
        if place.kind == "host":
            return self.index.find(place.name, place.key, self.groups)
        if place.kind == "group":
            own = self.index.entries.get(("group", place.name, place.key))
            if own:
                return "group", place.name, own[-1]
            members = self.groups.get(place.name)
            if members and place.key != place.name:
                return self.index.find(members[0], place.key, self.groups)
        return None

    def _subject(self, place: Place) -> Any:
        """What two faults have in common that are about the same definition."""
        return place.key if place.key in self.extra else self._definition(place) or place._replace(below=())

    def locate(self, fault: Fault) -> Located:
        """Return a fault with its file, and the line if there is one."""
        place = fault.place
        if place.kind == "run":
            return Located(place.name, 0, place.key, fault.text)
        if place.kind == "file":
            return Located(_short(Path(place.name)), int(place.below[0]), place.key, fault.text)
        if place.key in self.extra:
            return Located("the extra variables (-e)", 0, place.key, fault.text, fault.example)
        candidates = [self._definition(place), *(self._definition(place._replace(name=host)) for host in fault.among)]
        # If hosts differ, the value that is set for a single host is the one to change.
        definition = next((each for each in candidates if each and each[0] == "host"), None) if fault.among else None
        definition = definition or candidates[0]
        if definition and not (place.own and definition[1] != place.name):
            return Located(_short(definition[2].path), definition[2].line_of(place.below), place.key, fault.text, fault.example)
        return Located(self._file_to_write(place), 0, place.key, fault.text, fault.example)

    def _file_to_write(self, place: Place) -> str:
        """The file for a variable that no file has."""
        if not self.index.directories:
            given = ", ".join(self.sources)
            return f"the inventory ({given})" if given else "the inventory (none was given, use -i inventories/spark-pair)"
        base = self.index.directories[0]
        if place.key == place.name or place.key in _CONNECTION:
            return _short(self.index.files[0] if self.index.files else base)
        own = place.own or (place.kind == "host" and place.key in ("gb10_rank", "gb10_fabric_addresses"))
        owner = place.name if own else ROOT_GROUP
        return _short(base / f"{'host' if owner in self.hosts else 'group'}_vars" / f"{owner}.yml")


def _first_line(error: AnsibleError) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _short(path: Path) -> str:
    """A path as the user writes it: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _steps(path: str) -> Iterator[str | int]:
    """Split a profile's key path (``container.volumes[0]``) into steps."""
    for word in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        yield int(word[1:-1]) if word.startswith("[") else word
