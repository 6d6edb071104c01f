"""The other playbooks on the served lab: smoke, sanity, evidence with a diff, and a rollback that fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from container_lab import Lab


@pytest.mark.parametrize("playbook", ["build", "models"])
def test_image_and_weights_have_a_playbook_of_their_own_that_leaves_the_engine_alone(served: Lab, playbook: str) -> None:
    before = served.identity()
    run = served.play(f"playbooks/{playbook}.yml")
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()
    assert {"build": "the same on lab-1, lab-2 by", "models": "equal on lab-1, lab-2 (proof"}[playbook] in run.stdout
    assert served.identity() == before


@pytest.mark.long
def test_failed_rollback_returns_and_reports_why(served: Lab) -> None:
    folder = "/opt/gb10-cluster/vllm_tp2/pair1"
    other = served.on(1, f"readlink {folder}/current").strip().rpartition("/")[2]
    newer = served.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_max_num_seqs": 3})
    assert newer.rc == 0, newer.stdout[-4000:]
    first = served.on(1, f"readlink {folder}/current").strip().rpartition("/")[2]
    assert first != other
    for node in (1, 2):  # a release that was good once and is so no more
        compose = f"{folder}/releases/{other}/compose.yaml"
        served.on(node, f"cp -p {compose} /root/kept-compose; sed -i 's/--max-num-seqs/--no-such-flag/' {compose}; grep -q no-such-flag {compose}")
    try:
        run = served.play("playbooks/rollback.yml", variables={"rollback_release": other})
    finally:
        for node in (1, 2):
            served.on(node, f"mv /root/kept-compose {folder}/releases/{other}/compose.yaml")
    assert run.rc != 0
    assert "bad_argument" in run.last_message
    assert "no-such-flag" in run.last_message
    assert first in run.last_message, "the user reads what serves now"
    assert served.complete() == (200, " Paris.")
    for node in (1, 2):
        assert served.on(node, f"readlink {folder}/current").strip() == f"releases/{first}"
        state = served.inspect(node)
        assert state is not None
        assert state["Config"]["Labels"]["gb10.cluster.release"] == first


NOT_RUNNING = (
    "The Docker Engine is not running: /var/run/docker.sock does not accept connections. Run site.yml with --tags docker, or `systemctl start docker`."
)
UNIT = "/etc/systemd/system/docker.service.d/99-lab-minimum-api.conf"


@pytest.fixture
def stopped_engine(served: Lab) -> Iterator[Lab]:
    """The engine of lab-2 is stopped. Started again, it refuses API versions below 1.44, as Docker Engine 29 does."""
    served.on(2, f"mkdir -p {UNIT.rpartition('/')[0]}; printf '[Service]\\nEnvironment=DOCKER_MIN_API_VERSION=1.44\\n' > {UNIT}; systemctl daemon-reload")
    served.on(2, "systemctl stop docker.socket docker.service")
    try:
        yield served
    finally:
        served.on(2, f"rm {UNIT}; systemctl daemon-reload; systemctl restart docker.service; systemctl start docker.socket")


@pytest.mark.long
def test_a_stopped_engine_is_one_sentence_and_one_like_engine_29_serves(stopped_engine: Lab) -> None:
    lab = stopped_engine
    check = lab.play("site.yml", "--check", "--tags", "docker,image,vllm_tp2")
    status = lab.play("playbooks/status.yml")
    stop = lab.play("playbooks/stop.yml")
    for run in (check, stop):
        (message,) = [text for host, _task, text in run.failures if host == "lab-2"]
        assert NOT_RUNNING in message
    assert "nothing was removed on lab-2, and it may still have its rank of pair1" in message
    assert [host for host, _task, _text in stop.failures] == ["lab-2"]
    assert [text for host, _task, text in check.failures if host == "lab-1"] == [
        "lab-2 of pair1 failed (the message is above), so lab-1 stops as well: correct that and run again."
    ]
    assert status.rc == 2, "the group should serve, and whether it does is not known"
    assert "pair1 does not serve: " in status.last_message
    assert f"Rank 1 on lab-2 is not known: {NOT_RUNNING}" in status.last_message
    assert lab.inspect(1) is None, "stop.yml removes the rank whose engine answers"

    run = lab.play("site.yml", "--tags", "docker,image,vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    assert lab.on(2, "docker version --format '{{.Server.MinAPIVersion}}'").strip() == "1.44"
    for name in ("site.yml", "playbooks/status.yml", "playbooks/evidence.yml"):
        run = lab.play(name)
        assert (run.rc, run.changed) == (0, set()), (name, run.stdout[-4000:])
    assert "too old" not in (lab.folder / "evidence/latest/pair1-rank1-lab-2.txt").read_text(encoding="utf-8")
    assert lab.play("playbooks/stop.yml").rc == 0
    assert lab.gone()
