# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is tried in short containers of the image before anything is stopped: what an engine needs of its container, and the collectives. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import stream as boot_log
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads, misfit
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.bandwidth import Thresholds
from ansible_collections.gb10.cluster.plugins.module_utils._profile import values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import CACHE_VARIABLES

# --- What the engine of a rank needs of its container, tried in a container with the same settings before anything is stopped.

PROBE_SECONDS = 10  # the script ends itself after so long
PROBE_TIMED_OUT = 4  # and then returns this
_GPU = "Check the GPU and its driver on the node (`nvidia-smi`), what containers get of them (`nvidia-ctk cdi list`), and run site.yml with --tags docker"
_HIDDEN = "the container has no GPU, or CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES of the profile's env, of vllm_tp2_extra_env or of the image hides it"
_OLD = "the driver is too old for this image. Update it, or use an image with an older CUDA"
_COMPAT = "Take the image's own libcuda (/usr/local/cuda/compat) out of LD_LIBRARY_PATH and ld.so.conf"
_BUSY = "another process uses the GPU, or its compute mode forbids this one (`nvidia-smi -q -d COMPUTE`)"
_MPS = "the server of CUDA MPS does not answer. Start it, or remove CUDA_MPS_PIPE_DIRECTORY from the profile's env and vllm_tp2_extra_env"
#: What cuInit returns (CUresult in cuda.h): its name, and the cause with its remedy. _GPU follows.
CUDA: dict[int, tuple[str, str]] = {
    2: ("OUT_OF_MEMORY", _BUSY),
    3: ("NOT_INITIALIZED", "the driver does not start"),
    34: ("STUB_LIBRARY", "the image's libcuda is one for builds. Take its folder `stubs` out of LD_LIBRARY_PATH"),
    35: ("INSUFFICIENT_DRIVER", _OLD),
    36: ("CALL_REQUIRES_NEWER_DRIVER", _OLD),
    46: ("DEVICE_UNAVAILABLE", _BUSY),
    100: ("NO_DEVICE", _HIDDEN),
    101: ("INVALID_DEVICE", _HIDDEN),
    802: ("SYSTEM_NOT_READY", "the driver is not ready. With NVSwitch it waits for the fabric manager (`systemctl status nvidia-fabricmanager`)"),
    803: ("SYSTEM_DRIVER_MISMATCH", f"libcuda does not fit the loaded driver. Reboot the node if the driver was updated. {_COMPAT}"),
    804: ("COMPAT_NOT_SUPPORTED_ON_DEVICE", f"{_OLD}. {_COMPAT}"),
    **dict.fromkeys(range(805, 811), ("MPS", _MPS)),
    999: ("UNKNOWN", "the driver fails (`dmesg` on the node). If `nvidia-smi` fails too, reboot the node"),
}
DENIED = (1, 304, 800)  # INVALID_VALUE, OPERATING_SYSTEM, NOT_PERMITTED
#: Runs with the image's python3 and the rank's environment. Prints one line for each problem, with the remedy, and then ends with 3.
PROBE_SCRIPT = (
    f"SECONDS, TIMED_OUT, CUDA, DENIED, GPU = {PROBE_SECONDS}, {PROBE_TIMED_OUT}, {CUDA!r}, {DENIED!r}, {_GPU!r}\n"
    + r"""
import ctypes, errno, json, os, re, sys, tempfile, threading
limit = threading.Timer(SECONDS, os._exit, [TIMED_OUT])  # the first process of a container ignores SIGALRM
limit.daemon = True
limit.start()
wanted, problems = json.loads(sys.argv[1]), []
READ_ONLY = "its mount in container.volumes of the profile has to be writable, without :ro"
WRITABLE = ":ro at this mount in container.volumes of the profile, or vllm_tp2_weights_writable: true, lifts this"
NO_CAPABILITY = "vllm_tp2_cap_add: [DAC_OVERRIDE] lifts this, or change the owner or the mode on the node"
def attempt(what, remedy, call, only=OSError):
    try:
        call()
    except only as error:
        problems.append(f"{what} ({error.strerror or error}): {READ_ONLY if error.errno == errno.EROFS else remedy}.")
    except OSError:
        pass
def start_cuda():
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
        name, cause = CUDA.get(code, ("", "the driver fails"))
        what = f"cuInit returns {code}" + (name and f", {name}")
    except OSError as error:
        code, what, cause = -1, str(error), "the container has no usable library of the driver"
    if code in DENIED:
        problems.append(f"CUDA does not start ({what}): vllm_tp2_no_new_privileges: false, or vllm_tp2_cap_add: [ALL], lifts this.")
    elif code:
        problems.append(f"CUDA does not start ({what}): {cause}. {GPU}.")
def write(path):
    while not os.path.exists(path):
        path = os.path.dirname(path)
    tempfile.TemporaryFile(dir=path).close()
def read(path):
    for folder, _folders, files in os.walk(path, onerror=fail):
        for name in files[:3]:
            open(os.path.join(folder, name), "rb").close()
def fail(error):
    raise error
def share(mib):
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        os.posix_fallocate(file.fileno(), 0, mib << 20)
def mounts():
    for line in open("/proc/self/mountinfo"):
        fields = [re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), field) for field in line.split()[:6]]
        yield fields[2], fields[3].rstrip("/") + "/", fields[4].rstrip("/") + "/", fields[5].split(",")
def only_read(path):
    path = os.path.realpath(path) + "/"
    device, root, there, _flags = sorted((each for each in mounts() if path.startswith(each[2])), key=lambda each: len(each[2]))[-1]
    for other in mounts() if there != "/" else ():
        if other[0] == device and (root + path[len(there):]).startswith(other[1]) and "rw" in other[3]:
            raise OSError(f"{other[2]} is mounted writable")
for path in wanted["devices"]:
    attempt(f"it cannot open {path}", "vllm_tp2_infiniband: folder, or vllm_tp2_cap_add, lifts this", lambda: os.close(os.open(path, os.O_RDWR)))
if wanted["cuda"]:
    start_cuda()
for name in wanted["caches"]:
    if os.environ.get(name, "").startswith("/"):
        attempt(f"it cannot write into {name}={os.environ[name]}", NO_CAPABILITY, lambda: write(os.environ[name]))
hub = os.environ.get("HF_HUB_CACHE") or os.path.join(os.environ.get("HF_HOME", "/nowhere"), "hub")
for name in wanted["models"]:
    model = name if name.startswith("/") else os.path.join(hub, "models--" + name.replace("/", "--"))
    attempt(f"it cannot read {model}", NO_CAPABILITY, lambda: read(model), PermissionError)
    if not wanted["writable"] and os.path.exists(model):
        attempt(f"it can change the weights in {model}", WRITABLE, lambda: only_read(model))
attempt(f"it cannot use {wanted['shared']} MiB of /dev/shm", "a larger container.shm_size of the profile, or vllm_tp2_ipc: host, lifts this",
    lambda: share(wanted["shared"]))
print("\n".join(problems))
sys.exit(3 if problems else 0)
"""
)
#: Variables of the folders that the engine writes into.
CACHES = (*CACHE_VARIABLES, "HF_MODULES_CACHE", "XDG_CACHE_HOME")


