# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Data: the area of each finding, and the command to copy.

{on} runs a command on the node of the finding, {site} is site.yml with the user's inventory, {play} the folder or the prefix of the other playbooks,
{inventory} the option with the inventory, {boot} the number of the boot for journalctl, {head} runs a command on the head.
"""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.catalogue import MASK_SLEEP, NEW_MACHINE_ID

#: In the order of the page: causes before what follows from them.
AREAS = {
    "nodes": "nodes",
    "versions": "versions",
    "docker": "Docker",
    "fabric": "fabric",
    "memory": "memory",
    "power": "power, heat",
    "kernel": "kernel log",
    "boot": "boot log",
    "engine": "engine",
    "drift": "drift",
}

_UPDATE = "{on} 'sudo apt update && sudo apt dist-upgrade'"
_FIRMWARE = "{on} 'sudo fwupdmgr refresh --force; sudo fwupdmgr upgrade'"
_REBOOT = "{play}reboot{end} -e reboot_all=true --limit {group}"
_STATUS = "{play}status{end}"
_ROCE = "{site} --tags roce"
_DOCKER = "{site} --tags docker"
_SERVE = "{site} --tags vllm_tp2"

#: Of each check of preflight: (area, command).
PREFLIGHT: dict[str, tuple[str, str]] = {
    "reachable": ("nodes", "{on} true"),
    "sudo": ("nodes", "{play}doctor{end} -K"),
    "python": ("nodes", "{on} sudo apt install python3"),
    "gb10": ("nodes", "{on} cat /sys/class/dmi/id/product_name /etc/dgx-release"),
    "arch": ("nodes", "{on} uname -m"),
    "machine_id": ("nodes", f"{{on}} '{NEW_MACHINE_ID}'"),
    "memory_parity": ("memory", "{on} grep MemTotal /proc/meminfo"),
    "ota_parity": ("versions", _UPDATE),
    "ota_torn": ("versions", "{on} 'sudo dpkg --configure -a && sudo apt dist-upgrade'"),
    "reboot_pending": ("versions", "{play}reboot{end}"),
    "kernel_parity": ("versions", _UPDATE),
    "driver_parity": ("versions", _UPDATE),
    "firmware_parity": ("versions", _FIRMWARE),
    "known_bad_driver": ("versions", _UPDATE),
    "known_bad_kernel": ("versions", _UPDATE),
    "known_bad_firmware": ("versions", _FIRMWARE),
    "known_bad_vllm": ("versions", "{on} sudo docker images"),
    "gpu_lost": ("nodes", _REBOOT),
    "kernel_log": ("kernel", "{on} sudo dmesg"),
    "may_suspend": ("nodes", f"{{on}} {MASK_SLEEP}"),
    "kho_leak": ("memory", "{site} --tags sysctl"),
    "memory_stuck": ("memory", _REBOOT),
    "memory_fragmented": ("memory", _REBOOT),
    "memory_cache": ("memory", "{on} 'sudo sync && echo 1 | sudo tee /proc/sys/vm/drop_caches'"),
    "watermark_boost": ("memory", "{site} --tags sysctl"),
    "cable": ("fabric", "{on} 'ip -br link; rdma link'"),
    "link_speed": ("fabric", "{on} 'rdma link; sudo lspci -vv -d 15b3: | grep LnkSta:'"),
    "twins": ("fabric", "{on} 'ip -br address; rdma link'"),
    "rdma": ("fabric", "{on} sudo modprobe -a mlx5_ib ib_uverbs"),
    "fabric_is_management": ("fabric", "{on} ip -br address"),
    "fabric_subnet": ("fabric", "{on} ip route"),
    "fabric_forwarding": ("fabric", "{on} sudo iptables -P FORWARD DROP"),
    "fabric_neighbor": ("fabric", "{on} ip neigh"),
    "api_open": ("engine", _SERVE),
    "foreign_network_config": ("fabric", "{on} sudo netplan get"),
    "wifi_control_path": ("nodes", "{on} nmcli device"),
    "docker": ("docker", "{on} sudo systemctl status docker --no-pager"),
    "image_store_parity": ("docker", "{on} docker info"),
    "memlock": ("docker", _DOCKER),
    "gpu_reload": ("docker", _DOCKER),
    "stale_containers": ("docker", "{on} sudo docker ps --all"),
    "ports_free": ("docker", "{on} sudo ss -ltnp"),
    "disk_space": ("nodes", "{on} 'df -h; sudo docker system df'"),
    "clock_skew": ("nodes", "{on} sudo timedatectl set-ntp true"),
    "agent_down": ("engine", "{on} sudo systemctl start gb10-agent"),
    "agent_path": ("engine", "{head} sudo gb10 call peers"),
    "agent_sshd": ("engine", "{on} sudo sshd -T"),
}

_SETTINGS = "the node runs with other settings than the inventory has"

#: Of what doctor finds besides: (area, command, why it matters).
OWN: dict[str, tuple[str, str, str]] = {
    "gpu_hot": ("power", "{on} nvidia-smi -q -d TEMPERATURE,PERFORMANCE", "a hot GPU slows down, and the pair runs at the speed of its slower node"),
    "gpu_power": (
        "power",
        "{on} sudo shutdown -h now  # then unplug the power for a minute",
        "the pair runs at the speed of its slower node; a reboot does not clear this state of the power supply",
    ),
    "sensor_hot": ("power", "{on} 'grep . /sys/class/thermal/thermal_zone*/temp'", "the node switches itself off at the critical temperature"),
    "unclean_end": ("kernel", "{on} sudo journalctl -b -1 -e", "the node lost its power, froze or reset: memory, power supply and heat are the usual causes"),
    "roce_problem": ("fabric", _ROCE, "NCCL does not reach the other rank, or uses TCP at a tenth of the speed"),
    "bandwidth": ("fabric", "{play}doctor{end} -e doctor_bandwidth=true", "the pair runs at the speed of its slowest rail"),
    "collective": ("fabric", "{play}doctor{end} -e doctor_collective=true", "the ranks do not work together over these rails, and a boot hangs or is slow"),
    "engine_down": ("engine", "{site}", "the group has no service until it is started again"),
    "engine_wedged": ("engine", "{site}", "no request ends, although container and /health look good"),
    "engine_unserved": ("engine", "{play}logs{end}", "clients get no reply"),
    "engine_unknown": ("engine", _STATUS, "a group serves with all ranks or not at all"),
    "engine_starting": ("engine", "{head} sudo gb10 events", "the group has no service until the boot is judged"),
    "engine_stopped": ("engine", "{site}", "the group has no service; it was stopped on request"),
    "engine_absent": ("engine", "{site}", "nothing is installed, or the service was removed"),
    "agent_hold": ("engine", "{head} sudo gb10 status", "the agent starts nothing while a rank has a hold"),
    "restarts": ("engine", "{head} sudo gb10 events", "each restart is minutes without service, and a release that crashes again and again is held"),
    "boot_failed": ("boot", "{head} sudo gb10 why", "the next start fails in the same way until the cause is corrected"),
    "boot_log": ("boot", "{play}evidence{end}", "the next start fails in the same way until the cause is corrected"),
    "release_differs": ("drift", "{site} --check --diff", "the next run of site.yml starts another release: minutes without service"),
    "release_files": ("drift", _SERVE, "a restart after a fault or a reboot needs these files"),
    "image_moved": ("drift", "{site} --tags image,vllm_tp2", "the next start uses another image than the one that was judged"),
    "weights_differ": ("drift", "{site} --tags weights", "the next boot loads other weights than the ones that were judged"),
    "no_way_back": ("drift", "{play}rollback{end} -e rollback_release=list", "if the next boot fails, there is less to go back to"),
    "settings_sysctl": ("drift", "{site} --tags sysctl", _SETTINGS),
    "settings_readahead": ("drift", "{site} --tags readahead", _SETTINGS),
    "settings_gpu": ("drift", "{site} --tags gpu", _SETTINGS),
    "settings_docker": ("drift", _DOCKER, _SETTINGS),
}
