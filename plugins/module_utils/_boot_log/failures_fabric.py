# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: failure rows of what runs between the ranks: RDMA, NCCL, Gloo, rendezvous, time limits. The keys are described in catalogue.py."""

from __future__ import annotations

from typing import Any

ROWS: list[dict[str, Any]] = [
    {
        "class": "rdma_register",
        "patterns": [r"(?P<call>ibv_(?:reg_mr\w*|create_cq\w*|create_qp\w*|reg_dmabuf_mr\w*)) failed with (?:error|12) Cannot allocate memory"],
        "any_level": True,
        "kind": "strong",
        "remedy": "Give the container `ulimits: memlock: -1`, /dev/infiniband and IPC_LOCK; if it has them, set sysctl_kho_off: true or boot a 6.17 kernel, "
        "or set NCCL_CUMEM_ENABLE=0.",
        "means": "The HCA could not register memory ({call}).",
        "why": "The memlock limit of the container runtime (8 MiB), the CMA leak of the 7.0.0-1019/-31 kernels, or libmlx5 without dmabuf support.",
        "example": "misc/ibvwrap.cc:213 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    },
    {
        "class": "rendezvous",
        "case": "address_not_local",
        "patterns": [
            r"ZMQError: Cannot assign requested address \(addr='\w{1,10}://(?P<address>[^']{1,80}?)(?::\d{1,5})?'\)",
            r"on address \('(?P<address>[^']{1,64})', \d{1,5}\): cannot assign requested address",
            r"(?:Error|bind|listen|gloo|failed to).{0,200}[Cc]annot assign requested address",
            r"\[Errno 99\]|os error 99",
        ],
        "unless": ["client socket", "cannot be initialized", "retrying"],
        "kind": "weak",
        "remedy": "Compare {address} with `ip -br addr` on this node. Correct VLLM_HOST_IP, --master-addr or engine.api.host, "
        "or bring the rail up that carries the address (`ansible-playbook site.yml --tags roce`).",
        "remedy_plain": "Compare VLLM_HOST_IP, --master-addr and engine.api.host with `ip -br addr` on this node. "
        "Correct the one that this node does not have, or bring the rail up that carries it (`ansible-playbook site.yml --tags roce`).",
        "means": "vLLM is configured to listen on an address that this node does not have.",
        "why": "The address belongs to the other node, or the interface that carries it is down.",
        "example": "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://192.0.2.11:41257')",
    },
    {
        "class": "rendezvous",
        "patterns": [
            r"(?:DistNetworkError|DistStoreError): (?P<message>.{1,300})",
            r"DistStoreError",
            r"client socket has timed out",
            r"failed to connect/validate to host (?P<address>\S{1,80})",
            r"TCPStore.{0,200}(?:timed out|refused)",
            r"Gloo connectFullMesh failed",
            r"Timed out initializing process group in store based barrier",
            r"Cannot provide a placement group",
            r"Not enough resources to allocate \d{1,4} placement groups",
            r"ifa != nullptr\. Unable to find (?:address|interface) for: \S{1,80}",
            r"Error: (?:Could not find any running Ray instance|.{0,60}Failed to connect to GCS)",
        ],
        "details": [r"\((?P<host>[\w.:-]{1,80}), (?P<port>\d{1,5})\)"],
        "unless": ["EADDRINUSE", "- retrying", "should dump"],
        "kind": "weak",
        "remedy": "Make both ranks use the head's fabric address in --master-addr (this one tried {host}:{port}) and let that port through the firewall.",
        "remedy_plain": "Start both ranks with the same --master-addr and --master-port, and set VLLM_HOST_IP and GLOO_/NCCL_SOCKET_IFNAME per node.",
        "needs_peer": "whether it started at all, and the --master-addr and port it used",
        "means": "The ranks did not find each other.",
        "why": "One rank is not running, has another --master-addr or port, or the port is not reachable over the fabric.",
        "example": "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    },
    {
        "class": "peer_lost",
        "patterns": [
            r"(?:Read|Write|writev|readv) ?(?:error )?\[(?P<peer>[^\]]{1,60})\]:?\S{0,12} ?(?:Connection reset by peer|Broken pipe)",
            r"Connection closed by peer \[(?P<peer>[^\]]{1,60})\]",
            r"remote process exit(?:ed|ing)",
            r"Application timeout caused pair closure",
            r"Failed to recv, got 0 bytes\. Connection was likely closed",
            r"store->get\('[^']{1,80}'\) got error: (?:Broken pipe|Connection reset)",
            r"The node with node id: \w{1,80} and address: (?P<peer>\S{1,60}) .{0,120}has been marked dead because",
        ],
        "kind": "strong",
        "remedy": "Read the log and the container state of the other rank ({peer}), which ended first, and restart both.",
        "remedy_plain": "Read the log and the container state of the other rank, which ended first, and restart both.",
        "needs_peer": "its log and its container's state have the cause",
        "means": "The connection to the other rank broke: that rank died.",
        "why": "A killed or crashed rank closes its sockets; the other rank only sees a closed connection.",
        "example": "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.77.0.1]:1971: Connection reset by peer.",
    },
    {
        "class": "nccl_error",
        "case": "nccl_interface",
        "patterns": [
            r"[Bb]ootstrap ?: no socket interface found",
            r"NCCL WARN .{0,60}(?:no|No) (?:socket )?interface found",
            r"ncclSocketInit: connecting to address .{0,80}is neither AF_INET",
        ],
        "any_level": True,
        "kind": "strong",
        "remedy": "Set NCCL_SOCKET_IFNAME on this node to an interface that exists and is up (`ip -br addr`); interface names can differ between the nodes. "
        "`ansible-playbook site.yml --tags roce` reports this node's names.",
        "means": "NCCL found no network interface with the name in NCCL_SOCKET_IFNAME.",
        "why": "The name is wrong on this node, the interface is down or has no address, or the container does not use the host's network.",
        "example": "spark1:301:301 [0] bootstrap.cc:103 NCCL WARN Bootstrap : no socket interface found",
    },
    {
        "class": "nccl_error",
        "case": "nccl_network",
        "patterns": [r"(?P<message>Failed to initialize any NET plugin)", r"NCCL WARN Error: (?P<message>network \S{1,40} not found)"],
        "any_level": True,
        "kind": "strong",
        "remedy": "Check that this node has /dev/infiniband and a rail that is up (`rdma link`), and run `ansible-playbook site.yml` again: "
        "the container gets the devices that exist at its start.",
        "means": "NCCL_NET names a network that NCCL cannot use in the container.",
        "why": "The container has no /dev/infiniband or no locked memory, or its libibverbs or network plugin does not fit. NCCL_NET: IB forbids TCP.",
        "example": "spark1:301:301 [0] plugin/net.cc:376 NCCL WARN Failed to initialize any NET plugin",
    },
    {
        "class": "nccl_error",
        "case": "nccl_versions",
        "patterns": [r"Mismatched NCCL versions? detected ?:? ?(?P<message>.{1,160})", r"NCCL WARN .{0,60}Message truncated : received \d"],
        "any_level": True,
        "kind": "strong",
        "remedy": "Run the same image on both nodes (`docker image inspect`, or `ansible-playbook site.yml --tags image`), and let VLLM_NCCL_SO_PATH and "
        "LD_PRELOAD name the same library on both.",
        "needs_peer": "its NCCL version (`vLLM is using nccl==`)",
        "means": "The ranks use different NCCL versions.",
        "why": "The nodes run different images, or one of them loads another libnccl.",
        "example": "spark1:301:412 [0] init.cc:812 NCCL WARN Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 22707",
    },
    {
        "class": "nccl_error",
        "case": "nccl_shm",
        "patterns": [
            r"NCCL WARN .{0,120}/dev/shm/nccl-\S{0,40} .{0,80}(?:No space left on device|No such file or directory|Cannot allocate memory|Permission denied)",
            r"[Ee]rror.{0,120}/dev/shm/nccl-\S{0,40} .{0,80}No such file or directory",
            r"NCCL WARN .{0,60}posix_fallocate failed",
        ],
        "any_level": True,
        "kind": "strong",
        "remedy": "If space is short, raise container.shm_size of the profile. "
        "With vllm_tp2_ipc: host, delete the nccl-* files of dead engines in /dev/shm of this node while the group is stopped. "
        "If the file does not exist, another container or script cleans /dev/shm, or logind does (RemoveIPC=yes in /etc/systemd/logind.conf).",
        "means": "NCCL could not use shared memory (/dev/shm).",
        "why": "A container has the shared memory of container.shm_size. In the host's IPC namespace, a killed engine leaves its segments behind, "
        "and others can remove the segments of a running one.",
        "example": "spark1:301:412 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-9p7f4x to 9637892 bytes, "
        "error: No space left on device (28)",
    },
    {
        "class": "nccl_error",
        "case": "nccl_path",
        "patterns": [
            r"Call to ibv_(?:modify_qp|create_ah)\w{0,20} failed\b",
            r"NET/IBP? ?: ?Got completion (?:from peer|with error)",
            r"IBV_WC_(?:RETRY_EXC|RNR_RETRY_EXC|REM_\w{1,20}|LOC_\w{1,20}|WR_FLUSH|FATAL|GENERAL|RESP_TIMEOUT)_ERR",
            r"NCCL WARN NET/IB ?: .{0,80}(?:remote GID|GID index|[Nn]o route|No such device)",
            r"NCCL WARN .{0,120}[Cc]onnect to (?P<peer>\S{1,80}) (?:failed|returned)",
        ],
        "details": [
            r"on dev (?P<device>[\w.-]{1,40})(?::\d{1,3})?",
            r"\bhca (?P<device>[\w.-]{1,40})",
            r"local ?GID (?:index \d{1,3}, local GID )?(?P<local>[\da-f:.]{2,60})",
            r"localGid (?P<local>[\da-f:.]{2,60})",
            r"remote ?GIDs? ?(?P<remote>[\da-f:.]{2,60})",
            r"remoteGids ?(?P<remote>[\da-f:.]{2,60})",
        ],
        "any_level": True,
        "kind": "strong",
        "remedy": "Check the path from {local} to {remote}: cable and link, the IPv4 address of the rail, equal MTU, and a RoCE v2 GID index on both nodes "
        "(`show_gids`, `ansible-playbook site.yml --tags roce`). If the engine was serving, read the other rank's log first.",
        "remedy_plain": "Check the rails on both nodes: cable and link, IPv4 address, equal MTU, and a RoCE v2 GID index "
        "(`show_gids`, `ansible-playbook site.yml --tags roce`). If the engine was serving, read the other rank's log first.",
        "needs_peer": "whether it still runs: a rank that died breaks the same connection",
        "means": "NCCL found the network device, but its packets do not reach the other node.",
        "why": "A rail is down, has another address or MTU, uses a GID index that is not RoCE v2, or the other rank has died.",
        "example": "spark1:301:412 [0] ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f0:1, "
        "curr state INIT, next state RTR, local GID index 3, local GID ::ffff:192.0.2.10, remote GID ::ffff:192.0.2.11",
    },
    {
        "class": "nccl_error",
        "patterns": [
            r"NCCL [Ee]rror(?: \d{1,2})?: (?P<message>.{1,200})",
            r"NCCL_ERROR_\w{1,40}: (?P<message>.{1,200})",
            r"NCCL error in: ",
            r"nccl(?:System|Remote|Internal|UnhandledCuda|InvalidUsage|InvalidArgument)Error",
        ],
        "kind": "strong",
        "remedy": "Read NCCL's lines before it (NCCL_DEBUG=INFO), and check NCCL_SOCKET_IFNAME and NCCL_IB_HCA on both nodes: {message}.",
        "remedy_plain": "Read NCCL's lines before it (NCCL_DEBUG=INFO), and check NCCL_SOCKET_IFNAME and NCCL_IB_HCA on both nodes.",
        "needs_peer": "its NCCL lines: both ends name the failing step",
        "means": "NCCL could not set up or use the communication between the ranks.",
        "why": "Wrong interface or HCA, mixed GPUs or NCCL versions, a firewall, or too little shared memory.",
        "example": "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    },
    {
        "class": "rpc_timeout",
        "patterns": [
            r"RPC call to (?P<call>\S{1,60}) timed out",
            r"Timed out waiting for engine(?: core|s to send)",
            r"Did not receive response from front-end",
            r"Watchdog caught collective operation timeout",
            r"store->get\('[^']{1,80}'\) got error: (?:wait timeout|Socket Timeout)",
            r"gloo/transport/.{1,80}Timed out waiting \d{1,12}ms for (?:send|recv) operation",
            r"RayChannelTimeoutError",
            r"System error: Timed out waiting for object available to read",
        ],
        "unless": ["Error ignored in "],
        "kind": "strong",
        "remedy": "Read the other rank's log: that rank is stuck or dead. If it was still loading, raise VLLM_ENGINE_READY_TIMEOUT_S; "
        "if a long prefill or a compilation took the time, raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (with Ray: RAY_CGRAPH_get_timeout).",
        "needs_peer": "what it was doing: this rank only waited",
        "means": "This rank waited for another process until its time limit.",
        "why": "The other rank died, hangs, or needs longer than the limit.",
        "example": "TimeoutError: RPC call to execute_model timed out.",
    },
]
