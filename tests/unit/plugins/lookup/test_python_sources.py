"""The lookup that reads the source files of a Python package."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.lookup.python_sources import LookupModule


def look(*names: str) -> list[dict[str, str]]:
    return LookupModule().run(list(names))


def test_a_package_a_module_and_one_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "purelib_x" / "sub" / "__pycache__").mkdir(parents=True)
    for name in ("purelib_x/__init__.py", "purelib_x/sub/deep.py", "purelib_x/data.txt", "purelib_x/sub/__pycache__/deep.pyc", "single_x.py"):
        (tmp_path / name).write_text(name)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert look("purelib_x", "single_x", "not_installed_x") == [
        {"purelib_x/__init__.py": "purelib_x/__init__.py", "purelib_x/sub/deep.py": "purelib_x/sub/deep.py"},
        {"single_x.py": "single_x.py"},
        {},
    ]


def test_a_package_with_compiled_modules_counts_as_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiled_x").mkdir()
    for name in ("__init__.py", "fast.abi3.so"):
        (tmp_path / "compiled_x" / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert look("compiled_x") == [{}]


@pytest.mark.parametrize("name", ["", "a.b", "../x"])
def test_only_top_level_names_are_valid(name: str) -> None:
    with pytest.raises(AnsibleError, match="is not the name of a top-level Python package"):
        look(name)
