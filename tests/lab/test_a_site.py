"""Values of a Compose file as Docker reads them, and variants of the main job that take long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import playbook
import pytest
from compose_values import NUMBERS, VALUES, rendered
from container_lab import Lab, api_key


@pytest.mark.long
def test_another_key_is_made_and_used_when_the_file_is_removed(served: Lab) -> None:
    old = served.on(1, f"cut -d= -f2 {api_key()}").strip()
    served.on(1, f"rm {api_key()} && gb10 stop")
    refused = served.on(1, "gb10 start 2>&1 || true")
    assert api_key() in refused
    assert served.gone()
    run = served.play("site.yml", "--tags", "vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    assert f"the API needs the new key in {api_key()}" in " ".join(run.stdout.split())
    assert served.complete() == (200, " Paris.")
    assert served.complete(key=old)[0] == 401
    assert served.play("site.yml", "--tags", "vllm_tp2").changed == set()


def test_docker_compose_reads_each_value_as_it_was_written(lab: Lab) -> None:
    values = {f"V{number}": value for number, value in enumerate([*VALUES, *NUMBERS])}
    words = ["docker", "exec", "-i", "gb10-lab-1", "docker", "compose", "--project-name", "values", "--file", "-", "config", "--format", "json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, input=rendered(values), timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]["vllm"]["environment"]
    assert {name: found[name].replace("$$", "$") for name in values} == values


@pytest.mark.long
def test_a_play_that_is_interrupted_half_way_converges_when_run_again(lab: Lab) -> None:
    before = lab.identity()
    command = [sys.executable, "-m", "ansible", "playbook", "site.yml", "-i", str(lab.inventory), "--tags", "vllm_tp2", "-e", "gb10_receipts=/tmp/gb10-r"]
    process = subprocess.Popen(command, cwd=playbook.REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = lab.inspect(2)
        if state is not None and state["Id"] != before[1][0]:
            break
        time.sleep(0.3)
    else:
        pytest.fail("the worker was not started again")
    process.send_signal(signal.SIGKILL)
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
    process.wait()
    run = lab.play("site.yml", "--tags", "vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    assert lab.complete() == (200, " Paris.")


@pytest.mark.long
def test_installed_from_its_tarball_it_runs_from_anywhere(lab: Lab, tmp_path: Path) -> None:
    """Built, installed into an empty path, and run from another folder by the name of its playbook."""
    galaxy = str(Path(sys.executable).parent / "ansible-galaxy")
    subprocess.run([galaxy, "collection", "build", "--output-path", str(tmp_path), str(playbook.REPO)], check=True, capture_output=True)
    [tarball] = tmp_path.glob("gb10-cluster-*.tar.gz")
    target = tmp_path / "installed"
    # From a folder without an ansible.cfg: the checkout would count as installed already.
    subprocess.run([galaxy, "collection", "install", str(tarball), "-p", str(target), "--no-deps"], check=True, capture_output=True, cwd=tmp_path)
    assert (target / "ansible_collections/gb10/cluster/MANIFEST.json").exists()
    state = os.environ.get("GB10_LAB_DIR") or str(playbook.REPO / ".lab")
    run = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "gb10.cluster.site", "-i", str(playbook.REPO / "inventories/lab")],
        cwd=tmp_path, env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(target), "GB10_LAB_DIR": state, "PWD": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:]
    assert "pair1 serves" in run.stdout
    assert lab.complete() == (200, " Paris.")
