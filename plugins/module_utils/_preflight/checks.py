# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC. The checks before anything is changed: texts of a node to facts, and the facts of all ranks to findings.

No I/O, standard library only. Sizes are GiB (`_gib`) or KiB (`_kb`), times are seconds since the epoch.
A finding is {id, severity (error|warning|info), hosts, found, matters, remedy}; a skip is {id, hosts, reason}.
`judge()` is the entry; `CHECKS` are the stable IDs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._host.access import cause_of
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.known_versions import KNOWN

Record = dict[str, Any]

CX7 = "ConnectX-7"
VLLM = re.compile(r"vllm", re.IGNORECASE)
OUR_LABEL = "gb10.cluster.group"
GIB_KB = 1 << 20
# PCIe host bridges of a GB10, as lspci names them (GB10 GEN5 X4 PCIe host, GB10 GEN4 X1 PCIe host).
GB10_BRIDGES = ("0x22ce", "0x22d0")
SEVERITIES = ("error", "warning", "info")

# The stable IDs, in the order in which they are checked and shown.
CHECKS: dict[str, str] = {
    "reachable": "every rank answers",
    "sudo": "become works",
    "python": "a Python that modules run on",
    "gb10": "the machine is a GB10",
    "arch": "the processor is aarch64",
    "memory_parity": "memory is of one size on all ranks",
    "ota_parity": "DGX OS is of one version on all ranks",
    "ota_torn": "no update stopped half-way",
    "reboot_pending": "no update waits for a reboot",
    "kernel_parity": "the kernel is the same on all ranks",
    "driver_parity": "the NVIDIA driver is the same on all ranks",
    "firmware_parity": "firmware is the same on all ranks",
    "known_bad_driver": "the driver is not known to hurt",
    "known_bad_kernel": "the kernel is not known to hurt",
    "known_bad_firmware": "the firmware is not known to hurt",
    "gpu_lost": "the driver shows the GPU",
    "kernel_log": "the kernel has logged no lost link, GPU or Wi-Fi",
    "kho_leak": "the kernel's handover keeps no memory",
    "memory_stuck": "no failed run left memory with the driver",
    "memory_fragmented": "large blocks of memory are free",
    "memory_cache": "free memory is free, and not page cache",
    "watermark_boost": "the memory floor is not multiplied",
    "cable": "the fabric has a link",
    "link_speed": "the links are at full speed",
    "twins": "both PCIe functions of a cage have a link",
    "rdma": "the rails have RDMA devices",
    "fabric_is_management": "the fabric is not the way in",
    "foreign_network_config": "nobody else configures the rails",
    "wifi_control_path": "the way in is a cable",
    "docker": "the Docker Engine answers",
    "image_store_parity": "images are stored the same way on all ranks",
    "memlock": "containers may lock memory",
    "stale_containers": "no other engine runs or comes back",
    "ports_free": "the ports are free",
    "disk_space": "weights and image fit on the disks",
    "clock_skew": "the clocks agree",
    "agent_down": "an installed agent answers",
    "agent_path": "the agent on the head reaches the workers over the rail",
    "agent_sshd": "sshd on the workers accepts the head's key",
}


class Wishes(NamedTuple):
    """What the serving group wants of its nodes; sizes in GiB, 0 where not known."""

    group: str = ""
    size: int = 2
    require_gb10: bool = False
    head_ports: Mapping[int, str] = {}
    model_gib: float = 0.0
    image_gib: float = 0.0
    image: str = ""
    free_gib: float = 5.0
    clock_skew_seconds: float = 5.0
    serving_label: str = OUR_LABEL
    known: Sequence[Mapping[str, Any]] = ()


class Rank(NamedTuple):
    """One rank: its host, and what preflight_info returned or how it failed."""

    host: str
    rank: int
    facts: Mapping[str, Any]
    failure: str = ""
    unreachable: bool = False
    asked: bool = True


# --- texts to facts --------------------------------------------------------------------------------------------------------------


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's whole numbers in order: 6.17.0-1032-nvidia is (6, 17, 0, 1032)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def begins(version: str, start: str) -> bool:
    """Tell whether a version begins with `start`, number by number: 590.44.01 begins with 590, 5900.1 does not."""
    wanted = numbers(start)
    return bool(wanted) and numbers(version)[: len(wanted)] == wanted


def gb10_evidence(product: str, device_tree: str, fastos: str, pci: Iterable[tuple[str, str]], gpus: Sequence[str]) -> list[str]:
    """Return what shows that a machine is a GB10; nothing for any other machine. OEM twins have product names of their own."""
    found = []
    if re.search(r"DGX[ _-]?Spark|\bGB10\b|\bGX10\b", product, re.IGNORECASE):
        found.append(f"product name {product}")
    if re.search(r"DGX[ _-]?Spark|GB10", device_tree, re.IGNORECASE):
        found.append("device tree")
    if re.search(r"^\s*NAME\s*=\s*\"?DGX SPARK FASTOS", fastos, re.IGNORECASE | re.MULTILINE):
        found.append("/etc/fastos-release")
    if any(vendor.lower() == "0x10de" and device.lower() in GB10_BRIDGES for vendor, device in pci):
        found.append("GB10 PCIe host bridge")
    if any(re.search(r"\bGB10\b", name) for name in gpus):
        found.append("nvidia-smi")
    return found


def dgx_release(text: str | None) -> Record:
    """Return /etc/dgx-release: name, base version and OTA version. There is one DGX_OTA_VERSION line per update; the last one counts."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        match = re.match(r"\s*(DGX_\w+)\s*=\s*[\"']?(.*?)[\"']?\s*$", line)
        if match:
            found[match.group(1)] = match.group(2)
    return {
        "present": text is not None,
        "name": found.get("DGX_NAME", ""),
        "base": found.get("DGX_SWBUILD_VERSION", ""),
        "ota": found.get("DGX_OTA_VERSION", ""),
    }


def loaded_driver(text: str | None) -> str:
    """Return the loaded kernel module's version, from /proc/driver/nvidia/version; empty where none is loaded."""
    match = re.search(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)\s", text or "", re.MULTILINE)
    return match.group(1) if match else ""


