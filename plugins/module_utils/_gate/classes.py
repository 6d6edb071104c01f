# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The classes of failures that the gate finds without a log line, with their remedies. docs/failures.md is made of them."""

from __future__ import annotations

import re
from typing import NamedTuple


class GateClass(NamedTuple):
    """What a class means, and what helps."""

    means: str
    remedy: str


# From the states of containers and nodes, then from the criteria for a boot that came up.
CLASSES: dict[str, GateClass] = {
    "killed": GateClass(
        "The engine's process was killed by a signal, and the kernel counts no OOM kill.",
        'Find the sender on that node: `journalctl -k --since -1h | grep -i -E "oom|killed"`. If it was the kernel, stop what else uses memory there,'
        " or lower gpu-memory-utilization. If not, it was a docker stop whose grace period ran out, or another tool",
    ),
    "stopped": GateClass(
        "The container was stopped from outside, with SIGTERM.",
        "Find what stopped the container during the boot (docker stop, a restart of the Docker Engine, another tool), then run again",
    ),
    "container_missing": GateClass(
        "A rank has no container, although the agent started it.",
        "Let no other tool manage these containers, and run site.yml again",
    ),
    "other_release": GateClass(
        "The container belongs to another release than the one that is being judged.",
        "Let the agent alone manage the containers of the group, and run site.yml again: another tool has started this container",
    ),
    "start_failed": GateClass(
        "A rank was not started. It lacks something, a rail has no link, or the Docker Engine refused the container. The sentence names the cause.",
        "Correct what the message names, then run again",
    ),
    "node_lost": GateClass(
        "The head's agent has not reached a node for 20 s, over SSH on the rail.",
        "Check whether the node is frozen (unified memory exhausted), off or unplugged, and whether sshd and gb10-agent.service run there, then run again",
    ),
    "rank_unreadable": GateClass(
        "The agent of a node answers, and the state and the log of its container cannot be read.",
        "Correct what the message names on that node (the Docker Engine, in most cases), then run again",
    ),
    "exited": GateClass("The container ended and its log has no known cause.", "Read the last lines of that rank's log in the evidence bundle"),
    "restarted": GateClass(
        "The container was restarted during the boot.",
        "Stop what restarts the container (a restart policy, a second tool), then run again: the gate judges one boot",
    ),
    "stalled": GateClass(
        "A rank stayed in one stage for longer than it may.",
        "Read in the rank's log what it waits for. If it only needs longer (a first boot compiles for 8 to 36 minutes), raise vllm_tp2_timeout, or that"
        " stage's vllm_tp2_phase_seconds",
    ),
    "gate_error": GateClass(
        "The agent on the head failed while it judged the boot, so the boot has no verdict.",
        "Read the traceback with `journalctl -u gb10-agent` on the head, then run again",
    ),
    "api_unreachable": GateClass(
        "The log reports ready, and /v1/models does not answer.", "Read the head's log, and check whether a firewall or another server blocks the port"
    ),
    "model_differs": GateClass("The API serves other names than the profile's.", "Another server answers on this port, or served_names differ"),
    "context_differs": GateClass("The context is not the profile's.", "Set max-model-len to the context of the gate, or change gate.context"),
    "pool_below_floor": GateClass(
        "The KV pool, or the concurrency that follows from it, is smaller than the profile requires.",
        "Free memory on the rank with the least KV memory, raise gpu-memory-utilization, or lower max-num-batched-tokens",
    ),
    "pool_above_ceiling": GateClass("The KV pool is larger than this profile can have.", "Check the KV cache dtype, the model and the profile's figures"),
    "transport_differs": GateClass(
        "NCCL uses another transport than the profile requires.", "Check /dev/infiniband in the container, memlock, NCCL_IB_HCA and the GID index"
    ),
    "drafter_dead": GateClass(
        "The drafter proposes tokens and the model accepts none of them, so speculative decoding only costs time.",
        "Compare image and drafter with the profile's source: a drafter of another checkpoint or a missing patch accepts nothing. Delete the"
        " folders of container.cache_dirs with their key on all ranks. To serve without a drafter, set speculative-config to null in vllm_tp2_extra_args",
    ),
    "acceptance_low": GateClass(
        "The model accepts fewer draft tokens, or at fewer positions, than the profile requires.",
        "Compare image, drafter and num_speculative_tokens with the profile's source. If the bound does not fit your model, change gate.acceptance",
    ),
    "decode_slow": GateClass(
        "One stream generates fewer tokens per second than required. The same sentence is a warning if the speed is only far below the published one.",
        "Look in the receipt at transport, moe_backend, eager and the accepted draft tokens. Look at the GPU's power and clocks on all ranks while it"
        " generates (`nvidia-smi`). If the bound does not fit your pair, change gate.decode_tok_s",
    ),
    "engine_differs": GateClass("The engine did not take a setting of the profile.", "Check the image and the arguments"),
    "ranks_disagree": GateClass(
        "The ranks differ in context, version, world size or image.", "Run site.yml on the whole group, with --tags image for the image"
    ),
    "completion_wrong": GateClass(
        "A completion is not what the profile expects, or is not text.",
        "Delete the folders of container.cache_dirs with their key on all ranks, then compare image and weights (--tags image,weights): garbled text after a"
        " good boot is a stale compile cache, a wrong kernel or damaged data. See docs/garble.md",
    ),
    "completion_missing": GateClass(
        "/v1/models answers, and no completion comes back.",
        "Read the logs of all ranks: the engine hangs or has died. If it is only slow, raise vllm_tp2_completion_timeout",
    ),
}
# A class that log lines have too; docs/failures.md explains it there.
OOM_REMEDY = (
    "Stop what else uses memory there, drop the page cache, or raise the container's memory limit if it has one. Check that the profile sets the UCX pair: "
    "without it each request leaks about 14 MB, and a lower gpu-memory-utilization only delays the failure. Then run again"
)

# Messages of the Docker Engine when it cannot start a container, and what helps.
START_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"container name .* is already in use", "Remove the other container of that name with `docker rm -f` (`docker ps -a` shows it), then run again"),
    (r"No such image|pull access denied|manifest unknown|not found: manifest", "Run --tags image: that node has no such image and cannot pull it"),
    (r"executable file not found|exec format error|no such file or directory: unknown", "Run --tags image: the image of that name on that node is another one"),
    (
        r"could not select device driver|unresolvable CDI|nvidia-container|unknown or invalid runtime name",
        "Run --tags docker: the NVIDIA container toolkit is missing or does not see the GPU (`nvidia-smi` and `nvidia-ctk cdi list` on that node)",
    ),
    (r"no space left on device", "Free space on the disk of the Docker Engine on that node (`docker system df`, `df -h`)"),
    (r"Cannot connect to the Docker daemon", "Run --tags docker: the Docker Engine on that node does not run"),
)


def remedy_of(name: str) -> str:
    """Return the remedy of a class, empty if the gate does not know it."""
    return OOM_REMEDY if name == "oom_killed" else CLASSES[name].remedy if name in CLASSES else ""


def start_remedy(error: str) -> str:
    """Return the remedy for a start that failed, by the Docker Engine's message."""
    return next((remedy for pattern, remedy in START_REMEDIES if re.search(pattern, error, re.I)), remedy_of("start_failed"))
