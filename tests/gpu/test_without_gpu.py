"""The GPU lab's nodes with device nodes that are not those of a GPU: `gpus: all` gives a container just what its node has. Part of make test."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab.container import images, nodes, plan
from lab.container.host import docker
from lab.gpu import fake
from lab.gpu import nodes as gpu_nodes

LIST = ("sh", "-c", "ls /dev | grep nvidia | paste -sd ' '; /usr/local/nvidia/bin/nvidia-smi -L")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[plan.Node]]:
    """Two nodes. Their GPUs are /dev/zero."""
    machine = fake.machine(tmp_path_factory.mktemp("gpu-lab"), "nvidia0", "nvidia1", "nvidiactl")
    names = plan.names(machine=docker("info", "--format", "{{.Architecture}}"))
    for ensure in (images.ensure_base, images.ensure_engine_image, images.ensure_stub_image, images.ensure_node_image):
        ensure(names)
    lab = nodes.Lab(machine.home / "state", 2)  # next to the lab of the net, and to that of a day of operation
    nodes.evict_foreign(lab)
    try:
        yield gpu_nodes.up(lab, machine, names.node, "", [plan.STUB_TAG])
    finally:
        nodes.remove([thing for thing in nodes.labelled() if thing.lab == lab.id])


def test_a_container_that_asks_for_gpus_gets_those_of_its_node_and_another_one_gets_none(pair: list[plan.Node]) -> None:
    for node, gpu in zip(pair, ("nvidia0", "nvidia1"), strict=True):
        run = ["exec", node.container, "docker", "run", "--rm", "--network", "none", "--entrypoint"]
        assert docker(*run[:-1], "--gpus", "all", "--entrypoint", LIST[0], plan.STUB_TAG, *LIST[1:]) == f"{gpu} nvidiactl\n1"
        assert "nvidia" not in docker(*run, "ls", plan.STUB_TAG, "/dev")


def test_compose_gives_a_service_with_reserved_devices_the_gpu_also_after_systemd_read_its_units_again(pair: list[plan.Node]) -> None:
    wanted = {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}
    service = {"image": plan.STUB_TAG, "entrypoint": ["sleep", "60"], "container_name": "asks", "network_mode": "none", "deploy": {"resources": wanted}}
    node = ["exec", "-i", pair[1].container]
    docker(*node, "docker", "compose", "-p", "asks", "-f", "-", "up", "-d", stdin=json.dumps({"services": {"vllm": service}}))
    docker(*node, "systemctl", "daemon-reload")
    assert docker(*node, "docker", "exec", "asks", *LIST) == "nvidia1 nvidiactl\n1"
    assert docker(*node, "docker", "exec", "asks", "head", "-c", "1", "/dev/nvidia1") == "\0"
