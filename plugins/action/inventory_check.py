# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inventory on the controller, before any host is touched. See the module of the same name for its options."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import jmespath
except ImportError:  # only expressions of the gate need it
    jmespath = None

import yaml
from ansible import context as cli_context
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import check_user_class
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import cluster, rules, types
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.cluster import ROOT_GROUP, Fault, Place
from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import ProfileError
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import adjusted, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import Entry, Index, scan

# Follows the checkout's links, and works from an installed collection as well.
ROLES_DIR = Path(__file__).resolve().parents[2] / "roles"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Which argument of the engine a variable of the role vllm_tp2 is.
_FLAGS = {"vllm_tp2_context": "max-model-len", "vllm_tp2_max_num_seqs": "max-num-seqs", "vllm_tp2_gpu_memory_utilization": "gpu-memory-utilization"}
_NOT_DECRYPTED = "is encrypted and the vault password given does not open it, or none was; run with --ask-vault-pass or --vault-password-file"
_CONNECTION = ("ansible_host", "ansible_port")
# A template that reads these cannot be judged before the hosts have been asked.
_LATER = re.compile(r"ansible_|hostvars|roce_env|_required\b|gb10\.cluster\.serving_group")


def expression_fault(expression: str) -> str:
    """Return why the gate could not ask this of a boot, which it would find out only after it; empty where it can."""
    if jmespath is None:
        return "gate.expressions need jmespath on this computer, which is not there: pip install jmespath"
    try:
        jmespath.compile(expression)
    except jmespath.exceptions.JMESPathError as error:
        reason = " ".join(str(error).split()).partition(", for expression")[0]
        return f"the expression {expression!r} is no JMESPath: {reason}; write it like pool.concurrency >= `4`"
    return ""


