"""What an owner has: an inventory, a shell on the controller, the nodes, and the API. Nothing of the code's insides is known here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from acceptance import commands

REPO = Path(__file__).resolve().parents[2]
INSTANCE = os.environ.get("GB10_LAB_INSTANCE") or ""
STATE = Path(os.environ.get("GB10_LAB_DIR") or REPO / ".lab") / (f"instance-{INSTANCE}" if INSTANCE else "")
#: What the model of each engine answers to PROMPT.
PROMPT, ANSWER = "The capital of France is", " Paris."
SERVES = (200, ANSWER)
RAW = re.compile(r"Traceback|Finalization of task args|has no attribute|is undefined|MODULE FAILURE|DEPRECATION")


def wait_for(condition: Callable[[], bool], seconds: float, pause: float = 0.5) -> bool:
    """Wait until a condition holds; return whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


@dataclass(frozen=True)
class Screen:
    """What a command left on the owner's screen."""

    command: str
    code: int
    text: str
    seconds: float

    @property
    def flat(self) -> str:
        """The text without line breaks."""
        return " ".join(self.text.split())

    @property
    def changes(self) -> set[str]:
        """Each `HOSTS: TASK` that a run changed, or would change."""
        return set(re.findall(r"^  changed   (\S.*)$", self.text, re.M))

    @property
    def roles(self) -> set[str]:
        """The roles that ran."""
        return set(re.findall(rf"^({'|'.join(commands.ROLES)}) +\S+ (?:ok|changed|failed)", self.text, re.M))

    def passed(self) -> Screen:
        """Return this screen after a check: exit code 0 and nothing raw on it."""
        assert self.code == 0, self
        return self.readable()

    def failed(self, *words: str) -> Screen:
        """Return this screen after a check: an exit code, each of these words, and nothing raw on it."""
        assert self.code != 0, self
        return self.readable().shows(*words)

    def readable(self) -> Screen:
        """Return this screen after a check: nothing raw is on it."""
        raw = RAW.search(self.text)
        assert raw is None, f"{raw and raw.group()} in {self}"
        return self

    def shows(self, *patterns: str) -> Screen:
        """Return this screen after a check: each pattern matches its text without line breaks."""
        for pattern in patterns:
            assert re.search(pattern, self.flat), f"{pattern!r} does not match {self}"
        return self

    def __str__(self) -> str:
        return f"`{self.command}`, exit code {self.code}, {self.seconds:.0f} s:\n{self.text[-6000:]}"


