# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of the profiles of an inventory, and of what it changes in them. Controller only."""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.lookup.profile import Profiles, shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import command_line, connection, rules
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.value_types import shown
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import split_by_majority, value_of
from ansible_collections.gb10.cluster.plugins.module_utils._profile import fit, kv_estimate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.mounts import writable_weights
from ansible_collections.gb10.cluster.plugins.plugin_utils import image_folders
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_local import folder_fault
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import steps
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import Entry, scan
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError

# Variables of the role vllm_tp2 that set an argument of the engine.
FLAGS = {"vllm_tp2_context": "max-model-len", "vllm_tp2_max_num_seqs": "max-num-seqs", "vllm_tp2_gpu_memory_utilization": "gpu-memory-utilization"}
# Keys of a profile whose values are strings, as no profile is.
_PROFILE_TEXTS = ("extends", "summary")
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
# Keys of a profile that decide about memory. Of those that it sets, the one that a sentence names is to blame, else the first.
_MEMORY = (
    *(f"engine.args.{flag}" for flag in ("kv-cache-memory-bytes", "kv-cache-memory", "gpu-memory-utilization", "max-model-len", "compilation-config")),
    "gate.effective_tokens.min", "gate.concurrency.min",
)  # fmt: skip


class _Files:
    """The profiles that are files of a folder. ``faults`` has (file, line, key, sentence) of the files, ``broken`` the names of those that have one."""

    def __init__(self, folder: Path | None) -> None:
        files = Profiles(folder) if folder else None
        self.paths = files.paths if files else {}
        self.profiles: dict[str, Any] = {}
        self.faults: list[tuple[Path, int, str, str]] = []
        self.broken: set[str] = set()
        self.entries: dict[tuple[str, str, str], list[Entry]] = {}
        for name, raw, unreadable in files.each() if files else ():
            path, index = self.paths[name], scan((), (), [self.paths[name]])  # as a file of variables: its keys with their lines
            self.entries.update(index.entries)
            if unreadable is None and not isinstance(raw, Mapping):  # the check of the profile reports it
                self.profiles[name] = raw
                continue
            faults = [(line, "YAML", text) for _path, line, text in index.unreadable[:1]]
            if unreadable and not faults:
                faults = [(unreadable.line, "YAML", unreadable.reason)]
            faults += [(line, key, f"is set twice, first in line {first}; remove one") for _path, line, key, first in index.repeated]
            self.faults += [(path, *fault) for fault in faults]
            if faults:
                self.broken.add(name)
            else:
                self.profiles[name] = raw

    def line(self, name: str, way: Sequence[str | int]) -> int:
        """Return the line of a key of a profile, or of the nearest key above it that the file has; 0 without one."""
        entries = self.entries.get(("extra", str(self.paths[name]), str(way[0]))) if way else None
        return entries[-1].line_of(way[1:]) if entries else 0


def _missing_folder(directory: str) -> str:
    """Return what is wrong with a folder of profiles that the user names; empty if it exists, or if another check reports it."""
    path = os.path.expanduser(directory).rstrip("/")
    if os.path.exists(path) or folder_fault(directory):
        return ""
    above, name = os.path.split(path)
    siblings = [os.path.basename(each.rstrip("/")) for each in glob.glob(os.path.join(glob.escape(above), "*/"))]
    hint = did_you_mean(name, siblings, prefix=directory.rstrip("/").removesuffix(name))
    return f"is {directory!r}, a folder that does not exist here; create it, correct the path, or leave the variable out{hint}"


def _sets(raw: Any, way: Sequence[str | int]) -> bool:
    """Report whether a profile itself has a key."""
    for step in way:
        if not (step < len(raw) if isinstance(raw, list) and isinstance(step, int) else isinstance(raw, Mapping) and step in raw):
            return False
        raw = raw[step]
    return True


