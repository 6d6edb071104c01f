# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lookup: the serving group of a host, derived from the inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
name: serving_group
author:
  - The gb10.cluster authors (@gb10-cluster)
short_description: The serving group of a host, with ranks and fabric addresses
extends_documentation_fragment:
  - gb10.cluster.internal
description:
  - A serving group is an inventory group whose hosts serve one model together. C(gb10) holds all hosts, each group below it
    (such as C(pair1)) is one serving group, and the first host of it is the head, rank 0.
  - Everything that follows from the inventory is derived here, once.
  - No host is contacted. The variables read are those of C(docs/inventory.md) that speak of groups, ranks and the fabric.
options:
  _terms:
    description:
      - Names of hosts. Without one, the host that the task runs for.
    type: list
    elements: str
seealso:
  - plugin: gb10.cluster.profile
    plugin_type: lookup
"""

EXAMPLES = r"""
- name: Show the head of this host's serving group
  ansible.builtin.debug:
    msg: "{{ lookup('gb10.cluster.serving_group').head }}"

- name: Show where the ranks of spark-2's serving group meet
  ansible.builtin.debug:
    msg: "{{ lookup('gb10.cluster.serving_group', 'spark-2').master_addr }}"
"""

RETURN = r"""
_list:
  description:
    - One mapping for each host asked for.
    - C(name) of the serving group, C(rank) of the host, C(size) of the group, C(head) is the name of rank 0's host and C(hosts) are
      all names by rank.
    - C(members) has C(host), C(rank), C(address) (management) and C(fabric) (addresses by rail) for each rank.
    - C(fabric) are the host's own addresses by rail, C(cidrs) and C(prefixes) the rails' networks and their prefix lengths,
      C(master_addr) is the head's address on the first rail.
  type: list
  elements: dict
  sample:
    - name: pair1
      rank: 1
      size: 2
      head: spark-1
      hosts: [spark-1, spark-2]
      members:
        - {host: spark-1, rank: 0, address: 10.0.0.11, fabric: [192.168.200.11, 192.168.201.11]}
        - {host: spark-2, rank: 1, address: 10.0.0.12, fabric: [192.168.200.12, 192.168.201.12]}
      fabric: [192.168.200.12, 192.168.201.12]
      cidrs: [192.168.200.0/24, 192.168.201.0/24]
      prefixes: [24, 24]
      master_addr: 192.168.200.11
"""

import multiprocessing
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import ClusterError, group_of
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC

READ = ("ansible_host", *CLUSTER_SPEC)
#: What a worker has found: it lives for one task of one host, and templates ask up to 25 times. The inventory stays the same meanwhile.
FOUND: dict[tuple[str, ...], list[Any]] = {}


class _Hosts(dict[str, Mapping[str, Any]]):
    """Host variables, read once, and only those of the hosts asked for: hostvars computes all variables of a host on each access."""

    def __init__(self, hostvars: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self._hostvars = hostvars

    def __missing__(self, host: str) -> Mapping[str, Any]:
        variables = self._hostvars[host]
        self[host] = {key: variables[key] for key in READ if key in variables}
        return self[host]


class LookupModule(LookupBase):
    """The lookup plugin."""

    def run(self, terms: list[Any], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the serving group of each host asked for, or of the task's host."""
        if kwargs:
            raise AnsibleError(f"serving_group has no option {', '.join(kwargs)}; its terms are names of hosts")
        known = variables or {}
        names = [str(term) for term in terms or [] if term] or [str(known.get("inventory_hostname", ""))]
        if tuple(names) in FOUND:
            return FOUND[tuple(names)]
        hosts = _Hosts(known.get("hostvars") or {})
        groups = {str(name): [str(host) for host in members] for name, members in (known.get("groups") or {}).items()}
        try:
            found = [group_of(name, groups, hosts) for name in names]
        except ClusterError as exc:
            raise AnsibleError(f"inventory: {exc}") from exc
        if multiprocessing.parent_process():
            FOUND[tuple(names)] = found
        return found
