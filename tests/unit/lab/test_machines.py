"""The arguments of the labs' nodes: what a container may never get, who reaches the guests of QEMU, and what they reach. Nothing is started."""

from __future__ import annotations

from lab.container import plan
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


def test_a_node_is_never_privileged_and_cannot_set_the_hosts_clock_or_modules() -> None:
    given = plan.node_run_arguments(plan.nodes(2)[0], "image", "tree", {"k": "v"}, cgroup_version="1")
    assert "--privileged" not in given
    assert not {"SYS_RESOURCE", "SYS_TIME", "SYS_MODULE", "SYS_RAWIO", "ALL"} & set(given)
    assert "tree:/opt/engine:ro" in given
    assert "gb10-lab-1-docker:/var/lib/docker" in given