@dataclass
class ProfileChecks:
    """The check of the profiles of one inventory.

    :param add: adds a fault; see Survey.
    :param values: host name to its templated variables.
    :param specs: every variable of the collection.
    :param image: whether this run needs the image; ``starts``, whether it can start a group.
    """

    add: Callable[..., None]
    values: Mapping[str, Mapping[str, Any]]
    specs: Mapping[str, Mapping[str, Any]]
    image: bool
    starts: bool
    loops: dict[str, list[frozenset[str]]] = field(default_factory=lambda: defaultdict(list))
    files: dict[str, _Files] = field(default_factory=dict)  # of each folder
    users: dict[str, Any] = field(default_factory=dict)  # of each host, the profiles of the user

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
        """The profiles of the user, without the files that have a fault."""
        folder, files = self._folder(host), self._files(host)
        text = _missing_folder(folder) if folder else ""
        if text:
            self.add("host", host, "gb10_profiles_directory", text)
        for path, line, key, fault in files.faults:
            self.add("file", str(path), key, fault, (line,))
        given = self.values[host].get("gb10_profiles") or {}
        self.users[host] = {**files.profiles, **given} if isinstance(given, Mapping) else given
        return self.users[host]

    def _folder(self, host: str) -> str:
        """The folder of profiles that the user names; empty for the default one."""
        given = value_of(self.values[host], "gb10_profiles_directory")
        return given.strip() if isinstance(given, str) and given != value_of({}, "gb10_profiles_directory") else ""

    def _files(self, host: str) -> _Files:
        given = value_of(self.values[host], "gb10_profiles_directory")
        directory = os.path.expanduser(given) if isinstance(given, str) else ""
        if directory not in self.files:
            self.files[directory] = _Files(Path(directory) if directory else None)
        return self.files[directory]

    def _layers(self, host: str, name: str) -> tuple[list[str], str]:
        """Return this profile and those of the user that it extends, and the name of the one below them, which is not the user's."""
        users: Mapping[str, Any] = self.users[host]
        found: list[str] = []
        while name in users and name not in found:
            found.append(name)
            name = str(users[name].get("extends") or name) if isinstance(users[name], Mapping) else name
        return found, name

    def _setter(self, host: str, name: str, path: str) -> str:
        """Return which profile of the user sets a key: this one, or one that it extends; empty without one."""
        way = tuple(steps(path))
        return next((layer for layer in self._layers(host, name)[0] if _sets(self.users[host][layer], way)), "")

    def _add_to_profile(self, host: str, name: str, path: str, text: str) -> None:
        """Add a fault of a key of a profile, in the line of the user's profile that sets it. A shipped one has the line that selects it.

        :param text: a sentence, which may begin with the profile and the key. A file of a profile shows them as the place.
        """
        if name not in self.users[host]:
            self.add("host", host, "gb10_profile", text)
            return
        owner, way = self._setter(host, name, path) or name, tuple(steps(path))
        if owner in (self.values[host].get("gb10_profiles") or {}):
            text = re.sub(rf"\Aprofile {re.escape(name)}:", f"profile {owner}:", text)  # one cause, one fault
            self.add("host", host, "gb10_profiles", text, (owner, *way))
            return
        for begin in (f"profile {name}: ", f"{name}: ", path):
            text = text.removeprefix(begin)
        files = self._files(host)
        self.add("file", str(files.paths[owner]), path or owner, text.lstrip(": "), (files.line(owner, way),))

    def _is_explained(self, host: str, name: str) -> bool:
        """Report whether another fault is the cause that a profile is not known: its file cannot be read, has another ending, or has no folder."""
        files = self._files(host)
        if name in files.broken:
            return True
        if name in self.users[host] or name in shipped_profiles():
            return False
        folder = os.path.expanduser(str(value_of(self.values[host], "gb10_profiles_directory")))
        other = os.path.join(folder, f"{name}.yaml")
        if os.path.isfile(other):
            self.add("file", other, name, f"is not read, because of its ending; rename it to {name}.yml", (0,))
            return True
        return self._folder(host) != "" and not os.path.isdir(folder)

    def _profile(self, host: str, name: str, users: Mapping[str, Any], size: int) -> None:
        """A profile; ``size`` is that of the serving group, 0 if the profile is not selected."""
        if self._is_explained(host, self._layers(host, name)[1]):
            return
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
        if self.image and self.values[host].get("image_distribution") != "send":
            self._image(host, profile)
        self._adjusted(host, profile, size)

    def _image(self, host: str, profile: Mapping[str, Any]) -> None:
        """The folder of the Dockerfile, and the mods of this computer."""
        context = self.values[host].get("image_build_context")
        text = image_folders.dockerfile_fault(os.path.realpath(os.path.expanduser(context))) if isinstance(context, str) and context else ""
        if text:
            self.add("host", host, "image_build_context", f"is {context!r}, {text}")
        for key, fault in image_folders.faults(profile["image"], value_of(self.values[host], "gb10_profiles_directory")):
            if key != "image.build" or not context:
                self._add_to_profile(host, profile["name"], key, f"profile {profile['name']}: {key} {fault}")

    def _numbers(self, host: str, profile: Mapping[str, Any]) -> None:
        """Arguments of a user's profile that are a number: false, which leaves an argument out, is none. The profile's own check refuses other values."""
        name = profile["name"]
        for flag in (*FLAGS.values(), *_PARALLEL) if name in self.users[host] else ():
            value = profile["engine"]["args"].get(flag)
            if value is False:
                path = f"engine.args.{flag}"
                self._add_to_profile(host, name, path, f"profile {name}: {path} is {shown(value)}, expected a number")

    def _add_profile_fault(self, host: str, text: str) -> None:
        loop = re.search(r"circular reference \((.+?)\)", text)
        if loop:
            names = frozenset(loop[1].split(" -> "))
            if names in self.loops[host]:
                return
            self.loops[host].append(names)
        nearest, known, _sep = text.partition("?; known are: ")
        text = f"{nearest}?" if known else text
        match = re.match(r"profile (.+?): (?:(?:is|has) |(\S*))", text)  # the key is missing if the whole profile is of a wrong type
        if text.startswith("gb10_profile: "):
            self.add("host", host, "gb10_profile", text.removeprefix("gb10_profile: "))
        elif match:
            self._add_to_profile(host, match[1], match[2] or "", text)
        else:
            self.add("host", host, "gb10_profiles", text)

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
            if text and own:
                self.add("host", host, "vllm_tp2_gate", text, ("expressions", number))
            elif text:
                path = f"gate.expressions[{number}]"
                self._add_to_profile(host, profile["name"], path, f"profile {profile['name']}: {path}: {text}")

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
        keys: tuple[str, ...] = ("vllm_tp2_context", "vllm_tp2_gpu_memory_utilization", "vllm_tp2_extra_args", "vllm_tp2_gate")
        if text:
            keys, remedy = ("vllm_tp2_extra_args", "vllm_tp2_gpu_memory_utilization"), text
        elif plan.get("verdict") == "refused" and values.get("vllm_tp2_plan", "enforce") == "enforce":
            remedy = str(plan["remedy"])
            text = f"{plan['msg'].rstrip('.')}; vllm_tp2_plan=report boots in spite of it"
            if profile["name"] not in self.users[host] and not self._changed(host, keys):
                return  # that of a shipped profile is judged with the memory of the nodes
        else:
            return
        key = self._changed(host, keys)
        if key:
            self.add("host", host, key, text.replace(f"set {FLAGS.get(key)} ", f"set {key} "))
            return
        set_here = [path for path in _MEMORY if self._setter(host, profile["name"], path)]
        named = [path for path in set_here if path.removeprefix("engine.args.") in remedy]
        self._add_to_profile(host, profile["name"], [*named, *set_here, ""][0], text)

    def _changed(self, host: str, keys: Sequence[str]) -> str:
        """Return the first of these variables that the inventory sets; empty without one."""
        return next((key for key in keys if self.values[host].get(key) not in (None, "", {})), "")

    def _fit(self, host: str, profile: Mapping[str, Any], size: int) -> None:
        """Whether a serving group can run its profile."""
        text = fit.group_fault(profile, size) if size > 1 else ""  # a group without a worker is a fault of its own
        if text:
            given = self.values[host].get("vllm_tp2_extra_args") or {}
            flags = [each for each in _PARALLEL if each in text]
            here = next((each for each in flags if each in given), "")
            path = next((f"engine.args.{each}" for each in flags if self._setter(host, profile["name"], f"engine.args.{each}")), "")
            if here:
                self.add("host", host, "vllm_tp2_extra_args", text, (here,))
            elif path:
                self._add_to_profile(host, profile["name"], path, text)
            else:
                self.add("host", host, "gb10_profile", text)

    def _ports(self, host: str, profile: Mapping[str, Any]) -> None:
        """Whether the ports of the head are different ones."""
        port = self.values[host].get("ansible_port") or 22
        key, text = fit.port_fault(profile, port) if not connection.port_fault(port) else ("", "")
        if text:
            owner = self._setter(host, profile["name"], key) or profile["name"]
            self._add_to_profile(host, profile["name"], key, f"{text}; change it in the profile {owner}")
