"""Values of a Compose file as Docker reads them, and the collection as it is installed from its tarball."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import playbook
from compose_values import NUMBERS, VALUES, rendered
from container_lab import Lab


def test_docker_compose_reads_each_value_as_it_was_written(lab: Lab) -> None:
    values = {f"V{number}": value for number, value in enumerate([*VALUES, *NUMBERS])}
    words = ["docker", "exec", "-i", "gb10-lab-1", "docker", "compose", "--project-name", "values", "--file", "-", "config", "--format", "json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, input=rendered(values), timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]["vllm"]["environment"]
    assert {name: found[name].replace("$$", "$") for name in values} == values


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
