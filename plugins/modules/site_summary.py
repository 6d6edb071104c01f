#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin site_summary."""

from __future__ import annotations

DOCUMENTATION = r"""
module: site_summary
short_description: Print the summary of a run
description:
  - Prints, for each serving group, its endpoint, model, KV pool and concurrency, what changed, the time of each role, the receipt and a curl line.
  - A group with a host that failed or was unreachable is not reported as serving. Changed tasks and times are
    those of the callback C(gb10_tally), which Ansible loads for the playbooks of the collection.
  - This is an action plugin; it runs on the controller and touches no host.
author:
  - The gb10.cluster authors (@gb10-cluster)
options: {}
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
  - gb10.cluster.internal
"""

EXAMPLES = r"""
- name: Sum up
  gb10.cluster.site_summary:
"""

RETURN = r"""
lines:
  description: The printed lines.
  type: list
  elements: str
  returned: always
  sample: [pair1 serves]
"""
