"""QEMU's arguments: who reaches the guests, and what they reach."""

from __future__ import annotations

from lab.vm import qemu
from lab.vm.recipe import lab_from


def options(node: int, option: str) -> list[str]:
    line = qemu.machine(lab_from({}), node, "/images/x", "tcg")
    return [line[number + 1] for number, word in enumerate(line) if word == option]


def test_ssh_is_forwarded_from_loopback_so_that_the_guests_own_docker_bridge_cannot_answer() -> None:
    forward = next(text for text in options(1, "-netdev") if text.startswith("user"))
    assert "hostfwd=tcp:127.0.0.1:2201-10.0.2.11:22" in forward
    assert "TCP-LISTEN:22201" in qemu.forwarders(lab_from({}))
    assert "TCP:127.0.0.1:2201" in qemu.forwarders(lab_from({}))


def test_guests_reach_nothing_outside() -> None:
    assert all("restrict=on" in text for text in options(1, "-netdev") if text.startswith("user"))
