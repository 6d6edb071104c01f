"""On each node: what the role wrote, what runs, and what the engine reports."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

FOLDER = "/opt/gb10-cluster/vllm_tp2/pair1"
RANKS = {"lab-1": 0, "lab-2": 1}


@pytest.fixture
def rank(host: Any) -> int:
    """This node's rank, from its own name."""
    return RANKS[host.check_output("hostname")]


def test_current_points_at_a_release_named_by_its_content(host: Any) -> None:
    link = host.file(f"{FOLDER}/current")
    assert link.is_symlink
    assert len(link.linked_to.rsplit("/", 1)[1]) == 12


def test_the_compose_file_is_readable_by_root_alone_and_valid(host: Any, rank: int) -> None:
    file = host.file(f"{FOLDER}/current/compose.yaml")
    assert (file.user, file.mode) == ("root", 0o640)
    service = yaml.safe_load(file.content_string)["services"]["vllm"]
    assert service["restart"] == "no"
    assert "privileged" not in service
    assert service["environment"]["NODE_RANK"] == str(rank)
    assert host.run(f"docker compose -f {FOLDER}/current/compose.yaml config --quiet").rc == 0


def test_one_engine_runs(host: Any, rank: int) -> None:
    names = host.check_output("docker ps --format '{{.Names}}' --filter label=gb10.cluster.group=pair1").split()
    assert names == [f"gb10-pair1-rank{rank}"]


def test_the_head_serves_and_the_worker_has_no_port(host: Any, rank: int) -> None:
    assert host.socket("tcp://0.0.0.0:8000").is_listening is (rank == 0)
    if rank == 0:
        key = "/opt/gb10-cluster/vllm_tp2/pair1/api_key"
        assert '"lab-tiny"' in host.check_output(f'curl -s -H "Authorization: Bearer $(cut -d= -f2 {key})" http://127.0.0.1:8000/v1/models')
        assert '"lab-tiny"' not in host.run("curl -s http://127.0.0.1:8000/v1/models").stdout
        assert (host.file(key).mode, host.file(key).user) == (0o600, "root")