@dataclass
class Running:
    """A command of another shell of the owner, or of another person."""

    command: str
    process: subprocess.Popen[str]
    log: Path
    began: float = field(default_factory=time.monotonic)

    def screen(self, seconds: float = 300) -> Screen:
        """Wait until the command is over."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.vanish()
            raise AssertionError(f"{self.command} was not over after {seconds:.0f} s:\n{self.text[-4000:]}") from None
        return Screen(self.command, code, self.text, time.monotonic() - self.began)

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def vanish(self) -> None:
        """Kill all of it, as when the controller loses its power."""
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                children.setdefault(int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        family, new = [self.process.pid], [self.process.pid]
        while new:
            new = [child for parent in new for child in children.get(parent, [])]
            family += new
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that nothing new is started meanwhile
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.process.wait(60)


class Owner:
    """An owner of a pair in the container lab, with an inventory of their own."""

    nodes = (1, 2)
    #: The release of the inventory, once a whole run of this session has served it: the nodes have the code of this checkout.
    own = ""

    def __init__(self, folder: Path, profile: str = "lab-stub") -> None:
        self.folder = folder
        self.places = commands.Places()
        self.model = profile
        self.inventory = folder / "mine"
        shutil.copytree(REPO / "inventories/lab", self.inventory)
        if INSTANCE:
            self._move(int(INSTANCE))
        lines = {"lab_dir": str(STATE), "gb10_receipts": str(folder / "receipts"), "gb10_evidence": str(folder / "evidence"), "gb10_profile": profile}
        lines |= {"gb10_lock_file": str(folder / "lock.yml"), **({} if profile == "lab-tiny" else {"vllm_tp2_collective_test": "never"})}
        path = self.inventory / "group_vars/gb10.yml"
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if line.split(":")[0] not in lines]
        path.write_text("\n".join([*kept, *(f"{name}: {json.dumps(value)}" for name, value in lines.items())]) + "\n", encoding="utf-8")

    def _move(self, instance: int) -> None:
        for path in self.inventory.rglob("*.yml"):
            text = path.read_text(encoding="utf-8").replace("172.30.70.", f"172.30.{70 + instance}.").replace("192.168.20", f"10.{76 + instance}.20")
            path.write_text(text, encoding="utf-8")

    # What the owner types.

    def run(self, what: str, *arguments: str, timeout: float = 600, **values: Any) -> Screen:
        """Do something from the controller, and read the screen. `values` are settings by their plain names, with `_` for a blank."""
        return self.begin(what, *arguments, **values).screen(timeout)

    def begin(self, what: str, *arguments: str, **values: Any) -> Running:
        """Do something from another shell. Settings are in a file: at -vvvv Ansible prints those of the command line."""
        if values:
            path = self.folder / f"settings-{time.monotonic_ns()}.json"
            path.write_text(json.dumps(commands.settings({name.replace("_", " "): value for name, value in values.items()})), encoding="utf-8")
            arguments = (*arguments, "-e", f"@{path}")
        return self.shell(commands.play(what, self.inventory, *arguments))

    def undo(self, *roles: str, timeout: float = 600) -> Screen:
        """Undo roles."""
        extra = json.dumps(commands.absent(*roles))
        return self.shell(commands.play("bring up", self.inventory, *commands.tags(*roles), "-e", extra)).screen(timeout)

    def shell(self, words: list[str], env: dict[str, str] | None = None) -> Running:
        """Type a command line in the checkout."""
        log = self.folder / f"screen-{time.monotonic_ns()}"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0", "PATH": path, **(env or {})}
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(words, cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True, start_new_session=True, env=environment)
        return Running(" ".join(words), process, log)

    def on_node(self, what: str, *arguments: str, node: int = 1, timeout: float = 300) -> Screen:
        """Do something on a node, as root."""
        line, start = " ".join([commands.ON_NODE[what], *arguments]), time.monotonic()
        text, _mark, code = self.on(node, f"{line} 2>&1; echo exit=$?", timeout=timeout).rpartition("exit=")
        return Screen(line, int(code), text, time.monotonic() - start)

    # What the owner can look at.

    @staticmethod
    def on(node: int, line: str, check: bool = True, timeout: float = 60) -> str:
        """Run a shell line as root on a node and return what it printed."""
        words = ["docker", "exec", f"gb10-lab{INSTANCE}-{node}", "sh", "-c", line]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0 or not check, f"node {node}: {line}: {done.stderr}"
        return done.stdout

    def container(self, node: int) -> dict[str, Any] | None:
        """Return what the Docker Engine reports of the engine's container of a node; None without one."""
        found = json.loads(self.on(node, f"docker inspect {self.places.container(node - 1)} 2>/dev/null || true") or "[]")
        return dict(found[0]) if found else None

    def identity(self) -> list[tuple[str, str]]:
        """Return id and start of each rank's container: the same as before means that nothing was restarted."""
        found = [self.container(node) for node in self.nodes]
        assert all(found), "a rank has no container"
        return [(state["Id"], state["State"]["StartedAt"]) for state in found if state]

    def gone(self) -> bool:
        """Return whether no rank is left, neither container nor process."""
        return all(self.container(node) is None and not self.on(node, "pgrep -f '[v]llm serve' || true").strip() for node in self.nodes)

    def releases(self) -> list[str]:
        """Return the release that runs on each node; empty where none runs."""
        found = [self.container(node) for node in self.nodes]
        return [str(state["Config"]["Labels"].get("gb10.cluster.release", "")) if state and state["State"]["Running"] else "" for state in found]

    def key(self) -> str:
        """Return the API key that the head keeps; empty without one."""
        return self.on(1, f"cut -d= -f2 {self.places.api_key} 2>/dev/null || true").strip()

    def complete(self, prompt: str = PROMPT, key: str | None = None, seconds: float = 60) -> tuple[int, str]:
        """Ask the endpoint for a completion; return (status, text)."""
        key = self.key() if key is None else key
        body = json.dumps({"model": self.model, "prompt": prompt, "max_tokens": 32, "temperature": 0}).encode()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(f"http://172.30.{70 + int(INSTANCE or 0)}.11:8000/v1/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, str(json.load(answer)["choices"][0]["text"])
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode("utf-8", "replace")
        except (OSError, ValueError, KeyError) as error:
            return 0, str(error)

    def serves(self) -> bool:
        """Return whether the right completion comes back now."""
        return self.complete() == SERVES

    def comes_back(self, seconds: float = 150) -> bool:
        """Wait until the pair serves by itself, and its agent has nothing left to do."""
        return wait_for(lambda: self.serves() and self.settled(), seconds, 1)

    def settled(self) -> bool:
        """Return whether the head reports that the pair serves."""
        return bool(re.search(r"serving|serves", self.on(1, f"{commands.ON_NODE['status']} 2>&1 || true")))

    def now(self) -> str:
        """Return the time of the head, as its events have it."""
        return self.on(1, "date -u +%Y-%m-%dT%H:%M:%SZ").strip()

    def events(self, since: str, pattern: str) -> list[str]:
        """Return the events since a time of the head that match."""
        lines = self.on_node("events", "-n", "300").text.splitlines()
        return [line for line in lines if line[:20] >= since and re.search(pattern, line)]

    def noticed(self, since: str, cause: str, seconds: float = 120) -> bool:
        """Wait for the event of a fault since a time of the head whose text matches."""
        return wait_for(lambda: bool(self.events(since, rf"(?:fault|waits): .*(?:{cause})")), seconds, 1)

    # What goes wrong.

    def fault(self, *lines: str) -> None:
        """Write the fault file of the stub on both nodes (lab/engine/faults.py); without lines it is removed."""
        text = "\n".join(lines)
        for node in self.nodes:
            self.on(node, f"mkdir -p /srv/models/stub-control; printf '%s\\n' '{text}' >/srv/models/stub-control/faults")

    def boot_takes(self, seconds: float) -> None:
        """Let the next boots of the stub take some seconds, so that something can happen in them."""
        for node in self.nodes:
            self.on(node, f"mkdir -p /srv/models/stub-control; echo {seconds} >/srv/models/stub-control/seconds")

    def boots(self, since: float, seconds: float = 90) -> bool:
        """Wait until each rank of a boot that began after `since` (seconds since the epoch) runs, and its worker reads its configuration."""
        line = f"docker logs --since {since:.0f} {self.places.container(1)} 2>&1 | grep -q 'Using max model len' && echo yes || true"
        return wait_for(lambda: self.on(2, line, check=False).strip() == "yes" and all(self.releases()), seconds, 0.3)

    def fresh(self) -> None:
        """Take everything of the collection from the nodes, as if they were new."""
        self.undo("docker").passed()
        agent, user = self.places.agent_unit, self.places.agent_user
        for node in self.nodes:
            self.on(
                node,
                f"systemctl disable --now {agent} 2>/dev/null; pkill -KILL -u {user}; docker rm -f $(docker ps -aq) 2>/dev/null;"
                f" userdel --force {user} 2>/dev/null; rm -rf {self.places.all} /srv/models/vllm-cache*; systemctl daemon-reload",
                check=False,
            )

    def inventory_file(self, name: str, change: Callable[[str], str]) -> None:
        """Edit a file of the inventory."""
        path = self.inventory / name
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")

    def variables(self) -> dict[str, Any]:
        """Return the group variables of the inventory."""
        return dict(yaml.safe_load((self.inventory / "group_vars/gb10.yml").read_text(encoding="utf-8")))
