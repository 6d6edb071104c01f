"""What a person reads of site.yml with the callback of ansible.cfg."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import playbook
import pytest
from container_lab import Lab

ROLES = ("preflight", "sysctl", "readahead", "gpu", "docker", "roce", "image", "weights", "vllm_tp2")


def site(lab: Lab, *arguments: str, rc: int = 0) -> list[str]:
    """Run site.yml as a user does and return the lines of its output, stderr included."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    env |= {"ANSIBLE_CONFIG": str(playbook.REPO / "ansible.cfg"), "ANSIBLE_INJECT_FACT_VARS": "false", "ANSIBLE_ALLOW_EMBEDDED_TEMPLATES": "false"}
    folders = [f"gb10_receipts={lab.folder / 'receipts'}", f"gb10_evidence={lab.folder / 'evidence'}"]
    command = [str(Path(sys.executable).parent / "ansible-playbook"), str(playbook.REPO / "site.yml"), "-i", str(lab.inventory), *arguments]
    done = subprocess.run(
        [*command, *(each for folder in folders for each in ("-e", folder))],
        cwd=playbook.REPO, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == rc, done.stdout
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def settled(lab: Lab) -> Lab:
    """The lab, serving, after a run that has removed the releases that earlier tests have left."""
    run = lab.play("site.yml", "--tags", "vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    return lab


def test_a_run_that_changes_nothing_has_at_most_25_lines_with_one_for_each_role(settled: Lab) -> None:
    lines = site(settled)
    assert len(lines) <= 25, "\n".join(lines)
    assert [line.split()[0] for line in lines if re.match(r"\w+ +lab-1 ok   lab-2 ok   \d+ s", line)] == list(ROLES)
    assert any(line.startswith("pair1 serves") for line in lines)
    assert not [line for line in lines if re.match(r"TASK|PLAY|ok:|skipping:", line)]


def test_a_run_of_one_role_has_at_most_ten_lines(served: Lab) -> None:
    lines = site(served, "--tags", "sysctl")
    assert len(lines) <= 10, "\n".join(lines)
    assert lines[-1].startswith("Done in ")


@pytest.mark.long
def test_a_first_run_has_at_most_60_lines_and_its_fault_at_most_eight(served: Lab) -> None:
    site(served, "--tags", "vllm_tp2", "-e", "vllm_tp2_state=absent")
    lines = site(served)
    assert len(lines) <= 60, "\n".join(lines)
    assert any(re.match(r"vllm_tp2 +lab-1 changed   lab-2 changed", line) for line in lines)
    bad = site(served, "--tags", "vllm_tp2", "-e", '{"vllm_tp2_extra_args": {"no-such-flag": true}}', rc=2)
    start = next(number for number, line in enumerate(bad) if line.startswith("ERROR vllm_tp2 on lab-1, lab-2: "))
    assert any(line.startswith("Remedy: ") for line in bad[start : start + 8]), "\n".join(bad)
    assert sum(line.startswith("ERROR") for line in bad) == 1, "\n".join(bad)