SHARED_MIB = 256  # of shared memory; Docker gives 64 MiB, which NCCL and a queue of vLLM fill


def probe_words(profile: Mapping[str, Any], devices: Sequence[str], weights_writable: bool = False) -> list[str]:
    """Return the words after `python3` that try what a rank needs. `devices` are those of its service, host:container."""
    wanted = {
        "devices": [device.split(":")[1] for device in devices if "/dev/infiniband/" in device], "cuda": profile["container"]["gpus"] == "all",
        "caches": CACHES, "models": [each["path"] for each in values.models_of(profile)], "writable": weights_writable, "shared": SHARED_MIB,
    }  # fmt: skip
    return ["-IS", "-c", PROBE_SCRIPT, json.dumps(wanted)]


# --- A bounded test of the collectives that the engine needs, in short containers of the image, one a rank at once: container, script, verdict.

COLLECTIVE_SECONDS = 60  # the script ends itself after so long
MARK = "GB10-COLLECTIVE "
#: Buffers of the largest size: 512 MiB, and a quarter of it for comparisons. The rest is for Python, the CUDA context and NCCL.
NEEDED_KIB = 4 << 20
KEPT = "collective.json"  # in the group's folder on the node: the last result that passed
#: Runs with the image's python3. NCCL without a GPU does not exist, so the same collectives run on gloo there. Prints one line with its result.
COLLECTIVE_SCRIPT = (
    f"MARK = {MARK!r}\n"
    + r"""
import ctypes, datetime, json, os, sys, threading, time
plan = json.loads(sys.argv[1])
rank, world = plan["rank"], plan["size"]
found = {"backend": "", "stage": "import", "rows": [], "problem": "", "text": ""}
lock = threading.Lock()
def end(problem="", text=""):
    with lock:
        print("\n" + MARK + json.dumps(dict(found, problem=problem, text=str(text)[:500])), flush=True)
        flush = threading.Thread(target=ctypes.CDLL(None).fflush, args=[None], daemon=True)  # os._exit drops what C libraries have buffered
        flush.start()
        flush.join(5)  # a library that hangs can hold the lock of its stream
        os._exit(0)
limit = threading.Timer(plan["seconds"], end, ["timeout"])  # the first process of a container ignores SIGALRM
limit.daemon = True
limit.start()
try:
    import torch
    import torch.distributed as dist
except Exception as error:
    end("no_torch", error)
try:
    cuda = plan["gpu"]
    if cuda and not torch.cuda.is_available():
        end("error", "torch.cuda.is_available() is False")
    if cuda:
        torch.cuda.set_device(0)
    found["backend"], found["stage"] = "nccl" if cuda else "gloo", "rendezvous"
    wait = datetime.timedelta(seconds=plan["seconds"])
    store = dist.TCPStore(plan["address"], plan["port"], world, rank == 0, wait)
    dist.init_process_group(found["backend"], store=store, rank=rank, world_size=world, timeout=wait)
    found["stage"] = "collective"
    device = torch.device("cuda:0" if cuda else "cpu")
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    for mib in ((1, 8, 64, 256) if cuda else (1, 4, 16)):
        count = (mib << 20) // 4 // world * world
        for name in ("all_reduce", "all_gather"):
            whole = torch.empty(count, dtype=torch.float32, device=device)
            if name == "all_reduce":
                mine, wanted = whole, [(0, count, world * (world + 1) // 2)]
                call = lambda: dist.all_reduce(whole)
                factor = 2 * (world - 1) / world
            else:
                part = count // world
                mine = torch.empty(part, dtype=torch.float32, device=device)
                parts = list(whole.chunk(world))
                wanted = [(at * part, part, at + 1) for at in range(world)]
                call = lambda: dist.all_gather(parts, mine)
                factor = (world - 1) / world
            mine.fill_(rank + 1)
            call()
            sync()
            for start, length, value in wanted:
                piece = whole[start:start + length]
                if float(piece.min()) != value or float(piece.max()) != value:
                    end("wrong_result", f"{name} of {mib} MiB: expected {value}, found {float(piece.min())} to {float(piece.max())}")
            rounds = 5
            dist.barrier()
            sync()
            begin = time.monotonic()
            for _round in range(rounds):
                call()
            sync()
            seconds = (time.monotonic() - begin) / rounds
            found["rows"].append({"op": name, "mib": mib, "gb_s": round(count * 4 * factor / seconds / 1e9, 3)})
            del whole, mine
    found["stage"] = "end"
    dist.barrier()
except Exception as error:
    late = any(word in str(error).lower() for word in ("timed out", "timeout"))
    end("timeout" if late and found["stage"] in ("rendezvous", "collective") else "error", (str(error).strip().splitlines() or [type(error).__name__])[0])
end()
"""
)
#: What one rank's script prints.
RESULT = {"backend": str, "stage": str, "problem": str, "text": str, "rows": [{"op": str, "mib": int, "gb_s": float}]}
#: Keys of the release's service that the test has, too. Volumes, secrets, health check and labels are not among them.
_KEYS = ("image", "pull_policy", "network_mode", "ipc", "shm_size", "security_opt", "cap_drop", "cap_add", "devices", "ulimits", "deploy")
_VARIABLES = re.compile(r"(?:NCCL|TORCH_NCCL|GLOO|TP|UCX|CUDA|LD|OMP|NVIDIA)_|(?:PATH|PYTHONPATH|VIRTUAL_ENV)\Z")
#: NCCL buffers standard output by block, and a file of this variable by line. So its lines are there too if the test is killed.
_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": "/dev/stdout"}


