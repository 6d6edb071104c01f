#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin lock_entry."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lock_entry
short_description: Compare an image or a model with the lock file
description:
  - Compares the content of an image or model with its entry in the lock file next to the inventory, C(.gb10.lock.yml) or C(gb10_lock_file).
  - Writes the entry if there is none, or if C(gb10_lock_update) is true. Fails if the content differs from the entry.
  - This is an action plugin. It runs on the controller and contacts no host.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  kind:
    description:
      - The part of the file.
    type: str
    choices: [images, models]
    required: true
  name:
    description:
      - The image reference, or the model ID.
    type: str
    required: true
  found:
    description:
      - The content that was found, as a mapping of kinds of proof to values. A value can be a list, of which one must be in the entry.
      - Empty requires that the file has an entry.
    type: dict
    default: {}
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Record the image, or compare it
  gb10.cluster.lock_entry:
    kind: images
    name: vllm/vllm-openai:v0.24.0
    found:
      fingerprint: 5d1c0c3b7a0b4a5f9d0f3ce3f1c6a0d7c7b5a2f9e8d7c6b5a493827160504030
"""

RETURN = r"""
path:
  description: The lock file.
  type: str
  returned: success
  sample: /home/you/cluster/.gb10.lock.yml
msg:
  description: What was recorded, or would be.
  type: str
  returned: changed
  sample: vllm/vllm-openai:v0.24.0 is recorded in /home/you/cluster/.gb10.lock.yml.
"""
