# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement of one boot of a serving group: slices of all ranks' logs in, one verdict out. Pure; times are seconds since the boot began.

The caller reads the ranks (`question`, `feed`, `missed`), asks `decide` after each of them, sends the requests of `requests` once the head serves,
and takes the verdict from `failed` or `concluded`. A verdict is a dict: passed, class, msg, finding, seconds, checks, pool, api, receipt.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import remedy_of
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog
from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import Pace
from ansible_collections.gb10.cluster.plugins.module_utils._gate import cases, gate, measures, reply
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import Series

SLICE_SECONDS = 5.0
GATHER_SECONDS = 2.0  # how long a boot's harmless lines may gather: each slice takes time of a node that is busy loading
MEMORY_STEP, MEMORY_MOST = 5.0, 240  # of the samples of a rank's memory that the receipt keeps
LOST_SECONDS = 20.0  # how long a rank may be unreadable before it counts as lost
HEARTBEAT_SECONDS = 30.0
LONG_REPLY_TOKENS = 4
LEAST_LONG_PROMPT = 1024  # tokens; a smaller prompt proves nothing about a long prefill
SPARE_TOKENS = 64  # what a long prompt leaves free in the context, next to its reply
CASE_LEVELS = (1, 2, 4, 6)  # requests at once of the case prompts
COUNT_ON = "Count on."  # stands for the prompt in the request; the probe sends numbers
_SERVING_STAGES = ("graphs", "init", "listen", "ready", "kv")

Answer = dict[str, Any]
Verdict = dict[str, Any]
Search = Callable[[str, Any], Any]


def _faults(answer: Answer, prompt: str, expect: str | None, what: str) -> list[str]:
    if answer["error"] or not answer["replies"]:
        return [f"{reply.MISSING} ({answer['error'] or 'no reply'}) ({what})"]
    return [f"{fault} ({what})" for each in answer["replies"] for fault in reply.faults(prompt, each, expect)]


