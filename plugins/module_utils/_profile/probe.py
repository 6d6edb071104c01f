# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine of a rank needs of its container, tried in a container with the same settings before anything is stopped. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile import models
from ansible_collections.gb10.cluster.plugins.module_utils._profile.caches import VARIABLES

SECONDS = 10  # the script ends itself after so long
TIMED_OUT = 4  # and then returns this
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
SCRIPT = (
    f"SECONDS, TIMED_OUT, CUDA, DENIED, GPU = {SECONDS}, {TIMED_OUT}, {CUDA!r}, {DENIED!r}, {_GPU!r}\n"
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
CACHES = (*VARIABLES, "HF_MODULES_CACHE", "XDG_CACHE_HOME")


SHARED_MIB = 256  # of shared memory; Docker gives 64 MiB, which NCCL and a queue of vLLM fill


def probe_words(profile: Mapping[str, Any], devices: Sequence[str], weights_writable: bool = False) -> list[str]:
    """Return the words after `python3` that try what a rank needs. `devices` are those of its service, host:container."""
    wanted = {
        "devices": [device.split(":")[1] for device in devices if "/dev/infiniband/" in device], "cuda": profile["container"]["gpus"] == "all",
        "caches": CACHES, "models": [each["path"] for each in models.all_of(profile)], "writable": weights_writable, "shared": SHARED_MIB,
    }  # fmt: skip
    return ["-IS", "-c", SCRIPT, json.dumps(wanted)]
