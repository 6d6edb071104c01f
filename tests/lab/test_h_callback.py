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