def service_of(profile: Mapping[str, Any], rank: Mapping[str, Any], service: Mapping[str, Any], store: str) -> dict[str, Any]:
    """Return the service of the test, as that of the release without what the test does not need. `service` has its environment."""
    env = {key: value for key, value in service["environment"].items() if _VARIABLES.match(key) and not key.startswith("NCCL_DEBUG")}
    plan = {
        "rank": int(rank["rank"]), "size": int(rank["size"]), "address": str(rank.get("master_addr") or "127.0.0.1"), "seconds": COLLECTIVE_SECONDS,
        "port": int(profile["engine"]["master_port"] or 25000), "gpu": profile["container"]["gpus"] == "all",
    }  # fmt: skip
    return {
        **{key: service[key] for key in _KEYS if key in service},
        "restart": "no", "working_dir": "/", "logging": {"driver": "json-file", "options": {"max-size": "8m", "max-file": "1"}},
        **({"volumes": tools} if (tools := values.tool_volumes(profile, store)) else {}),
        "entrypoint": ["python3"], "command": ["-c", COLLECTIVE_SCRIPT, json.dumps(plan)], "environment": {**env, **_DEBUG},
    }  # fmt: skip


def compose_text(service: Mapping[str, Any], fabric: Mapping[str, str]) -> str:
    """Return the Compose file of the test, with the fabric variables of this node."""
    known = {str(key): str(value).replace("$", "$$") for key, value in fabric.items()}
    return json.dumps({"services": {"test": {**service, "environment": {**service["environment"], **known}}}})


