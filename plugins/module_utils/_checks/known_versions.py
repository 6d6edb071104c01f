# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC. Data: versions that are known to fail on a GB10, each with the effect, the remedy and the source.

An entry is a mapping. Its texts name no version, because the finding names the one that was found:
  component  driver | kernel | firmware_cx7 | vllm (by the tag of the image, on a GB10)
  match      the start of a version, in whole numbers: "590" matches 590.44.01 and not 5900
  below      instead of `match`: versions older than this one
  line       with `below`: only versions that start with this ("6.17.0")
  also       other components that must match, {component: match}
  unless     words of the kernel command line with which the version works
  severity   error | warning | info
  matters, remedy, source
Versions are compared number by number ("6.17.0-1008-nvidia" is 6, 17, 0, 1008).
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import KHO_REMEDY

_KHO: dict[str, Any] = {
    "component": "kernel",
    "unless": ["kho=off"],
    "severity": "warning",
    "matters": "its kexec handover (KHO) reserves about 9.4 GiB of contiguous memory: the engine lacks it, and RDMA registration fails (ENOMEM)",
    "remedy": f"{KHO_REMEDY}, or boot kernel 6.17.0-1032",
}

KNOWN: list[dict[str, Any]] = [
    {
        "component": "driver",
        "match": "590",
        "severity": "error",
        "matters": "this branch deadlocks during the capture of CUDA graphs, and the boot hangs without a message",
        "remedy": "install a 580 driver (580.173.02 and 580.178.04 are in use) with the DGX Dashboard or apt dist-upgrade, and reboot",
        "source": "eugr/spark-vllm-docker README; section 1.11 of the collected facts",
    },
    {
        "component": "driver",
        "below": "580",
        "severity": "error",
        "matters": "a GB10 needs the 580 branch or a later one",
        "remedy": "install a 580 driver with the DGX Dashboard or apt dist-upgrade, and reboot",
        "source": "DGX OS 7 release line; section 1.11 of the collected facts",
    },
    {
        "component": "driver",
        "below": "580.159.04",
        "line": "580",
        "severity": "warning",
        "matters": "this driver leaks memory, so each engine finds less of it than the one before until the node reboots",
        "remedy": "install 580.173.02 or a later 580 driver with the DGX Dashboard or apt dist-upgrade, and reboot",
        "source": "reports of owners, autumn 2026",
    },
    {
        "component": "driver",
        "match": "595",
        "severity": "warning",
        "matters": "hosts still freeze with this branch during a burst of long prompts (prefill)",
        "remedy": "install a 580 driver (580.173.02 and 580.178.04 are in use) with the DGX Dashboard or apt dist-upgrade, and reboot",
        "source": "NVIDIA/open-gpu-kernel-modules #1358 (595.84)",
    },
    {**_KHO, "match": "7.0.0-1019", "source": "MiaAI-Lab DSv4 #259, DSv4.1 #14, eugr #389"},
    {**_KHO, "match": "7.0.0-31", "source": "MiaAI-Lab DSv4 #259"},
    {
        "component": "kernel",
        "below": "6.17.0-1017",
        "line": "6.17.0",
        "severity": "warning",
        "matters": "it keeps stale GIDs when an address or a link changes, so RDMA connections use a GID that does not exist",
        "remedy": "update the kernel to 6.17.0-1017 or later with the DGX Dashboard or apt dist-upgrade, and reboot",
        "source": "Launchpad bug 2148311",
    },
    {
        "component": "kernel",
        "match": "6.17.0-1031",
        "also": {"driver": "580.173.02"},
        "severity": "info",
        "matters": "with this driver some machines start with 101 to 104 GiB free and others with 110, so a utilization of another machine may not start",
        "remedy": "boot kernel 6.17.0-1032 or later, or use the utilization that the sysctl role prints",
        "source": "GLM #47 (suspected, not proven)",
    },
    {
        "component": "firmware_cx7",
        "below": "28.45.4028",
        "severity": "info",
        "matters": "all reports of full speed are from 28.45.4028 and later",
        "remedy": "run fwupdmgr refresh and fwupdmgr upgrade on every node, and reboot with the cable in",
        "source": "section 1.1 of the collected facts",
    },
    {
        "component": "firmware_cx7",
        "match": "28.45.4028",
        "severity": "warning",
        "matters": "owners reported that all functions of the card were missing after a boot. It is not proven that this firmware is the cause",
        "remedy": "if `lspci -d 15b3:` prints nothing with the cable in, unplug the power for a minute. Install a later firmware when fwupdmgr upgrade has one",
        "source": "reports of owners, autumn 2026 (reported, not proven)",
    },
    {
        "component": "vllm",
        "match": "0.24",
        "severity": "warning",
        "matters": "DeepGEMM of this version has no kernels for sm_12x: an FP8 model ends its boot with `Unknown recipe`",
        "remedy": "use another version of vLLM, or set VLLM_USE_DEEP_GEMM=0 (vllm_tp2_extra_env)",
        "source": "vllm-project/vllm #47130",
    },
    {
        "component": "vllm",
        "below": "0.27.2",
        "line": "0.27",
        "severity": "warning",
        "matters": "Gemma 4 does not start on sm_12x (head_dim), and FP8 models fail in DeepGEMM",
        "remedy": "use a later version of vLLM. For FP8 models, VLLM_USE_DEEP_GEMM=0 (vllm_tp2_extra_env) can help too",
        "source": "vllm-project/vllm #53836, #51758; #52035 corrects DeepGEMM",
    },
]