def library_versions(paths: Iterable[str]) -> list[str]:
    """Return the driver versions of user-space libraries by their file names (libnvidia-ml.so.580.173.02)."""
    found = set()
    for path in paths:
        match = re.search(r"\.so\.(\d{3,}\.\d+(?:\.\d+)*)$", path)
        if match:
            found.add(match.group(1))
    return sorted(found, key=numbers)


def read_smi(rc: int, text: str) -> tuple[list[str], str, str]:
    """Return (GPU names, driver version, error) of nvidia-smi's CSV query or of its table. rc 127: not installed, which is no error."""
    if rc == 127:
        return [], "", ""
    if rc == 124:
        return [], "", "nvidia-smi gave no answer within 20 s"
    table = re.search(r"Driver Version:\s*(\S+)", text)
    if table:
        return re.findall(r"^\|\s+\d+\s+(NVIDIA \S+(?: \S+)*?)\s{2,}", text, re.MULTILINE), table.group(1), ""
    names, version = [], ""
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 2 and re.fullmatch(r"\d{3,}(\.\d+)+", words[1]):
            names.append(words[0])
            version = words[1]
    if names and rc == 0:
        return names, version, ""
    said = " ".join(text.split()).rstrip(".")
    return names, version, said[:200] or f"nvidia-smi ended with code {rc} and said nothing"


def fwupd_versions(text: str) -> dict[str, str]:
    """Return {device name: version} of `fwupdmgr get-devices --json`; several devices of one name give their versions in order."""
    start = text.find("{")
    try:
        data = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    found: dict[str, set[str]] = {}
    for device in data.get("Devices") or [] if isinstance(data, dict) else []:
        if isinstance(device, dict) and device.get("Name") and device.get("Version"):
            name = CX7 if CX7 in str(device["Name"]) else str(device["Name"])
            found.setdefault(name, set()).add(str(device["Version"]))
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


_WATCHED = re.compile(r"^(?:nvidia|libnvidia|linux-(?:image|modules|headers)|dgx|cuda-(?:drivers|compat)|mlnx|doca|docker|containerd)")
_WHOLE = ("install ok installed", "hold ok installed", "deinstall ok config-files", "purge ok config-files", "unknown ok not-installed")
_WHOLE_TOO = ("deinstall ok not-installed", "purge ok not-installed", "install ok not-installed")


def broken_packages(text: str | None) -> list[str]:
    """Return the drivers', kernels' and containers' packages that dpkg holds for half-done, as `name (state)`."""
    found = []
    for block in (text or "").split("\n\n"):
        name = re.match(r"\s*Package: (\S+)", block)
        state = re.search(r"^Status: (.+)$", block, re.MULTILINE)
        if name and state and _WATCHED.match(name.group(1)) and state.group(1).strip() not in _WHOLE + _WHOLE_TOO:
            found.append(f"{name.group(1)} ({state.group(1).strip().split()[-1]})")
    return sorted(found)


def ota_answer(text: str) -> Record:
    """Return the JSON of nvidia-spark-ota-check; empty where it is none."""
    start = text.find("{")
    try:
        data = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def engine_facts(info: Mapping[str, Any]) -> Record:
    """Return version, storage driver, image store and folder out of the Docker Engine's /info."""
    status = [str(word) for pair in info.get("DriverStatus") or [] for word in pair]
    containerd = any("io.containerd.snapshotter" in word for word in status)
    return {
        "version": str(info.get("ServerVersion") or ""),
        "driver": str(info.get("Driver") or ""),
        "image_store": "containerd" if containerd else "graphdriver",
        "root": str(info.get("DockerRootDir") or "/var/lib/docker"),
    }


def words_of(entry: Mapping[str, Any]) -> str:
    """Return name, image and command of an entry of the engine's list, as one text."""
    return " ".join([*(str(name) for name in entry.get("Names") or []), str(entry.get("Image") or ""), str(entry.get("Command") or "")])


def container_facts(entry: Mapping[str, Any], details: Mapping[str, Any]) -> Record:
    """Return what matters of one container; `details` is its inspection, empty where it was not asked."""
    host = details.get("HostConfig") or {}
    labels = entry.get("Labels") or {}
    devices = [str(each.get("PathOnHost")) for each in host.get("Devices") or []]
    requests = host.get("DeviceRequests") or []
    gpu = any("gpu" in str(each.get("Capabilities")) or "nvidia" in str(each) for each in requests) or any("/dev/nvidia" in path for path in devices)
    return {
        "id": str(entry.get("Id") or ""),
        "name": str((entry.get("Names") or ["?"])[0]).lstrip("/"),
        "image": str(entry.get("Image") or ""),
        "state": str(entry.get("State") or ""),
        "labels": {key: value for key, value in labels.items() if str(key).startswith("gb10.cluster.")},
        "vllm": bool(VLLM.search(words_of(entry))),
        "gpu": gpu or str(host.get("Runtime") or "") == "nvidia",
        "restart": str((host.get("RestartPolicy") or {}).get("Name") or "no"),
    }


def listening_sockets(text: str | None) -> list[Record]:
    """Return [{port, address, inode}] of the listening rows (state 0A) of /proc/net/tcp or tcp6; the address as text, * for any."""
    found = []
    for line in (text or "").splitlines()[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != "0A":
            continue
        address, _colon, port = words[1].rpartition(":")
        shown = "*"
        if set(address) != {"0"}:
            shown = ".".join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0)) if len(address) == 8 else "an IPv6 address"
        found.append({"port": int(port, 16), "address": shown, "inode": words[9]})
    return found


def container_of(cgroup: str, ids: Mapping[str, str]) -> str:
    """Return the name of the container that a /proc/PID/cgroup belongs to; empty for none."""
    for candidate in re.findall(r"[0-9a-f]{64}", cgroup):
        if candidate in ids:
            return ids[candidate]
    return ""


