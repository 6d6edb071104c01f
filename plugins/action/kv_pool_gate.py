# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV-pool gate: one instance a rank, all on the controller at the same time, one joint verdict. See the module of the same name for its options."""

from __future__ import annotations

import base64
import contextlib
import math
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from ansible import constants
from ansible import context as cli_context
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils import gate, reply
from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log import BootLog
from ansible_collections.gb10.cluster.plugins.plugin_utils import receipts
from ansible_collections.gb10.cluster.plugins.plugin_utils.gate_board import Board
from ansible_collections.gb10.cluster.plugins.plugin_utils.lookout import PROBE, SLICE, Look, Lookout

try:
    import jmespath
except ImportError:  # only expressions need it
    jmespath = None

SLICE_SECONDS = 5.0
GATHER_SECONDS = 2.0  # how long a boot's harmless lines may wait for more: each look takes some of the time of a machine that is busy loading
BOARD_SECONDS = 0.1  # how often the other ranks' notes are read while a look at this one's node is under way
PULSE_SECONDS = 1.0  # how often an instance posts while it waits for its node
STALE_SECONDS = 60.0  # how long a look, or an instance on the controller, may be silent
JOIN_SECONDS = 45.0  # by when every rank's instance must have posted for the first time
LOST_SECONDS = 20.0  # how long a node may not answer before it counts as lost
KEPT_SECONDS = 2.0  # how long the other ranks wait for the path of the receipt
RETRY_SECONDS = 2.0
HEARTBEAT_SECONDS = 30.0
READS, ASKS = "reads the log", "asks for completions"
LONG_REPLY_TOKENS = 4
LEAST_LONG_PROMPT = 1024  # tokens; a context with less room shows nothing about a long prefill
SPARE_TOKENS = 64  # what a long prompt leaves free in the context, beside its reply
COUNT_ON = "Count on."  # stands for the prompt in the request; the probe sends numbers


class Decided(Exception):  # noqa: N818  it carries a verdict, which may be good
    """The group has a verdict while this rank waits for its node."""

    def __init__(self, verdict: dict[str, Any]) -> None:
        super().__init__(verdict["msg"])
        self.verdict = verdict


def _completion_check(name: str, ok: bool | None, wanted: str, found: str, remedy: str = "", kind: str = "completion_wrong") -> dict[str, Any]:
    return {"name": name, "ok": ok, "wanted": wanted, "found": found, "remedy": remedy or gate.criterion_remedy(kind), "class": kind}


def _faults(answer: dict[str, Any], prompt: str, expect: str | None, what: str) -> list[str]:
    if answer["error"] or not answer["replies"]:
        return [f"{reply.MISSING} ({answer['error'] or 'no reply'}) ({what})"]
    return [f"{fault} ({what})" for each in answer["replies"] for fault in reply.faults(prompt, each, expect)]


