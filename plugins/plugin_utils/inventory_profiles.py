# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of the profiles of an inventory, and of what it changes in them. Controller only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.lookup.profile import own_profiles, shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import command_line, connection, rules
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.value_types import shown
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import split_by_majority, value_of
from ansible_collections.gb10.cluster.plugins.module_utils._profile import fit, kv_estimate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.build_data import missing_image
from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import ProfileError
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.mounts import writable_weights
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import adjusted, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import first_line, steps

# Variables of the role vllm_tp2 that set an argument of the engine.
FLAGS = {"vllm_tp2_context": "max-model-len", "vllm_tp2_max_num_seqs": "max-num-seqs", "vllm_tp2_gpu_memory_utilization": "gpu-memory-utilization"}
# Keys of a profile whose values are strings, as no profile is.
_PROFILE_TEXTS = ("extends", "summary")
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


class Add(Protocol):
    """Add a fault of a host or a file."""

    def __call__(
        self, kind: str, name: str, key: str, text: str, below: tuple[str | int, ...] = ..., among: tuple[str, ...] = ..., example: bool = ...
    ) -> None: ...


class ProfileChecks:
    """The check of the profiles of one inventory.

    :param values: host name to its templated variables.
    :param specs: every variable of the collection.
    :param image: whether this run needs the image; ``starts``, whether it can start a group.
    """

    def __init__(self, add: Add, values: Mapping[str, Mapping[str, Any]], specs: Mapping[str, Mapping[str, Any]], image: bool, starts: bool) -> None:
        self.add = add
        self.values = values
        self.specs = specs
        self.image = image
        self.starts = starts
        self.loops: dict[str, list[frozenset[str]]] = defaultdict(list)

    def check(self, name: str, members: Sequence[str]) -> None:
        """The selected profile of a serving group, and every profile of the user. Values of a wrong type are faults of their own."""
        given = {host: value_of(self.values[host], "gb10_profile") for host in members}
        chosen = {host: str(value) for host, value in given.items() if not isinstance(value, (list, Mapping))}
        same, odd = split_by_majority(chosen)
        for host in odd:
            text = f"{name} has the profiles {chosen[same[0]]} and {chosen[host]}; set one profile for the whole group"
            self.add("host", host, "gb10_profile", text, among=tuple(same))
        for host, selected in chosen.items():
            for key in rules.SOURCES:
                value = self.values[host].get(key)
                text = rules.source_fault(key, value, members) if isinstance(value, str) else ""
                if text:
                    self.add("host", host, key, text)
            users = self._own_profiles(host)
            unnamed = next((key for key in _PROFILE_TEXTS if isinstance(users, Mapping) and isinstance(users.get(key), str)), "")
            if unnamed:
                text = f"has {unnamed} where the name of a profile is expected; write gb10_profiles: {{mine: {{{unnamed}: ...}}}}"
                self.add("host", host, "gb10_profiles", text, (unnamed,))
                continue
            for profile in dict.fromkeys([selected, *map(str, users)]) if isinstance(users, Mapping) else ():
                self._profile(host, profile, users, len(members) if profile == selected else 0)

    def _own_profiles(self, host: str) -> Any:
        given = self.values[host].get("gb10_profiles") or {}
        try:
            return own_profiles(value_of(self.values[host], "gb10_profiles_directory"), given)
        except AnsibleError as error:
            self.add("host", host, "gb10_profiles_directory", first_line(error))
            return given

    def _profile(self, host: str, name: str, users: Mapping[str, Any], size: int) -> None:
        """A profile; ``size`` is that of the serving group, 0 if the profile is not selected."""
        try:
            profile = resolve(name, shipped_profiles(), users)
        except ProfileError as error:
            for text in error.faults:
                self._add_profile_fault(host, text)
            return
        self._ports(host, profile)
        self._numbers(host, profile)
        if not size:
            self._expressions(host, profile, False)
            return
        store = self.values[host].get("vllm_tp2_model_store") or value_of(self.values[host], "gb10_model_store")
        if not boolean(self.values[host].get("vllm_tp2_weights_writable") or False, strict=False):
            for text in writable_weights(profile, str(store)):
                self._add_profile_fault(host, text)
        context = self.values[host].get("image_build_context")
        if self.image and isinstance(context, str) and context and not Path(context).expanduser().exists():
            self.add("host", host, "image_build_context", f"{context} does not exist here; expected a folder or an archive with the image's sources")
        owned = context or self.values[host].get("image_distribution") == "send"
        if self.image and profile["image"]["build"] and profile["image"]["build"]["missing"] and not owned:
            self.add("host", host, "gb10_profile", missing_image(profile), example=True)
        self._adjusted(host, profile, size)

    def _numbers(self, host: str, profile: Mapping[str, Any]) -> None:
        """Arguments of a user's profile that are a number: false, which leaves an argument out, is none. The profile's own check refuses other values."""
        own = profile["name"] in (self.values[host].get("gb10_profiles") or {})
        for flag in (*FLAGS.values(), *_PARALLEL) if own else ():
            value = profile["engine"]["args"].get(flag)
            if value is False:
                text = f"profile {profile['name']}: engine.args.{flag} is {shown(value)}, expected a number"
                self.add("host", host, "gb10_profiles", text, (profile["name"], "engine", "args", flag))

    def _add_profile_fault(self, host: str, text: str) -> None:
        loop = re.search(r"circular reference \((.+?)\)", text)
        if loop:
            names = frozenset(loop[1].split(" -> "))
            if names in self.loops[host]:
                return
            self.loops[host].append(names)
        key, _colon, rest = text.partition("gb10_profile: ")
        if not key and rest:
            nearest, known, _sep = rest.partition("?; known are: ")
            self.add("host", host, "gb10_profile", f"{nearest}?" if known else rest)
            return
        match = re.match(r"profile ([^\s:]+): (\S*)", text)
        if match and match.group(1) not in (self.values[host].get("gb10_profiles") or {}) and match.group(1) not in shipped_profiles():
            folder = Path(str(value_of(self.values[host], "gb10_profiles_directory"))).expanduser()
            self.add("file", str(folder / f"{match.group(1)}.yml"), match.group(1), text, (0,))
            return
        self.add("host", host, "gb10_profiles", text, (match.group(1), *steps(match.group(2))) if match else ())

    def _adjusted(self, host: str, profile: Mapping[str, Any], size: int) -> None:
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
                    self.add("host", host, "vllm_tp2_extra_args", text, (flag,))
        given = values.get("vllm_tp2_gate")
        if isinstance(given, Mapping):
            layers["vllm_tp2_gate"] = {"gate": given}
        for key, layer in layers.items():
            try:
                profile = adjusted(profile, layer)
            except ProfileError as error:
                for text in error.faults:
                    self.add("host", host, key, text)
        if self.starts:  # a group whose profile is refused can be stopped and read
            self._memory(host, profile, size)
        self._fit(host, profile, size)
        self._expressions(host, profile, isinstance(given, Mapping) and "expressions" in given)

    def _expressions(self, host: str, profile: Mapping[str, Any], own: bool) -> None:
        """The gate's expressions, of the profile, or of the inventory's own gate."""
        for number, entry in enumerate(profile["gate"]["expressions"]):
            from ansible_collections.gb10.cluster.plugins.plugin_utils.gate_expressions import expression_fault  # few have one

            text = expression_fault(entry["expression"] if isinstance(entry, Mapping) else entry)
            below = ("expressions", number) if own else (profile["name"], "gate", "expressions", number)
            if text:
                where = "" if own else f"profile {profile['name']}: gate.expressions[{number}]: "
                self.add("host", host, "vllm_tp2_gate" if own else "gb10_profiles", where + text, below)

    def _memory(self, host: str, profile: Mapping[str, Any], size: int) -> None:
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
        own = "gb10_profiles" if profile["name"] in (values.get("gb10_profiles") or {}) else ""
        if text:
            changed = self._changed(host, ("vllm_tp2_extra_args", "vllm_tp2_gpu_memory_utilization"))
            self.add("host", host, changed or own or "gb10_profile", text)
        elif plan.get("verdict") == "refused" and values.get("vllm_tp2_plan", "enforce") == "enforce":
            key = self._changed(host, ("vllm_tp2_context", "vllm_tp2_gpu_memory_utilization", "vllm_tp2_extra_args", "vllm_tp2_gate")) or own
            if key:  # that of a shipped profile is judged with the memory of the nodes
                msg = plan["msg"].rstrip(".").replace(f"set {FLAGS.get(key)} ", f"set {key} ")
                self.add("host", host, key, f"{msg}; vllm_tp2_plan=report boots in spite of it")

    def _changed(self, host: str, keys: Sequence[str]) -> str:
        """Return the first of these variables that the inventory sets; empty without one."""
        return next((key for key in keys if self.values[host].get(key) not in (None, "", {})), "")

    def _fit(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        """Whether a serving group can run its profile."""
        text = fit.group_fault(profile, size) if size > 1 else ""  # a group without a worker is a fault of its own
        if text:
            own = (self.values[host].get("gb10_profiles") or {}).get(profile["name"])
            arguments = ((own or {}).get("engine") or {}).get("args") or {}
            for key, given, above in (
                ("vllm_tp2_extra_args", self.values[host].get("vllm_tp2_extra_args") or {}, ()),
                ("gb10_profiles", arguments, (profile["name"], "engine", "args")),
            ):
                flag = next((each for each in _PARALLEL if each in given and each in text), "")
                if flag:
                    self.add("host", host, key, text, (*above, flag))
                    return
            self.add("host", host, "gb10_profile", text)

    def _ports(self, host: str, profile: Mapping[str, Any]) -> None:
        """Whether the ports of the head are different ones."""
        port = self.values[host].get("ansible_port") or 22
        key, text = fit.port_fault(profile, port) if not connection.port_fault(port) else ("", "")
        if text:
            own = profile["name"] in (self.values[host].get("gb10_profiles") or {})
            below = (profile["name"], *key.split(".")) if own else ()
            self.add("host", host, "gb10_profiles" if own else "gb10_profile", f"{text}; change it in the profile {profile['name']}", below)
