"""What an owner does, as the command that does it today, and where its results are.

A redesign changes this file and the golden screens, in a commit of its own. The sentences of the net and what they assert stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: What an owner does from the controller: the playbook.
PLAYBOOKS = {
    "bring up": "site.yml",
    "stop": "playbooks/stop.yml",
    "status": "playbooks/status.yml",
    "doctor": "playbooks/doctor.yml",
    "logs": "playbooks/logs.yml",
    "report": "playbooks/report.yml",
    "bench": "playbooks/bench.yml",
    "soak": "playbooks/soak.yml",
    "smoke": "playbooks/smoke.yml",
    "sanity": "playbooks/sanity.yml",
    "evidence": "playbooks/evidence.yml",
    "roll back": "playbooks/rollback.yml",
    "reboot": "playbooks/reboot.yml",
    "upgrade": "playbooks/upgrade.yml",
    "validate": "playbooks/validate.yml",
    "list profiles": "playbooks/profiles.yml",
    "import a recipe": "playbooks/import.yml",
    "set up": "playbooks/setup.yml",
}
#: What an owner does on the head, without a controller.
ON_NODE = {
    "status": "gb10 status",
    "why": "gb10 why",
    "events": "gb10 events",
    "logs": "gb10 logs",
    "stop": "gb10 stop",
    "stop here": "gb10 stop --here",
    "start": "gb10 start",
}
#: The variables of an inventory by what they set.
SETTINGS = {
    "profile": "gb10_profile",
    "profiles": "gb10_profiles",
    "context": "vllm_tp2_context",
    "requests": "vllm_tp2_max_num_seqs",
    "utilization": "vllm_tp2_gpu_memory_utilization",
    "unsafe memory": "vllm_tp2_allow_unsafe_memory",
    "plan": "vllm_tp2_plan",
    "validate memory": "validate_memory",
    "gate": "vllm_tp2_gate",
    "api key": "vllm_tp2_api_key",
    "extra arguments": "vllm_tp2_extra_args",
    "extra environment": "vllm_tp2_extra_env",
    "rollback": "vllm_tp2_rollback",
    "attempts": "vllm_tp2_attempts",
    "restart": "vllm_tp2_restart",
    "wait seconds": "vllm_tp2_wait_seconds",
    "free memory": "vllm_tp2_wait_available",
    "phase seconds": "vllm_tp2_phase_seconds",
    "watch": "vllm_tp2_watch",
    "locked memory": "docker_memlock",
    "log driver": "docker_log_driver",
    "takeover": "takeover",
    "release": "rollback_release",
    "output": "output",
    "since": "since",
    "grep": "grep",
    "recipe": "recipe",
    "label": "evidence_label",
    "compare": "evidence_compare",
    "bench suite": "bench_suite",
    "bench levels": "bench_levels",
    "bench folder": "gb10_bench",
    "soak against": "soak_against",
    "soak hours": "soak_hours",
    "soak interval": "soak_interval",
    "pip arguments": "bench_pip_arguments",
    "receipts": "gb10_receipts",
    "evidence": "gb10_evidence",
    "rail mtu": "roce_mtu",
    "rail interfaces": "roce_interfaces",
    "confirm seconds": "roce_confirm_seconds",
    "reboot all": "reboot_all",
    "roles of whole groups": "inventory_check_group_stages",
    "profiles folder": "gb10_profiles_directory",
    "first address": "gb10_fabric_first",
    "secret environment": "vllm_tp2_secret_env",
    "build arguments": "image_build_args",
    "rendered": "validate_output",
    "profile name": "profile_name",
    "set up inventory": "setup_inventory",
    "set up head": "setup_head",
    "model store": "gb10_model_store",
    "lock file": "gb10_lock_file",
    "lock update": "gb10_lock_update",
}
#: The roles, in the order of a run: the tag of each, and its state `absent`.
ROLES = ("preflight", "sysctl", "readahead", "gpu", "docker", "roce", "image", "weights", "vllm_tp2")
SERVING = "vllm_tp2"
#: The roles that prepare a node, and those of them that set something.
HOST_ROLES = ("preflight", "sysctl", "readahead", "docker", "roce")
#: What the host roles own on a node.
NETPLAN = "/etc/netplan/60-gb10-cluster.yaml"
SYSCTL = "/etc/sysctl.d/60-gb10-cluster.conf"
STATE = "/var/lib/gb10-cluster"
NETWORK_PENDING = f"{STATE}/roce/pending"


def play(what: str, inventory: Path, *arguments: str) -> list[str]:
    """Return the command line of something that an owner does from the controller."""
    return ["ansible-playbook", PLAYBOOKS[what], "-i", str(inventory), *arguments]


def tags(*roles: str) -> tuple[str, str]:
    """Return the arguments that limit a run to roles."""
    return ("--tags", ",".join(roles))


def settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return variables from settings by their plain names."""
    return {SETTINGS[name]: value for name, value in values.items()}


def misspelt(what: str) -> str:
    """Return the variable of a setting without its last letter but one."""
    return SETTINGS[what][:-2] + SETTINGS[what][-1]


def absent(*roles: str) -> dict[str, str]:
    """Return the variables that undo roles."""
    return {f"{role}_state": "absent" for role in roles}


class Places:
    """Where a group's results are on a node."""

    def __init__(self, group: str = "pair1") -> None:
        self.group = group
        self.folder = f"/opt/gb10-cluster/vllm_tp2/{group}"
        self.api_key = f"{self.folder}/api_key"
        self.current = f"{self.folder}/current"
        self.releases = f"{self.folder}/releases"
        self.release = f"{self.folder}/current/release.json"
        self.receipt = f"{self.folder}/current/receipt.json"
        self.compose = f"{self.folder}/current/compose.yaml"
        self.collective = f"{self.folder}/collective.json"
        #: Everything that the agent has on a node, next to its user.
        self.agent = (
            "/usr/local/sbin/gb10 /etc/gb10-cluster/agent.json /etc/systemd/system/gb10-agent.service /run/gb10-agent /opt/gb10-cluster/agent"
            " /var/lib/gb10-cluster/agent /var/lib/gb10-agent"
        )
        self.caches = "/srv/models/vllm-cache*"
        self.models = "/srv/models"
        self.agent_unit = "gb10-agent"
        self.agent_user = "gb10-agent"
        #: All that a serving group leaves on a node while it serves.
        self.all = f"/opt/gb10-cluster /etc/gb10-cluster /var/lib/gb10-cluster {self.agent}"

    #: What the role docker writes: the settings of the daemon, the limit of its unit.
    daemon = "/etc/docker/daemon.json"
    daemon_limits = ("/etc/systemd/system/docker.service.d/60-gb10-cluster.conf",)

    def container(self, rank: int) -> str:
        """Return the name of a rank's container."""
        return f"gb10-{self.group}-rank{rank}"
