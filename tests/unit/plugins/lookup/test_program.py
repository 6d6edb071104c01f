"""The program gb10 as one file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.lookup import program


def run(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", path, *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, built once."""
    return program.kept(["jmespath"], str(tmp_path_factory.mktemp("program")))


def test_the_program_runs_alone_and_is_the_same_each_time(path: str) -> None:
    assert Path(path).read_bytes() == program.build(["jmespath"])
    assert Path(path).read_bytes().startswith(b"#!/usr/bin/python3 -I\n")
    missing = run(path, "status")
    assert (missing.returncode, missing.stderr) == (1, "This node has no agent: /etc/gb10-cluster/agent.json does not exist. Run site.yml.\n")


def test_all_code_of_the_agent_can_be_imported_from_the_program(path: str) -> None:
    names = [f"{each.parent.name}.{each.stem}" for each in (program.MODULE_UTILS / "_pair").glob("*.py")]
    prefix = program.ROOT.replace("/", ".")
    code = f"import sys; sys.path.insert(0, sys.argv[1])\nfor name in {names}: __import__('{prefix}.' + name.removesuffix('.__init__'))\nimport jmespath"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, path], capture_output=True, text=True, check=False)
    assert (len(names) > 20, done.returncode, done.stderr) == (True, 0, "")


@pytest.mark.parametrize(
    ("name", "why"), [("no_such_package", "pip install no_such_package"), ("yaml", "has compiled modules"), ("../x", "not a Python package")]
)
def test_a_package_that_cannot_run_on_a_node_is_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        program.build([name])
