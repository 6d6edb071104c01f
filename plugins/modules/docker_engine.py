#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker Engine's host settings for serving containers: limits, log rotation, live-restore, CDI; merged, recorded, undone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_engine
short_description: Give Docker Engine the limits that RDMA serving needs, without owning its configuration
version_added: 0.1.0
description:
  - Merges a few keys into C(/etc/docker/daemon.json), writes a systemd drop-in and a limits.d file, enables the CDI refresh of the
    NVIDIA container toolkit where it is installed, and starts and enables the engine.
  - What stood before is recorded in C(/var/lib/gb10-cluster/docker.json); O(state=absent) gives exactly that back, and leaves
    alone what somebody changed since.
  - Limits and log options take effect when the daemon starts next. It is restarted for them only while no container runs, because a Compose file gives
    them to its containers itself.
  - For O(live_restore) it is restarted as O(restart) says, and never while a serving container runs. Until then RV(restart_required) is true and
    RV(message) says what to do.
  - It never installs or replaces the engine; RV(packages) names what is missing. It removes packages only with O(remove_packages), and only
    those that were installed for its caller.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) sets, V(absent) gives back what stood before.
    type: str
    choices: [present, absent]
    default: present
  memlock:
    description:
      - Locked memory for containers, the daemon and log-in sessions. V(unlimited), bytes (V(8388608)), a size (V(64m)), or V(leave).
    type: str
    default: unlimited
  stack:
    description:
      - Stack size for containers, as O(memlock) is written.
    type: str
    default: '67108864'
  log_driver:
    description:
      - Log driver to set unless the user chose one; V(leave) sets neither driver nor rotation.
    type: str
    choices: [json-file, local, leave]
    default: json-file
  log_opts:
    description:
      - Rotation for a driver that writes files, each key set unless the user chose it.
    type: dict
    default: {}
  live_restore:
    description:
      - Whether containers live on while the daemon restarts. V(leave) does not touch the key.
    type: str
    choices: [leave, 'true', 'false']
    default: leave
  cdi_refresh:
    description:
      - Enable C(nvidia-cdi-refresh) where the NVIDIA container toolkit brings it, so that a C(systemctl daemon-reload) does not take
        the GPU away from running containers.
    type: bool
    default: true
  compose_minimum:
    description:
      - Oldest compose plugin that will do.
    type: str
    default: '2.18'
  packages:
    description:
      - What to install when something is missing, instead of what the module finds in apt; only passed on to RV(packages).
    type: list
    elements: str
    default: []
  installed:
    description:
      - Packages that the caller has just installed; they are kept in the record for O(remove_packages).
    type: list
    elements: str
    default: []
  remove_packages:
    description:
      - With O(state=absent), also remove the packages that the record names as installed for this module's caller. Images and volumes stay.
    type: bool
    default: false
  serving_label:
    description:
      - Running containers with this label count as serving, and hold a restart back.
    type: str
    default: gb10.cluster.group
  restart:
    description:
      - V(idle) restarts the daemon only while no container runs. V(needed) also stops containers that are not serving, for a setting that requires
        a restart. V(never) only reports it.
    type: str
    choices: [needed, idle, never]
    default: idle
  start_timeout:
    description:
      - Seconds to wait for the engine to answer after a start.
    type: int
    default: 120
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Let containers lock all memory, keep their logs bounded
  gb10.cluster.docker_engine:
    memlock: unlimited
    log_opts:
      max-size: 50m
      max-file: "5"
  become: true
  register: engine

- name: Give Docker's settings back as they were
  gb10.cluster.docker_engine:
    state: absent
  become: true
"""

RETURN = r"""
engine:
  description: The engine as it is at the end; C(memlock) is the running daemon's hard limit in bytes, -1 for unlimited.
  returned: success
  type: dict
  sample: {version: 28.2.2, compose: 2.26.1, active: true, enabled: true, pid: 812, memlock: -1}
changes:
  description: What was changed, or would be, one sentence each.
  returned: always
  type: list
  elements: str
  sample: ['default-ulimits.memlock: not set -> {"Hard": -1, "Name": "memlock", "Soft": -1}']
left:
  description: What was left alone, and why.
  returned: always
  type: list
  elements: str
  sample: ['log-driver stays "journald", which was chosen before us']
packages:
  description: Packages that are missing; empty when an engine answers and its compose plugin is recent enough.
  returned: always
  type: list
  elements: str
  sample: [docker.io, docker-compose]
serving:
  description: Names of the running serving containers.
  returned: always
  type: list
  elements: str
  sample: [vllm-pair1-rank0]