class ActionModule(ActionBase):
    """Follow this host's rank, and decide together with the others."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the verdict, the same on every rank; failed where the boot did not pass."""
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _result, args = self.validate_argument_spec(
            argument_spec={
                "container": {"type": "str", "required": True},
                "group": {"type": "dict", "required": True},
                "criteria": {"type": "dict", "default": {}},
                "url": {"type": "str", "default": "http://127.0.0.1:8000"},
                "env_file": {"type": "path"},
                "timeout": {"type": "float", "default": 2700.0},
                "limits": {"type": "dict", "default": {}},
                "classes": {"type": "list", "elements": "dict", "default": []},
                "start_error": {"type": "str", "default": ""},
                "receipts": {"type": "path"},
                "release": {"type": "str", "default": ""},
                "profile": {"type": "str", "default": ""},
                "weights": {"type": "dict", "default": {}},
                "strict": {"type": "bool", "default": False},
                "completion_timeout": {"type": "float", "default": 120.0},
            }
        )
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Check mode: there is no boot to judge."}
        self.args = args
        self.vars = task_vars
        self.group = args["group"]
        self.rank = int(self.group["rank"])
        self.host = str(task_vars["inventory_hostname"])
        self.display = Display()
        self._check_forks()
        folder = Path(constants.DEFAULT_LOCAL_TMP) / f"gate-{self.group['name']}-{self._task._uuid}"
        self.board = Board(folder)
        self.start = time.monotonic()
        verdict = self._verdict()
        return self._result(verdict, self._kept(verdict))

    def _verdict(self) -> dict[str, Any]:
        """Follow the boot and return the group's verdict, the same on every rank."""
        try:
            self._follow()
        except Decided as decided:
            return decided.verdict
        except Exception as error:  # noqa: BLE001  an error of one rank's gate is the group's verdict: the other ranks wait for it
            self.display.vvv(traceback.format_exc())
            return self._broken(error)

    # --- before ---------------------------------------------------------------------------------------------------------------

    def _check_forks(self) -> None:
        size = int(self.group["size"])
        forks = int(cli_context.CLIARGS.get("forks") or constants.DEFAULT_FORKS)
        if forks < size:
            raise AnsibleActionFail(
                f"The gate reads all {size} ranks of {self.group['name']} at the same time and Ansible runs {forks} at once:"
                f" set forks to {size} or more (ansible.cfg, or -f {size})."
            )
        missing = [host for host in self.group["hosts"] if host not in self.vars["ansible_play_batch"]]
        if missing:
            raise AnsibleActionFail(
                f"The gate needs every rank of {self.group['name']}, and {', '.join(missing)} is not in this run (any more):"
                " run without --limit, and correct what failed on that host first."
            )

    # --- while it boots ---------------------------------------------------------------------------------------------------------

    def _follow(self) -> NoReturn:
        """Follow this rank until there is a verdict; raise it as Decided."""
        args = self.args
        self.cursor, missed_since, shown, shown_at = 0, None, "", 0.0
        self.state: dict[str, Any] = {
            "rank": self.rank, "host": self.host, "facts": {}, "container": None, "memory": {}, "start_error": args["start_error"], "lost": "",
            "failed_at": None, "stage_since": 0.0, "stages": [], "seen": False, "http_status": 0,
            "max_restarts": int(args["criteria"].get("max_restarts") or 0), "release": args["release"],
        }  # fmt: skip
        stage = ""
        try:
            log = BootLog(extra_classes=args["classes"])
        except ValueError as error:
            raise AnsibleActionFail(f"{error} Correct vllm_tp2_failure_classes.") from error
        self.lookout = Lookout(self, self.vars)
        self._post()
        while True:
            piece = self._slice()
            seconds = self._seconds()
            if piece is None:
                missed_since = seconds if missed_since is None else missed_since
                if seconds - missed_since >= LOST_SECONDS:
                    self._miss(seconds - missed_since)
                self._sleep(RETRY_SECONDS, READS)
            else:
                missed_since = None
                data = base64.b64decode(piece["log"])
                if data:
                    log.feed(data)
                    self.state["changed_at"] = seconds
                self.cursor = piece["cursor"]
                container = piece["container"]
                ended = container is not None and not container["running"] and container["status"] != "created"
                self.state.update(facts=log.facts(final=ended), container=container, http_status=piece["http_status"], seen=True)
                self.state.setdefault("oom_kills_at_start", piece["memory"].get("oom_kills", 0))
                self.state["memory"] = piece["memory"]
            now = self.state["facts"].get("stage") or ""
            if now != stage:
                self.state["stages"].append([now, round(seconds, 1)])
                self.state["stage_since"] = seconds
                stage = now
            self._post()
            line = gate.progress(self.state)
            steady = line.rsplit("  MemFree", 1)[0]
            if steady != shown or seconds - shown_at >= HEARTBEAT_SECONDS:
                self._say(seconds, line)
                shown, shown_at = steady, seconds
            self._decide(seconds)

    def _seconds(self) -> float:
        return time.monotonic() - self.start

    def _post(self) -> None:
        """Post this rank's state, and that its instance is alive."""
        self.state["seconds"] = self._seconds()
        if self.state["failed_at"] is None and gate.findings([self.state]):
            self.state["failed_at"] = self.state["seconds"]
        self.posted = time.monotonic()
        self.board.post(f"rank-{self.rank}", dict(self.state, posted=self.posted))

    def _wait(self, look: Look, limit: float, task: str) -> None:
        """Wait until a look has ended. Meanwhile the other ranks' news count, and a node that does not answer within `limit` seconds is lost."""
        begin = time.monotonic()
        look.join(BOARD_SECONDS)
        while look.is_alive():
            now = time.monotonic()
            if now - begin > limit and not self.state["lost"]:
                self.state["lost"] = f"{self.host} has not answered over SSH for {limit:.0f} s while the gate {task}"
                self._post()
            elif now - self.posted > PULSE_SECONDS:
                self._post()
            # Another rank's news must not wait for this one's: a rank that stalls writes nothing for minutes.
            self._decide(now - self.start, busy=task)
            look.join(BOARD_SECONDS)

    def _sleep(self, seconds: float, task: str) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(BOARD_SECONDS, seconds))
            self._decide(self._seconds(), busy=task)

    def _slice(self) -> dict[str, Any] | None:
        """Return the next slice of this rank's boot; None, with the reason in self.miss, if the node did not answer. Raise Decided if a verdict came first."""
        known = (self.state["container"] or {}).get("status", "absent") if self.state["seen"] else ""
        asks_api = self.rank == 0 and self.state["seen"] and self.state["facts"].get("stage") in ("graphs", "init", "listen", "ready", "kv")
        look = self.lookout.start(
            container=self.args["container"], cursor=self.cursor, known_state=known, wait=SLICE_SECONDS, gather=GATHER_SECONDS,
            url=self.args["url"] + "/health" if asks_api else "",
        )  # fmt: skip
        self._wait(look, STALE_SECONDS, READS)
        try:
            out = look.result()
        except AnsibleConnectionFailure as error:
            self.miss, self.connected = str(error), False
            return None
        if "log" not in out:
            self.miss, self.connected = str(out.get("msg")), not out.get("unreachable")
            return None
        return out

    def _miss(self, seconds: float) -> None:
        """Post that this rank could not be read for so long: its node is lost, or it answers over SSH and its Docker Engine does not."""
        if self.connected:
            text = f"{self.host} answers over SSH, and its rank could not be read for {seconds:.0f} s. {self.miss}"
            self.state.update(lost=text, lost_class="rank_unreadable")
        else:
            self.state["lost"] = f"{self.host} has not answered for {seconds:.0f} s: {self.miss}"
        self._post()

    def _decide(self, seconds: float, *, busy: str = "") -> None:
        """Raise Decided once there is a joint verdict. The lowest rank whose instance still posts decides for all.

        `busy` is what a look at this rank's node is under way for, since a connection does one thing at a time. While completions are asked for, the
        boot's time limits are over: each request has its own.
        """
        posted = self.board.read("verdict")
        if posted:
            raise Decided(dict(posted))
        ranks = self._ranks(seconds)
        fresh = [rank for rank in ranks if not rank.get("silent")]
        if not fresh or min(rank["rank"] for rank in fresh) != self.rank:
            return
        if any(rank.get("silent") == "absent" for rank in ranks) and seconds < JOIN_SECONDS:
            failed = [f for f in gate.findings(fresh) if f["weight"] <= gate.KILLED]
            if not failed:
                return  # an instance has not posted yet
        limits = (math.inf, {}) if busy == ASKS else (self.args["timeout"], self.args["limits"])
        what, finding = gate.assess(ranks, seconds, *limits)
        if finding is not None:
            raise Decided(self._close(self._failed(finding)))
        if what == "probe" and not busy and all(rank.get("seen") for rank in ranks):
            raise Decided(self._probe(seconds))

    def _failed(self, finding: gate.Finding) -> dict[str, Any]:
        sentence = gate.sentence(self.group["name"], finding)
        return {"passed": False, "finding": finding, "msg": sentence, "seconds": round(self._seconds(), 1), "checks": []}

    def _broken(self, error: Exception) -> dict[str, Any]:
        """Return the group's verdict after an error in this rank's gate."""
        text = str(error) if isinstance(error, AnsibleError) else f"{type(error).__name__}: {error}"
        return self._close(self._failed(gate.broken(self.rank, self.host, text)))

    def _ranks(self, seconds: float) -> list[dict[str, Any]]:
        out = []
        for number, host in enumerate(self.group["hosts"]):
            state = self.board.read(f"rank-{number}")
            if state is None:
                state = {"rank": number, "host": host, "silent": "absent"}
                if seconds > JOIN_SECONDS:
                    state["lost"] = (
                        f"the gate has not started for {host} within {JOIN_SECONDS:.0f} s: its task failed before, its SSH connection hangs,"
                        " or Ansible runs fewer forks than hosts"
                    )
                    state.update(lost_class="gate_error", failed_at=seconds)
            elif time.monotonic() - state["posted"] > STALE_SECONDS:
                state["silent"] = "hung"
                if not state["lost"]:
                    text = f"the gate's process for {host} on the controller has been silent for {STALE_SECONDS:.0f} s"
                    state.update(lost=text, lost_class="gate_error", failed_at=state.get("failed_at") or seconds)
            out.append(state)
        return out

    # --- once it serves -----------------------------------------------------------------------------------------------------------

    def _probe(self, seconds: float) -> dict[str, Any]:
        criteria = self.args["criteria"]
        self._say(seconds, "the head serves: asking for its models and real completions")
        completion = dict(criteria.get("completion") or {"prompt": "The capital of France is", "max_tokens": 16})
        requests = [{key: completion[key] for key in ("prompt", "chat", "max_tokens", "body") if completion.get(key) is not None}]
        api = self._ask(requests, 1)
        expect = completion.get("expect")
        replies = list(api.get("replies") or [])
        faults = [f for r in replies for f in reply.faults(completion["prompt"], r, expect)]
        results = []
        at_once = int(criteria.get("concurrent_requests") or 0)
        if at_once > 1 and not faults and not api.get("error"):
            faults += _faults(self._ask(requests * at_once, at_once), completion["prompt"], expect, f"{at_once} requests at once")
        if criteria.get("long_prompt_tokens") and not faults and not api.get("error"):
            tokens, context = int(criteria["long_prompt_tokens"]), gate.served_context(api) or criteria.get("context")
            room = min(tokens, int(context) - LONG_REPLY_TOKENS - SPARE_TOKENS) if context else tokens
            if room >= min(tokens, LEAST_LONG_PROMPT):
                faults += self._long_prompt(room)
            else:
                found = f"not asked: the context of {context} tokens has no room for it"
                results.append(_completion_check("a long prompt", None, f"{tokens} tokens", found, gate.criterion_remedy("context_differs")))
        self._post()
        ranks = self._ranks(self._seconds())
        results = gate.checks(ranks, api, criteria) + results
        if not api.get("error"):
            good = bool(replies) and not faults
            found = "; ".join(faults) or (reply.shown(replies[0]) if good else "none")
            missing = not replies or any(fault.startswith(reply.MISSING) for fault in faults)
            results.append(_completion_check("a real completion", good, expect or "text", found, "", "completion_missing" if missing else "completion_wrong"))
        if expect and any(reply.cut_while_reasoning(r) for r in replies):
            remedy = "raise gate.completion.max_tokens, or turn the reasoning off in gate.completion.body"
            results.append(_completion_check("the known answer", None, expect, "the reply ended in its reasoning", remedy))
        results += self._expressions(ranks, api, criteria)
        fault = gate.first_fault(results, self.args["strict"])
        late = gate.findings(ranks)
        finding = None
        if late:
            finding, message = late[0], gate.sentence(self.group["name"], late[0])
        elif fault:
            message = gate.check_sentence(self.group["name"], fault)
        else:
            message = ""
        verdict = {
            "passed": not message,
            "finding": finding,
            "class": (finding or fault or {}).get("class", ""),
            "msg": message or f"{self.group['name']} serves: every criterion holds.",
            "seconds": round(self._seconds(), 1),
            "checks": results,
            "api": api,
            "pool": gate.pool_of(ranks[0].get("facts") or {}, api.get("metrics") or [], gate.served_context(api)),
        }
        return self._close(verdict)

    def _ask(self, requests: list[dict[str, Any]], concurrency: int) -> dict[str, Any]:
        """Ask the API, and fetch the container's state in the same call. A node that does not answer is lost, after a few attempts."""
        arguments = {
            "url": self.args["url"], "env_file": self.args["env_file"], "requests": requests, "concurrency": concurrency,
            "timeout": self.args["completion_timeout"],
        }  # fmt: skip
        look = {"container": self.args["container"], "cursor": self.cursor, "wait": 0.0, "limit": 0}
        begin = time.monotonic()
        while True:
            asked = self.lookout.begin([(PROBE, arguments), (SLICE, look)])
            self._wait(asked, self.args["completion_timeout"] + STALE_SECONDS, ASKS)
            try:
                out, piece = asked.results()
                break
            except AnsibleConnectionFailure as error:
                waited = time.monotonic() - begin
                if waited < LOST_SECONDS:
                    self._sleep(RETRY_SECONDS, ASKS)
                    continue
                self.state["lost"] = f"{self.host} has not answered for {waited:.0f} s while the gate {ASKS}: {error}"
                return {"error": self.state["lost"], "models": [], "replies": [], "metrics": []}
        if "container" in piece:
            self.state.update(container=piece["container"], memory=piece["memory"])
        if out.get("failed") or out.get("unreachable"):
            return {"error": f"the gate cannot ask the API on {self.host}: {out.get('msg')}", "models": [], "replies": [], "metrics": []}
        return {key: out[key] for key in ("models", "error", "http_status", "version", "metrics", "replies")}

    def _long_prompt(self, tokens: int) -> list[str]:
        """Send a prompt of so many tokens. Pinned KV memory reserves nothing for a long prefill: it fails here instead of in use.

        The text of the reply is not judged: a model may end a row of numbers with any token.
        """
        answer = self._ask([{"prompt": COUNT_ON, "prompt_tokens": tokens, "max_tokens": LONG_REPLY_TOKENS}], 1)
        counted = next((r["prompt_tokens"] for r in answer["replies"] if r.get("prompt_tokens")), tokens)
        return [fault for fault in _faults(answer, COUNT_ON, None, f"a prompt of {counted} tokens") if fault.startswith(reply.MISSING)]

    def _expressions(self, ranks: list[dict[str, Any]], api: dict[str, Any], criteria: dict[str, Any]) -> list[dict[str, Any]]:
        data = {
            "ranks": [r.get("facts") or {} for r in ranks], "head": ranks[0].get("facts") or {}, "api": api,
            "pool": gate.pool_of(ranks[0].get("facts") or {}, api.get("metrics") or [], gate.served_context(api)),
            "containers": [r.get("container") for r in ranks],
        }  # fmt: skip
        out = []
        for item in criteria.get("expressions") or []:
            entry = item if isinstance(item, dict) else {"expression": str(item)}
            remedy = entry.get("remedy") or "it is a criterion of your own profile: see gate.expressions"
            found, ok = None, False
            if jmespath is None:
                found, remedy = "the Python library jmespath is missing on the controller", "pip install jmespath"
            else:
                try:
                    found = jmespath.search(entry["expression"], data)
                    ok = bool(found)
                except Exception as error:  # noqa: BLE001  an expression is the user's text, and jmespath raises more than its own errors
                    found, remedy = f"the expression cannot be evaluated ({error})", "correct gate.expressions in the profile"
            out.append({"name": entry.get("name") or entry["expression"], "ok": ok, "wanted": "true", "found": found, "class": "criterion", "remedy": remedy})
        return out

    # --- after ----------------------------------------------------------------------------------------------------------------------

    def _close(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """Post the group's verdict and return it, or another rank's that came first."""
        ranks = self._ranks(0.0)
        verdict.setdefault("class", (verdict.get("finding") or {}).get("class", ""))
        verdict["receipt"] = self._receipt(verdict, ranks)
        verdict["author"] = self.rank
        return dict(self.board.post_first("verdict", verdict))

    def _receipt(self, verdict: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
        head = ranks[0].get("facts") or {}
        return {
            "schema": 1,
            "group": self.group["name"],
            "release": self.args["release"],
            "profile": self.args["profile"],
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "passed": verdict["passed"],
            "class": verdict["class"],
            "msg": verdict["msg"],
            "seconds": verdict["seconds"],
            "pool": verdict.get("pool") or gate.pool_of(head, []),
            "version": head.get("version"),
            "attention_backend": head.get("attention_backend"),
            "kv_cache_dtype": head.get("kv_cache_dtype"),
            "image_id": (ranks[0].get("container") or {}).get("image_id"),
            "image": gate.image_content(ranks[0]),
            "weights": self.args["weights"],
            "models": (verdict.get("api") or {}).get("models") or [],
            "completion": [reply.shown(r) for r in (verdict.get("api") or {}).get("replies") or []][:1],
            "checks": verdict["checks"],
            "ranks": [
                {key: rank.get(key) for key in ("rank", "host", "container", "memory", "stages", "lost", "start_error")}
                | {"facts": {k: v for k, v in (rank.get("facts") or {}).items() if k != "boots"}}
                for rank in ranks
            ],
        }

    def _kept(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """Keep the receipt on the controller and return what that adds to it; the verdict's author writes it for the group."""
        if verdict["author"] != self.rank:
            end = time.monotonic() + (KEPT_SECONDS if self.args["receipts"] else 0.0)
            note = self.board.read("kept")
            while note is None and time.monotonic() < end:
                time.sleep(0.02)
                note = self.board.read("kept")
            return dict(note or {})
        try:
            kept = receipts.keep(self.args["receipts"], verdict["receipt"])
        except Exception as error:  # noqa: BLE001  a receipt decides nothing
            kept = {"warning": f"The receipt of {self.group['name']} cannot be kept on the controller ({type(error).__name__}: {error})."}
        with contextlib.suppress(OSError):
            self.board.post("kept", kept)
        return kept

    def _say(self, seconds: float, text: str) -> None:
        self.display.display(f"[{self.group['name']} +{seconds:4.0f} s] {text}")

    def _result(self, verdict: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
        receipt = verdict["receipt"] | kept
        if not verdict["passed"]:
            # The rest is in the file; the screen is for the sentence.
            receipt = {key: receipt.get(key) for key in ("path", "release", "time", "warning") if key != "warning" or key in receipt}
        warning = kept.get("warning") if verdict["author"] == self.rank else None
        return {
            **({"warnings": [warning]} if warning else {}),
            "changed": False, "failed": not verdict["passed"], "msg": verdict["msg"], "class": verdict["class"], "passed": verdict["passed"],
            "seconds": verdict["seconds"], "receipt": receipt, "pool": verdict["receipt"]["pool"],
            "finding": verdict.get("finding"), "failed_checks": [c for c in verdict["checks"] if c["ok"] is False],
            "unknown_checks": [c["name"] for c in verdict["checks"] if c["ok"] is None],
        }  # fmt: skip