@dataclass(frozen=True)
class Located:
    """A fault with the place to change; ``line`` is 0 where only the file is known."""

    file: str
    line: int
    key: str
    text: str

    def sentence(self) -> str:
        """Return it as one sentence."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.text}"


def load_specs(roles: Path = ROLES_DIR) -> dict[str, dict[str, dict[str, Any]]]:
    """Return role name to its options, for every role of the collection."""
    out = {}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        documents = []
        for each in (path, path.parents[1] / "defaults" / "main.yml"):
            # CSafeLoader is as safe as SafeLoader and ten times as fast.
            documents.append((yaml.load(each.read_text(encoding="utf-8"), Loader=_Loader) if each.exists() else None) or {})  # noqa: S506  see above
        out[path.parts[-3]] = types.role_options(*documents)
    return out


def load_exports(roles: Path = ROLES_DIR) -> set[str]:
    """Return the variables that the roles export as facts."""
    out: set[str] = set()
    for path in sorted(roles.glob("*/tasks/*.yml")):
        with path.open(encoding="utf-8") as stream, contextlib.suppress(yaml.YAMLError):  # a tag such as !unsafe
            out |= types.exported(yaml.load(stream, Loader=_Loader))  # noqa: S506  as safe as SafeLoader
    return out


class Survey:
    """One look at an inventory: collects faults, then places them in its files."""

    def __init__(self, task_vars: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        self.groups = {str(name): [str(host) for host in hosts] for name, hosts in task_vars["groups"].items()}
        self.hosts = self.groups.get(ROOT_GROUP, [])
        self.hostvars = task_vars["hostvars"]
        self.extra = extra
        self.sources = [str(source) for source in task_vars.get("ansible_inventory_sources") or [] if source]
        playbooks = [os.path.dirname(os.path.abspath(each)) for each in cli_context.CLIARGS.get("args") or () if os.path.exists(str(each))]
        self.index: Index = scan(self.sources, [*playbooks, str(task_vars.get("playbook_dir") or "."), *playbooks])
        roles = load_specs()
        self.specs: dict[str, Mapping[str, Any]] = dict(cluster.CLUSTER_SPEC)
        for options in roles.values():
            self.specs.update({name: rules.with_entries(name, spec) for name, spec in options.items()})
        self.prefixes = {f"{role}_": f"the role {role}" for role in roles}
        self.prefixes["gb10_"] = "the cluster"
        # The hosts of this run: all of them, unless --limit leaves some out.
        played = {str(host) for host in task_vars.get("ansible_play_hosts_all") or ()}
        self.in_run = [host for host in self.hosts if host in played] if cli_context.CLIARGS.get("subset") else self.hosts
        self.group_stages: Sequence[str] = ()
        self.found: list[Fault] = []
        self.values: dict[str, dict[str, Any]] = {}

    # --- Collecting -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Collect every fault."""
        for path, line, problem in self.index.unreadable:
            self.found.append(Fault(Place("file", str(path), "YAML", (line,)), problem))
        # Of a file that cannot be read Ansible gives an error without its name as soon as a variable is asked for; what else is wrong follows from it.
        if self.index.unreadable or not self._values():
            return
        foreign = self._foreign()
        self._names(foreign)
        bad = self._types()
        about = [self._about(place) for place in bad]
        for fault in cluster.faults(self.groups, self.values):
            # A wrong type makes these stumble as well: one sentence is enough.
            if self._about(fault.place) not in about:
                self.found.append(fault)
        if self.hosts:
            self._profiles()
            self._classes()
            self._limit()

    def _values(self) -> bool:
        """Template what we read of each host; what cannot be templated is a fault and counts as unset. False: Ansible cannot read the files."""
        for host in self.hosts:
            try:
                raw = self.hostvars.raw_get(host)
            except AnsibleError as exc:
                self._unread(host, exc)
                return False
            view = self.hostvars[host]
            self.values[host] = {}
            for name in list(view):
                if name not in _CONNECTION and name not in self.specs:
                    continue
                try:
                    self.values[host][str(name)] = view[name]
                except AnsibleError as exc:
                    self._template_fault(host, str(name), raw.get(name), exc)
        return True

    def _unread(self, host: str, exc: AnsibleError) -> None:
        """Ansible refuses the variables of a host as a whole: a file that it cannot decrypt, or one whose fault the index does not know."""
        reason = str(exc).strip().splitlines()[0].rstrip(".")
        if self.index.encrypted and re.search("vault|decrypt", reason, re.IGNORECASE):
            for path in self.index.encrypted:
                self.found.append(Fault(Place("file", str(path), "vault", (0,)), f"the file {_NOT_DECRYPTED}"))
            return
        self.found.append(Fault(Place("host", host, host), f"Ansible cannot read its variables: {reason}"))

    def _template_fault(self, host: str, name: str, raw: Any, exc: AnsibleError) -> None:
        reason = str(exc).strip().splitlines()[0].rstrip(".")
        place = Place("host", host, name)
        if "vault" in reason.lower():
            text = _NOT_DECRYPTED
        elif _LATER.search(_text(raw)):
            return
        elif types.is_secret(name, self.specs.get(name)):
            text = "its template fails; the reason is not shown, because the value is a secret"
        else:
            text = f"its template fails: {reason}"
        self.found.append(Fault(place, text))

    def _foreign(self) -> list[str]:
        declared = [self.values[host].get("gb10_foreign_variables") for host in self.hosts]
        return [str(each) for value in declared if isinstance(value, Sequence) and not isinstance(value, str) for each in value]

    def _names(self, foreign: Sequence[str]) -> None:
        """Names that look like ours and are none."""
        ours = tuple(self.prefixes)
        written = self.index.variables() | set(self.extra)
        told: dict[str, str] = {}
        for host in self.hosts:
            for key in self.hostvars[host]:
                name = str(key)
                if name.startswith("ansible_") or not (name.startswith(ours) or name in written):
                    continue
                if name not in told:
                    told[name] = types.unknown_variable(name, self.specs, self.prefixes, cluster.REMOVED_VARIABLES, foreign)
                    if told[name] and name not in written and name in load_exports():
                        told[name] = ""
                if told[name]:
                    self.found.append(Fault(Place("host", host, name), told[name]))

    def _types(self) -> list[Place]:
        """Values that are not of the type or in the range that they should be; returns the places of those."""
        bad = []
        for host in self.hosts:
            for name, value in self.values[host].items():
                if name in _CONNECTION:
                    continue
                for below, text in rules.faults(name, value, self.specs[name]):
                    place = Place("host", host, name, below)
                    bad.append(place._replace(below=()))
                    self.found.append(Fault(place, text))
        return bad

    def _profiles(self) -> None:
        """The selected profile of each serving group, and every profile of the user's own."""
        shipped = shipped_profiles()
        named = self.values[self.hosts[0]].get("gb10_serving_groups") or []
        serving = cluster.serving_groups(self.groups, named if isinstance(named, list) else None)
        for name, members in serving.items():
            # A name of a wrong type is reported as such.
            names = {host: cluster.value_of(self.values[host], "gb10_profile") for host in members if host in self.values}
            chosen = {host: str(given) for host, given in names.items() if not isinstance(given, (list, Mapping))}
            same, odd = cluster.odd_ones(chosen)
            for host in odd:
                text = f"{name} is to serve {chosen[same[0]]} and {chosen[host]}; set one profile for the whole group"
                self.found.append(Fault(Place("host", host, "gb10_profile"), text, among=tuple(same)))
            for host, selected in chosen.items():
                users = self.values[host].get("gb10_profiles") or {}
                self._sources(host, members)
                self._profile(host, selected, shipped, users, len(members))
                for other in users if isinstance(users, Mapping) else ():
                    if other != selected:
                        self._profile(host, str(other), shipped, users, 0)

    def _sources(self, host: str, members: Sequence[str]) -> None:
        for name in rules.SOURCES:
            value = self.values[host].get(name)
            text = rules.source_fault(name, value, members) if isinstance(value, str) else ""
            if text:
                self.found.append(Fault(Place("host", host, name), text))

    def _profile(self, host: str, name: str, shipped: Mapping[str, Any], users: Any, size: int) -> None:
        if not isinstance(users, Mapping):
            return  # a wrong type, reported as such
        try:
            profile = resolve(name, shipped, users)
        except ProfileError as exc:
            for text in exc.faults:
                self._profile_fault(host, text)
            return
        low, high = profile["ranks"]["min"], profile["ranks"]["max"]
        if size > 1 and ((low is not None and size < low) or (high is not None and size > high)):
            wanted = f"{low}" if low == high else f"{low} to {high}" if high is not None else f"{low} or more"
            self.found.append(Fault(Place("host", host, "gb10_profile"), f"the profile {name} is for {wanted} hosts, and the serving group has {size}"))
        if size:
            self._adjusted(host, profile)

    def _adjusted(self, host: str, profile: Mapping[str, Any]) -> None:
        """What the inventory changes of its profile: the arguments first, then the criteria on top of those that are right."""
        values = self.values[host]
        # What a variable may not be is reported as such.
        right = [key for key in _FLAGS if values.get(key) not in (None, "") and not rules.faults(key, values[key], self.specs[key])]
        layers = [(key, {"engine": {"args": {_FLAGS[key]: values[key]}}}) for key in right]
        for key, wrap in (("vllm_tp2_extra_args", lambda value: {"engine": {"args": value}}), ("vllm_tp2_gate", lambda value: {"gate": value})):
            if isinstance(values.get(key), Mapping):  # another type is reported as such
                layers.append((key, wrap(values[key])))
        for key, layer in layers:
            try:
                profile = adjusted(profile, layer)
            except ProfileError as exc:
                self.found.extend(Fault(Place("host", host, key), text) for text in exc.faults)
        given = values.get("vllm_tp2_gate")
        own = isinstance(given, Mapping) and "expressions" in given
        for number, entry in enumerate(profile["gate"]["expressions"]):
            expression = entry["expression"] if isinstance(entry, Mapping) else entry
            below = ("expressions", number) if own else (profile["name"], "gate", "expressions", number)
            text = expression_fault(expression)
            if text:
                self.found.append(Fault(Place("host", host, "vllm_tp2_gate" if own else "gb10_profiles", below), text))

    def _classes(self) -> None:
        """The user's own failure classes, which the gate reads only when a boot is under way."""
        for host in self.hosts:
            given = self.values[host].get("vllm_tp2_failure_classes")
            for number, entry in enumerate(given if isinstance(given, list) else ()):
                text = check_user_class(entry) if isinstance(entry, Mapping) else ""  # another type is reported as such
                if text:
                    self.found.append(Fault(Place("host", host, "vllm_tp2_failure_classes", (number,)), text.replace(" in extra_classes", "")))

    def _profile_fault(self, host: str, text: str) -> None:
        if text.startswith("gb10_profile: "):
            text = text[len("gb10_profile: ") :]
            nearest, known, _sep = text.partition("?; known are: ")
            self.found.append(Fault(Place("host", host, "gb10_profile"), f"{nearest}?" if known else text))
            return
        match = re.match(r"profile ([^\s:]+): (\S*)", text)
        below = (match.group(1), *_steps(match.group(2))) if match else ()
        self.found.append(Fault(Place("host", host, "gb10_profiles", below), text))

    def _serving(self) -> dict[str, list[str]]:
        """Return the serving groups with a host in this run."""
        named = self.values[self.hosts[0]].get("gb10_serving_groups") or []
        groups = cluster.serving_groups(self.groups, named if isinstance(named, list) else None)
        return {name: list(members) for name, members in groups.items() if any(host in self.in_run for host in members)}

    def _limit(self) -> None:
        """A stage that works on a serving group as a whole needs all its hosts in the run."""
        for name, members in self._serving().items() if self.group_stages else ():
            missing = [host for host in members if host not in self.in_run]
            if missing:
                text = (
                    f"{name} is one unit and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in this run; limit to the whole group "
                    f"(--limit {name}), or skip the stages that need all its hosts (--skip-tags {','.join(self.group_stages)})"
                )
                self.found.append(Fault(Place("run", "the command line", "--limit"), text))

    # --- Placing --------------------------------------------------------------------------------------------------------

    def _winner(self, place: Place) -> tuple[str, str, Entry] | None:
        """The definition that a fault is about, if a file has one."""
        if place.kind == "host":
            return self.index.find(place.name, place.key, self.groups)
        if place.kind == "group":
            own = self.index.entries.get(("group", place.name, place.key))
            if own:
                return "group", place.name, own[-1]
            members = self.groups.get(place.name) or []
            if members and place.key != place.name:
                return self.index.find(members[0], place.key, self.groups)
        return None

    def _about(self, place: Place) -> Any:
        """What two faults share that are about one and the same thing to change."""
        return place.key if place.key in self.extra else self._winner(place) or place

    def locate(self, fault: Fault) -> Located:
        """Place a fault in a file, with a line where there is one."""
        place = fault.place
        if place.kind == "run":
            return Located(place.name, 0, place.key, fault.text)
        if place.kind == "file":
            return Located(_short(Path(place.name)), int(place.below[0]), place.key, fault.text)
        if place.key in self.extra:
            return Located("the extra variables (-e)", 0, place.key, fault.text)
        winner = self._winner(place)
        for host in fault.among if winner is None or winner[0] != "host" else ():
            other = self._winner(place._replace(name=host))
            if other is not None and other[0] == "host":
                winner = other
                break
        if winner is not None and not (place.own and winner[1] != place.name):
            return Located(_short(winner[2].path), winner[2].line_of(place.below), place.key, fault.text)
        return Located(self._where_to_write(place), 0, place.key, fault.text)

    def _where_to_write(self, place: Place) -> str:
        """The file that should hold what no file holds yet."""
        base = self.index.directories[0] if self.index.directories else None
        if base is None:
            given = ", ".join(self.sources)
            return f"the inventory ({given})" if given else "the inventory (none was given, use -i inventories/spark-pair)"
        if place.key == place.name or place.key in _CONNECTION:
            return _short(self.index.files[0] if self.index.files else base)
        # What no file says yet holds for all, unless it has to differ for this one.
        owner = place.name if place.own or (place.kind == "host" and place.key in ("gb10_rank", "gb10_fabric_addresses")) else ROOT_GROUP
        return _short(base / f"{'host' if owner in self.hosts else 'group'}_vars" / f"{owner}.yml")


