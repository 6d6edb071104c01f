"""Faults of a live boot: the late phases, settings that do not fit, and what is refused before a boot. It takes two runs of this part."""

from gpu.boot_faults import Fault, boots, hog, killed
from gpu.test_b_boot_faults import GRAPHS, LOAD, REPORT, SQUAT

#: One file of the engine's tree is another one, on the worker alone.
FILE = "f=$(ls /opt/engine/site/vllm/_version.py /opt/engine/lib/python3*/site-packages/vllm/_version.py 2>/dev/null)"
OTHER = f"{FILE}; sed \"s/^__version__ = version = .*/__version__ = version = '0.24.9'/\" $f >/root/version.py; mount --bind /root/version.py $f"
EAGER, OFF = {"enforce-eager": True}, {"plan": "off"}
GLOO = {"extra_environment": {"GLOO_SOCKET_IFNAME": "nope0"}}
GO = "docker exec hog touch /tmp/go"

test_boot = boots(
    Fault(
        "out of memory in graphs",
        ("cuda_oom",),
        1,
        {**REPORT, "requests": 500},  # each captured size takes memory of the driver: a few do not need more than the engine holds
        before=hog(0.97, 3),
        phase=GRAPHS,
        act=GO,
        after="docker rm -f hog",
        own_gpu=True,
    ),
    killed(2, "compile", "Dynamo bytecode transform time", r"torch\.compile took", requests=12),
    Fault("mixed versions of the engine", ("ranks_disagree",), before=OTHER, after=f"{FILE}; umount $f", words=(r"0\.24\.9",)),
    Fault("context longer than the model's", ("context_too_long", "config_error"), settings={**OFF, "context": 1048576}),
    Fault("KV pool for less than one request", ("kv_too_small",), settings={**OFF, "extra_arguments": {**EAGER, "kv-cache-memory-bytes": 1 << 28}}),
    Fault("no memory for the KV pool", ("kv_no_memory",), settings={**OFF, "extra_arguments": EAGER, "utilization": 0.01}),
    Fault("utilization above what is free", ("startup_free_memory",), settings={**REPORT, "utilization": 0.995, "unsafe_memory": True}),
    Fault("wrong interface for Gloo", ("rendezvous", "nccl_error", "config_error"), settings=GLOO, words=("nope0|interface",)),
    Fault("port of the rendezvous taken", ("addr_in_use",), 0, node=1, before=f"{SQUAT} 29501", after="systemctl stop squatter"),
    Fault("neighbour, before the start", (), before=hog(0.7), after="docker rm -f hog", words=("lab-2", "GPU memory", "Nothing was stopped"), own_gpu=True),
    killed(1, "load", LOAD, "Model loading took"),
)
