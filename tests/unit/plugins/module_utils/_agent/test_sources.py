"""The agent's source files, as a node receives them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._agent import sources
from ansible_collections.gb10.cluster.plugins.module_utils._agent.sources import ROOT, SourceError

FOLDER = ROOT.replace(".", "/")


def test_a_module_comes_with_all_that_it_imports() -> None:
    files = sources.collect([f"{ROOT}._host.page_cache_guard", f"{ROOT}._docker.log"])
    assert {f"{FOLDER}/_host/page_cache_guard.py", f"{FOLDER}/_docker/log.py", f"{FOLDER}/_docker/__init__.py", f"{FOLDER}/__init__.py"} <= set(files)
    assert files["ansible_collections/__init__.py"] == ""
    assert "import" in files[f"{FOLDER}/_docker/log.py"]


def test_every_form_of_import_is_followed() -> None:
    text = """
import a.b, c
from d import e
from . import f
from .g import h
from .. import i
def late():
    from j import k
"""
    assert set(sources.imports("p.q.r", False, text)) >= {"a.b", "c", "d", "d.e", "p.q", "p.q.f", "p.q.g", "p.q.g.h", "p", "p.i", "j", "j.k"}
    assert set(sources.imports("p.q", True, text)) >= {"p.q.f", "p.q.g", "p.i"}


def test_a_module_that_was_not_sent_is_reported() -> None:
    with pytest.raises(SourceError, match=r"module_utils\.nothing was not sent"):
        sources.collect([f"{ROOT}.nothing"])


def test_sources_are_read_from_a_zip(tmp_path: Path) -> None:
    """AnsiballZ imports a module's own code from a zip."""
    files = sources.collect([f"{ROOT}._agent.sources", f"{ROOT}._docker.log"])
    with zipfile.ZipFile(tmp_path / "payload.zip", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "payload.zip")!r})
from {ROOT}._agent import sources
print(sources.version_of(sources.collect(["{ROOT}._agent.sources", "{ROOT}._docker.log"])))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (sources.version_of(files), "")


@pytest.mark.parametrize("path", ["/etc/x.py", "../x.py", "a/../x.py", "a/x.so", "ansible_collections/x.py", "a//x.py", ".py"])
def test_a_library_stays_in_its_place(path: str) -> None:
    with pytest.raises(SourceError, match="is not the relative path of a Python file"):
        sources.with_libraries({}, {path: ""})


def test_the_version_depends_on_paths_and_texts() -> None:
    given = [{"a.py": "1"}, {"a.py": "2"}, {"b.py": "1"}, {"a.py": "1", "b.py": ""}, {"a.py": "", "b.py": "1"}]
    assert len({sources.version_of(each) for each in given}) == len(given)
    assert sources.version_of({"a.py": "1", "b.py": "2"}) == sources.version_of({"b.py": "2", "a.py": "1"})
