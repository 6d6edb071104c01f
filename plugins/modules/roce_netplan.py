#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the rails their addresses, with a way back that needs no controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_netplan
short_description: Addresses, MTU and ARP settings of the RoCE rails, by commit-confirm
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Finds the rails, plans one netplan file (C(/etc/netplan/60-gb10-cluster.yaml), mode 0600) and one sysctl drop-in
    (C(/etc/sysctl.d/60-gb10-roce.conf)), validates the result offline, and applies it.
  - Before anything changes, a timer on the node is armed that puts everything back. It is cancelled by O(state=confirmed),
    which is to be called over a new connection. A node that restarts in between keeps the change, which then waits for its confirmation.
  - Refuses, with nothing changed, what would touch an interface with the default route or the SSH session, networks that overlap
    others of this node, a changed rail that a running process uses for RDMA, and configuration files of others (see O(foreign)).
  - What only drifted (an MTU or an address that is gone, a kernel setting) is put right on the rail itself, without netplan.
    So is the index of a GID.
  - In a container nothing is changed, and RV(managed) is false.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.rails
  - gb10.cluster.rails.netplan
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) plans and applies, V(confirmed) keeps what was applied, V(absent) gives back what stood before the first change.
      - V(confirmed) fails when nothing waits for it, be it that the node put its network back or that the change never began.
      - After V(present) and V(absent), RV(pending) is true if V(confirmed) is due.
    type: str
    choices: [present, confirmed, absent]
    default: present
  addresses:
    description:
      - This node's fabric addresses with prefix, one per rail. Required for O(state=present).
    type: list
    elements: str
    default: []
  renderer:
    description:
      - Who configures the rails. V(auto) takes what the node's netplan files choose, else NetworkManager where it runs, else networkd.
    type: str
    choices: [auto, NetworkManager, networkd]
    default: auto
  foreign:
    description:
      - What to do with configuration files of others on the rails.
        V(refuse) stops, V(adopt) leaves them in charge if they give the wanted addresses, V(replace) moves netplan files to C(/root/netplan-disabled).
    type: str
    choices: [refuse, adopt, replace]
    default: refuse
  ipv6:
    description:
      - Whether the rails keep IPv6. Without it, GIDs stay at their index.
    type: bool
    default: false
  confirm_seconds:
    description:
      - Seconds after which an unconfirmed change is taken back.
    type: int
    default: 120
  gid_repair:
    description:
      - Whether to repair a GID that is missing or whose index differs between the rails, by removing and adding the rail's address.
        It is not done while a process uses RDMA.
    type: bool
    default: true
seealso:
  - module: gb10.cluster.roce_info
"""

EXAMPLES = r"""
- name: Give the rails their addresses
  gb10.cluster.roce_netplan:
    addresses: [192.168.100.10/24, 192.168.101.10/24]
  become: true
  register: applied

- name: Come back over a new connection
  ansible.builtin.wait_for_connection:
  when: applied.pending

- name: Keep the change
  gb10.cluster.roce_netplan:
    state: confirmed
  become: true
  when: applied.pending

- name: Take everything back
  gb10.cluster.roce_netplan:
    state: absent
  become: true
"""

RETURN = r"""
managed:
  description: False in a container, where the rails belong to the host.
  returned: always
  type: bool
  sample: true
pending:
  description: Whether a change waits for O(state=confirmed).
  returned: always
  type: bool
  sample: false
confirmed:
  description: Whether this call has confirmed a pending change (O(state=confirmed)).
  returned: success
  type: bool
  sample: true
restored:
  description: When and why this node put its network back by itself since the last run; null if it did not.
  returned: always
  type: dict
  sample: null
actions:
  description: What was done (in check mode what would be), one sentence each.
  returned: always
  type: list
  elements: str
  sample: ["write /etc/netplan/60-gb10-cluster.yaml"]
firewall:
  description: Whether the node has the unit of C(roce_firewall), of this run or of an earlier one.
  returned: success
  type: bool
  sample: false
shown:
  description: What the user should know, for instance that a rail does not have what an adopted file configures. It is printed.
  returned: always
  type: list
  elements: str
  sample: []
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, runner
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import restore
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.apply import Change
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.restore import RefusedError
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import container_reason

FIREWALL = "/etc/systemd/system/gb10-firewall.service"


def exit_in_container(module: AnsibleModule, container: str) -> None:
    """Report that nothing is managed."""
    module.exit_json(
        changed=False,
        managed=False,
        pending=False,
        restored=None,
        actions=[],
        firewall=os.path.exists(FIREWALL),
        confirmed=False,
        shown=[f"This is a container ({container}): its rails belong to the host, so nothing is written here."],
    )


def confirm(module: AnsibleModule, change: Change, restored: dict[str, Any] | None) -> bool:
    """Keep a pending change; fail if the node has restored its network or the change never began."""
    done = change.pending.confirm()
    restored = restored or change.pending.restored()
    if restored is not None:
        module.fail_json(msg=f"{restored['message']} The fabric is not as configured: look at {restore.STATE_DIR}/restore.log on the node.")
    if not done and not module.check_mode:
        module.fail_json(
            msg="No change waits for its confirmation on this node: the connection was lost before the change began, so the network is unchanged. "
            "Run the roce role again."
        )
    return done


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "confirmed", "absent"], "default": "present"},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "mtu": {"type": "int", "default": 9000},
            "renderer": {"type": "str", "choices": ["auto", "NetworkManager", "networkd"], "default": "auto"},
            "foreign": {"type": "str", "choices": ["refuse", "adopt", "replace"], "default": "refuse"},
            "ipv6": {"type": "bool", "default": False},
            "confirm_seconds": {"type": "int", "default": 120},
            "ssh_connection": {"type": "str"},
            "gid_repair": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    container = container_reason(Node("/", runner(module, optional=True)))
    if container:
        exit_in_container(module, container)
    if os.geteuid() != 0:
        module.fail_json(msg="roce_netplan reads and writes files of root; set become: true.")
    change, state = Change(module), module.params["state"]
    restored, confirmed = change.pending.restored(), False
    if state == "confirmed":
        confirmed, restored = confirm(module, change, restored), None
    elif restored is not None:
        module.warn(restored["message"])
    try:
        if state == "present":
            change.present()
        elif state == "absent":
            change.absent()
    except RefusedError as exc:
        module.fail_json(msg=str(exc), restored=restored, pending=change.pending.exists(), managed=True)
    module.exit_json(
        changed=bool(change.changes.messages),
        diff=change.changes.diff,
        managed=True,
        pending=change.pending.exists(),
        confirmed=confirmed,
        restored=restored,
        actions=change.changes.messages,
        firewall=os.path.exists(FIREWALL),
        shown=change.notes,
    )


if __name__ == "__main__":
    main()
