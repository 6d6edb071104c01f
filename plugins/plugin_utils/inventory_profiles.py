# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of the profiles of an inventory, and of what it changes in them. Controller only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.lookup.profile import Profiles, shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import rules, ssh
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import value_of
from ansible_collections.gb10.cluster.plugins.module_utils._profile import kv_estimate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import group_fault, port_fault, writable_weights
from ansible_collections.gb10.cluster.plugins.plugin_utils import image_folders
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import file_faults
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import definition, steps
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError

# Variables of the role vllm_tp2 that set an argument of the engine.
FLAGS = {"vllm_tp2_context": "max-model-len", "vllm_tp2_max_num_seqs": "max-num-seqs", "vllm_tp2_gpu_memory_utilization": "gpu-memory-utilization"}
# Arguments of vLLM whose names are near those of others.
_OWN_FLAGS = ("cudagraph-capture-sizes", "max-cudagraph-capture-size")
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


def _flag_fault(flag: str, known: Sequence[str]) -> str:
    """Return what is wrong with an engine argument that is nearly one of the profile's; empty if it is one, or is not near one."""
    if flag in known or flag.removeprefix("no-") in known or flag in _OWN_FLAGS or flag.startswith("-"):  # dashes are a fault of the profile
        return ""
    hint = did_you_mean(flag, known, 0.88)
    return f"{flag} is nearly an argument of the profile{hint} An argument of vLLM that is really so named goes into a profile of your own" if hint else ""