def limits(text: str | None, status: str | None) -> Record:
    """Return {known, bytes (null: unlimited), may_raise} of the Docker daemon out of its limits and status files."""
    row = re.search(r"^Max locked memory\s+\S+\s+(\S+)", text or "", re.MULTILINE)
    bounding = re.search(r"^CapBnd:\s*([0-9a-fA-F]+)", status or "", re.MULTILINE)
    hard = row.group(1) if row else ""
    return {
        "known": bool(row),
        "bytes": int(hard) if hard.isdigit() else None,
        "may_raise": bool(int(bounding.group(1), 16) >> 24 & 1) if bounding else True,  # CAP_SYS_RESOURCE
    }


_LOG_SIGNS: tuple[tuple[str, str, str, str], ...] = (
    (
        "fatal_aer",
        r"mlx5_core.*(?:slot reset|PCI error|device state: .*fatal)|AER:.*(?:Uncorrect\w+ \(Fatal\)|fatal error).*|pcieport .*AER: .*\bFatal\b",
        "the kernel reset a PCIe slot after a fatal error; where it is the ConnectX-7's, RDMA hangs and the node may lock up",
        "reboot both nodes with the cable in and bring the firmware of both to one version; a repeat is a case for the vendor",
    ),
    (
        "gpu_xid",
        r"NVRM: Xid .*: (?:79|119|120|154),|NVRM: .*GPU (?:has fallen off the bus|is lost)",
        "the GPU or its firmware stopped answering, and engines started now will fail or hang",
        "reboot; unplug the power for a minute where it repeats",
    ),
    (
        "wifi_oops",
        r"(?:Oops|Unable to handle kernel|kernel BUG).*mt79\w+|mt7925e? .*(?:chip reset failed|driver own failed)",
        "the mt7925 Wi-Fi driver is known for oopses on a reset, after which the node may need a reboot",
        "reach the node over enP7s7 and switch Wi-Fi off (nmcli radio wifi off), then reboot",
    ),
)


def kernel_log(text: str) -> list[Record]:
    """Return {id, count, line (the last)} for what the kernel has logged since the boot. The 27 W line and one-off NVRM checks are healthy."""
    found = []
    for name, pattern, _matters, _remedy in _LOG_SIGNS:
        lines = [line.strip() for line in text.splitlines() if re.search(pattern, line)]
        if lines:
            found.append({"id": name, "count": len(lines), "line": re.sub(r"^\[[^\]]*\]\s*", "", lines[-1])[:200]})
    return found


# --- facts to findings -----------------------------------------------------------------------------------------------------------


class Book:
    """Findings and skips as they are collected; equal findings of several hosts become one."""

    def __init__(self) -> None:
        self.findings: list[Record] = []
        self.skipped: list[Record] = []

    def say(self, name: str, severity: str, hosts: str | Sequence[str], found: str, matters: str, remedy: str) -> None:
        """Add a finding."""
        names = [hosts] if isinstance(hosts, str) else list(hosts)
        for entry in self.findings:
            if (entry["id"], entry["severity"], entry["found"], entry["remedy"]) == (name, severity, found, remedy):
                entry["hosts"] += [host for host in names if host not in entry["hosts"]]
                return
        self.findings.append({"id": name, "severity": severity, "hosts": names, "found": found, "matters": matters, "remedy": remedy})

    def skip(self, names: str | Sequence[str], hosts: str | Sequence[str], reason: str) -> None:
        """Say that a check was left out, and why."""
        hosts = [hosts] if isinstance(hosts, str) else list(hosts)
        for name in [names] if isinstance(names, str) else names:
            for entry in self.skipped:
                if entry["id"] == name and entry["reason"] == reason:
                    entry["hosts"] += [host for host in hosts if host not in entry["hosts"]]
                    break
            else:
                self.skipped.append({"id": name, "hosts": list(hosts), "reason": reason})


