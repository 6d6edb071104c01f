# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a run that meet no node: what they see is what the ranks of a group have registered. See the module of the same name for its options."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._profile import kv_estimate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import ServingError
from ansible_collections.gb10.cluster.plugins.plugin_utils import evidence_files, lock_file, rank_checks, rendered_check, shown
from ansible_collections.gb10.cluster.plugins.plugin_utils import serving_plan as plans
from ansible_collections.gb10.cluster.plugins.plugin_utils.settings import setting

STEPS = ("whole", "unit", "head", "preflight", "rank", "check", "group", "evidence", "outcome", "doctor")
FLAGS = ("allow_unsafe_memory", "api_open", "restart", "weights_writable")


def _plain(value: Any) -> Any:
    """Return a value without the tags of ansible-core and its lazy containers."""
    return json.loads(json.dumps(value, default=str))


def kept_on_controller(folder: str, release: str) -> list[Any]:
    """Return the receipts of a release's passed gates in the controller's folder of a group, the newest first."""
    place, texts = Path(os.path.expanduser(folder)), []
    for path in [place / "last-good.json", *sorted(place.glob(f"*-{release}-passed.json"), reverse=True)]:
        try:
            texts.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # absent or cut off: the next one counts
    return texts


class ActionModule(ActionBase):
    """Each host of the group has one instance, and all come to the same decision."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take the step."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "step": {"type": "str", "choices": [*STEPS, "lock"], "required": True},
                "group": {"type": "dict"},
                "profile": {"type": "dict"},
                "infos": {"type": "list", "elements": "dict"},
                "enforce": {"type": "bool", "default": True},
                "labels": {"type": "list", "elements": "str"},
                "read": {"type": "list", "elements": "dict", "default": []},
                "pin": {"type": "dict"},
                "checks": {"type": "dict", "apply_defaults": True, "options": rank_checks.SPEC},
            },
            required_if=[
                ("step", "lock", ("pin",)),
                *(("step", step, ("group", *(("profile",) if step in ("rank", "check", "group") else ()))) for step in STEPS),
            ],
        )
        self.variables, self.group, self.enforce = task_vars or {}, _plain(args["group"] or {}), bool(args["enforce"])
        if args["step"] == "lock":
            return {**result, **self._lock(_plain(args["pin"]))}
        self.read, self.checks = list(args["read"]), args["checks"]
        self.host, self.hosts = str(self.variables["inventory_hostname"]), list(self.group["hosts"])
        self.profile, self.given, self.labels = _plain(args["profile"]), args["infos"], args["labels"]
        try:
            found = getattr(self, f"_step_{args['step']}")()
        except ServingError as error:
            raise AnsibleActionFail(str(error)) from None
        return {**result, "changed": False, **found}

    def _of(self, name: str) -> list[dict[str, Any]]:
        """Return what each rank has registered under a name; empty where it has nothing."""
        return [_plain(self.variables["hostvars"][host].get(name) or {}) for host in self.hosts]

    def _own(self, name: str) -> dict[str, Any]:
        return dict(_plain(self._templar.template(self.variables.get(name)) or {}))

    def _infos(self) -> list[dict[str, Any]]:
        infos = _plain(self.given) if self.given is not None else self._of("__vllm_tp2_info")
        return [{**plans.NO_INFO, **each} for each in infos]

    def _place(self) -> plans.Place:
        """Return this rank with the options of its host."""
        options = {name: _plain(self._templar.template(self.variables[f"vllm_tp2_{name}"])) for name in plans.OPTIONS}
        options |= {name: boolean(options[name] or False, strict=False) for name in FLAGS}
        options |= {name: _plain(setting(variable, self.variables, self._templar)) for name, variable in plans.SETTINGS.items()}
        return plans.Place(self.group, options, self.profile, plans.criteria_of(self.profile), self._task.check_mode)

    def _fail(self, text: str) -> None:
        if text and self.enforce:
            raise AnsibleActionFail(text)

    def _step_whole(self) -> dict[str, Any]:
        """Fail unless all ranks are in this run and in this batch: a serving group is one unit."""
        everyone, batch, alive = (list(self.variables[f"ansible_play_{each}"]) for each in ("hosts_all", "batch", "hosts"))
        name, out = self.group["name"], [host for host in self.hosts if host not in everyone or (host in alive and host not in batch)]
        if out:
            raise AnsibleActionFail(
                f"{name} is one unit and {', '.join(out)} is not in this run: run without --limit and without serial, or limit to the whole group ({name})."
            )
        return {}

    def _step_unit(self) -> dict[str, Any]:
        """Fail if a rank has failed as well. A group is changed on all ranks or on none."""
        self._step_whole()
        failed = [host for host in self.hosts if host not in self.variables["ansible_play_batch"]]
        if failed:
            raise AnsibleActionFail(f"{', '.join(failed)} failed earlier in this run, so {self.group['name']} is left as it is: correct that first.")
        return {}

    def _step_head(self) -> dict[str, Any]:
        """Fail without the head. Requests go to it: a run without it sends none and must not pass."""
        name, head = self.group["name"], self.group["head"]
        if head not in self.variables["ansible_play_hosts"]:
            raise AnsibleActionFail(
                f"{name} is asked through its head {head}, which is not in this run or does not answer: limit to {name} instead, or correct what keeps {head}"
                " from answering."
            )
        return {}

    def _step_preflight(self) -> dict[str, Any]:
        """Make the checks of preflight, or fail with the errors of all ranks."""
        return rank_checks.preflight(self.group, self.checks, self.variables, self._loader)

    def _step_doctor(self) -> dict[str, Any]:
        """Make all checks of doctor.yml. A finding does not fail."""
        return rank_checks.doctor(self.group, self.checks, self.variables)

    def _step_rank(self) -> dict[str, Any]:
        """Render this rank, or fail because its node cannot take part."""
        place, infos = self._place(), self._infos()
        if self.given is None:
            self._fail(plans.unfit(place, self.host, infos, self.hosts[0] in self.variables["ansible_play_batch"]))
        return plans.rank_of(place, infos)

    def _step_check(self) -> dict[str, Any]:
        """Check what this rank is rendered to, without its node."""
        found = {name: setting(f"validate_{name}", self.variables, self._templar) for name in ("memory", "output", "show")}
        port = self._templar.template(self.variables.get("ansible_port")) or 22
        dest = os.path.expanduser(str(found["output"] or ""))
        checked, warnings = rendered_check.check(self._place(), self.host, self._own("__vllm_tp2_mine"), found["memory"], int(port), dest)
        if not (Display().verbosity > 0 if found["show"] is None else found["show"]):
            del checked["compose"]
        return {"checked": checked, "warnings": warnings}

    def _lock(self, pin: dict[str, Any]) -> dict[str, Any]:
        """Compare an image or a model with the lock file."""
        given = {key: self._templar.template(self.variables.get(key)) for key in ("gb10_lock_file", "gb10_lock_update", "inventory_dir")}
        update = boolean(given["gb10_lock_update"] or False, strict=False)
        return lock_file.compare(lock_file.path_of(given["gb10_lock_file"], given["inventory_dir"]), pin, update, self._task.check_mode)

    def _step_group(self) -> dict[str, Any]:
        """Decide what the run does, or fail because a rank has failed, or because the run is refused. What is lost of the way back is warned of at once."""
        if self.enforce:
            self._step_unit()
        place, infos, ranks = self._place(), self._infos(), self._of("__vllm_tp2_mine")
        folder = f"{place.options['receipts']}/{self.group['name']}"
        found = plans.group_of(place, infos, ranks, self._rails(place), lambda release: kept_on_controller(folder, release))
        for sentence in found["lost"]:
            Display().warning(f"{self.group['name']}: {sentence}")
        self._fail(found["text"] if found["do"] == "refuse" else "")
        if not self.enforce:  # of doctor.yml, which tests the collectives alone
            return {**found, "tries": False, "collective_due": True}
        if found["reasons"]:
            found["warnings"] = self._estimate(place, infos)
        return found

    def _estimate(self, place: plans.Place, infos: list[dict[str, Any]]) -> list[str]:
        """Estimate the KV pool with the present memory of each rank, and fail if the boot may freeze a node or cannot pass. Return warnings."""
        try:
            found, refused = plans.estimate(place, *plans.memory_now(place, infos))
        except kv_estimate.PlanError as error:
            if place.options["plan"] in ("off", False):
                return []
            raise AnsibleActionFail(str(error)) from None
        remedy = "" if found["unsafe"] else " To boot all the same: vllm_tp2_plan=report."
        self._fail(f"{self.group['name']}: {refused} Nothing was stopped or started.{remedy}" if refused else "")
        return [] if place.rank else list(found["warnings"])

    def _rails(self, place: plans.Place) -> list[dict[str, Any]]:
        """Return the NCCL variables of each rank, as the user or the role roce sets them, or as its node was read."""
        own, of_role, read = place.options["fabric_env"], self._of("roce_env"), self._of("__vllm_tp2_fabric")
        return [own or exported or found.get("env") or {} for exported, found in zip(of_role, read)]

    def _step_evidence(self) -> dict[str, Any]:
        """Write what was read of this rank, under each label that the agent has kept, or compare it with earlier evidence that was asked for."""
        folder = Path(self._setting("gb10_evidence"))
        group, file = str(self.group["name"]), evidence_files.name_of(int(self.group["rank"]), self.host)
        if self.labels is not None:  # a run goes on without it
            complete = False
            with contextlib.suppress(OSError):
                complete = False not in [evidence_files.write(folder / f"{group}-{label}" / file, read) for label, read in zip(self.labels, self.read)]
                evidence_files.prune(folder, group)
            return {"complete": complete}
        label, compare, file = self._setting("evidence_label"), self._setting("evidence_compare"), f"{group}-{file}"
        self._fail(evidence_files.unusable(folder, label, compare, file))
        old, new = (folder / each / f"{file}.txt" for each in (compare, label))
        try:
            if not evidence_files.write(folder / label / file, self.read[0]):
                raise AnsibleActionFail(str(self.read[0].get("msg") or "no message"))
            found = evidence_files.differences(old, new) if compare else []
        except OSError as error:
            raise AnsibleActionFail(f"The evidence cannot be written on the controller: {error.filename}: {error.strerror}. See gb10_evidence.") from error
        document: dict[str, Any] = {"schema": "gb10.cluster/evidence/1", "group": group, "host": self.host, "path": str(new)}
        document |= {"compared_with": str(old), "differences": found[2:]} if compare else {}
        shown.show(evidence_files.lines_of(self.host, old, new, found) if compare else [str(new)], document, shown.wants_json(self._loader))
        return {"complete": True}

    def _setting(self, name: str) -> str:
        return str(setting(name, self.variables, self._templar))

    def _step_outcome(self) -> dict[str, Any]:
        """Return what the run has reached, the same on all ranks, or fail with its sentence."""
        decision, (stated, followed) = self._own("__vllm_tp2_decision"), (self._of(name)[0] for name in ("__vllm_tp2_stated", "__vllm_tp2_followed"))
        name, head, alive = self.group["name"], self.hosts[0], list(self.variables["ansible_play_hosts"])
        evidence = ""
        if self.labels:
            lacks = [host for host, each in zip(self.hosts, self._of("__vllm_tp2_evidence")) if not each.get("complete")]
            without = f" (without {', '.join(lacks)}: the evidence could not be collected or written)" if lacks else ""
            evidence = f"Evidence: {self._setting('gb10_evidence')}/{name}-{self.labels[-1]}/{without}"
        if not stated.get("document") and "passed" not in followed:
            self._step_unit()  # the agent could not be installed on a rank, and nothing was stated
        text = "" if self._task.check_mode else plans.failure_of(head, head in alive, decision, stated, followed)
        if text:
            raise AnsibleActionFail(" ".join(filter(None, (text, evidence))))
        found = plans.outcome_of(decision, followed)
        unrecorded = (
            f"{name} serves release {decision['release']}{found['untouched']}. {' '.join(found['unrecorded'])}" if found["unrecorded"] and decision else ""
        )
        lines = [each for each in (evidence, unrecorded) if each and self.host == next(host for host in self.hosts if host in alive)]
        if lines:
            shown.show(lines, None, shown.wants_json(self._loader))
        if self.profile:
            tested = str(self._own("__vllm_tp2_collective_verdict").get("msg") or "")
            info, mine = self._own("__vllm_tp2_info"), self._own("__vllm_tp2_mine")
            found["result"] = plans.result_of(self._place(), decision, mine, info, followed, {**found, "collective": tested})
        return found
