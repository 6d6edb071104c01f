# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. One rank's verbs: what a head may ask of a node of its serving group, and what local root may ask besides."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core import redact, text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import Run, loads, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, Node
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, measures
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, memory, node, releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import disobeys
from ansible_collections.gb10.cluster.plugins.module_utils._node.readahead import Readahead
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import kept, release_on_disk
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence, files, look, protocol, rules
from ansible_collections.gb10.cluster.plugins.module_utils._pair.evidence import History
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import Caller, RankError, group_folder, take_arguments
from ansible_collections.gb10.cluster.plugins.module_utils._pair.sampler import Sampler

START_SECONDS = 180.0
STOP_SECONDS = 120.0
DOCTOR_SECONDS = 150.0
LEFT_SECONDS = 30.0
POLL_SECONDS = 1.0
METRICS_SECONDS = 5.0
ERROR_LINES, ERROR_CHARACTERS = 5, 1000


def refused(sentences: str) -> RankError:
    """Return the error of a request that is not accepted."""
    return RankError(sentences, "refused")


def reason(error: Exception) -> str:
    """Return what an exception reports, without a full stop."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}".rstrip(".")


class RankService:
    """The rank of this node. `root` is the root folder of the node's kernel files; `wall` returns seconds since the epoch."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        run: Run = run_command,
        docker_socket: str = "",
        root: str = "/",
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Keep the content of agent.json. Nothing is read or written yet."""
        self.group = str(config["group"])
        self.rank = int(config["rank"])
        self.host = str(config["hosts"][self.rank])
        self.directory = str(config["directory"])
        self.folder = group_folder(config)
        self.project = f"gb10-{self.group}"
        self.docker_socket = docker_socket or str(config.get("docker_socket") or docker_api.DEFAULT_SOCKET)
        self._run = run
        self._root = root
        self._wall = wall
        self._state = Folder(self.folder, protocol.STATE)
        self._work = threading.Lock()  # held while containers change
        self._records = threading.RLock()  # held while owner.json or holds.json changes, never for long
        self._highest = 0  # generation, also if it could not be written
        self.sampler = Sampler(self.group, self.folder, rules.with_defaults(config.get("watch")), self._run, docker_socket=self.docker_socket, root=root)
        self.history = History(self._state, wall)
        self._asked_at = -1.0
        self._started = look.fingerprints(look.STARTED, root)
        self._reclaimed = False  # whether the page cache was dropped for the present start
        self._methods: dict[str, Callable[..., dict[str, Any]]] = {name: getattr(self, f"_{name}") for name in protocol.VERBS}

    # Requests.

    def handle(self, request: Mapping[str, Any], local: bool = False) -> dict[str, Any]:
        """Return the reply to a request; never raises. `local` tells that local root asks: more verbs, and the owner's name is not needed."""
        try:
            return protocol.success(self._answer(request, local))
        except RankError as error:
            return protocol.failure(self._redacted(str(error)), error.kind)
        except docker_api.DockerError as error:
            return protocol.failure(self._redacted(str(error)))
        except OSError as error:
            return protocol.failure(f"{error.filename or 'A file of the agent'} on {self.host} cannot be used: {error.strerror or error}. Correct that there.")
        except Exception as error:  # noqa: BLE001  the head must learn of any failure, and the service goes on
            return protocol.failure(self._redacted(f"{type(error).__name__}: {error}"))
        finally:
            if not local and request.get("verb") != "watch":  # the head may have ended since a long poll began
                self._asked_at = time.monotonic()

    def _redacted(self, text: str) -> str:
        return redact.redact(text, evidence.secrets_in(self.folder))

    @property
    def asked_at(self) -> float:
        """When the head asked last, by the monotonic clock; negative if it has not. A start or stop under way counts until its end."""
        return time.monotonic() if self._work.locked() else self._asked_at

    def _answer(self, request: Mapping[str, Any], local: bool) -> dict[str, Any]:
        name = str(request.get("verb"))
        supported = protocol.VERBS if local else protocol.SESSION_VERBS
        if name not in supported:
            raise RankError(f"{self.host} does not support the verb {repr(name)[:60]}. Supported: {', '.join(supported)}.", "unknown")
        guard, method = protocol.VERBS[name], self._methods[name]
        if not local:
            self._asked_at = time.monotonic()
        arguments = take_arguments(method, request)
        if guard in ("read", "local"):
            return method(**arguments)
        caller = self._caller(request, local)
        if guard == "claim":
            with self._work:  # what an earlier generation has begun ends first
                return method(caller, **arguments)
        unowned = name == "halt"  # a stop is not kept waiting for a claim
        self._authorize(caller, unowned)
        with self._work:
            self._authorize(caller, unowned)  # the owner may have changed, or a stop may have come, while this request waited
            return method(caller, **arguments)

    def _caller(self, request: Mapping[str, Any], local: bool) -> Caller:
        owner = {key: value for key, value in self._owner().items() if value} if local else {}
        found = {"group": self.group, "generation": 0, **owner, **request} if local else request
        return Caller(found["group"], found["head"], found["generation"])

    # Owner.

    def _owner(self) -> dict[str, Any]:
        """Return the content of owner.json, empty texts and zeros if there is none. Raises OSError."""
        with self._records:
            found = self._state.load(protocol.OWNER)
            found = found if isinstance(found, dict) else {}
            return {
                "group": str(found.get("group") or ""),
                "head": str(found.get("head") or ""),
                "generation": max(int(found.get("generation") or 0), self._highest),
                "stop_generation": int(found.get("stop_generation") or 0),
            }

    def _save_owner(self, **changes: Any) -> None:
        """Change owner.json. The generation counts from now on, also if it cannot be written. Raises OSError."""
        with self._records:
            owner = {**self._owner(), **changes}
            self._highest = owner["generation"]
            self._state.save(protocol.OWNER, owner)

    def _check(self, caller: Caller, owner: Mapping[str, Any]) -> None:
        """Raise RankError if the caller is not the owner, or has an older generation."""
        stranger = disobeys({"host": self.host, "group": self.group, "owner": owner}, caller.group, caller.head)
        if stranger:
            raise refused(stranger)
        if caller.generation < owner["generation"]:
            raise refused(f"{self.host} has seen generation {owner['generation']} of the group {self.group}. Generation {caller.generation} is superseded.")

    def _authorize(self, caller: Caller, unowned: bool) -> None:
        """Keep the caller's generation if it is newer. Raises RankError if the caller may not change anything. `unowned` accepts a rank without owner."""
        with self._records:
            owner = self._owner()
            if not owner["head"] and not unowned:
                raise refused(f"{self.host} has no owner yet. The head of the group {self.group} has to claim it first.")
            self._check(caller, owner)
            if caller.generation > owner["generation"]:
                with contextlib.suppress(OSError):  # a full disk must not keep a rank from being stopped
                    self._save_owner(generation=caller.generation)

    def _other_groups(self) -> list[str]:
        """Return the other groups that own this node: the group was renamed, or the node belonged to another one."""
        found = []
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self.directory)):
                with contextlib.suppress(OSError):
                    owner = Folder(os.path.join(self.directory, name), protocol.STATE).load(protocol.OWNER) if name != self.group else None
                    if isinstance(owner, dict) and owner.get("head"):
                        found.append(name)
        return found

    def _refuse_other_groups(self) -> None:
        others = self._other_groups()
        if others:
            raise refused(
                f"{self.host} has another owner: the group {', '.join(others)}. Remove it first (vllm_tp2_state: absent),"
                " or run site.yml with -e takeover=true to change the owner."
            )

    def _hello(self) -> dict[str, Any]:
        owner = self._owner()
        return {
            "protocol": protocol.PROTOCOL,
            "host": self.host,
            "rank": self.rank,
            "group": self.group,
            "owner": {"group": owner["group"], "head": owner["head"]} if owner["head"] else {},
            "generation": owner["generation"],
            "stopped": node.stopped_of(self.folder),
            "stop_generation": owner["stop_generation"],
            "boot_id": self._boot_id(),
            "holds": self._holds(),
            "running": self._started,
        }

    def _claim(self, caller: Caller) -> dict[str, Any]:
        with self._records:
            owner = self._owner()
            self._check(caller, owner)
            if not owner["head"]:
                self._refuse_other_groups()
            wanted = {"group": caller.group, "head": caller.head, "generation": caller.generation}
            if wanted.items() - owner.items():
                try:
                    self._save_owner(**wanted)
                except OSError:  # a full disk must not keep the owner from starting it: the generation counts
                    if not owner["head"]:
                        raise
        return self._hello()

    def _own(self, head: str, group: str, takeover: bool = False) -> dict[str, Any]:
        with self._records:
            owner = self._owner()
            if not takeover:
                self._check(Caller(group, head, owner["generation"]), owner)
                self._refuse_other_groups()
            elif group != self.group:
                raise refused(f"{self.host} is configured for the group {self.group}. Found: {group}. Run site.yml to install the agent for {group}.")
            self._save_owner(group=group, head=head)
            for other in self._other_groups():
                Folder(os.path.join(self.directory, other), protocol.STATE).remove(protocol.OWNER)
        if takeover:
            self._remove_others()
        return self._hello()

    def _remove_others(self) -> None:
        """Remove the containers of other groups that run here: the node has memory for one engine, and `takeover` asks for it. Raises DockerError."""
        for other in node.other_groups(self.group, self.docker_socket):
            names = [str(each["name"]) for each in node.containers_of(other, self.docker_socket)]
            self._docker("stop", *names, timeout=STOP_SECONDS)
            self._docker("rm", "--force", *names, timeout=STOP_SECONDS)

    # Holds.

    def _boot_id(self) -> str:
        return node.text_of(os.path.join(self._root, "proc/sys/kernel/random/boot_id")).strip()

    def _holds(self) -> list[dict[str, Any]]:
        """Return the holds that have not expired. Raises OSError."""
        return files.lasting_holds(self._state.load(protocol.HOLDS), self._boot_id(), self._wall())

    def _hold(self, name: str, reason: str, seconds: float, by: str = "") -> dict[str, Any]:
        with self._records:
            found = [each for each in self._holds() if each["name"] != name]
            found.append(files.new_hold(name, reason, seconds, by, self._boot_id(), self._wall()))
            self._state.save(protocol.HOLDS, found)
        return {"holds": found}

    def _release_hold(self, name: str) -> dict[str, Any]:
        with self._records:
            before = self._holds()
            left = [each for each in before if each["name"] != name]
            if left != before:
                self._state.save(protocol.HOLDS, left)
        return {"holds": left, "released": left != before}

    # Reading.

    def _look(self, release: str = "", free_share: float | None = None, free_only: bool = False, boot_log: bool = False) -> dict[str, Any]:
        read = look.in_short if boot_log else node.look
        seen = read(self.group, self.folder, self.docker_socket, os.path.join(self._root, "proc"))
        manifest = self._manifest(release)
        blocked = free_share is not None and node.not_free(seen["containers"], seen["memory"], free_share, free_only and self._reclaimed, Node(self._root))
        return {
            **seen,
            "receipt": node.receipt_of(self.folder, [release]) if release else seen["receipt"],
            "manifest": manifest,
            "weights": node.weights_of(str(manifest.get("model") or ""), str(manifest.get("drafter") or "")),
            "missing": self._missing(release, seen["releases"], manifest) if release else [],
            "blocked": blocked or "",
        }

    def _doctor(self) -> dict[str, Any]:
        """Return what `gb10 doctor` judges of this rank, read by a process of its own, which gives its memory back."""
        code, text, error = self._run([protocol.PROGRAM, "doctor", "--read"], DOCTOR_SECONDS)
        if code:
            raise RankError(error.strip() or f"`gb10 doctor` on {self.host} ended with exit code {code}.")
        return dict(loads(text))

    def _missing(self, release: str, there: list[dict[str, Any]], manifest: Mapping[str, Any]) -> list[str]:
        """Return which parts of a release this node does not have, one phrase each."""
        found = kept({"releases": there}, release)
        folder = os.path.join(self.folder, "releases", release)
        if not found:
            return [f"{folder}/{releases.COMPOSE} is missing"]
        out = [] if manifest else [f"{folder}/release.json is missing or not valid"]
        out += filter(None, [self._lost_key(release, manifest)])
        if found["image"].get("gone"):
            out.append(f"the image {found['image']['id'][:19]} of release {release} is not available")
        return out

    def _key_files(self, release: str) -> list[str]:
        return look.key_files(self.folder, release)

    def _lost_key(self, release: str, manifest: Mapping[str, Any]) -> str:
        """Return a phrase if the API would be open although it must have a key. Raises OSError if a file cannot be read."""
        places = self._key_files(release)
        lost = manifest.get("has_key") and not api_probe.read_key(places)
        return f"the API key of release {release} is missing: neither {places[0]} nor {places[1]} has one" if lost else ""

    def _slice(self, **arguments: Any) -> dict[str, Any]:
        # Verdicts, events and notices quote lines of the log. The head masks what looks like a secret, this node the values that it knows.
        return look.run_slice({**arguments, "docker_socket": self.docker_socket}, evidence.secrets_in(self.folder))

    def _probe(self, release: str = "", **arguments: Any) -> dict[str, Any]:
        return api_probe.run({**arguments, "env_file": self._key_files(release)})

    def _manifest(self, release: str) -> dict[str, Any]:
        return node.read_json(os.path.join(self.folder, "releases", release, "release.json")) if release else {}

    def _url(self, release: str) -> str:
        manifest = self._manifest(release)
        return api_probe.api_url({"host": manifest.get("host"), "port": manifest.get("port") or 8000})

    def _watch(self, release: str = "", known: int = 0, wait: float = 0.0) -> dict[str, Any]:
        sample = self.sampler.wait(release, known, wait)
        return {"hello": self._hello(), "sample": {**sample, "url": self._url(release)}}

    def _memory(self) -> dict[str, Any]:
        return dict(self.history.shown())

    def _engine(self, release: str = "") -> dict[str, Any]:
        """Return the engine's requests and tokens; `tokens` is None if it does not answer."""
        status, text = api_probe.Server(self._url(release), "", METRICS_SECONDS).call("GET", "/metrics")
        found = measures.sample(text) if status == 200 else None
        return {"status": status, "running": found.running if found else 0, "waiting": found.waiting if found else 0, "tokens": found.tokens if found else None}

    # Changing.

    def _reclaim(self, _by: Caller) -> dict[str, Any]:
        note = memory.reclaim(Node(self._root, self._run))
        self._reclaimed = not note
        return {"note": note}

    def _phase(self, _by: Caller, phase: str, seconds: float = 0.0) -> dict[str, Any]:
        try:
            return {"note": "; ".join(Readahead(Editor(Node(self._root, self._run), False)).phase(phase, int(seconds)))}
        except Exception as error:  # noqa: BLE001  a rank can serve without it
            return {"note": f"The {phase} phase of the disks has not begun: {reason(error)}."}

    def _docker(self, *words: str, timeout: float, cwd: str | None = None) -> str:
        """Run the docker CLI. Return why it failed: its last lines, without secrets; empty if it did not."""
        code, out, err = self._run(["docker", *words], timeout, cwd, {"DOCKER_HOST": f"unix://{self.docker_socket}"})
        if code == 0:
            return ""
        # Masked before it is cut: a part of a secret would not be found.
        lines = [line.strip() for line in self._redacted(err if err.strip() else out).splitlines() if line.strip()]
        return "\n".join(lines[-ERROR_LINES:])[-ERROR_CHARACTERS:] or f"docker {words[0]} failed with exit code {code} and without a message."

    def _compose(self, release: str, *words: str, timeout: float) -> str:
        folder = os.path.join(self.folder, "releases", release)
        return self._docker("compose", "--project-name", self.project, *words, timeout=timeout, cwd=folder)

    def _start(self, caller: Caller, release: str) -> dict[str, Any]:
        stopped = self._owner()["stop_generation"]
        if caller.generation <= stopped:
            raise refused(f"{self.host} was stopped by generation {stopped}, and generation {caller.generation} cannot start it. Run site.yml to start it.")
        self._unmark()
        compose = os.path.join(self.folder, "releases", release, releases.COMPOSE)
        if not os.path.isfile(compose):
            return {"error": f"{compose} is missing on {self.host}. Run site.yml to write it."}
        lost = self._lost_key(release, self._manifest(release))
        if lost:
            return {"error": f"{lost}. Run site.yml."}
        more, problem = self._fabric(release)
        return {"error": problem or self._compose(release, *more, "up", "--detach", "--pull", "never", timeout=START_SECONDS)}

    def _unmark(self) -> None:
        mark = os.path.join(self.folder, protocol.STOPPED)
        if os.path.lexists(mark):  # a read-only disk also refuses to remove what is not there
            os.unlink(mark)

    def _fabric(self, release: str) -> tuple[list[str], str]:
        """Resolve the fabric variables of this start. Return the words of Compose that add them, and why they cannot be resolved."""
        wanted = self._manifest(release).get("fabric")
        if not isinstance(wanted, dict):
            return [], ""
        env, problem = files.resolve_fabric(wanted, self._run, self._root)
        if problem:
            return [], f"{problem} Correct that on {self.host}, then run site.yml."
        return ["--file", releases.COMPOSE, "--file", files.keep_fabric(env, self._state, Folder(protocol.RUN))], ""

    def _halt(self, caller: Caller, label: str = "", mark: str = "", kill: bool = False) -> dict[str, Any]:
        problems = self._mark(mark, caller.generation) if mark else []
        return self._stop(label, problems, kill)

    def _mark(self, mark: str, generation: int) -> list[str]:
        """Mark that the group is not expected to serve, and return what could not be written: the rank is stopped all the same."""
        problems = []
        try:
            if not node.stopped_of(self.folder):  # an older mark has the time of the first request
                Folder(self.folder).write(protocol.STOPPED, f"{mark}\n", 0o640)
        except OSError as error:
            problems.append(f"The stop is not marked on {self.host}: {reason(error)}.")
        try:
            with self._records:
                owner = self._owner()
                wanted = {"generation": max(generation, owner["generation"]), "stop_generation": max(generation, owner["stop_generation"])}
                if wanted.items() - owner.items():
                    self._save_owner(**wanted)
        except OSError as error:
            problems.append(f"The generation of the stop is not kept on {self.host}: {reason(error)}.")
        return problems

    def _containers(self) -> list[dict[str, Any]]:
        """Return the group's containers. Raises DockerError if the Docker Engine does not answer."""
        return list(node.containers_of(self.group, self.docker_socket))

    def _running(self) -> list[str]:
        return [str(each["name"]) for each in self._containers() if each["running"]]

    def _stop(self, label: str, problems: list[str], kill: bool = False) -> dict[str, Any]:
        """Stop this rank, keep evidence with this label, remove the containers and read back what runs. Raises DockerError."""
        found = self._containers()
        running = [str(each["name"]) for each in found if each["running"]]
        if running:
            self._docker("kill" if kill else "stop", *running, timeout=STOP_SECONDS)
        path = ""
        if label:
            path, problem = self._evidence(label, bool(found))
            problems = [*problems, problem]
        trouble = self._remove(found) if found else ""
        deadline = time.monotonic() + LEFT_SECONDS
        left = self._running() if found else []
        while left and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            left = self._running()
        if left and trouble:
            problems = [*problems, f"The Docker Engine on {self.host} reports: {trouble}"]
        return {"left": left, "evidence": path, "note": " ".join(filter(None, problems))}

    def _evidence(self, label: str, new: bool) -> tuple[str, str]:
        """Return where the evidence is, and why it is missing. What was kept stays if there is nothing `new`: the containers are removed by then."""
        name = evidence.file_name(self.rank, self.host)
        try:
            if new or not Folder(self.folder, protocol.EVIDENCE, label).exists(name):
                parts = evidence.collect(self.group, self.folder, self._run, self.history.shown(), self.docker_socket)
                evidence.keep(self.folder, label, name, evidence.joined(*parts))
            return os.path.join(self.folder, protocol.EVIDENCE, label, name), ""
        except Exception as error:  # noqa: BLE001  evidence that cannot be kept must not keep a rank from being stopped
            return "", f"The evidence of {self.host} is not kept: {reason(error)}."

    def _remove(self, found: list[dict[str, Any]]) -> str:
        """Remove the group's containers. Return the last message of the Docker Engine if one is left. Raises DockerError."""
        info = {"releases": node.releases_in(self.folder), "containers": found, "current": node.current_of(self.folder)}
        release = release_on_disk(info)
        if release:
            self._compose(release, "down", "--remove-orphans", timeout=STOP_SECONDS)
        # Also if the files of the release are lost, or Compose cannot read them.
        names = [str(each["name"]) for each in self._containers()]
        return self._docker("rm", "--force", *names, timeout=STOP_SECONDS) if names else ""

    def _record(self, _by: Caller, release: str, receipt: dict[str, Any], rolled_back: dict[str, str] | None = None) -> dict[str, Any]:
        try:
            releases.record(self.folder, release, receipt)
            self._unmark()
        except OSError as error:
            raise RankError(f"The receipt of release {release} is not kept on {self.host}: {reason(error)}. Free space there, then run site.yml.") from error
        try:
            if rolled_back and rolled_back.get("to") == release:  # the release before serves again if a rollback has failed
                releases.record_rollback(self.folder, rolled_back)
        except OSError as error:
            return {"note": f"could not record the rollback: {reason(error)}. The next one may return to the release that was left."}
        return {}

    def _stop_here(self, by: str = "") -> dict[str, Any]:
        with self._records:
            generation = self._owner()["generation"] + 1  # also if it is marked: the head may have a newer request that it has not sent yet
            mark = text.stamp(self._wall()) + (f" by {by}" if by else "")
            problems = self._mark(mark, generation)
        with self._work:
            return {**self._stop("", problems), "generation": generation}
