# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC. Data: the IDs of the checks in the order of the report, each with why a finding matters and its remedy.

A check that explains each finding itself has empty texts. The texts have no capital and no full stop.
"""

from __future__ import annotations

from typing import NamedTuple

SEVERITIES = ("error", "warning", "info")
#: Commands of remedies, which doctor.yml prints with the login of the node.
MASK_SLEEP = "sudo systemctl mask sleep.target suspend.target hibernate.target hybrid-sleep.target"
NEW_MACHINE_ID = "sudo rm -f /etc/machine-id /var/lib/dbus/machine-id && sudo systemd-machine-id-setup"
# What the failure of a node that was not read answers. All other checks need its facts.
ACCESS = ("reachable", "sudo", "python")


class Check(NamedTuple):
    """Why a finding of a check matters, and the remedy."""

    matters: str = ""
    remedy: str = ""


_UPDATE = "update all nodes the same way (DGX Dashboard, or apt dist-upgrade and fwupdmgr upgrade; not apt upgrade), and reboot"
_NOT_GB10 = Check(
    "profiles, images and memory sizes are made for the DGX Spark and its OEM models",
    "correct ansible_host if the node should be a GB10. For a lab or a development machine, set preflight_ignore: [gb10, arch]",
)
_SLOW_LINK = "the pair runs at the speed of its slowest link"
_AGENT = "the agent on the head starts, judges and stops the ranks over this path"

CHECKS: dict[str, Check] = {
    "reachable": Check(
        "a group serves with all ranks or not at all",
        "run `ssh` with the same user and key; check ansible_host, ansible_user and that the node is on",
    ),
    "sudo": Check(),
    "python": Check("modules need Python 3.9", "install a newer python3"),
    "gb10": _NOT_GB10,
    "arch": _NOT_GB10,
    "machine_id": Check(
        "a DHCP server can give both nodes one address, and the agent identifies the owner of a node by this ID",
        f"run `{NEW_MACHINE_ID}` on one of the nodes, and reboot it",
    ),
    "memory_parity": Check(
        "every rank uses the same share of its memory, so the node with the least memory limits all ranks",
        "choose gpu_memory_utilization for that node; the sysctl role prints the highest value that starts",
    ),
    "ota_parity": Check("kernel, driver and firmware are part of DGX OS, and pairs are only tested with equal versions", _UPDATE),
    "ota_torn": Check(
        "after an incomplete update, the next container start loses the GPU",
        "complete the update: dpkg --configure -a, then apt dist-upgrade (not apt upgrade) or the DGX Dashboard, and reboot",
    ),
    "reboot_pending": Check(
        "the running versions differ from the installed ones until the next reboot, perhaps on one node only",
        "run playbooks/reboot.yml, which reboots the worker and then the head",
    ),
    "kernel_parity": Check("memory, GIDs and hot-plug depend on the kernel version, so one rank can fail while the other does not", _UPDATE),
    "driver_parity": Check("the ranks run the same CUDA calls on different drivers, and the free memory at the start differs", _UPDATE),
    "firmware_parity": Check(
        "link training, power and resets depend on the firmware version",
        "run fwupdmgr refresh and fwupdmgr upgrade on every node, and reboot all nodes with the cable connected",
    ),
    "known_bad_driver": Check(),
    "known_bad_kernel": Check(),
    "known_bad_firmware": Check(),
    "known_bad_vllm": Check(),
    "gpu_lost": Check(
        "an engine cannot start without the GPU",
        "reboot. If that does not help, complete the update (dpkg --configure -a, apt dist-upgrade) and unplug the power for a minute",
    ),
    "kernel_log": Check(),
    "may_suspend": Check(
        "a node that suspends ends the service of all ranks, and a request over the network does not wake it",
        f"run `{MASK_SLEEP}` on the node",
    ),
    "kho_leak": Check("the engine lacks this memory, and RDMA registration fails"),
    "memory_stuck": Check("the start check of the engine does not find the memory that it needs"),
    "memory_fragmented": Check("large registrations of the GPU and of RDMA fail although memory is free"),
    "memory_cache": Check("an engine that starts now can run out of memory although MemAvailable is high"),
    "watermark_boost": Check("the kernel does not allocate memory that it reports as free"),
    "cable": Check("the ranks have no rail to reach each other"),
    "link_speed": Check(_SLOW_LINK),
    "twins": Check("one function alone gives half the bandwidth"),
    "rdma": Check("NCCL uses TCP without a message, at a tenth of the speed"),
    "fabric_is_management": Check("a change of the fabric would cut the connection of Ansible, so the roce role refuses it"),
    "fabric_subnet": Check("the hosts of that network reach ports of the group that have no authentication, and fabric traffic can leave the cable"),
    "fabric_forwarding": Check(
        "vLLM's connections between the nodes have no authentication, and this node passes packets of the LAN on to the rails of the others",
        "set roce_firewall: true, or this setting to 0 if nothing needs it, or `iptables -P FORWARD DROP`, which the Docker Engine normally sets",
    ),
    "fabric_neighbor": Check(
        "vLLM's connections between the nodes have no authentication, and every host of that network reaches them",
        "connect the nodes directly, give the rails a VLAN of their own on the switch, or set roce_firewall: true",
    ),
    "api_open": Check(
        "every host that reaches the node can use the model and its memory",
        "remove vllm_tp2_api_open, and the first run makes a key. Or set engine.api.host to 127.0.0.1 in the profile",
    ),
    "foreign_network_config": Check("two files that configure one interface conflict over its address and MTU"),
    "wifi_control_path": Check(
        "Wi-Fi drops under load and the mt7925 driver oopses on resets: the connection drops during the play and ranks hang",
        "connect a cable to enP7s7 and use it for the default route (nmcli: a lower route metric), or connect over the fabric",
    ),
    "docker": Check("the containers of the node are unknown", "run `systemctl status docker` on the node; the docker role starts it"),
    "image_store_parity": Check(
        "the two stores give one image different IDs, so a copy between nodes transfers all layers and IDs cannot be compared",
        'set "features": {"containerd-snapshotter": false} (or true) in /etc/docker/daemon.json on every node, then fetch the images again',
    ),
    "memlock": Check(
        "RDMA registers gigabytes of locked memory. Without it NCCL uses TCP or fails in ibv_reg_mr",
        "run dockerd with CAP_SYS_RESOURCE, or with LimitMEMLOCK=infinity as the docker role sets it",
    ),
    "gpu_reload": Check(
        "a running container loses its GPU at the next `systemctl daemon-reload`, and the engine fails",
        "run site.yml --tags docker, which enables nvidia-cdi-refresh, or `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, then restart the group",
    ),
    "stale_containers": Check("two engines do not fit into one memory: the second fails its start check, or the node freezes"),
    "ports_free": Check(
        "the engine starts for minutes and then fails to bind",
        "stop the process, or choose another port in the profile (engine.api.port, engine.master_port)",
    ),
    "disk_space": Check(
        "a download or a copy fails and leaves a full disk; a full disk stops Docker",
        "free space (docker image prune, old models, journalctl --vacuum-size=1G), or set gb10_model_store to a larger disk",
    ),
    "clock_skew": Check(
        "the logs of the ranks cannot be compared, and downloads fail on certificates if the difference is large",
        "run `timedatectl set-ntp true` on the node; if all nodes differ by the same time, correct the clock of the controller",
    ),
    "agent_down": Check(
        "without the agent the group cannot be started",
        "`systemctl start gb10-agent` on the node, or run site.yml with --tags vllm_tp2; `journalctl -u gb10-agent -n 50` shows why it ended",
    ),
    "agent_path": Check(_AGENT),
    "agent_sshd": Check(_AGENT),
}