def _by_value(ranks: Sequence[Rank], value: Callable[[Rank], str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for rank in ranks:
        out.setdefault(value(rank) or "none", []).append(rank.host)
    return out


def _shown(values: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{value} on {' and '.join(hosts)}" for value, hosts in values.items())


def _differs(book: Book, ranks: Sequence[Rank], name: str, what: str, value: Callable[[Rank], str], severity: str, matters: str, remedy: str) -> None:
    """Say where a value is not the same on all ranks."""
    values = _by_value(ranks, value)
    if len(values) > 1:
        book.say(name, severity, [rank.host for rank in ranks], f"{what}: {_shown(values)}", matters, remedy)


UPDATE = "update all nodes the same way (DGX Dashboard, or apt dist-upgrade and fwupdmgr upgrade, never a plain apt upgrade), and reboot"


def check_answers(book: Book, ranks: Sequence[Rank]) -> None:
    """Ranks that did not answer, by why."""
    for rank in ranks:
        if not rank.asked:
            book.skip(list(CHECKS), rank.host, "not in this run (--limit)")
        elif (rank.unreachable or rank.failure) and (cause := cause_of(rank.failure)):
            book.say(cause.check, "error", rank.host, f"its facts could not be read: {_first(rank.failure)}", cause.matters, cause.remedy)
        elif rank.unreachable:
            book.say(
                "reachable",
                "error",
                rank.host,
                f"it cannot be reached: {_first(rank.failure)}",
                "nothing can be said or changed there, and a group serves with all ranks or not at all",
                "try `ssh` by hand with the same user and key; check ansible_host, ansible_user and that the node is on",
            )
        elif rank.failure:
            text = f"its facts could not be read: {_first(rank.failure)}"
            book.say("reachable", "error", rank.host, text, "nothing is known of this rank", "run again with -vvv for this host")


def _first(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given").rstrip(".")[:300]


def check_machine(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """What the machines are."""
    for rank in ranks:
        what, container = rank.facts["machine"], rank.facts["container"]
        if numbers(rank.facts["python"]) < (3, 9):
            book.say("python", "error", rank.host, f"Python is {rank.facts['python']}", "modules need Python 3.9", "install a newer python3")
        if container and not wishes.require_gb10 and not what["gb10"]:
            book.skip(["gb10", "arch"], rank.host, f"a container ({container}) shows the host's hardware or none")
            continue
        matters = "profiles, images, memory sizes and limits are those of a DGX Spark and its OEM twins"
        remedy = "correct ansible_host if it should be one; a lab or a development machine may ignore this"
        if what["evidence"] and not what["gb10"]:
            found = f"its {what['evidence'][0]} says GB10, and its processor is {what['arch'] or 'unknown'} where a GB10 is aarch64"
            book.say("arch", "error" if wishes.require_gb10 else "warning", rank.host, found, matters, f"{remedy} (preflight_ignore: [arch])")
        elif not what["gb10"]:
            shown = f"{what['product'] or 'no product name'}, {what['arch'] or 'unknown processor'}"
            found = f"this is no GB10: {shown}, and none on the PCI bus, in the device tree or in nvidia-smi"
            book.say("gb10", "error" if wishes.require_gb10 else "warning", rank.host, found, matters, f"{remedy} (preflight_ignore: [gb10])")
    metal = [rank for rank in ranks if not rank.facts["container"]]
    _differs(
        book,
        [rank for rank in metal if rank.facts["memory"].get("total_kb")],
        "memory_parity",
        "memory differs",
        lambda rank: f"{rank.facts['memory']['total_kb'] / GIB_KB:.0f} GiB",
        "warning",
        "every rank takes the same share, so the smallest node decides for all, and one utilization fits both only by the smaller",
        "choose gpu_memory_utilization for the smaller node; the sysctl role prints the highest that starts",
    )


def check_versions(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """Parity, torn updates, and versions that are known to hurt."""
    metal = [rank for rank in ranks if not rank.facts["container"]]
    inside = [rank for rank in ranks if rank.facts["container"]]
    for rank in inside:
        book.skip(
            ["memory_parity", "ota_parity", "reboot_pending", "kernel_parity", "firmware_parity", "known_bad_kernel", "known_bad_firmware", "kernel_log"],
            rank.host,
            f"a container ({rank.facts['container']}) shows the host's kernel and firmware",
        )
    _differs(
        book,
        [rank for rank in metal if rank.facts["dgx"]["present"]],
        "ota_parity",
        "DGX OS differs",
        lambda rank: str(rank.facts["dgx"]["ota"] or f"{rank.facts['dgx']['base']} (no OTA yet)"),
        "warning",
        "kernel, driver and firmware come with it, and pairs are only tested with equal ones",
        UPDATE,
    )
    _differs(
        book,
        metal,
        "kernel_parity",
        "the kernel differs",
        lambda rank: str(rank.facts["kernel"]["release"]),
        "warning",
        "memory, GIDs and hot-plug behave differently from kernel to kernel, so one rank fails where the other does not",
        UPDATE,
    )
    drivers = [rank for rank in ranks if rank.facts["driver"]["loaded"]]
    branches = {numbers(rank.facts["driver"]["loaded"])[:1] for rank in drivers}
    _differs(
        book,
        drivers,
        "driver_parity",
        "the NVIDIA driver differs",
        lambda rank: str(rank.facts["driver"]["loaded"]),
        "error" if len(branches) > 1 else "warning",
        "ranks of one engine run the same CUDA calls against different drivers, and free memory at start differs",
        UPDATE,
    )
    if len(drivers) < len(ranks):
        without = [rank.host for rank in ranks if rank not in drivers]
        book.skip(["driver_parity", "known_bad_driver"], without, "no NVIDIA driver is loaded")
    shared = set.intersection(*(set(rank.facts["firmware"]) for rank in metal)) if metal else set()
    for name in sorted(shared):
        _differs(
            book,
            metal,
            "firmware_parity",
            f"the firmware of {name} differs",
            lambda rank, name=name: str(rank.facts["firmware"][name]),  # type: ignore[misc]  # mypy cannot type a lambda's default
            "warning",
            "link training, power and resets behave differently from version to version, and one slow end slows the pair",
            "run fwupdmgr refresh and fwupdmgr upgrade on every node, and reboot all with the cable in",
        )
    if metal and not shared:
        book.skip("firmware_parity", [rank.host for rank in metal], "fwupd and sysfs show no firmware that all ranks have")
    for rank in ranks:
        _torn(book, rank)
        _known(book, rank, wishes)
    for rank in metal:
        kernel = rank.facts["kernel"]
        if kernel["reboot_required"]:
            packages = f" ({', '.join(kernel['reboot_packages'][:4])})" if kernel["reboot_packages"] else ""
            book.say(
                "reboot_pending",
                "warning",
                rank.host,
                f"/run/reboot-required is there{packages}",
                "what was updated is not what runs, and it changes at the next reboot, perhaps on one node only",
                "run playbooks/reboot.yml, which reboots the worker and then the head",
            )


def _torn(book: Book, rank: Rank) -> None:
    gpu = rank.facts["driver"]
    matters = "a half-done update loses the GPU at the next start of a container, if it has not already"
    remedy = "finish it: dpkg --configure -a, then apt dist-upgrade (never a plain apt upgrade) or the DGX Dashboard, and reboot"
    versions = [version for version in gpu["libraries"] if version != gpu["loaded"]] if gpu["loaded"] else []
    if versions:
        found = f"the loaded driver is {gpu['loaded']}, and its libraries on disk are {', '.join(gpu['libraries'])}"
        book.say("ota_torn", "error", rank.host, found, matters, remedy)
    elif gpu["on_disk"] and gpu["loaded"] and gpu["on_disk"] != gpu["loaded"]:
        book.say("ota_torn", "error", rank.host, f"the loaded driver is {gpu['loaded']}, and the module on disk is {gpu['on_disk']}", matters, remedy)
    elif not gpu["loaded"] and len(gpu["libraries"]) > 1:
        found = f"libraries of several drivers are on disk ({', '.join(gpu['libraries'])}) and none is loaded"
        book.say("ota_torn", "error", rank.host, found, matters, remedy)
    if re.search(r"version mismatch", gpu["error"], re.IGNORECASE) and not versions:
        book.say("ota_torn", "error", rank.host, f"from nvidia-smi: {gpu['error']}", matters, remedy)
    if rank.facts["broken_packages"]:
        shown = ", ".join(rank.facts["broken_packages"][:5])
        book.say("ota_torn", "error", rank.host, f"dpkg holds packages for half-done: {shown}", matters, remedy)
    for key, value in rank.facts["ota_check"].items():
        if "torn" in str(key).lower() and isinstance(value, (bool, int, float)) and value:
            book.say("ota_torn", "warning", rank.host, f"from nvidia-spark-ota-check: {key} {value}", matters, remedy)
    missing = gpu["error"] and not re.search(r"version mismatch", gpu["error"], re.IGNORECASE)
    if missing or (rank.facts["machine"]["gb10"] and not gpu["gpus"] and not gpu["error"]):
        said = f"from nvidia-smi: {gpu['error']}" if gpu["error"] else "no driver is loaded and nvidia-smi is not there"
        book.say(
            "gpu_lost",
            "error",
            rank.host,
            said,
            "an engine cannot start without the GPU",
            "reboot; where it stays, finish the update (dpkg --configure -a, apt dist-upgrade), then unplug the power for a minute",
        )
    elif not gpu["present"]:
        book.skip(["gpu_lost", "ota_torn"], rank.host, "no NVIDIA driver is installed")


def _version_of(facts: Mapping[str, Any], component: str) -> str:
    return str(
        {
            "driver": facts["driver"]["loaded"],
            "kernel": "" if facts["container"] else facts["kernel"]["release"],
            "firmware_cx7": "" if facts["container"] else facts["firmware"].get(CX7, ""),
        }.get(component, "")
    )


def known_matches(facts: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return the version of a node that an entry of known_versions speaks of; empty where it does not."""
    version = _version_of(facts, str(entry["component"]))
    if not version or set(entry.get("unless") or []) & set(str(facts["kernel"]["cmdline"]).split()):
        return ""
    if entry.get("match"):
        hit = begins(version, str(entry["match"]))
    else:
        wanted = numbers(str(entry["below"]))
        line = str(entry.get("line") or "")
        hit = numbers(version)[: len(wanted)] < wanted and (not line or begins(version, line))
    if hit and all(begins(_version_of(facts, str(name)), str(start)) for name, start in (entry.get("also") or {}).items()):
        return version
    return ""


def _known(book: Book, rank: Rank, wishes: Wishes) -> None:
    words = {"driver": "NVIDIA driver", "kernel": "kernel", "firmware_cx7": "ConnectX-7 firmware"}
    for entry in [*KNOWN, *wishes.known]:
        version = known_matches(rank.facts, entry)
        if version:
            found = f"the {words[entry['component']]} is {version}"
            book.say(str(entry["id"]), str(entry["severity"]), rank.host, found, str(entry["matters"]), str(entry["remedy"]))


# uma_info's problem -> (our ID, severity on a GB10, what follows)
_MEMORY: dict[str, tuple[str, str, str]] = {
    "kho-cma-leak": ("kho_leak", "error", "the engine lacks this memory, and RDMA registration fails on it"),
    "memory-stuck": ("memory_stuck", "error", "the engine's start check will not find what it wants"),
    "memory-fragmented": ("memory_fragmented", "warning", "large registrations of the GPU and of RDMA fail although memory is free"),
    "available-is-cache": ("memory_cache", "info", "an engine that starts now may run out of memory while MemAvailable looks healthy"),
    "watermark-boost": ("watermark_boost", "info", "memory that looks free is not given out"),
}


def check_memory(book: Book, ranks: Sequence[Rank], _wishes: Wishes) -> None:
    """What uma_info finds, as findings."""
    for rank in ranks:
        if rank.facts["container"]:
            names = [name for name, _severity, _matters in _MEMORY.values()]
            book.skip(names, rank.host, f"a container ({rank.facts['container']}) shows the host's memory, which others use as well")
            continue
        for problem in rank.facts["memory"].get("problems", []):
            name, severity, matters = _MEMORY.get(problem["id"], ("", "", ""))
            if name:
                lowered = "warning" if severity == "error" and not rank.facts["machine"]["gb10"] else severity
                book.say(name, lowered, rank.host, problem["message"], matters, problem["remedy"])
    for rank in ranks:
        for sign in rank.facts["kernel_log"]:
            for name, _pattern, matters, remedy in _LOG_SIGNS:
                if name == sign["id"]:
                    found = f"the kernel has logged {sign['count']} time(s) since the boot: {sign['line']}"
                    book.say("kernel_log", "warning", rank.host, found, matters, remedy)


# roce_info's problem -> (our ID, severity, what follows)
_FABRIC: dict[str, tuple[str, str, str]] = {
    "no_cable": ("cable", "error", "the ranks have no way to each other but the slow one"),
    "link_down": ("cable", "error", "the ranks have no way to each other but the slow one"),
    "interface_missing": ("cable", "error", "the rail that the inventory names does not exist"),
    "rail_unplaced": ("cable", "error", "a rail that the inventory wants has no port"),
    "speed_degraded": ("link_speed", "warning", "the pair runs at the speed of its slowest link"),
    "pcie_degraded": ("link_speed", "warning", "the pair runs at the speed of its slowest link"),
    "ports_asymmetric": ("twins", "warning", "one function alone gives half the bandwidth"),
    "no_rdma": ("rdma", "warning", "NCCL falls back to TCP silently, at a tenth of the speed"),
    "rdma_unreadable": ("rdma", "warning", "NCCL falls back to TCP silently, at a tenth of the speed"),
    "infiniband_mode": ("rdma", "warning", "a port in InfiniBand mode has no RoCE address, so no rail can use it"),
    "rail_is_management": ("fabric_is_management", "error", "a change of the fabric would cut the way in, so the roce role refuses"),
    "foreign_netplan": ("foreign_network_config", "info", "two files that configure one interface fight over its address and MTU"),
}


def check_fabric(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """Cable, links, RDMA devices and the way in, before anything is set up."""
    for rank in ranks:
        found = rank.facts["fabric"]
        if wishes.size < 2:
            book.skip(["cable", "link_speed", "twins", "rdma"], rank.host, "a group of one node needs no fabric")
        elif rank.facts["container"]:
            book.skip(["link_speed", "twins", "rdma"], rank.host, f"a container ({rank.facts['container']}) has virtual links")
        for problem in found["problems"]:
            name, severity, matters = _FABRIC.get(problem["id"], ("", "", ""))
            if not name or (wishes.size < 2 and name in ("cable", "link_speed", "twins", "rdma")):
                continue
            if rank.facts["container"] and name in ("link_speed", "twins", "rdma"):
                continue
            if name == "rdma" and any(entry["id"] == name and rank.host in entry["hosts"] for entry in book.findings):
                continue  # said of the node already, and again of each rail
            book.say(name, severity, rank.host, problem["message"].rstrip("."), matters, problem["remedy"].rstrip("."))
        way = found["management"]
        if way["wireless"]:
            book.say(
                "wifi_control_path",
                "warning",
                rank.host,
                f"the node is reached over Wi-Fi ({way['interface']}, {way['reason'] or 'default route'})",
                "Wi-Fi drops under load and the mt7925 driver oopses on resets: the play loses the node half-way, and ranks that meet over it hang",
                "plug a cable into enP7s7 and let the default route go there (nmcli: a lower route metric), or reach the node by the fabric",
            )


def check_docker(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """Engine, image store, limits and containers."""
    answering = []
    for rank in ranks:
        engine = rank.facts["docker"]
        if engine["error"]:
            book.skip(["image_store_parity", "stale_containers"], rank.host, "the Docker Engine does not answer")
            if engine["installed"]:
                remedy = "systemctl status docker; the docker role starts it"
                book.say("docker", "warning", rank.host, engine["error"], "what runs in containers there is not known", remedy)
            else:
                book.skip("docker", rank.host, "no Docker Engine is installed; the docker role installs one")
        else:
            answering.append(rank)
    _differs(
        book,
        answering,
        "image_store_parity",
        "images are stored differently",
        lambda rank: f"{rank.facts['docker']['image_store']} ({rank.facts['docker']['driver']})",
        "warning",
        "the same image has another ID in the other store, so sending it from node to node costs more and IDs cannot be compared",
        'set "features": {"containerd-snapshotter": false} (or true) in /etc/docker/daemon.json on every node alike; images have to be fetched again then',
    )
    for rank in ranks:
        lock = rank.facts["memlock"]
        if rank.facts["container"]:
            book.skip("memlock", rank.host, f"a container ({rank.facts['container']}) cannot raise the limit of locked memory")
        elif not lock["known"]:
            book.skip("memlock", rank.host, "the Docker daemon's limits cannot be read")
        elif lock["bytes"] is not None and not lock["may_raise"]:
            book.say(
                "memlock",
                "warning",
                rank.host,
                f"the Docker daemon may lock {lock['bytes'] // 1024} KiB and may not raise that (no CAP_SYS_RESOURCE)",
                "RDMA registers gigabytes of locked memory; without it NCCL falls back to TCP or fails in ibv_reg_mr",
                "run dockerd with CAP_SYS_RESOURCE, or with LimitMEMLOCK=infinity as the docker role sets it",
            )
    for rank in answering:
        _containers(book, rank, wishes)
    running = [rank for rank in answering if _ours(rank, wishes)]
    if running and len(running) < len(answering) and len(answering) == wishes.size:
        without = [rank.host for rank in answering if rank not in running]
        book.say(
            "stale_containers",
            "warning",
            [rank.host for rank in running],
            f"the serving group {wishes.group} runs on {', '.join(rank.host for rank in running)} and not on {', '.join(without)}",
            "a rank that lost its peer holds memory and ports, and a new peer never joins it",
            "playbooks/stop.yml; a run of site.yml replaces it as well",
        )


def _ours(rank: Rank, wishes: Wishes) -> list[Mapping[str, Any]]:
    ours = [each for each in rank.facts["containers"] if each["labels"].get(wishes.serving_label) == wishes.group]
    return [each for each in ours if each["state"] in ("running", "restarting")]


def _containers(book: Book, rank: Rank, wishes: Wishes) -> None:
    for each in rank.facts["containers"]:
        group = each["labels"].get(wishes.serving_label)
        alive = each["state"] in ("running", "restarting", "paused")
        if group == wishes.group:
            continue
        stop = f"docker rm -f {each['name']} (or move it to another node)"
        if group and alive:
            book.say(
                "stale_containers",
                "error",
                rank.host,
                f"the container {each['name']} of the serving group {group} is {each['state']} here",
                "two engines do not fit into one memory, and this host is in another group now",
                stop,
            )
        elif alive and each["vllm"]:
            book.say(
                "stale_containers",
                "error",
                rank.host,
                f"the container {each['name']} ({each['image']}) is {each['state']} and looks like a vLLM that is not ours",
                "two engines do not fit into one memory: the second fails its start check, or the node freezes",
                stop,
            )
        elif alive and each["gpu"]:
            book.say(
                "stale_containers",
                "warning",
                rank.host,
                f"the container {each['name']} ({each['image']}) is {each['state']} and uses the GPU",
                "what it takes of the one memory is missing to the engine",
                f"stop it, or lower gpu_memory_utilization by its share; docker stop {each['name']}",
            )
        elif not alive and each["vllm"] and each["restart"] in ("always", "unless-stopped"):
            book.say(
                "stale_containers",
                "warning",
                rank.host,
                f"the container {each['name']} is {each['state']} with the restart policy {each['restart']}",
                "it comes back with a reboot, beside the engine that this collection starts",
                f"docker update --restart=no {each['name']}",
            )


def check_ports(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """Ports of the head that somebody else has."""
    for rank in ranks:
        if rank.rank != 0:
            continue
        ours = [each["name"] for each in _ours(rank, wishes)]
        for entry in rank.facts["listening"]:
            if entry["port"] not in wishes.head_ports:
                continue
            holder, process = entry.get("container") or "", entry.get("process") or ""
            if holder in ours and holder:
                continue
            # Without a cgroup to go by, what listens while our rank runs is taken for it where it looks like an engine.
            if ours and not holder and re.search(r"vllm|python|ray", process, re.IGNORECASE):
                continue
            who = f"the container {holder}" if holder else f"{process or 'a process'} (pid {entry.get('pid', '?')})"
            book.say(
                "ports_free",
                "error",
                rank.host,
                f"port {entry['port']} ({wishes.head_ports[entry['port']]}) is taken by {who}, listening on {entry['address']}",
                "the engine boots for minutes and then fails to bind",
                "stop that, or choose another port in the profile (engine.api.port, engine.master_port)",
            )


def check_disks(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """Space for weights and image, by file system."""
    for rank in ranks:
        facts = rank.facts
        if not facts["disks"]:
            book.skip("disk_space", rank.host, "no file system could be read")
        engine, model = facts["docker"], facts["model"]
        needs: dict[str, list[tuple[str, float, bool]]] = {}
        by_path = {entry["path"]: entry for entry in facts["disks"]}
        wants: tuple[tuple[str, str, float, bool], ...] = (
            (engine["root"], f"the image {wishes.image}" if wishes.image else "the image", 0.0 if engine["image_present"] else wishes.image_gib, False),
            (_store(facts), "the weights", max(0.0, wishes.model_gib - model["present_gib"]), True),
        )
        for path, what, needed, certain in wants:
            if path in by_path:
                needs.setdefault(str(by_path[path].get("device") or path), []).append((f"{what} at {path}", needed, certain))
        if not wishes.model_gib:
            reason = "the profile does not say how large its weights are (model.size_gib), so only the free space is judged"
            book.skip("disk_space", rank.host, reason)
        seen = set()
        for entry in facts["disks"]:
            key = str(entry.get("device") or entry["path"])
            if key in seen:
                continue
            seen.add(key)
            wanted = [need for need in needs.get(key, []) if need[1] > 0]
            total = sum(need[1] for need in wanted)
            free = float(entry["free_gib"])
            if entry.get("read_only"):
                remedy = "look at dmesg, then mount it writable"
                book.say("disk_space", "error", rank.host, f"{entry['path']} is mounted read-only", "nothing can be written there", remedy)
            elif total and free < total + wishes.free_gib:
                listed = " and ".join(f"{need[1]:.0f} GiB for {need[0]}" for need in wanted)
                sure = sum(need[1] for need in wanted if need[2])
                book.say(
                    "disk_space",
                    "error" if sure and free < sure else "warning",
                    rank.host,
                    f"{free:.1f} GiB are free at {entry['path']}, and {listed} are needed, with {wishes.free_gib:g} GiB to spare",
                    "a download or a copy stops half-way and leaves a full disk",
                    "make room (docker image prune, old models), or set gb10_model_store to a larger disk",
                )
            elif free < wishes.free_gib:
                book.say(
                    "disk_space",
                    "warning",
                    rank.host,
                    f"only {free:.1f} GiB are free at {entry['path']}",
                    "logs, caches and compiled kernels fill the rest, and a full disk stops Docker",
                    "make room (docker image prune, old models, journalctl --vacuum-size=1G)",
                )


def _store(facts: Mapping[str, Any]) -> str:
    """The last disk that was asked for is the model store's (the engine's folder comes first)."""
    return str(facts["disks"][-1]["path"]) if facts["disks"] else ""


def offset(facts: Mapping[str, Any]) -> tuple[float, float]:
    """Return (lowest, highest) possible seconds that a node's clock is ahead of the controller's."""
    clock = facts.get("clock") or {}
    if not clock or not facts.get("time"):
        return (float("-inf"), float("inf"))
    return (float(facts["time"]) - float(clock["after"]), float(facts["time"]) - float(clock["before"]))


def check_clocks(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """Clocks against the controller's: only what is certain, whatever the connection took."""
    for rank in ranks:
        low, high = offset(rank.facts)
        if high == float("inf"):
            book.skip("clock_skew", rank.host, "the time was not measured around the module's call")
            continue
        ahead = low if low > 0 else min(high, 0.0)
        if abs(ahead) > wishes.clock_skew_seconds:
            book.say(
                "clock_skew",
                "warning",
                rank.host,
                f"its clock is at least {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the controller's",
                "logs of the ranks cannot be put side by side, and downloads fail on certificates when it is far off",
                "timedatectl set-ntp true on the node; look at the controller's clock where all nodes are off alike",
            )


_SERVE = "run site.yml with --tags vllm_tp2"
# text of a failed call from the head to a worker -> remedy; the first match counts
_PATH: tuple[tuple[str, str], ...] = (
    (r"host key|host identification", f"if the node was installed again, {_SERVE}, which pins its present host key; otherwise find out who answers there"),
    (r"permission denied", f"change the setting of sshd on {{host}} that agent_sshd reports; if it reports none, {_SERVE}, which writes the head's key again"),
    (r"connect(?:ion)? (?:failed|lost): ", f"`systemctl start gb10-agent` on {{host}}, or {_SERVE}"),
    (r"connection refused", f"`systemctl start ssh` on {{host}}; if sshd has another port now, {_SERVE}"),
    (
        # "failure" follows a bind address that the head does not have.
        r"no route|unreachable|timed out|no reply within|timeout, server|cannot assign|port \d+: failure",
        "test the rail with `ping {address}` on the head, and run site.yml with --tags roce",
    ),
)
_PATH_ELSE = f"{_SERVE}; `gb10 call peers` on the head repeats the test, and `journalctl -u ssh` on {{host}} has the other end's reason"
_AGENT = "the agent on the head starts, judges and stops the ranks over this path"


def path_remedy(error: str, host: str, address: str) -> str:
    """Return what to do if the head cannot reach a worker, by the text of the failure."""
    remedy = next((text for pattern, text in _PATH if re.search(pattern, error, re.IGNORECASE)), _PATH_ELSE)
    return remedy.format(host=host, address=address)


def _agent_of(rank: Rank, wishes: Wishes) -> Mapping[str, Any]:
    """Return the facts of this group's agent; empty if none is installed, or one of another group or rank, which the role replaces."""
    agent: Mapping[str, Any] = rank.facts.get("agent") or {}
    return agent if agent.get("installed") and (agent["group"], agent["rank"]) == (wishes.group, rank.rank) else {}


def check_agents(book: Book, ranks: Sequence[Rank], wishes: Wishes) -> None:
    """Agents that are installed: the services, and the path from the head to the workers. What the vllm_tp2 role of the same run repairs is a warning."""
    agents = {rank.host: _agent_of(rank, wishes) for rank in ranks}
    for host, agent in agents.items():
        if agent and agent["active"] is None:
            book.skip(["agent_down", "agent_path", "agent_sshd"], host, agent["error"])
        elif agent and not agent["active"] and agent["pending"]:
            book.skip("agent_down", host, "its installation was interrupted; the vllm_tp2 role completes it")
        elif agent and not agent["active"]:
            remedy = f"`systemctl start gb10-agent` on the node, or {_SERVE}; `journalctl -u gb10-agent -n 50` shows why it ended"
            book.say("agent_down", "warning", host, f"gb10-agent.service does not answer ({agent['error']})", "without it the group cannot be started", remedy)
        for sentence in agent.get("sshd_problems", ()):
            found, end, remedy = sentence.partition("). ")
            if end:
                found += ")"
            else:
                found, _end, remedy = sentence.rpartition(". ")
            book.say("agent_sshd", "error", host, found, _AGENT, remedy)
    for rank in ranks:
        for peer in agents[rank.host].get("peers", ()):
            host = str(peer["host"])
            # A worker that answered and has no such agent gets it in this run; a service that is down is reported by itself.
            known = agents.get(host)
            if peer["ok"] or known == {} or (known and known["active"] is False):
                continue
            found = f"the agent on {rank.host} cannot reach {host} ({peer['address']}) over the rail: {peer['error'].rstrip('.')}"
            book.say("agent_path", "warning", [rank.host, host], found, _AGENT, path_remedy(str(peer["error"]), host, str(peer["address"])))


_RUNS: tuple[Callable[[Book, Sequence[Rank], Wishes], None], ...] = (
    check_machine,
    check_versions,
    check_memory,
    check_fabric,
    check_docker,
    check_ports,
    check_disks,
    check_clocks,
    check_agents,
)


def unknown_ids(names: Iterable[str]) -> list[str]:
    """Return a sentence for each name that is no ID, with the nearest one."""
    out = []
    for name in names:
        if name not in CHECKS:
            hint = did_you_mean(name, CHECKS, 0.5) or f"; known are {', '.join(CHECKS)}"
            out.append(f"preflight_ignore has {name!r}, which is no check{hint}")
    return out


def judge(ranks: Sequence[Rank], wishes: Wishes, ignore: Iterable[str] = (), strict: bool = False) -> Record:
    """Return {findings, ignored, not_checked} of one serving group; `strict` makes errors of warnings."""
    book = Book()
    check_answers(book, ranks)
    answered = [rank for rank in ranks if rank.asked and not rank.failure and not rank.unreachable]
    if answered:
        for run in _RUNS:
            run(book, answered, wishes)
    order = list(CHECKS)
    hidden = set(ignore)
    for entry in book.findings:
        if strict and entry["severity"] == "warning":
            entry["severity"] = "error"
    book.findings.sort(key=lambda entry: (SEVERITIES.index(entry["severity"]), order.index(entry["id"])))
    book.skipped.sort(key=lambda entry: order.index(entry["id"]))
    return {
        "findings": [entry for entry in book.findings if entry["id"] not in hidden],
        "ignored": [entry for entry in book.findings if entry["id"] in hidden],
        "not_checked": book.skipped,
    }


def block(finding: Mapping[str, Any]) -> str:
    """Return a finding as one readable block."""
    return (
        f"{finding['severity']} {finding['id']} ({', '.join(finding['hosts'])}): {_capital(finding['found'])}. "
        f"Why it matters: {finding['matters'].rstrip('.')}. Remedy: {finding['remedy'].rstrip('.')}."
    )


def _capital(text: str) -> str:
    """Begin as a sentence does, but leave a device's name as it is."""
    text = text.rstrip(".")
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+\b(?!-\w*\d)", text) else text


def skipped_text(skipped: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per reason: which checks were left out, where and why."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for entry in skipped:
        by_reason.setdefault((entry["reason"], ", ".join(entry["hosts"])), []).append(entry["id"])
    return [
        f"skipped ({hosts}): {'all checks' if len(names) == len(CHECKS) else ', '.join(names)}: {reason}." for (reason, hosts), names in by_reason.items()
    ]


def reboot_reasons(facts: Mapping[str, Any]) -> list[str]:
    """Return why a node needs a reboot, each as a few words; nothing where it does not."""
    found = []
    if facts["kernel"]["reboot_required"]:
        found.append("an update waits for it (/run/reboot-required)")
    gpu = facts["driver"]
    if gpu["loaded"] and gpu["on_disk"] and gpu["loaded"] != gpu["on_disk"]:
        found.append(f"the loaded driver is {gpu['loaded']}, the one on disk {gpu['on_disk']}")
    ours = {"memory-stuck": "memory is stuck with the driver", "memory-fragmented": "memory is fragmented"}
    if not facts["container"] and facts["machine"]["gb10"]:
        found += [ours[problem["id"]] for problem in facts["memory"].get("problems", []) if problem["id"] in ours]
    return found
