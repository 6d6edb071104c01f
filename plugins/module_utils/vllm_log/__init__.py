# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: `BootLog` (feed bytes, read facts) and `parse` (text or bytes to facts) for logs of vLLM 0.9 and newer (V1 engine) on CUDA and CPU."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log.stream import BootLog, parse

__all__ = ["BootLog", "parse"]
