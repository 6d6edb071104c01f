"""On each node: the units of the role run, those of the packages do not, and nothing listens on the management network."""

from __future__ import annotations

from typing import Any


def test_the_units_of_the_role_run_and_those_of_the_packages_do_not(host: Any) -> None:
    units = {"gb10-node-exporter": "prometheus-node-exporter"} | ({"gb10-prometheus": "prometheus"} if "lab-1" in host.backend.get_pytest_id() else {})
    assert all(host.service(own).is_running and host.service(own).is_enabled for own in units)
    assert not any(host.service(package).is_running or host.service(package).is_enabled for package in units.values())


def test_only_loopback_and_the_rail_listen(host: Any) -> None:
    found = [line.split()[3] for line in host.check_output("ss -Hltn 'sport >= 9490 and sport <= 9492'").splitlines()]
    wanted = ["127.0.0.1:9490", "127.0.0.1:9491"] if "lab-1" in host.backend.get_pytest_id() else ["192.168.200.12:9491"]
    assert sorted(found) == wanted
