# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow the agent on the head until the group is settled, and keep the receipt on the controller. See the module of the same name for its options."""

from __future__ import annotations

import json
import os
import shlex
import time
from typing import Any

from ansible.errors import AnsibleError
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.plugin_utils import receipts
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import SHOW_SECONDS, NodeResults, plain
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN

COMMAND = "/usr/local/sbin/gb10"
WAIT_SECONDS = 20
LOST_ATTEMPTS = 20
LOST_SECONDS = 120.0
RETRY_SECONDS = 6.0


class ActionModule(NodeResults):
    """Read events of the agent until it has decided."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the verdict; failed if the boot did not pass, another run replaced it, or the connection is lost."""
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            argument_spec={
                "generation": {"type": "int", "required": True},
                "group": {"type": "str", "required": True},
                "receipts": {"type": "path"},
            }
        )
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Check mode: there is no boot to judge."}
        self.generation, self.group = int(args["generation"]), str(args["group"])
        self.host = str((task_vars or {}).get("inventory_hostname"))
        self.stages: dict[tuple[str, str], float] = {}
        self.since, self.misses, self.missed_at, self.problem = 0, 0, 0.0, ""
        self.judged: dict[str, Any] = {}
        parent = os.getppid()
        while True:
            reply = self._ask(f"follow --generation {self.generation} --since {self.since} --wait {WAIT_SECONDS}")
            if os.getppid() != parent:  # the run was killed: this process is all that is left of it, and the outcome is for the next run
                return self._failed(f"The run that followed {self.group} has ended.", "superseded")
            if reply is None:
                if self._given_up():
                    return self._failed(self.problem, "connection_lost")
                time.sleep(RETRY_SECONDS)
                continue
            self.misses = 0
            self._show(reply.get("events") or [])
            self.since = max(self.since, int(reply.get("next") or 0))
            if self.generation in ((reply.get("desired") or {}).get("replaces") or []):  # the same desired state under a higher number
                self.generation = int(reply["desired"].get("generation") or 0)
            outcome = dict(reply.get("outcome") or {})
            if int(outcome.get("generation") or 0) == self.generation:
                self._judge(outcome, args["receipts"])
                if outcome.get("final"):
                    return self._settled(outcome)
            replaced = self._replaced(reply)
            if replaced:
                return self._failed(replaced, "superseded")

    def _ask(self, arguments: str) -> dict[str, Any] | None:
        """Return the agent's reply; None, with the reason in self.problem, if there is none."""
        try:
            out = self._low_level_execute_command(f"{COMMAND} {arguments}")
        except AnsibleError:  # also a sudo that does not answer in time because the link is down
            self.problem = f"The connection to {self.host} is lost. The agent there continues the start. Run site.yml again to follow it."
            return None
        for line in reversed(str(out.get("stdout") or "").splitlines()):
            try:
                data = plain(json.loads(line))
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict) and data.get("ok", True):
                return dict(data.get("result") or data)
            if isinstance(data, dict):
                out["stderr"] = data.get("error")
            break
        text = plain(" ".join(str(out.get("stderr") or f"exit code {out.get('rc')}").split()).rstrip(".")[:2000])
        self.problem = f"The agent on {self.host} does not answer ({text}). See `journalctl --unit gb10-agent` there. Run site.yml again to follow the start."
        return None

    def _given_up(self) -> bool:
        """Count an attempt without an answer and return whether it was the last one."""
        now = time.monotonic()
        self.missed_at = now if self.misses == 0 else self.missed_at
        self.misses += 1
        return self.misses >= LOST_ATTEMPTS and now - self.missed_at >= LOST_SECONDS

    def _show(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self.since = max(self.since, int(event.get("n") or 0))
            if event.get("text") and event.get("kind") != "settled" and self._is_news(str(event["text"])):  # the task's result reports it
                text = str(event["text"])
                if RUN.shows and event.get("kind") == "verdict":  # a rollback may take 20 minutes: the remedy is printed once, with what became of the group
                    text = text.partition(" Remedy: ")[0]
                Display().display(f"[{self.group} +{float(event.get('seconds') or 0.0):4.0f} s] {text}")

    def _is_news(self, line: str) -> bool:
        """Return whether a line is to be shown: the percentage of a stage is not within 30 s of the one before."""
        seen, now = text.boot_stage(line), time.monotonic()
        if seen is None:
            return True
        if now - self.stages.get(seen, float("-inf")) < SHOW_SECONDS:
            return False
        self.stages[seen] = now
        return True

    def _replaced(self, reply: dict[str, Any]) -> str:
        """Return who replaced the desired state that is followed, as a sentence; empty if it stands."""
        desired = dict(reply.get("desired") or {})
        if int(desired.get("generation") or 0) <= self.generation:
            return ""
        by, at = desired.get("by") or "another run", desired.get("at") or "a time that is not known"
        if desired.get("state") == "stopped":
            return f"{self.group} was stopped by {by} at {at}. Run site.yml to serve again."
        return f"{self.group} was taken over by {by} at {at} (release {desired.get('release')})."

    def _failed(self, text: str, name: str) -> dict[str, Any]:
        """Return the result if the group is not followed to its end. A boot that passed has passed if only the connection is lost."""
        passed = bool(self.judged.get("passed")) and name == "connection_lost"
        return {**self._result(passed, text), "class": name, "msg": text if passed else self._joined(text)}

    def _settled(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict and the outcome, and acknowledge it: it does not change any more."""
        self._ask(f"call acknowledge {shlex.quote(json.dumps({'generation': self.generation}))}")
        passed = bool(self.judged.get("passed")) if self.judged else outcome.get("result") in ("serves", "stopped")
        sentence = str(outcome.get("sentence") or "")
        return {**self._result(passed, sentence), "outcome": outcome, "msg": self.judged.get("msg", sentence) if passed else self._joined(sentence)}

    def _joined(self, text: str) -> str:
        """Return the verdict with what followed it, which may repeat it."""
        verdict = "" if self.judged.get("passed") else str(self.judged.get("msg") or "")
        return text if verdict in text else " ".join(filter(None, (verdict, text)))

    def _result(self, passed: bool, text: str) -> dict[str, Any]:
        return {
            "changed": False, "msg": text, "class": "", "seconds": 0.0, "receipt": {}, "pool": {}, "finding": None, "failed_checks": [], "unknown_checks": [],
            "outcome": {}, **self.judged, "failed": not passed, "passed": passed,
        }  # fmt: skip

    def _judge(self, outcome: dict[str, Any], folder: str | None) -> None:
        """Take the verdict out of an outcome. The first time, keep it with its receipt."""
        verdict = dict(outcome.pop("verdict", None) or {})
        if self.judged or not verdict:
            return
        receipt, passed, checks = dict(verdict.get("receipt") or {}), bool(verdict.get("passed")), verdict.get("checks") or []
        kept = self._kept(folder, {**receipt, "group": self.group}) if receipt else {}
        receipt |= kept
        pool = receipt.get("pool") or verdict.get("pool") or {}
        if not passed:
            # The rest is in the file. The screen is for the sentence.
            receipt = {key: receipt.get(key) for key in ("path", "release", "time", "warning") if key != "warning" or key in receipt}
        self.judged = {
            **({"warnings": [kept["warning"]]} if kept.get("warning") else {}),
            "msg": verdict.get("msg") or str(outcome.get("sentence") or ""), "class": verdict.get("class") or "", "passed": passed,
            "seconds": verdict.get("seconds") or 0.0, "receipt": receipt, "pool": pool, "finding": verdict.get("finding"),
            "failed_checks": [c for c in checks if c.get("ok") is False and not c.get("warning")],
            "unknown_checks": [c["name"] for c in checks if c.get("ok") is None], "outcome": outcome,
        }  # fmt: skip

    def _kept(self, folder: str | None, receipt: dict[str, Any]) -> dict[str, Any]:
        """Keep the receipt on the controller and return what that adds to it."""
        try:
            return receipts.keep(folder, receipt)
        except Exception as error:  # noqa: BLE001  a receipt decides nothing
            return {"warning": f"The receipt of {self.group} cannot be kept on the controller ({type(error).__name__}: {error})."}
