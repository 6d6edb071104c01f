#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin show."""

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print text for people with any callback, or JSON
description:
  - Prints lines as they are, with any stdout callback and any format of results. Control characters are written out.
  - With C(-e output=json) it prints O(data) instead, one line of JSON for each document.
  - This is an action plugin of the playbooks of the collection. It runs on the controller and contacts no host.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  lines:
    description: The lines. Without them, the text of O(data), if that has a schema with a table.
    type: list
    elements: str
  data:
    description: The document, or a list of documents. Without it, the document has O(lines).
    type: raw
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
  - gb10.cluster.internal
"""

EXAMPLES = r"""
- name: Print two lines
  gb10.cluster.show:
    lines:
      - "pair1 serves."
      - "Endpoint: http://spark-1:8000/v1"
    data: {group: pair1, serves: true}
"""

RETURN = r"""
lines:
  description: The lines.
  type: list
  elements: str
  returned: success
  sample: [pair1 serves.]
data:
  description: The document or documents.
  type: raw
  returned: success
"""
