"""On each node: the same image by its id, it runs, and nothing is left of the copy."""

from __future__ import annotations

from typing import Any

IMAGE = "gb10-molecule/image:1"
IDS: dict[str, str] = {}


def test_all_nodes_have_the_same_image(host: Any) -> None:
    IDS[host.check_output("hostname")] = host.check_output(f"docker image inspect -f '{{{{.Id}}}}' {IMAGE}")
    assert len(set(IDS.values())) == 1


def test_it_runs(host: Any) -> None:
    assert host.check_output(f"docker run --rm --network none {IMAGE} cat /note") == "molecule"


def test_nothing_is_left_of_the_copy(host: Any) -> None:
    assert host.check_output("ls -d /var/lib/gb10-cluster/image-send-* /var/lib/gb10-cluster/image-receive-* 2>/dev/null || true") == ""
    assert host.check_output("ls -A /run/gb10-cluster 2>/dev/null || true") == ""
    assert host.check_output("systemctl is-active 'gb10-copy-*' || true") in ("", "inactive")
