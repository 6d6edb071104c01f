"""Table 2d: hostile values do not get into the files and scripts of a node."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._node import settings


def test_a_sysctl_value_stays_on_one_line() -> None:
    text = settings.render_sysctls(settings.desired_sysctls({"vm.x": "0\nkernel.core_pattern = |/x"}, "leave", "keep"))
    assert (text or "").splitlines()[1:] == ["vm.x = 0 kernel.core_pattern = |/x"]