@dataclass
class ProfileChecks:
    """The check of the profiles of one inventory.

    :param add: adds a fault: kind, name, key, text, way to a part of the value.
    :param values: the variables of each host; ``loader`` is Ansible's reader of files.
    :param image, starts: whether this run builds an image, or starts the group.
    """

    add: Callable[..., None]
    values: Mapping[str, Mapping[str, Any]]
    specs: Mapping[str, Mapping[str, Any]]
    loader: Any
    image: bool
    starts: bool
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each folder, its profiles that are files
    broken: bool = False  # whether a file of a profile has a fault
    users: dict[str, Any] = field(default_factory=dict)  # of each host, the profiles of the user

    def check(self, members: Sequence[str]) -> None:
        """The selected profile of a serving group, and every profile of the user. Values of a wrong type are faults of their own."""
        given = {host: value_of(self.values[host], "gb10_profile") for host in members}
        for host, selected in ((host, str(value)) for host, value in given.items() if not isinstance(value, (list, Mapping))):
            inline = self.values[host].get("gb10_profiles") or {}
            users = self.users[host] = {**self._files(host), **inline} if isinstance(inline, Mapping) else {}
            for profile in dict.fromkeys([selected, *map(str, users)]) if isinstance(inline, Mapping) else ():
                self._profile(host, profile, len(members) if profile == selected else 0)

    def _files(self, host: str) -> dict[str, Any]:
        """Return the profiles that are files and have no fault of their own."""
        given = value_of(self.values[host], "gb10_profiles_directory")
        folder = os.path.expanduser(given) if isinstance(given, str) else ""
        if folder not in self.files:
            self.files[folder] = {}
            for name, path in Profiles(Path(folder)).paths.items() if folder else ():
                found = file_faults(path)
                for line, key, text in found:
                    self.add("file", str(path), key, text, (line,))
                self.broken = self.broken or bool(found)
                if not found:
                    self.files[folder][name] = self.loader.load_from_file(os.path.abspath(path))
        return self.files[folder]

    def _add_to_profile(self, host: str, name: str, path: str, text: str) -> None:
        """Add a fault of a key of a profile: in the line of a profile of the user, else in the line that selects the shipped one.

        :param text: a sentence, which may begin with the profile and the key. A file of a profile shows them as the place.
        """
        way = tuple(steps(path))
        if name not in self.users[host]:
            self.add("host", host, "gb10_profile", text)
        elif name in (self.values[host].get("gb10_profiles") or {}):
            self.add("host", host, "gb10_profiles", text, (name, *way))
        else:
            for begin in (f"profile {name}: ", f"{name}: ", path):
                text = text.removeprefix(begin)
            file, line = definition(self.users[host], name, way) or (name, 0)
            self.add("file", file, path or name, text.lstrip(": "), (line,))

    def _profile(self, host: str, name: str, size: int) -> None:
        """A profile; ``size`` is that of the serving group, 0 if the profile is not selected."""
        if self.broken:
            return
        try:
            profile = resolve(name, shipped_profiles(), self.users[host])
        except ProfileError as error:
            for text in error.faults:
                self._add_profile_fault(host, text)
            return
        values = self.values[host]
        port = values.get("ansible_port") or 22
        key, text = port_fault(profile, port) if not ssh.port_fault(port) else ("", "")
        if text:
            self._add_to_profile(host, name, key, f"{text}; change it in the profile {name}")
        if not size:
            self._expressions(host, profile, False)
            return
        store = value_of(values, "gb10_model_store")
        if not boolean(values.get("vllm_tp2_weights_writable") or False, strict=False):
            for text in writable_weights(profile, str(store)):
                self._add_profile_fault(host, text)
        if self.image and not values.get("image_build_context"):
            for key, text in image_folders.faults(profile["image"], value_of(values, "gb10_profiles_directory")):
                self._add_to_profile(host, name, key, f"profile {name}: {key} {text}")
        self._adjusted(host, profile, size)

    def _add_profile_fault(self, host: str, text: str) -> None:
        match = re.match(r"profile (.+?): (?:(?:is|has) |(\S*))", text)  # the key is missing if the whole profile is of a wrong type
        if match:
            self._add_to_profile(host, match[1], match[2] or "", text)
        else:
            self.add("host", host, "gb10_profile" if text.startswith("gb10_profile: ") else "gb10_profiles", text.removeprefix("gb10_profile: "))

    def _blame(self, host: str, name: str, text: str, variables: Iterable[str]) -> None:
        """Add a fault to the first variable that the inventory sets, else to the profile. The sentence names the argument."""
        key = next((each for each in variables if self.values[host].get(each) not in (None, "", {})), "")
        if key:
            self.add("host", host, key, text.replace(f"set {FLAGS[key]} ", f"set {key} ") if key in FLAGS else text)
        else:
            self._add_to_profile(host, name, "", text)

    def _layers_here(self, host: str, profile: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield what the inventory changes in its profile, by variable: arguments, then criteria."""
        values = self.values[host]
        for key, flag in FLAGS.items():
            if values.get(key) not in (None, "") and not rules.faults(key, values[key], self.specs[key]):
                yield key, {"engine": {"args": {flag: values[key]}}}
        if isinstance(values.get("vllm_tp2_extra_args"), Mapping):
            yield "vllm_tp2_extra_args", {"engine": {"args": values["vllm_tp2_extra_args"]}}
            for flag in map(str, values["vllm_tp2_extra_args"]):
                text = _flag_fault(flag, list(profile["engine"]["args"]))
                if text:
                    self.add("host", host, "vllm_tp2_extra_args", text, (flag,))
        if isinstance(values.get("vllm_tp2_gate"), Mapping):
            yield "vllm_tp2_gate", {"gate": values["vllm_tp2_gate"]}

    def _adjusted(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        for key, layer in list(self._layers_here(host, profile)):
            try:
                profile = adjusted(profile, layer)
            except ProfileError as error:
                for text in error.faults:
                    self.add("host", host, key, text)
        if self.starts:  # a group whose profile is refused can be stopped and read
            self._memory(host, profile, size)
        self._fit(host, profile, size)
        gate = self.values[host].get("vllm_tp2_gate")
        self._expressions(host, profile, isinstance(gate, Mapping) and "expressions" in gate)

    def _expressions(self, host: str, profile: Mapping[str, Any], own: bool) -> None:
        """The gate's expressions, of the profile, or of the inventory's own gate."""
        for number, entry in enumerate(profile["gate"]["expressions"]):
            from ansible_collections.gb10.cluster.plugins.plugin_utils.gate_expressions import expression_fault  # few have one

            text = expression_fault(entry["expression"] if isinstance(entry, Mapping) else entry)
            path = f"gate.expressions[{number}]"
            if text and own:
                self.add("host", host, "vllm_tp2_gate", text, ("expressions", number))
            elif text:
                self._add_to_profile(host, profile["name"], path, f"profile {profile['name']}: {path}: {text}")

    def _memory(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        """Settings that are reported to freeze nodes, with the factory-default memory. The plan judges them again with that of the nodes."""
        values, name = self.values[host], profile["name"]
        allow = boolean(values.get("vllm_tp2_allow_unsafe_memory") or False, strict=False)
        ranks = [{"host": "a factory-default node", "total_kib": SPARK_GIB * kv_estimate.KIB_PER_GIB}] * size
        plan = kv_estimate.make_plan(profile, ranks, allow_unsafe=allow)
        text = plan["unsafe"]
        keys: tuple[str, ...] = ("vllm_tp2_extra_args", "vllm_tp2_gpu_memory_utilization")
        if not text and plan["verdict"] == "refused" and values.get("vllm_tp2_plan", "enforce") == "enforce":
            keys = ("vllm_tp2_context", "vllm_tp2_gpu_memory_utilization", "vllm_tp2_extra_args", "vllm_tp2_gate")
            if name in self.users[host] or any(values.get(key) not in (None, "", {}) for key in keys):  # a shipped one is judged with the memory of the nodes
                text = f"{plan['msg'].rstrip('.')}; vllm_tp2_plan=report boots in spite of it"
        if text:
            self._blame(host, name, text, keys)

    def _fit(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        """Whether a serving group can run its profile."""
        text = group_fault(profile, size) if size > 1 else ""  # a group without a worker is a fault of its own
        if text:
            given = [each for each in _PARALLEL if each in text and each in (self.values[host].get("vllm_tp2_extra_args") or {})]
            self._blame(host, profile["name"], text, ["vllm_tp2_extra_args"] if given else [])
