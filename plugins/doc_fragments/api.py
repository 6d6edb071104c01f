# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Private documentation fragment: how a module reaches the API of a vLLM server."""

from __future__ import annotations


class ModuleDocFragment:
    """The options of every module that sends requests to a server."""

    DOCUMENTATION = r"""
options:
  url:
    description: The server, without a path.
    type: str
    default: http://127.0.0.1:8000
  env_file:
    description:
      - Files on the node, for a server that requires a key. The first one with a C(VLLM_API_KEY=) line counts. The key is never an argument and never
        returned.
      - Files that do not exist stand for no key.
    type: list
    elements: path
    default: []
"""
