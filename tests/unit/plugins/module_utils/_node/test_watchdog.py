"""The watchdog's drop-in, and the limits of its device."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import tuning

SBSA = {"identity": "SBSA Generic Watchdog", "state": "inactive", "timeout": "10", "min_timeout": "3", "max_timeout": "0", "nowayout": "0", "armed": "0"}


@pytest.mark.parametrize(
    ("changes", "seconds", "message"),
    [
        ({}, 60, ""),
        ({"state": "active", "timeout": "20", "armed": "20s"}, 60, ""),
        ({"max_timeout": "20"}, 60, r"accepts 3 to 20 seconds\. Choose such a value, or leave"),
        ({"min_timeout": "15"}, 10, "accepts 15 to 3600 seconds"),
        ({"nowayout": "1"}, 60, r"cannot be stopped \(nowayout is 1\): .* would reset the node"),
    ],
)
def test_the_device_limits_the_watchdog(changes: dict[str, str], seconds: int, message: str) -> None:
    found = tuning.watchdog_problem({**SBSA, **changes}, seconds)
    assert bool(found) is bool(message)
    assert re.search(message, found)


def test_the_watchdog_of_a_reboot_fits_the_device() -> None:
    assert tuning.render_watchdog(20, {**SBSA, "max_timeout": "30"}).endswith("RuntimeWatchdogSec=20\nRebootWatchdogSec=30\n")
