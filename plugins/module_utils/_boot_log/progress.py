# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: how far a boot is: stages, readiness, the end."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import patterns as _p
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import Failure, clip
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line


class Progress:
    """Stages and readiness of one boot, and the attributes of all parts."""

    def __init__(self, first_line: int) -> None:
        self.first_line = first_line
        self.last_line = first_line
        self.stage = 0
        self.progressed = 0
        self.stages: dict[str, dict[str, Any]] = {}
        self.recognised = False
        self.facts_: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.engines: dict[str, list[list[Any]]] = {}
        self.available: list[tuple[float, int, str]] = []
        self.ranks: dict[int, dict[str, Any]] = {}
        self.loads: dict[str, tuple[float, float | None, int]] = {}
        self.weights: dict[str, float] = {}
        self.graphs: list[tuple[float, float | None]] = []
        self.pids: dict[str, str] = {}
        self.failures: dict[str, Failure] = {}
        self.weak: Failure | None = None
        self.death = 0
        self.end_stage = -1
        self.ended_by_request = False
        self.answered = False
        self.ready: dict[str, Any] | None = None
        self.stopped: dict[str, Any] | None = None
        self.frozen = False
        self.benign: dict[str, int] = {}
        self.progress: dict[str, Any] | None = None
        self.args: dict[str, Any] = {}
        self.nccl: dict[str, Any] = {"version": None, "network": None, "hcas": [], "via": [], "no_ib": False, "local": []}
        self.dead_line = 0
        self.killed_itself = False
        self.traceback: Failure | None = None
        self.unsure = False
        self.ended_facts: dict[str, Any] | None = None
        self.open: dict[str, int] = {}
        self.ended = False
        #: Of the record that `take` was given: its min_end and whole.
        self.seam = 0
        self.whole = True
        self.ignoring = 0
        self.services: set[str] = set()

    def reach(self, stage: str, number_: int, time: str) -> None:
        """Note that a stage was reached."""
        level = _p.STAGE_NUMBER[stage]
        self.recognised = True
        if stage not in self.stages:
            self.stages[stage] = {"line_number": number_, "time": time or None}
        self.stage = max(self.stage, level)
        self.progressed = number_

    def put(self, name: str, value: Any, number_: int) -> None:
        """Keep the first value of a fact and its line; one that ended with its line may go on in the next."""
        if name not in self.facts_ or self.open.get(name) == number_:
            self.facts_[name] = value
            self.lines[name] = number_
            if self.ended:
                self.open[name] = number_
        self.recognised = True

    def access(self, text: str, number_: int, time: str) -> bool:
        """Take an access line: readiness evidence, and from the first request on facts are frozen."""
        match = _p.ACCESS.match(text)
        if match is None or match.end() <= self.seam:
            return False
        method, path, code = match.group(1), match.group(2), match.group(3)
        self.recognised = True
        good = code[0] == "2"
        if good and method in ("GET", "POST"):
            if self.ready is None:
                self._became_ready("access", text, number_, time)
            if method == "POST" and _p.GENERATION.match(path):
                self._alive()
        if method == "POST":
            self.frozen = True
            if code != "503":
                self.answered = True
            lost = self.weak is not None and self.weak.classifier.name == "peer_lost"
            if code == "500" and self.ready is not None and (self.dead_line or lost):  # the request met the dead engine that the lines before tell of
                self._die(self.dead_line or number_)
        return True

    def _alive(self) -> None:
        """A generation was answered: what was printed before and did not end the engine was a request's own error."""
        self.weak = None
        self.unsure = False
        self.dead_line = 0
        if not self.death:
            # the status of a stream is sent before its first token: a lost peer is not back
            for name in [n for n, f in self.failures.items() if f.after_ready and n != "peer_lost"]:
                del self.failures[name]

    def _became_ready(self, evidence: str, text: str, number_: int, time: str) -> None:
        self.ready = {"evidence": evidence, "line": clip(text), "line_number": number_, "time": time or None}
        if evidence == "access" and self.death and self.stage == 0:  # a tail: it served before this log begins, and what is left of it answers
            for failure in self.failures.values():
                failure.after_ready = True
        else:
            self.death = 0
        self.reach("ready", number_, time)
        self.weak = None

    def _elsewhere(self, line: Line) -> bool:
        """Return whether another service of the compose project printed a line: a web interface beside vLLM has a web server, and exceptions, too."""
        if not self.services or line.file or line.procs:
            return False
        service = _p.SERVICE.match(line.text)
        return service is not None and service.group(1) not in self.services

    def _ok(self, line: Line, match: re.Match[str]) -> bool:
        """Whether a match in a message is a fact: at the message's beginning, not quoted, whole."""
        if match.end() <= self.seam or not self._leads(line, match):
            return False
        return self.whole or not self.ended or not match.group(0)[-1:].isdigit()

    def _leads(self, line: Line, match: re.Match[str]) -> bool:
        """Whether a match is at the message's beginning and not quoted."""
        start = match.start()
        self.ended = match.end() == len(line.message)
        if start > (40 if line.file else 90):
            return False
        if start:
            head = line.message[:start]
            if "'" in head or '"' in head or "{" in head or "`" in head.strip(" `*") or "prompt" in head:
                return False
        return True

    def _f_access(self, line: Line, number_: int) -> bool:
        return not self._elsewhere(line) and self.access(line.message, number_, line.time)

    def _f_ready(self, line: Line, number_: int) -> bool:
        message = line.message.lstrip("*` ")
        match = _p.READY.match(message)
        if match is None or match.end() <= self.seam - len(line.message) + len(message) or self._elsewhere(line):
            return False
        if self.ready is None:
            self._became_ready("startup" if match.group(0)[0] == "A" else "uvicorn", line.message, number_, line.time)
        return True

    def _f_ready_rust(self, line: Line, number_: int) -> bool:
        match = _p.READY_RUST.match(line.message)
        if match is None or match.end() <= self.seam or line.level != "INFO" or not (self.whole or match.end() < len(line.message)):
            return False
        if not self.frozen:
            self.put("listen", f"http://{match.group(1)}", number_)
        if self.ready is None:
            self._became_ready("frontend", line.message, number_, line.time)
        return True

    def _f_stopped(self, line: Line, number_: int) -> bool:
        match = _p.STOPPED.match(line.message)
        if match is None or match.end() <= self.seam or self._elsewhere(line):
            return False
        if self.ready is not None and not self.death and not self.failures and not match.group(0).startswith("Parent process"):
            self.ended_by_request = True
        if self.stopped is None:
            self.stopped = {"line": clip(line.message), "line_number": number_, "time": line.time or None}
            self.recognised = True
        return True

    def _f_stats(self, line: Line, number_: int) -> bool:
        match = _p.STATS.search(line.message)
        if match is None or match.end() <= self.seam:
            return False
        busy = (match.group(1) or match.group(2)) != "0"
        if self.ready is not None or line.level not in ("INFO", "DEBUG") or not line.file.endswith(("loggers.py", "metrics.py", "log_stats.rs")):
            return True
        if busy or _p.THROUGHPUT.search(line.message) is not None:  # requests run, or just ran: somebody could ask
            self._became_ready("access", line.message, number_, line.time)
        return True

    def _f_interrupted(self, line: Line, _number: int) -> bool:
        if self.seam <= 0 and line.message.startswith("KeyboardInterrupt"):
            self.traceback = None  # Ctrl-C and SIGTERM end a process with a traceback, too
        return False

    def _f_request(self, line: Line, _number: int) -> bool:
        if not line.message.startswith(("Received request ", "Added request ")):
            return False
        self.frozen = True
        return True

    def _f_placement(self, line: Line, number_: int) -> bool:
        if self.seam > 40 or not line.message.startswith("Waiting for creating a placement group"):
            return False
        self.reach("rendezvous", number_, line.time)
        return True

    def _f_listen(self, line: Line, number_: int) -> bool:
        match = _p.LISTEN.search(line.message)
        if match is None or not self._ok(line, match):
            return False
        if self.ready is not None and "listen" not in self.facts_ and self.ready["evidence"] in ("startup", "uvicorn"):
            # vLLM prints its port before its web server starts: the line before was of another program
            self.ready = None
            self.stages.pop("ready", None)
            self.stage = max((_p.STAGE_NUMBER[name] for name in self.stages), default=0)
        self.put("listen", match.group(1), number_)
        self.reach("listen", number_, line.time)
        return True

    def _f_progress(self, line: Line, number_: int) -> bool:
        return self.seam <= 0 and self._progress(line.message, number_, line.time)

    def _f_loading(self, line: Line, number_: int) -> bool:
        match = _p.LOADING.match(line.message)
        if match is None or match.end() <= self.seam:
            return False
        self.reach("load", number_, line.time)
        return True

    def _f_platform(self, line: Line, number_: int) -> bool:
        match = _p.PLATFORM.match(line.message)
        if match is None or match.end() <= self.seam:
            return False
        self.reach("args", number_, line.time)
        self.put("platform", match.group(1), number_)
        return True

    def _f_milestone(self, line: Line, number_: int) -> bool:
        match = _p.MILESTONE.match(line.message) if line.file else None
        if match is None or match.end() <= self.seam:
            return False
        self.reach(str(match.lastgroup), number_, line.time)
        return True

    def _f_resolved(self, line: Line, number_: int) -> bool:
        if self.seam > 0 or not line.message.startswith("Resolved architecture: "):
            return False
        self.reach("args", number_, line.time)
        return True

    def _advance(self, what: str, match: re.Match[str], number_: int) -> None:
        percent, done, total = (int(match.group(i)) for i in (2, 3, 4))
        self.progress = {"what": what, "percent": min(percent, 100), "done": done, "total": total, "line_number": number_}

    def _progress(self, message: str, number_: int, time: str) -> bool:
        match = _p.PROGRESS.search(message[-2000:])
        if match is not None:
            self._advance("weights", match, number_)
            self.reach("load", number_, time)
            return True
        match = _p.CAPTURE.search(message[-2000:])
        if match is not None:
            self._advance("graphs", match, number_)
            if self.stage >= _p.STAGE_NUMBER["kv"]:
                self.recognised = True
            return True
        return False

    def _die(self, number_: int) -> None:
        """Note that the engine died: what was only a request's own error until now counts."""
        self.recognised = True
        if self.death or self.ended_by_request:
            return
        self.death = number_
        self._note_end()
        if self.weak is not None and self.ready is not None:
            weak, self.weak = self.weak, None
            self.failures.setdefault(weak.classifier.name, weak)

    def _note_end(self) -> None:
        """Keep the stage that the boot had reached when it began to end: what other ranks still print does not count."""
        if self.end_stage < 0:
            self.end_stage = self.stage

    def served(self) -> bool:
        """Return whether requests came in: also a log's tail without a good answer shows that."""
        return self.ready is not None or self.answered
