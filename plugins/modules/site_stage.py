#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin site_stage."""

from __future__ import annotations

DOCUMENTATION = r"""
module: site_stage
short_description: Mark that a stage of a run begins
version_added: 0.1.0
description:
  - M(gb10.cluster.site_summary) tells from the marks where the time went.
  - This is an action plugin; it runs on the controller and touches no host.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  name:
    description: The stage's name.
    type: str
    required: true
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Time the docker role
  gb10.cluster.site_stage:
    name: docker
"""

RETURN = r"""
{}
"""