def _short(path: Path) -> str:
    """A path as the user would write it: relative where it lies below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _text(value: Any) -> str:
    return " ".join(_texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _steps(path: str) -> Iterator[str | int]:
    """Cut a profile's key path (``container.volumes[0]``) into steps."""
    for word in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        yield int(word[1:-1]) if word.startswith("[") else word


def selected(stages: Iterable[str], run: Sequence[str], skip: Sequence[str]) -> list[str]:
    """Return the stages, named by their tags, that --tags and --skip-tags select."""
    every = {"all", "tagged"}
    return [stage for stage in stages if every.union([stage]).intersection(run) and not every.union([stage]).intersection(skip)]


class ActionModule(ActionBase):
    """The action plugin. It runs once, on the controller, whatever the play's hosts."""

    TRANSFERS_FILES = False
    BYPASS_HOST_LOOP = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check the inventory and report all faults in one go."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _rest, options = self.validate_argument_spec(
            argument_spec={
                "examples": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
                "group_stages": {"type": "list", "elements": "str", "default": []},
            }
        )
        variables = task_vars or {}
        survey = Survey(variables, load_extra_vars(self._loader))
        survey.group_stages = selected(options["group_stages"], variables.get("ansible_run_tags") or ["all"], variables.get("ansible_skip_tags") or [])
        survey.run()
        faults: list[Located] = []
        warnings: list[Located] = []
        for fault in survey.found:
            located = survey.locate(fault)
            target = warnings if fault.example and options["examples"] == "warn" else faults
            if located not in target:
                target.append(located)
        for each in warnings:
            Display().warning(each.sentence())
        faults.sort(key=lambda each: (each.file, each.line))
        result.update(changed=False, faults=len(faults), warned=[each.sentence() for each in warnings])
        count = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}"
        if faults:
            listed = "".join(f"\n{number}. {each.sentence()}" for number, each in enumerate(faults, 1))
            result.update(failed=True, msg=f"The inventory has {count}; no host was touched.{listed}")
        else:
            result["msg"] = f"The inventory is sound: {len(survey.hosts)} hosts."
        return result
