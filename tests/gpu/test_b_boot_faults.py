"""Faults of a live boot: ranks that are killed, and what a node lacks."""

from gpu.boot_faults import Fault, boots, hog, killed
from gpu.pair import GPU, PROFILE

LOAD = r"Loading model from scratch|Starting to load model"
#: A few bytes at the end of the shard are enough, and are put back.
SHARD = f"f=$(ls /srv/models/{'lab-1b' if GPU else PROFILE}/*.safetensors | tail -1)"
CUT = f"{SHARD}; touch -r $f /root/time; tail -c 4096 $f >/root/end; truncate -s -4096 $f"
MEND = f"{SHARD}; cat /root/end >>$f; touch -r /root/time $f"
#: The pool is allocated, and graphs are captured next.
GRAPHS = r"Skipping CuTeDSL warmup|Capturing CUDA graphs"
PEER = ("node_lost", "peer_lost", "rendezvous", "nccl_error", "rpc_timeout", "worker_died", "stalled")
SQUAT = "systemd-run --quiet --collect --unit squatter python3 -m http.server"
REPORT = {"plan": "report"}
NO_GPU = 'cp /etc/cdi/nvidia.json /root/cdi.json; sed -i \'s/"deviceNodes": \\[[^]]*\\]/"deviceNodes": []/\' /etc/cdi/nvidia.json'

test_boot = boots(
    killed(2, "load", LOAD, "Model loading took"),
    Fault("truncated shard of a release that has served", (), before=CUT, after=MEND, words=("rank 1 on lab-2: the weights differ",)),
    Fault("wrong interface for NCCL", ("nccl_error",), settings={"extra_environment": {"NCCL_SOCKET_IFNAME": "nope0"}}, words=("nope0|interface",)),
    Fault("neighbour on the GPU of the worker", ("startup_free_memory",), 1, REPORT, before=hog(0.7), after="docker rm -f hog", own_gpu=True),
    killed(2, "graph capture", GRAPHS, "Graph capturing finished"),
    Fault(
        "no GPU for the worker",
        (),  # the container that tries the settings shows it, before anything is stopped
        before=NO_GPU,
        after="cp /root/cdi.json /etc/cdi/nvidia.json",
        words=("lab-2: .*nothing was stopped: CUDA does not start",),
    ),
    Fault("port of the API taken", ("addr_in_use",), 0, node=1, before=f"{SQUAT} 8000", after="systemctl stop squatter"),
    Fault("rail of the worker lost in load", PEER, phase=LOAD, act="ip link set enp1s0f0np0 down", after="ip link set enp1s0f0np0 up"),
)  # fmt: skip