restart_required:
  description: Whether a setting requires a restart of the daemon that did not happen.
  returned: always
  type: bool
restarted:
  description: Whether the daemon was restarted, or would be.
  returned: always
  type: bool
message:
  description: One sentence on the restart; empty when none was needed.
  returned: always
  type: str
  sample: restarted for default limits and log options, LimitMEMLOCK
"""

import os
import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker import daemon_json
from ansible_collections.gb10.cluster.plugins.module_utils._docker import engine as docker_engine
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.engine import Engine
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Changes, FileChange, Node, RecordError

RECORD = "docker"
REPLY_SECONDS = 20


def can_raise(wanted: int) -> bool:
    """Ask the kernel whether this process may raise its hard limit to `wanted` bytes (-1: unlimited); a limit below is not set."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY or (wanted != docker_engine.UNLIMITED and wanted <= hard):
        return True
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, wanted))
    except (ValueError, OSError):
        return False
    return True


class Docker:
    """The engine of one node: look, plan, apply."""

    def __init__(
        self,
        node: Node,
        params: Mapping[str, Any],
        check_mode: bool,
        raisable: Callable[[int], bool] = can_raise,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep the node, the module's options and what the tests replace."""
        self.node = node
        self.params = params
        self.check_mode = check_mode
        self.raisable = raisable
        self.pause = pause
        self.changes = Changes()
        self.left: list[str] = []

    def command(self, *argv: str) -> tuple[int, str]:
        """Run a command; its output, or its complaint."""
        rc, out, err = self.node.run(argv)
        return rc, out if rc == 0 else (err or out)

    def must(self, *argv: str) -> None:
        """Run a command that has to work. Raises DockerError."""
        rc, text = self.command(*argv)
        if rc != 0:
            last = (text.strip().splitlines() or ["no output"])[-1]
            raise DockerError(f"{' '.join(argv)} failed (rc {rc}: {last}): read journalctl -u docker -n 50")

    def look(self) -> Engine:
        """Return the engine as it is."""
        rc, text = self.command("systemctl", "show", "docker.service", "-p", "LoadState,ActiveState,UnitFileState,MainPID,InvocationID,LimitMEMLOCK")
        shown = docker_engine.parse_properties(text) if rc == 0 else {}
        pid = int(shown.get("MainPID", "0") or "0")
        rc, text = self.command("docker", "version", "--format", "{{.Server.Version}}")
        version = text.strip() if rc == 0 and text.strip() else None
        silent = "" if version else (text.strip().splitlines() or [""])[-1]
        rc, compose = self.command("docker", "compose", "version", "--short")
        limits = docker_engine.parse_proc_limits(self.node.read(f"/proc/{pid}/limits")) if pid else None
        return Engine(
            unit=shown.get("LoadState") == "loaded",
            active=shown.get("ActiveState") in ("active", "activating", "reloading"),
            enabled=shown.get("UnitFileState", "").startswith("enabled"),
            pid=pid,
            invocation=shown.get("InvocationID", ""),
            flags=docker_engine.parse_flags(self.node.read(f"/proc/{pid}/cmdline")) if pid else (),
            unit_memlock=docker_engine.parse_unit_limit(shown.get("LimitMEMLOCK")),
            memlock=limits[1] if limits else None,
            version=version,
            compose=compose.strip() if rc == 0 and compose.strip() else None,
            silent=silent,
        )

    def refuse_foreign(self) -> None:
        """Refuse a snap and Podman's imitation."""
        rc, text = self.command("systemctl", "list-unit-files", "--no-legend", "snap.docker.*")
        units = [line.split()[0] for line in text.splitlines() if line.strip()] if rc == 0 else []
        _rc, version = self.command("docker", "--version")
        docker_engine.check_foreign(version, units)

    def containers(self, engine: Engine) -> tuple[list[str], list[str]]:
        """Return the running containers: (serving, others)."""
        if engine.version is None:
            return [], []
        rc, text = self.command("docker", "ps", "--format", '{{{{.Names}}}}\t{{{{.Label "{}"}}}}'.format(self.params["serving_label"]))
        if rc != 0:
            raise DockerError(f"docker ps failed on a running engine ({text.strip()}): read journalctl -u docker -n 50")
        return docker_engine.parse_containers(text)

    def missing_packages(self, engine: Engine) -> list[str]:
        """Return what has to be installed."""
        whole = engine.unit or engine.version is not None
        if whole and docker_engine.compose_enough(engine.compose, self.params["compose_minimum"]):
            return []
        names = ["docker.io", "docker-cli", "docker-ce", "docker-compose-plugin", "docker-compose-v2", "docker-compose"]
        rc, text = self.command("env", "LC_ALL=C", "apt-cache", "policy", *names)
        policy = docker_engine.parse_policy(text) if rc == 0 else {}
        distribution = docker_engine.parse_os_id(self.node.read("/etc/os-release"))
        return docker_engine.choose_packages(engine, policy, distribution, self.params["compose_minimum"], self.params["packages"])

    def cdi_to_enable(self) -> list[str]:
        """Return the CDI refresh units that are installed and not enabled."""
        if not self.params["cdi_refresh"]:
            return []
        rc, text = self.command("systemctl", "list-unit-files", "--no-legend", *docker_engine.CDI_UNITS)
        rows = [line.split() for line in text.splitlines()] if rc == 0 else []
        return [row[0] for row in rows if len(row) > 1 and row[0] in docker_engine.CDI_UNITS and row[1] == "disabled"]

    def write(self, change: FileChange, said: str) -> bool:
        """Write a file unless this is check mode; whether it changes."""
        if not change.changed:
            return False
        self.changes.file(change, said)
        if not self.check_mode:
            self.node.apply(change)
        return True

    def file(self, path: str, after: str | None) -> FileChange:
        """Return the change that makes `path` hold `after`."""
        return FileChange(path, self.node.read(path), after, 0o644)

    def validate_daemon_json(self, text: str | None) -> None:
        """Have dockerd judge the merged file before it replaces the one that works; engines before 23.0 cannot."""
        if text is None or self.check_mode:
            return
        candidate = f"{daemon_json.PATH}.gb10-candidate"
        self.node.apply(FileChange(candidate, None, text, 0o600))
        try:
            rc, said = self.command("dockerd", "--validate", "--config-file", self.node.at(candidate))
        finally:
            self.node.apply(FileChange(candidate, text, None))
        if rc not in (0, 127) and "unknown flag" not in said:
            last = (said.strip().splitlines() or ["no output"])[-1]
            raise DockerError(f"dockerd refuses the merged {daemon_json.PATH} ({last}), so nothing was changed: correct that key there first")

    def restart_and_wait(self, engine: Engine, decision: docker_engine.Restart) -> None:
        """Start or restart the daemon, and wait until it answers."""
        if self.check_mode:
            return
        if decision.now:
            self.must("systemctl", "daemon-reload")
            self.must("systemctl", "restart", "docker.service")
        elif not engine.active:
            self.must("systemctl", "daemon-reload")
            self.must("systemctl", "start", "docker.service")
        else:
            return
        waited = 0.0
        while self.command("docker", "version", "--format", "{{.Server.Version}}")[0] != 0 and waited < self.params["start_timeout"]:
            self.pause(1.0)
            waited += 1.0

    def present(self) -> dict[str, Any]:
        """Set everything. Raises DockerError, DaemonJsonError, RecordError, OSError."""
        memlock = docker_engine.parse_limit(self.params["memlock"], "docker_memlock")
        stack = docker_engine.parse_limit(self.params["stack"], "docker_stack")
        engine = self.look()
        if engine.version is None or not engine.unit:
            self.refuse_foreign()
        if engine.version is not None and not engine.unit:
            raise DockerError(
                f"a Docker Engine {engine.version} answers, but systemd has no docker.service for it, so it would be gone after a reboot: "
                "install a package that brings the unit, or stop that daemon and let this role install one"
            )
        init = docker_engine.parse_proc_limits(self.node.read("/proc/1/limits"))
        if memlock is not None and init is not None:
            docker_engine.check_attainable(memlock, init[1], self.raisable(memlock))
        packages = self.missing_packages(engine)
        if packages and not self.check_mode:
            raise DockerError(
                "Docker Engine with a compose plugin from {} on is not complete on this node: install {} first (the docker role does)".format(
                    self.params["compose_minimum"], ", ".join(packages)
                )
            )
        record = self.node.load_record(RECORD)
        serving, others = self.containers(engine)

        before = self.node.read(daemon_json.PATH)
        old = record.get("daemon", {})
        settings = daemon_json.wanted_settings(
            memlock,
            stack,
            self.params["log_driver"],
            self.params["log_opts"],
            {"true": True, "false": False}.get(self.params["live_restore"]),
            engine.flags,
            daemon_json.parse(before),
            daemon_json.owned_paths(old),
        )
        merged = daemon_json.merge(before, settings, old)
        drop_in = self.file(docker_engine.DROP_IN, None if memlock is None else docker_engine.render_drop_in(memlock))
        limits = self.file(docker_engine.LIMITS, None if memlock is None else docker_engine.render_limits(memlock))
        for change in (drop_in, limits):
            if change.before is not None and docker_engine.MARKER not in change.before:
                raise DockerError(f"{change.path} exists and is not ours (it lacks the line {docker_engine.MARKER!r}): move it away, then run again")
        cdi = self.cdi_to_enable()
        pending = self.pending(record, engine, before, merged.text, drop_in.changed)
        known = engine.active and engine.version is not None  # an engine that does not answer may run containers
        decision = docker_engine.decide_restart(pending, known, serving, self.params["restart"], others)
        if merged.text != before:
            self.validate_daemon_json(merged.text)

        after = {
            "daemon": merged.record,
            "enabled_before": record.get("enabled_before", engine.enabled or bool(self.params["installed"])),
            "cdi": sorted(set(record.get("cdi", [])) | set(cdi)),
            "installed": sorted(set(record.get("installed", [])) | set(self.params["installed"])),
        }
        if pending and engine.active:
            after["pending"] = {"invocation": engine.invocation, "what": pending}
        if not self.check_mode:
            self.node.save_record(RECORD, after)
        self.left.extend(merged.left)
        self.write(FileChange(daemon_json.PATH, before, merged.text, 0o644), "; ".join(merged.changes))
        self.write(drop_in, f"LimitMEMLOCK in {docker_engine.DROP_IN}")
        self.write(limits, f"memlock for log-in sessions in {docker_engine.LIMITS}")
        self.enable(cdi)
        if not engine.enabled and not packages:
            self.changes.step("docker.service enabled")
            self.systemctl("enable", "--no-reload", "docker.service")
        if not engine.active:
            self.changes.step("docker.service started")
        self.restart_and_wait(engine, decision)
        return self.finish(engine, decision, after, memlock, serving, packages)

    def absent(self) -> dict[str, Any]:
        """Give everything back. Raises DockerError, DaemonJsonError, RecordError, OSError."""
        engine = self.look()
        record = self.node.load_record(RECORD)
        serving, others = self.containers(engine)
        before = self.node.read(daemon_json.PATH)
        restored = daemon_json.restore(before, record.get("daemon", {}))
        ours: list[FileChange] = []
        for path in (docker_engine.DROP_IN, docker_engine.LIMITS):
            text = self.node.read(path)
            if text is not None and docker_engine.MARKER not in text:
                self.left.append(f"{path} is not ours, so it stays")
            elif text is not None:
                ours.append(FileChange(path, text, None))
        reload_needed = any(change.path == docker_engine.DROP_IN for change in ours)
        pending = self.pending(record, engine, before, restored.text, reload_needed)
        packages = list(record.get("installed", [])) if self.params["remove_packages"] else []
        if packages and serving:
            raise DockerError(f"docker_remove_engine is true, but {', '.join(serving)} is serving: run playbooks/stop.yml first; nothing was changed")
        known = engine.active and engine.version is not None  # an engine that does not answer may run containers
        decision = docker_engine.decide_restart([] if packages else pending, known, serving, self.params["restart"], others)
        self.left.extend(restored.left)
        self.write(FileChange(daemon_json.PATH, before, restored.text, 0o644), "; ".join(restored.changes) or "daemon.json as before us")
        for change in ours:
            self.write(change, f"{change.path} removed")
        folder = os.path.dirname(docker_engine.DROP_IN)
        if ours and not self.check_mode and self.node.exists(folder) and not self.node.listdir(folder):
            os.rmdir(self.node.at(folder))
        for unit in record.get("cdi", []):
            self.changes.step(f"{unit} disabled, as before us")
            self.systemctl("disable", "--no-reload", unit)
        if record.get("enabled_before") is False and engine.enabled:
            self.changes.step("docker.service disabled, as before us")
            self.systemctl("disable", "--no-reload", "docker.service")
        after: dict[str, Any] = {}
        if decision.needed and not decision.now:
            after = {"pending": {"invocation": engine.invocation, "what": pending}}
        if decision.now:
            self.restart_and_wait(engine, decision)
        if packages:
            self.remove(packages)
        if not self.check_mode:
            self.node.save_record(RECORD, after)
        if decision.now:
            self.changes.step("docker.service restarted")
        return self.result(engine, decision, serving, [])

    def remove(self, packages: list[str]) -> None:
        """Remove packages that were installed for us; the record stays until that worked. Raises DockerError."""
        self.changes.step(f"{', '.join(packages)} removed")
        if self.check_mode:
            return
        rc, text = self.command("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "remove", "--yes", "--quiet", *packages)
        if rc != 0:
            last = (text.strip().splitlines() or ["no output"])[-1]
            raise DockerError(f"apt-get remove {' '.join(packages)} failed ({last}): run it by hand and see what holds them")

    def pending(self, record: Mapping[str, Any], engine: Engine, before: str | None, after: str | None, unit_changed: bool) -> list[str]:
        """Return what takes effect at the daemon's next start: what this run changes, and what an earlier run left to the same daemon."""
        waiting = record.get("pending", {})
        pending = list(waiting.get("what", [])) if waiting.get("invocation") == engine.invocation and engine.active else []
        limits, memlock = docker_engine.PER_SERVICE
        required = before != after and daemon_json.needs_restart(before, after)
        for name, changed in (("daemon.json", required), (limits, before != after and not required), (memlock, unit_changed)):
            if changed and name not in pending:
                pending.append(name)
        return pending

    def systemctl(self, *argv: str) -> None:
        """Run systemctl unless this is check mode."""
        if not self.check_mode:
            self.must("systemctl", *argv)

    def enable(self, units: Sequence[str]) -> None:
        """Enable and start units without a daemon-reload, which would cost running containers their GPU."""
        for unit in units:
            self.changes.step(f"{unit} enabled")
            self.systemctl("enable", "--no-reload", unit)
            self.systemctl("start", unit)

    def finish(
        self,
        engine: Engine,
        decision: docker_engine.Restart,
        record: dict[str, Any],
        memlock: int | None,
        serving: list[str],
        packages: list[str],
    ) -> dict[str, Any]:
        """Look again, compare with what was wanted, and report. Raises DockerError."""
        if decision.now:
            self.changes.step("docker.service restarted")
        if not self.check_mode or not (self.changes.said or packages):
            engine = self.look() if self.changes.said and not self.check_mode else engine
            problems = docker_engine.check_live(engine, memlock, self.params["compose_minimum"], "pending" in record and not decision.now)
            if problems:
                raise DockerError("; ".join(problems))
        if decision.now and not self.check_mode:
            record.pop("pending", None)
            self.node.save_record(RECORD, record)
        return self.result(engine, decision, serving, packages)

    def result(self, engine: Engine, decision: docker_engine.Restart, serving: list[str], packages: list[str]) -> dict[str, Any]:
        """Return the module's result."""
        return {
            "changed": bool(self.changes.said or packages),
            "engine": docker_engine.summary(engine),
            "changes": self.changes.said,
            "left": self.left,
            "packages": packages,
            "serving": serving,
            "restart_required": decision.needed and not decision.now,
            "restarted": decision.now,
            "message": decision.why,
            "diff": self.changes.diff,
        }


def main() -> None:
    """Read, plan, apply, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "memlock": {"type": "str", "default": "unlimited"},
            "stack": {"type": "str", "default": "67108864"},
            "log_driver": {"type": "str", "choices": ["json-file", "local", "leave"], "default": "json-file"},
            "log_opts": {"type": "dict", "default": {}},
            "live_restore": {"type": "str", "choices": ["leave", "true", "false"], "default": "leave"},
            "cdi_refresh": {"type": "bool", "default": True},
            "compose_minimum": {"type": "str", "default": "2.18"},
            "packages": {"type": "list", "elements": "str", "default": []},
            "installed": {"type": "list", "elements": "str", "default": []},
            "remove_packages": {"type": "bool", "default": False},
            "serving_label": {"type": "str", "default": "gb10.cluster.group"},
            "restart": {"type": "str", "choices": ["needed", "idle", "never"], "default": "idle"},
            "start_timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        if not module.get_bin_path(argv[0]):
            return 127, "", f"{argv[0]}: command not found"
        limit = module.get_bin_path("timeout") if argv[0] == "docker" else None  # the command line waits for a frozen engine without end
        rc, out, err = module.run_command([*([limit, "--kill-after=2", str(REPLY_SECONDS)] if limit else []), *argv])
        if limit and rc in (124, 137):
            return int(rc), "", f"no reply within {REPLY_SECONDS} s"
        return int(rc), str(out), str(err)

    docker = Docker(Node("/", run), module.params, module.check_mode)
    try:
        result = docker.present() if module.params["state"] == "present" else docker.absent()
    except (DockerError, daemon_json.DaemonJsonError, RecordError) as error:
        module.fail_json(msg=str(error), changes=docker.changes.said, left=docker.left)
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}): run with become, and look for a read-only file system")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