def _like(completion: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Return how the profile's completion is asked for, and more of its keys."""
    return {key: completion[key] for key in ("chat", "body", *more) if completion.get(key) is not None}


def evaluate(expressions: Sequence[Any], data: Mapping[str, Any], search: Search | None) -> list[dict[str, Any]]:
    """Return a check for each JMESPath expression of a profile's `gate.expressions`. `search` is jmespath.search, None if jmespath is not installed."""
    out = []
    for item in expressions:
        entry = item if isinstance(item, dict) else {"expression": str(item)}
        remedy = entry.get("remedy") or "Check gate.expressions of the profile, which has this criterion"
        found, ok = None, False
        if search is None:
            found, remedy = "the Python library jmespath is missing", "Install jmespath on the controller and run site.yml again"
        else:
            try:
                found = search(entry["expression"], data)
                ok = bool(found)
            except Exception as error:  # noqa: BLE001  an expression is the user's text, and jmespath raises more than its own errors
                found, remedy = f"the expression cannot be evaluated ({error})", "Correct gate.expressions in the profile"
        out.append(gate.check(entry.get("name") or entry["expression"], ok, "true", found, "criterion", remedy))
    return out


class RankBoot:
    """The boot of one rank, as far as it was read."""

    def __init__(self, number: int, host: str, container: str, release: str, max_restarts: int, log: BootLog) -> None:
        self.number, self.host, self.container = number, host, container
        self.log = log
        self.cursor = ""
        self.memory = Series(MEMORY_STEP, MEMORY_MOST)
        self.missed_since: float | None = None
        self.state: dict[str, Any] = {
            "rank": number, "host": host, "facts": {}, "container": None, "memory": {}, "start_error": "", "lost": "", "failed_at": None,
            "stage_since": 0.0, "stages": [], "seen": False, "http_status": 0, "max_restarts": max_restarts, "release": release,
        }  # fmt: skip
        self._shown, self._shown_at = "", 0.0
        self._pace = Pace()

    def feed(self, piece: Mapping[str, Any], seconds: float) -> None:
        """Take a slice of this rank's log."""
        self.missed_since = None
        data = base64.b64decode(piece["log"])
        if data:
            self.log.feed(data)
            self.state["changed_at"] = seconds
        self.cursor = piece["cursor"]
        container = piece["container"]
        ended = container is not None and not container["running"] and container["status"] != "created"
        self.state.update(facts=self.log.facts(final=ended), container=container, http_status=piece["http_status"], seen=True)
        self.state.setdefault("oom_kills_at_start", piece["memory"].get("oom_kills", 0))
        self.state["memory"] = piece["memory"]
        self.memory.add(seconds, piece["memory"])
        stage, stages = self.state["facts"]["stage"], self.state["stages"]
        if not stages or stage != stages[-1][0]:
            stages.append([stage, round(seconds, 1)])
            self.state["stage_since"] = seconds
        share = gate.loaded(self.state)
        self.state["seconds_left"] = self._pace.seconds_left(seconds, share, 100.0) if share is not None else None
        self.note(seconds)

    def note(self, seconds: float) -> None:
        """Record when this rank was first seen to fail."""
        if self.state["failed_at"] is None and gate.findings([self.state]):
            self.state["failed_at"] = seconds

    def progress(self, seconds: float) -> str:
        """Return a line of progress if there is something new to report, or nothing was reported for a while; empty otherwise."""
        line = gate.progress(self.state)
        steady = line.rsplit("  MemFree", 1)[0]
        if steady == self._shown and seconds - self._shown_at < HEARTBEAT_SECONDS:
            return ""
        self._shown, self._shown_at = steady, seconds
        return line


class Judge:
    """The judgement of one boot."""

    def __init__(
        self, group: str, hosts: Sequence[str], release: str, criteria: Mapping[str, Any], *, profile: str = "", url: str = "", timeout: float = 2700.0,
        limits: Mapping[str, Any] | None = None, classes: Sequence[Mapping[str, Any]] = (), strict: bool = False, weights: Mapping[str, Any] | None = None,
        search: Search | None = None,
    ) -> None:  # fmt: skip
        """`hosts` are the ranks' names, the head first; the other arguments are those of a release's manifest and of the desired state's options.

        Raises ValueError for a failure class of the user that is not valid.
        """
        self.group, self.release, self.profile, self.url = group, release, profile, url
        self.criteria, self.limits, self.timeout, self.strict = dict(criteria), dict(limits or {}), timeout, strict
        self.weights, self._search = dict(weights or {}), search
        restarts = int(self.criteria.get("max_restarts") or 0)
        self.ranks = [
            RankBoot(number, host, f"gb10-{group}-rank{number}", release, restarts, BootLog(extra_classes=[dict(each) for each in classes]))
            for number, host in enumerate(hosts)
        ]
        self.asking = False
        self._api: Answer = {}
        self._results: list[dict[str, Any]] = []
        self._replies_faults: list[str] = []
        self._answers: list[Answer] = []
        self._measured: dict[str, Any] = {}

    @property
    def states(self) -> list[dict[str, Any]]:
        """The ranks as gate.py reads them, the head first."""
        return [rank.state for rank in self.ranks]

    def question(self, number: int) -> dict[str, Any]:
        """Return the arguments of the next slice of a rank."""
        rank = self.ranks[number]
        known = (rank.state["container"] or {}).get("status", "absent") if rank.state["seen"] else ""
        asks_api = number == 0 and rank.state["seen"] and rank.state["facts"].get("stage") in _SERVING_STAGES and not self.asking
        return {
            "container": rank.container, "cursor": rank.cursor, "known_state": known, "wait": SLICE_SECONDS, "gather": GATHER_SECONDS,
            "url": f"{self.url}/health" if asks_api else "",
        }  # fmt: skip

    def feed(self, number: int, piece: Mapping[str, Any], seconds: float) -> str:
        """Take a slice of a rank and return a line of progress, empty if there is nothing new."""
        self.ranks[number].feed(piece, seconds)
        return self.ranks[number].progress(seconds)

    def missed(self, number: int, why: str, answers: bool, seconds: float) -> None:
        """Take that a rank could not be read. `answers` tells whether its node answered: then its Docker Engine did not."""
        rank = self.ranks[number]
        rank.missed_since = seconds if rank.missed_since is None else rank.missed_since
        spent = seconds - rank.missed_since
        if spent < LOST_SECONDS or rank.state["lost"]:
            return
        if answers:
            text = f"{rank.host} answers, and its rank could not be read for {spent:.0f} s. {why}"
            rank.state.update(lost=text, lost_class="rank_unreadable")
        else:
            rank.state["lost"] = f"{rank.host} has not answered for {spent:.0f} s: {why}"
        rank.note(seconds)

    def start_failed(self, number: int, error: str) -> None:
        """Take that a rank could not be started."""
        self.ranks[number].state["start_error"] = error
        self.ranks[number].note(0.0)

    def container(self, number: int, found: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """Take the state of a rank's container outside of a slice: one of those that were found on its node, or none."""
        rank = self.ranks[number]
        rank.state.update(seen=True, container=next((dict(each) for each in found if each["name"] == rank.container), None))
        rank.note(seconds)

    @property
    def settling(self) -> bool:
        """Whether a failure was seen that waits for its cause: decide() changes with time alone."""
        return any(rank.state["failed_at"] is not None for rank in self.ranks)

    def decide(self, seconds: float) -> tuple[str, gate.Finding | None]:
        """Return ("wait", None), ("fail", finding) or ("probe", None) if the head serves and no request was sent yet.

        While requests are sent, the time limits of the boot are over: each request has its own.
        """
        limits = (math.inf, {}) if self.asking else (self.timeout, self.limits)
        what, finding = gate.assess(self.states, seconds, *limits)
        if what == "probe" and (self.asking or not all(rank.state["seen"] for rank in self.ranks)):
            return "wait", None
        return what, finding

    # --- once the head serves

    def requests(self) -> Generator[dict[str, Any], Answer, None]:
        """Yield the arguments of each probe of the head's API, and take what it returned. Call concluded() at the end."""
        self.asking = True
        completion = self._completion()
        requests = [_like(completion, "prompt", "max_tokens")]
        self._api = api = yield from self._asked(requests)
        expect = completion.get("expect")
        self._replies_faults = faults = [f for r in api.get("replies") or [] for f in reply.faults(completion["prompt"], r, expect)]
        at_once = int(self.criteria.get("concurrent_requests") or 0)
        if at_once > 1 and not faults and not api.get("error"):
            answer = yield from self._asked(requests * at_once)
            faults += _faults(answer, completion["prompt"], expect, f"{at_once} requests at once")
        more = [self._decode(completion), self._long_replies(completion), *map(self._long_prompt, ("long_prompt_tokens", "cold_prefill_tokens")), self._cases()]
        for step in more:
            if not faults and not api.get("error"):
                yield from step

    def _asked(self, requests: list[dict[str, Any]], patience: float = 1.0, level: int = 0) -> Generator[dict[str, Any], Answer, Answer]:
        """Send requests at once, or `level` of them. `patience` multiplies the limit of a completion."""
        answer = yield {"requests": requests, "concurrency": level or len(requests), **({"patience": patience} if patience > 1 else {})}
        self._answers.append(answer)
        return answer

    def _decode(self, completion: dict[str, Any]) -> Generator[dict[str, Any], Answer, None]:
        """Measure the speed of one stream, twice if it is too slow: the first long reply compiles kernels. Its text is not judged: code repeats itself."""
        if not measures.decode_is_due(self.criteria):
            return
        body = {**(completion.get("body") or {}), "ignore_eos": True}
        request = {**_like(completion), "prompt": measures.DECODE_PROMPT, "max_tokens": measures.DECODE_TOKENS, "body": body}
        found, results = None, []
        for _again in range(2):
            answer = yield from self._asked([request])
            faults = _faults(answer, measures.DECODE_PROMPT, None, f"a reply of up to {measures.DECODE_TOKENS} tokens")
            self._replies_faults += [fault for fault in faults if fault.startswith(reply.MISSING)]
            found = max((each for each in (found, *map(measures.speed, answer["replies"])) if each is not None), default=None)
            results = measures.decode_checks(found, self.criteria)
            if self._replies_faults or all(check["ok"] is not False for check in results):
                break
        self._measured.update({"decode_tok_s": found} if found is not None else {})
        self._results += results

    def _long_replies(self, completion: dict[str, Any]) -> Generator[dict[str, Any], Answer, None]:
        """Ask for long replies at once."""
        number = int(self.criteria.get("long_replies") or 0)
        prompts = [measures.LONG_REPLY_PROMPT.format(index + 1) for index in range(number)]
        if prompts:
            requests = [{**_like(completion), "prompt": prompt, "max_tokens": measures.LONG_REPLY_TOKENS} for prompt in prompts]
            answer = yield from self._asked(requests, measures.LONG_REPLY_PATIENCE)
            self._replies_faults += _faults(answer, prompts[0], None, f"{number} replies of {measures.LONG_REPLY_TOKENS} tokens at once")

    def _long_prompt(self, key: str) -> Generator[dict[str, Any], Answer, None]:
        """Ask for a reply to a long prompt, or to a cold one, as far as the context has room for it."""
        wanted, cold = int(self.criteria.get(key) or 0), key.startswith("cold")
        if not wanted:
            return
        api, completion, tools = self._api, self._completion(), cold and bool(self.criteria.get("cold_prefill_tools"))
        # KV memory that is pinned reserves nothing for a long prefill. Without tools the text is not judged: any token may follow a row of numbers.
        request: dict[str, Any] = {"prompt": COUNT_ON, "max_tokens": LONG_REPLY_TOKENS}
        if tools:
            request = {**_like(completion, "prompt", "max_tokens"), "chat": True, "body": {**(completion.get("body") or {}), "tools": measures.TOOLS}}
        context = gate.served_context(api) or self.criteria.get("context")
        taken = int(request["max_tokens"]) + SPARE_TOKENS + (measures.TOOLS_TOKENS if tools else 0)
        room = min(wanted, int(context) - taken) if context else wanted
        if room < min(wanted, LEAST_LONG_PROMPT):
            asked = f"not asked: the context of {context} tokens has no room for it"
            name = "a cold prompt" if cold else "a long prompt"
            self._results.append(gate.check(name, None, f"{wanted} tokens", asked, "completion_wrong", remedy_of("context_differs")))
            return
        request.update(prompt_tokens=room, **({"cold": True} if cold else {}))
        answer = yield from self._asked([request], room / measures.PREFILL_PATIENCE_TOKENS)
        counted, seconds = next(((r["prompt_tokens"], gate.finite(r.get("seconds"))) for r in answer["replies"] if r.get("prompt_tokens")), (room, None))
        what = f"a {'cold ' if cold else ''}prompt of {counted} tokens{' with tools' if tools else ''}"
        found = _faults(answer, str(request["prompt"]), completion.get("expect") if tools else None, what)
        self._replies_faults += [fault for fault in found if tools or fault.startswith(reply.MISSING)]
        if cold and seconds:
            self._measured.update(prefill_tokens=counted, prefill_tok_s=round(counted / seconds, 1))

    def _cases(self) -> Generator[dict[str, Any], Answer, None]:
        """Ask the cases that the profile chooses, as `gb10 check` does."""
        cold = min(cases.COLD_TOKENS, (gate.served_context(self._api) or 2 * cases.COLD_TOKENS) // 2)
        for name in self.criteria.get("cases") or []:
            before = ""
            for level, batch in cases.cases_of([name], cases.prompts_of([]), CASE_LEVELS, cold):
                answer = yield from self._asked(cases.requests_of(batch), measures.LONG_REPLY_PATIENCE, level)
                row = cases.prompt_row(level, batch, answer["replies"], before, bool(self.criteria.get("batch_invariant")))
                lost = _faults(answer, "", None, f"case {name}") if answer["error"] or not answer["replies"] else []
                self._replies_faults += lost or [f"{each['fault']} (case {name})" for each in row["faults"]]
                found = [gate.check("a reply next to others", None, "the one alone", each, "completion_wrong", cases.MAY_DIFFER) for each in row["differs"]]
                self._results += [{**each, "warning": True} for each in found]  # not a fault, also if what is not known is one
                if self._replies_faults:
                    return
                before = str(answer["replies"][0]["text"])

    def _completion(self) -> dict[str, Any]:
        return dict(self.criteria.get("completion") or {"prompt": "The capital of France is", "max_tokens": 16})

    def concluded(self, seconds: float) -> Verdict:
        """Return the verdict after the last answer. The containers' states must be fresh."""
        ranks, api = self.states, self._api
        late = gate.findings(ranks)
        drafts = measures.draft_total(self._answers)
        self._measured.update({"speculation": drafts} if drafts else {})
        results = [] if late else gate.checks(ranks, api, self.criteria) + self._completion_checks() + self._measures(drafts) + self._expressions()
        fault = gate.first_fault(results, self.strict)
        finding = late[0] if late else None
        message = gate.sentence(self.group, late[0]) if late else gate.check_sentence(self.group, fault) if fault else ""
        warnings = [gate.check_sentence(self.group, c) for c in results if c.get("warning") and c["ok"] is False]
        return self._closed(
            finding or fault, passed=not message, finding=finding, msg=message or f"{self.group} serves: every criterion holds.",
            seconds=round(seconds, 1), checks=results, api=api, warnings=warnings,
        )  # fmt: skip

    def _measures(self, drafts: dict[str, Any]) -> list[dict[str, Any]]:
        facts, criteria = self.states[0]["facts"], self.criteria
        speculates = bool(criteria.get("speculative_method") or facts.get("speculative_method"))
        return [
            *self._results, *measures.acceptance_checks(drafts, criteria.get("acceptance") or {}, speculates),
        ]  # fmt: skip

    def _pool(self) -> dict[str, Any]:
        return gate.pool_of(self.states[0]["facts"], self._api.get("metrics") or [], gate.served_context(self._api))

    def _completion_checks(self) -> list[dict[str, Any]]:
        api, expect = self._api, self._completion().get("expect")
        replies, faults = list(api.get("replies") or []), self._replies_faults
        out = []
        if not api.get("error"):
            good = bool(replies) and not faults
            found = "; ".join(faults) or (reply.shown(replies[0]) if good else "none")
            missing = not replies or any(fault.startswith(reply.MISSING) for fault in faults)
            kind = "completion_missing" if missing else "completion_wrong"
            remedy = reply.remedy(faults)
            out.append(gate.check("a real completion", good, expect or "text", found, kind, remedy[:1].upper() + remedy[1:]))
        if any(reply.cut_while_reasoning(r) for r in replies):
            remedy = "Raise gate.completion.max_tokens, or turn the reasoning off in gate.completion.body"
            name = "the known answer" if expect else "an answer after the reasoning"
            out.append(gate.check(name, None, expect or "text", "the reply ended in its reasoning", "completion_wrong", remedy))
        return out

    def _expressions(self) -> list[dict[str, Any]]:
        facts = [state["facts"] for state in self.states]
        data = {
            "ranks": facts, "head": facts[0], "api": self._api, "pool": self._pool(), "containers": [state["container"] for state in self.states],
            "measured": self._measured,
        }  # fmt: skip
        return evaluate(self.criteria.get("expressions") or [], data, self._search)

    # --- verdicts

    def failed(self, finding: gate.Finding, seconds: float) -> Verdict:
        """Return the verdict of a boot that failed."""
        sentence = gate.sentence(self.group, finding)
        return self._closed(finding, passed=False, finding=finding, msg=sentence, seconds=round(seconds, 1), checks=[])

    def broken(self, error: str, seconds: float) -> Verdict:
        """Return the verdict after an error of the judgement itself: the boot was not judged."""
        return self.failed(gate.finding("gate_error", self.states[0], gate.ROOT, error), seconds)

    def _closed(self, fault: Mapping[str, Any] | None, **verdict: Any) -> Verdict:
        found = {**verdict, "class": (fault or {}).get("class", ""), "pool": self._pool()}
        return {**found, "receipt": self._receipt(found)}

    def _receipt(self, verdict: Verdict) -> dict[str, Any]:
        head = self.states[0]["facts"]
        api = verdict.get("api") or {}
        return {
            "schema": 1, "group": self.group, "release": self.release, "profile": self.profile, "time": text.stamp(),
            "passed": verdict["passed"], "class": verdict["class"], "msg": verdict["msg"], "seconds": verdict["seconds"], "pool": verdict["pool"],
            **{key: head.get(key) for key in ("version", "attention_backend", "kv_cache_dtype", "moe_backend", "custom_ops", "eager", "autotune")},
            "measured": self._measured,
            "image_id": (self.states[0]["container"] or {}).get("image_id"), "image": gate.image_content(self.states[0]), "weights": self.weights,
            "models": api.get("models") or [], "completion": [reply.shown(r) for r in api.get("replies") or []][:1], "checks": verdict["checks"],
            "ranks": [
                {key: state[key] for key in ("rank", "host", "container", "memory", "stages", "lost", "start_error")}
                | {"facts": {k: v for k, v in state["facts"].items() if k != "boots"}, "memory_series": rank.memory.text()}
                for rank in self.ranks for state in [rank.state]
            ],
        }  # fmt: skip
