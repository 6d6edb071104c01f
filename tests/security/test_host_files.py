"""Table 2d: hostile values do not get into the files and scripts of a node."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError
from ansible_collections.gb10.cluster.plugins.module_utils._node import settings

KEYS = ["kernel/../../../etc/hostname", "kernel/./x", "vm//x", "vm..x", "vm.x/..", "vm/", "vm.", "net/../x", "vm.x\nkernel.y", "vm.*", "vm.é", "dev.x"]


@pytest.mark.parametrize("key", KEYS)
def test_refuses_a_sysctl_key_that_leaves_its_folder(key: str) -> None:
    with pytest.raises(HostError, match="sysctl_settings has the key"):
        settings.desired_sysctls({}, "leave", "keep", {key: "1"})


@pytest.mark.parametrize("key", ["vm.swappiness", "net.ipv4.conf.eth0/1.arp_ignore", "kernel.core_pattern"])
def test_accepts_a_sysctl_key(key: str) -> None:
    assert settings.desired_sysctls({}, "leave", "keep", {key: "1"}) == {key: "1"}


def test_a_sysctl_value_stays_on_one_line() -> None:
    text = settings.render_sysctls(settings.desired_sysctls({}, "leave", "keep", {"vm.x": "0\nkernel.core_pattern = |/x"}))
    assert (text or "").splitlines()[1:] == ["vm.x = 0 kernel.core_pattern = |/x"]