def ended(problem: str, text: str) -> dict[str, Any]:
    """Return the result of a rank that could not test."""
    return {"backend": "", "transport": "unknown", "hcas": [], "rows": [], "stage": "", "problem": problem, "text": text}


def parse(text: str) -> dict[str, Any]:
    """Return the result in a container's output, with the transport by NCCL's own lines; `problem` is no_result if there is none that fits."""
    lines = text.splitlines()
    marked = [line[len(MARK) :] for line in lines if line.startswith(MARK)]
    try:
        found: Any = loads(marked[-1]) if marked else None
        problem = misfit(found, RESULT)
    except ValueError as error:
        problem = str(error)
    if problem:
        return ended("no_result", next((line.strip() for line in reversed(lines) if line.strip()), "no output")[:300])
    result: dict[str, Any] = {key: found[key][:500] for key in ("backend", "stage", "problem", "text")}
    result["rows"] = [{"op": row["op"][:40], "mib": row["mib"], "gb_s": row["gb_s"]} for row in found["rows"][:32]]
    nccl = boot_log.parse(text)["nccl"]
    hcas = list(dict.fromkeys(name.partition(":")[0] for name in nccl["hcas"]))
    return {**result, "transport": "tcp" if result["backend"] == "gloo" else nccl["transport"], "hcas": hcas}


def peak(result: Mapping[str, Any]) -> float:
    """Return the highest bus bandwidth of a result in GB/s, as nccl-tests defines it."""
    return max((float(row["gb_s"]) for row in result.get("rows") or []), default=0.0)


def shown(result: Mapping[str, Any]) -> str:
    """Return what was measured, as a phrase."""
    if result["backend"] == "gloo":
        how = "gloo over TCP"
    else:
        how = f"NCCL over {'RoCE' if result['transport'] == 'rdma' else 'TCP' if result['transport'] == 'tcp' else 'a transport that its log does not name'}"
        how += f", {len(result['hcas'])} HCA{'' if len(result['hcas']) == 1 else 's'} ({', '.join(result['hcas'])})" if result["hcas"] else ""
    top = max(result["rows"], key=lambda row: row["gb_s"], default=None)
    return how + (f", bus bandwidth {top['gb_s']:.2f} GB/s ({top['op']} of {top['mib']} MiB)" if top else "")


