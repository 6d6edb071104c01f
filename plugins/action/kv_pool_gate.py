# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV-pool gate: one instance a rank, all on the controller at the same time, one joint verdict. See the module of the same name for its options."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from ansible import constants
from ansible import context as cli_context
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils import gate, reply
from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log import BootLog
from ansible_collections.gb10.cluster.plugins.plugin_utils.lookout import PROBE, SLICE, Lookout

try:
    import jmespath
except ImportError:  # only expressions need it
    jmespath = None

SLICE_SECONDS = 5.0
GATHER_SECONDS = 2.0  # how long a boot's harmless lines may wait for more: each look takes some of the time of a machine that is busy loading
BOARD_SECONDS = 0.1  # how often the other ranks' notes are read while a look at this one's node is under way
STALE_SECONDS = 60.0  # a rank whose instance has posted nothing for so long hangs in its connection: the node is lost
JOIN_SECONDS = 45.0  # by when every rank's instance must have posted for the first time
LOST_SECONDS = 20.0  # how long a node may not answer before it counts as lost
RETRY_SECONDS = 2.0
HEARTBEAT_SECONDS = 30.0


class Board:
    """Where the instances of one serving group share their states: small files in a folder of this Ansible run, replaced atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def post(self, name: str, value: Any) -> None:
        """Write one note for all to read."""
        temporary = self.folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(self.folder / name)

    def read(self, name: str) -> Any:
        """Return a note; None while there is none."""
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


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
        try:
            verdict = self._follow()
        except Exception as error:
            # The others must not wait for a rank whose gate has ended; the error itself goes on to Ansible.
            self.board.post(f"rank-{self.rank}", dict(self.state, lost=f"the gate of this rank ended: {error}", posted=time.time()))
            raise
        return self._result(verdict)

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

    def _follow(self) -> dict[str, Any]:
        args = self.args
        self.cursor, missed_since, shown, shown_at = 0, None, "", 0.0
        self.state: dict[str, Any] = {
            "rank": self.rank, "host": self.host, "facts": {}, "container": None, "memory": {}, "start_error": args["start_error"], "lost": "",
            "failed_at": None, "stage_since": 0.0, "stages": [], "seen": False, "http_status": 0,
            "max_restarts": int(args["criteria"].get("max_restarts") or 0),
        }  # fmt: skip
        stage = ""
        try:
            log = BootLog(extra_classes=args["classes"])
        except ValueError as error:
            raise AnsibleActionFail(f"{error} Correct vllm_tp2_failure_classes.") from error
        self.lookout = Lookout(self, self.vars)
        while True:
            piece, verdict = self._slice()
            if verdict:
                return verdict
            seconds = time.monotonic() - self.start
            if piece is None:
                missed_since = seconds if missed_since is None else missed_since
                if seconds - missed_since >= LOST_SECONDS:
                    self.state["lost"] = f"{self.host} has not answered for {seconds - missed_since:.0f} s: {self.miss}"
                time.sleep(RETRY_SECONDS)
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
            self.state["seconds"] = seconds
            now = self.state["facts"].get("stage") or ""
            if now != stage:
                self.state["stages"].append([now, round(seconds, 1)])
                self.state["stage_since"] = seconds
                stage = now
            if self.state["failed_at"] is None and gate.findings([self.state]):
                self.state["failed_at"] = seconds
            self.board.post(f"rank-{self.rank}", dict(self.state, posted=time.time()))
            line = gate.progress(self.state)
            steady = line.rsplit("  MemFree", 1)[0]
            if steady != shown or seconds - shown_at >= HEARTBEAT_SECONDS:
                self._say(seconds, line)
                shown, shown_at = steady, seconds
            verdict = self._decide(seconds)
            if verdict:
                return verdict

    def _slice(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return the next slice of this rank's boot (None, with the reason in self.miss, where the node did not answer), or a verdict that came first."""
        known = (self.state["container"] or {}).get("status", "absent") if self.state["seen"] else ""
        asks_api = self.rank == 0 and self.state["seen"] and self.state["facts"].get("stage") in ("graphs", "init", "listen", "ready", "kv")
        look = self.lookout.start(
            container=self.args["container"], cursor=self.cursor, known_state=known, wait=SLICE_SECONDS, gather=GATHER_SECONDS,
            url=self.args["url"] + "/health" if asks_api else "",
        )  # fmt: skip
        look.join(BOARD_SECONDS)
        while look.is_alive():
            # Another rank's news must not wait for this one's: a rank that stalls says nothing for minutes.
            verdict = self._decide(time.monotonic() - self.start, may_probe=False)
            if verdict:
                return None, verdict
            look.join(BOARD_SECONDS)
        try:
            out = look.result()
        except AnsibleConnectionFailure as error:
            self.miss = str(error)
            return None, None
        if "log" not in out:
            self.miss = str(out.get("msg"))
            return None, None
        return out, None

    def _decide(self, seconds: float, *, may_probe: bool = True) -> dict[str, Any] | None:
        """Return the joint verdict once there is one. The lowest rank whose instance still posts decides for all.

        `may_probe` is false while a look is under way, since a connection does one thing at a time.
        """
        posted = self.board.read("verdict")
        if posted:
            return dict(posted)
        ranks = self._ranks(seconds)
        fresh = [rank for rank in ranks if not rank.get("silent")]
        if not fresh or min(rank["rank"] for rank in fresh) != self.rank:
            return None
        if len(fresh) + len([r for r in ranks if r.get("silent") == "hung"]) < len(ranks) and seconds < JOIN_SECONDS:
            failed = [f for f in gate.findings(fresh) if f["weight"] <= gate.KILLED]
            if not failed:
                return None  # an instance has not posted yet
        what, finding = gate.assess(ranks, seconds, self.args["timeout"], self.args["limits"])
        if what == "wait" or (what == "probe" and not may_probe):
            return None
        if what == "probe":
            return self._probe(seconds)
        if finding is None:
            raise AnsibleActionFail("The gate decided to fail without a finding; this is a fault of the gate itself.")
        verdict = {"passed": False, "finding": finding, "msg": gate.sentence(self.group["name"], finding), "seconds": round(seconds, 1), "checks": []}
        return self._close(verdict)

    def _ranks(self, seconds: float) -> list[dict[str, Any]]:
        out = []
        for number, host in enumerate(self.group["hosts"]):
            state = self.board.read(f"rank-{number}")
            if state is None:
                state = {"rank": number, "host": host, "silent": "absent"}
                if seconds > JOIN_SECONDS:
                    state["lost"] = f"no gate has run for {host} within {JOIN_SECONDS:.0f} s: its SSH connection hangs, or there are fewer forks than hosts"
                    state["failed_at"] = seconds
            elif time.time() - state["posted"] > STALE_SECONDS and not self.board.read("probing"):
                state["lost"] = state["lost"] or f"{host} has not answered over SSH for {STALE_SECONDS:.0f} s"
                state["silent"] = "hung"
                state["failed_at"] = state.get("failed_at") or seconds
            out.append(state)
        return out

    # --- once it serves -----------------------------------------------------------------------------------------------------------

    def _probe(self, seconds: float) -> dict[str, Any]:
        criteria = self.args["criteria"]
        self._say(seconds, "the head serves: asking for its models and real completions")
        self.board.post("probing", True)
        completion = dict(criteria.get("completion") or {"prompt": "The capital of France is", "max_tokens": 16})
        requests = [{key: completion[key] for key in ("prompt", "chat", "max_tokens", "body") if completion.get(key) is not None}]
        api = self._ask(requests, 1)
        expect = completion.get("expect")
        faults = [f for r in api.get("replies") or [] for f in reply.faults(completion["prompt"], r, expect)]
        at_once = int(criteria.get("concurrent_requests") or 0)
        if at_once > 1 and not faults and not api.get("error"):
            more = self._ask(requests * at_once, at_once)
            faults += [f"{f} ({at_once} requests at once)" for r in more.get("replies") or [] for f in reply.faults(completion["prompt"], r, expect)]
        if criteria.get("long_prompt_tokens") and not faults and not api.get("error"):
            faults += self._long_prompt(int(criteria["long_prompt_tokens"]))
        self.board.post(f"rank-{self.rank}", dict(self.state, posted=time.time()))
        ranks = self._ranks(time.monotonic() - self.start)
        results = gate.checks(ranks, api, criteria)
        if not api.get("error"):
            good = bool(api.get("replies")) and not faults
            results.append(
                {
                    "name": "a real completion", "ok": good, "wanted": expect or "text",
                    "found": "; ".join(faults) or (api["replies"][0]["text"] if good else "none"),
                    "remedy": gate.criterion_remedy("completion_wrong"),
                    "class": "completion_wrong",
                }
            )  # fmt: skip
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
            "seconds": round(time.monotonic() - self.start, 1),
            "checks": results,
            "api": api,
            "pool": gate.pool_of(ranks[0].get("facts") or {}, api.get("metrics") or [], gate.served_context(api)),
        }
        return self._close(verdict)

    def _ask(self, requests: list[dict[str, Any]], concurrency: int) -> dict[str, Any]:
        """Ask the API, and in the same breath how the container is after it."""
        arguments = {
            "url": self.args["url"], "env_file": self.args["env_file"], "requests": requests, "concurrency": concurrency,
            "timeout": self.args["completion_timeout"],
        }  # fmt: skip
        look = {"container": self.args["container"], "cursor": self.cursor, "wait": 0.0, "limit": 0}
        out, piece = self.lookout.ask([(PROBE, arguments), (SLICE, look)])
        if "container" in piece:
            self.state.update(container=piece["container"], memory=piece["memory"])
        if out.get("failed") or out.get("unreachable"):
            return {"error": f"the API could not be asked on {self.host}: {out.get('msg')}", "models": [], "replies": [], "metrics": []}
        return {key: out[key] for key in ("models", "error", "http_status", "version", "metrics", "replies")}

    def _long_prompt(self, tokens: int) -> list[str]:
        """Send a prompt of about so many tokens: with pinned KV memory nothing was reserved for a long prefill, and it dies here, not in use."""
        prompt = "Count on. " + " ".join(str(number) for number in range(1, tokens // 2))
        answer = self._ask([{"prompt": prompt, "max_tokens": 4}], 1)
        return [f"{fault} (a prompt of about {tokens} tokens)" for r in answer.get("replies") or [] for fault in reply.faults(prompt, r)]

    def _expressions(self, ranks: list[dict[str, Any]], api: dict[str, Any], criteria: dict[str, Any]) -> list[dict[str, Any]]:
        data = {
            "ranks": [r.get("facts") or {} for r in ranks], "head": ranks[0].get("facts") or {}, "api": api,
            "pool": gate.pool_of(ranks[0].get("facts") or {}, api.get("metrics") or [], gate.served_context(api)),
            "containers": [r.get("container") for r in ranks],
        }  # fmt: skip
        out = []
        expressions = criteria.get("expressions") or []
        if expressions and jmespath is None:
            raise AnsibleActionFail("jmespath is missing on the controller: pip install jmespath")
        for item in expressions:
            entry = item if isinstance(item, dict) else {"expression": str(item)}
            try:
                found = jmespath.search(entry["expression"], data)
            except jmespath.exceptions.JMESPathError as error:
                raise AnsibleActionFail(f"The gate's expression {entry['expression']!r} is no JMESPath: {error}. Correct gate.expressions.") from error
            out.append(
                {
                    "name": entry.get("name") or entry["expression"], "ok": bool(found), "wanted": "true", "found": found, "class": "criterion",
                    "remedy": entry.get("remedy") or "it is a criterion of your own profile: see gate.expressions",
                }
            )  # fmt: skip
        return out

    # --- after ----------------------------------------------------------------------------------------------------------------------

    def _close(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """Write the receipt and tell the other ranks."""
        ranks = self._ranks(0.0)
        verdict.setdefault("class", (verdict.get("finding") or {}).get("class", ""))
        verdict["receipt"] = self._receipt(verdict, ranks)
        self.board.post("verdict", verdict)
        return verdict

    def _receipt(self, verdict: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
        head = ranks[0].get("facts") or {}
        receipt = {
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
            "models": (verdict.get("api") or {}).get("models") or [],
            "completion": [r.get("text") for r in (verdict.get("api") or {}).get("replies") or []][:1],
            "checks": verdict["checks"],
            "ranks": [
                {key: rank.get(key) for key in ("rank", "host", "container", "memory", "stages", "lost", "start_error")}
                | {"facts": {k: v for k, v in (rank.get("facts") or {}).items() if k != "boots"}}
                for rank in ranks
            ],
        }
        if not self.args["receipts"]:
            return receipt
        folder = Path(self.args["receipts"]) / self.group["name"]
        folder.mkdir(parents=True, exist_ok=True)
        good = folder / "last-good.json"
        if verdict["passed"]:
            before = json.loads(good.read_text(encoding="utf-8")) if good.exists() else None
            receipt["drift"] = gate.drift(receipt, before)
        stamp = receipt["time"].replace(":", "").replace("-", "")
        path = folder / f"{stamp}-{self.args['release'] or 'boot'}-{'passed' if verdict['passed'] else 'failed'}.json"
        receipt["path"] = str(path)
        text = json.dumps(receipt, indent=2, sort_keys=True) + "\n"
        path.write_text(text, encoding="utf-8")
        if verdict["passed"]:
            good.write_text(text, encoding="utf-8")
        return receipt

    def _say(self, seconds: float, text: str) -> None:
        self.display.display(f"[{self.group['name']} +{seconds:4.0f} s] {text}")

    def _result(self, verdict: dict[str, Any]) -> dict[str, Any]:
        receipt = verdict["receipt"]
        if not verdict["passed"]:
            receipt = {key: receipt.get(key) for key in ("path", "release", "time")}  # the rest is in the file; the screen is for the sentence
        return {
            "changed": False, "failed": not verdict["passed"], "msg": verdict["msg"], "class": verdict["class"], "passed": verdict["passed"],
            "seconds": verdict["seconds"], "receipt": receipt, "pool": verdict["receipt"]["pool"],
            "finding": verdict.get("finding"), "failed_checks": [c for c in verdict["checks"] if c["ok"] is False],
            "unknown_checks": [c["name"] for c in verdict["checks"] if c["ok"] is None],
        }  # fmt: skip
