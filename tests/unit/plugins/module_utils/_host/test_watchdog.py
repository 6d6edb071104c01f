"""The watchdog's drop-in, its limits, and the times that systemd prints."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import watchdog

SBSA = {"identity": "SBSA Generic Watchdog", "state": "inactive", "timeout": "10", "min_timeout": "3", "max_timeout": "0", "nowayout": "0"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("0\n", 0), ("30s", 30), ("1min", 60), ("1min 30s", 90), ("1h", 3600), ("90", 90), ("2 min", 120), ("infinity", None), ("off", None)]
)
def test_times_of_systemd(text: str, seconds: int | None) -> None:
    assert watchdog.span_seconds(text) == seconds


@pytest.mark.parametrize(
    ("changes", "seconds", "armed", "message"),
    [
        ({}, 60, 0, ""),
        ({"state": "active", "timeout": "20"}, 60, 20, ""),
        ({"max_timeout": "20"}, 60, 0, r"accepts 3 to 20 seconds\. Choose such a value, or leave"),
        ({"min_timeout": "15"}, 10, 0, "accepts 15 to 3600 seconds"),
        ({"nowayout": "1"}, 60, 0, r"cannot be stopped \(nowayout is 1\): .* would reset the node"),
    ],
)
def test_the_device_limits_the_watchdog(changes: dict[str, str], seconds: int, armed: int, message: str) -> None:
    found = watchdog.problem({**SBSA, **changes}, seconds, armed, "")
    assert bool(found) is bool(message)
    assert re.search(message, found)


def test_the_watchdog_of_a_reboot_fits_the_device() -> None:
    assert watchdog.render(20, {**SBSA, "max_timeout": "30"}).endswith("RuntimeWatchdogSec=20\nRebootWatchdogSec=30\n")