NOT_TESTED = ("memory_short", "no_torch")
_SKIP = "To start without this test: -e vllm_tp2_collective_test=never"
_CABLE = "Compare it with playbooks/site.yml --tags roce, which measures the rails without NCCL"
#: Class -> its sentences. The cause comes before its consequence: a rank that cannot test leaves the others without a peer.
_SENTENCES = {
    "memory_short": "not tested: {host} has too little memory ({text})",
    "no_torch": "not tested: {host} has an image without a usable torch ({text})",
    "error": "the test failed on {host} ({text}). Correct that, and run again",
    "wrong_result": f"the collective returns wrong values on {{host}} ({{text}}). Do not serve with this image: use another build of its NCCL. {_CABLE}",
    "hang": (
        f"the collective hangs on {{host}} after {{count}} measurements, limit {COLLECTIVE_SECONDS} s. Set NCCL_NVLS_ENABLE: '0' and NCCL_NET_PLUGIN: none in "
        "vllm_tp2_extra_env (NCCL 2.30.4 hangs on pairs of GB10 without them, NVIDIA/nccl #2167), and check that the firewall of all ranks admits the fabric"
    ),
    "peer_absent": (
        f"the other ranks did not come to {{host}} within {COLLECTIVE_SECONDS} s. Look at their results, check that they reach the head's fabric address, "
        "and that forks of Ansible is not below the number of ranks"
    ),
    "socket_fallback": (
        "NCCL on {host} uses TCP sockets instead of RoCE ({shown}). Check /dev/infiniband in the container (vllm_tp2_infiniband: folder), "
        "NCCL_IB_HCA and NCCL_IB_GID_INDEX, and set NCCL_NET: IB so that it cannot fall back"
    ),
    "low_bandwidth": (
        "{shown} on {host}, and {least:.2f} GB/s are expected (vllm_tp2_collective_min, or more than rails with the hot-plug fault of about 13 Gb/s give). "
        f"{_CABLE}. If that is healthy, this image's NCCL is slow: use another build of it"
    ),
}
_TIMEOUTS = {"rendezvous": "peer_absent", "collective": "hang"}


def problem_of(result: Mapping[str, Any], host: str, minimum: float | None = None, rdma: bool = True) -> tuple[str, str]:
    """Return class and sentences about one rank's result; both are empty if it is good. NCCL needs RoCE if `rdma`."""
    nccl = result["backend"] == "nccl" and rdma
    least = Thresholds().hotplug_high_gbps / 8 * max(1, len(result["hcas"])) if minimum is None else minimum
    slow = peak(result) < least if minimum is not None else nccl and peak(result) <= least
    name = str(result["problem"])
    if name == "timeout":
        name = _TIMEOUTS.get(result["stage"], "error")
    elif not name:
        name = "socket_fallback" if nccl and result["transport"] == "tcp" else "low_bandwidth" if slow else ""
    elif name not in _SENTENCES:
        name = "error"
    if not name:
        return "", ""
    text = str(result["text"]).rstrip(".") or str(result["problem"])
    return name, _SENTENCES[name].format(host=host, text=text, count=len(result["rows"]), shown=shown(result), least=least)


def verdict(ranks: Sequence[Mapping[str, Any]], hosts: Sequence[str], minimum: float | None = None, rdma: bool = True) -> dict[str, Any]:
    """Decide for the group from what the module roce_test returned on its ranks, in the order of `hosts`.

    The result has `class`, `failed`, `msg`, and `gb_s` of the slowest rank.
    """
    # Without a result the module itself failed, or its node was not reachable. A rank without anything failed before its test.
    results = [each.get("result") or ended("error", str(each.get("msg") or ("no message" if each else "it failed before its test"))) for each in ranks]
    order, found = list(_SENTENCES), [problem_of(result, host, minimum, rdma) for result, host in zip(results, hosts)]
    problems = sorted((each for each in found if each[0]), key=lambda each: order.index(each[0]))
    if problems:
        name, text = problems[0]
        failed = name not in NOT_TESTED
        return {"class": name, "failed": failed, "msg": f"{text}. {f'Nothing was started. {_SKIP}' if failed else 'The start goes on'}.", "gb_s": 0.0}
    slowest = min(results, key=peak)
    return {"class": "", "failed": False, "msg": f"{shown(slowest)}.", "gb_s": peak(slowest)}
