"""The GPU lab's nodes with device nodes that are not those of a GPU: `gpus: all` gives a container just what its node has. Part of make test."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab.container import images, nodes, plan  # noqa: E402  the labs are programs, not an installed package
from lab.container.host import docker  # noqa: E402
from lab.gpu import nodes as gpu_nodes  # noqa: E402
from lab.gpu.machine import Machine  # noqa: E402

INSTANCE = 2  # beside the lab of the net, and beside that of a day of operation
WANTED = {"deploy": {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}}
LIST = ["sh", "-c", "ls /dev | grep nvidia | paste -sd ' '; /usr/local/nvidia/bin/nvidia-smi -L"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[plan.Node]]:
    """Two nodes. The first GPU is /dev/null, the second one is /dev/zero."""
    home = tmp_path_factory.mktemp("gpu-lab")
    (home / "dev").mkdir()
    (home / "driver/bin").mkdir(parents=True)
    for name, source in (("nvidia0", "null"), ("nvidia1", "zero"), ("nvidiactl", "full")):
        (home / "dev" / name).symlink_to(f"/dev/{source}")
    (home / "driver/bin/nvidia-smi").write_text("#!/bin/sh\nls /dev | grep -c 'nvidia[01]'\n", encoding="ascii")
    (home / "driver/bin/nvidia-smi").chmod(0o755)
    names = plan.names(machine=docker("info", "--format", "{{.Architecture}}"))
    images.ensure_base(names)
    images.ensure_engine_image(names)
    images.ensure_stub_image(names)
    images.ensure_node_image(names)
    lab = nodes.Lab(home / "state", INSTANCE)
    nodes.evict_foreign(lab)
    try:
        yield gpu_nodes.up(lab, Machine(home, devices=home / "dev", driver=home / "driver"), names.node, "", [plan.STUB_TAG])
    finally:
        nodes.remove([thing for thing in nodes.labelled() if thing.lab == lab.id])


def test_a_container_that_asks_for_gpus_gets_those_of_its_node_and_another_one_gets_none(pair: list[plan.Node]) -> None:
    for node, gpu in zip(pair, ("nvidia0", "nvidia1"), strict=True):
        run = ["exec", node.container, "docker", "run", "--rm", "--network", "none", "--entrypoint"]
        assert docker(*run[:-1], "--gpus", "all", "--entrypoint", LIST[0], plan.STUB_TAG, *LIST[1:]) == f"{gpu} nvidiactl\n1"
        assert docker(*run, "sh", plan.STUB_TAG, "-c", "ls /dev") and "nvidia" not in docker(*run, "ls", plan.STUB_TAG, "/dev")


def test_compose_gives_a_service_with_reserved_devices_the_gpu_also_after_systemd_read_its_units_again(pair: list[plan.Node]) -> None:
    service = {"image": plan.STUB_TAG, "entrypoint": ["sleep", "60"], "container_name": "asks", "network_mode": "none", "init": True, **WANTED}
    node = ["exec", "-i", pair[1].container]
    docker(*node, "docker", "compose", "-p", "asks", "-f", "-", "up", "-d", stdin=json.dumps({"services": {"vllm": service}}))
    docker(*node, "systemctl", "daemon-reload")
    assert docker(*node, "docker", "exec", "asks", *LIST) == "nvidia1 nvidiactl\n1"
    assert docker(*node, "docker", "exec", "asks", "head", "-c", "1", "/dev/nvidia1") == "\0"
    docker(*node, "docker", "rm", "-f", "asks")
