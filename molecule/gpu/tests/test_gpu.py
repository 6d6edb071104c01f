"""On the node with the stub of nvidia-smi: mode and cap are set, and the unit sets them again. On the other node: nothing."""

from __future__ import annotations

from typing import Any

UNIT = "gb10-gpu-clocks.service"
QUERY = "nvidia-smi --query-gpu=index,persistence_mode,clocks.sm,clocks.max.sm"


def stubbed(host: Any) -> bool:
    return bool(host.file("/usr/local/bin/nvidia-smi").exists)


def test_mode_and_cap_are_set(host: Any) -> None:
    if stubbed(host):
        assert host.check_output(QUERY) == "0, Enabled, 2000, 3003"


def test_the_unit_sets_them_at_boot(host: Any) -> None:
    assert (host.run(f"systemctl is-enabled {UNIT}").rc == 0) == stubbed(host)
    if stubbed(host):
        assert host.check_output(f"systemd-analyze verify /etc/systemd/system/{UNIT} 2>&1") == ""
        host.check_output(f"rm -r /run/gb10-stub-nvidia-smi; systemctl restart {UNIT}")  # the driver forgets both at a reboot
        assert host.check_output(QUERY) == "0, Enabled, 2000, 3003"


def test_a_node_without_nvidia_tools_has_no_file_of_the_role(host: Any) -> None:
    assert host.file(f"/etc/systemd/system/{UNIT}").exists == stubbed(host)
