# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lookup: the program gb10 as one file on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
name: program
author:
  - The gb10.cluster authors (@gb10-cluster)
short_description: The program gb10 as one file
extends_documentation_fragment:
  - gb10.cluster.internal
description:
  - Makes the program that the role C(agent) copies to each rank. It is an archive of this collection's code that C(/usr/bin/python3) of the node runs.
  - The file is kept for the rest of the run. The same code makes the same file.
options:
  _terms:
    description:
      - One list with the names of pure-Python packages of the controller that the program contains, such as V(jmespath).
    type: list
    elements: list
seealso:
  - plugin: gb10.cluster.serving_group
    plugin_type: lookup
"""

EXAMPLES = r"""
- name: Copy the program
  ansible.builtin.copy:
    src: "{{ lookup('gb10.cluster.program').path }}"
    dest: /usr/local/sbin/gb10
    mode: "0755"
  become: true
"""

RETURN = r"""
_list:
  description:
    - One mapping with the C(path) of the file on the controller, and its C(sha256).
  type: list
  elements: dict
  sample:
    - path: /home/me/.ansible/tmp/ansible-local-4711/gb10
      sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""

import hashlib
import importlib.machinery
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

MODULE_UTILS = Path(__file__).resolve().parents[1] / "module_utils"
ROOT = "ansible_collections/gb10/cluster/plugins/module_utils"
MAIN = """from ansible_collections.gb10.cluster.plugins.module_utils._pair.cli import main

raise SystemExit(main())
"""


def library(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of a top-level package or module. Raises ValueError if it is not installed or not pure Python."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ValueError(f"{name} is not a Python package that is installed on this computer. Run: pip install {name}")
    paths = [Path(spec.origin)]
    for folder in spec.submodule_search_locations or []:
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    if any(path.name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) for path in paths):
        raise ValueError(f"{name} has compiled modules, which do not run on another machine.")
    top = Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]
    yield from ((path.relative_to(top).as_posix(), path.read_bytes()) for path in paths if path.suffix == ".py")


def build(libraries: Sequence[str] = ()) -> bytes:
    """Return the program. It is the same for the same files: without times, and not compressed, which depends on the computer. Raises ValueError, OSError."""
    parents = ROOT.split("/")
    files = {"/".join([*parents[:count], "__init__.py"]): b"" for count in range(1, len(parents) + 1)}
    files["__main__.py"] = MAIN.encode()
    files |= {f"{ROOT}/{path.relative_to(MODULE_UTILS).as_posix()}": path.read_bytes() for path in MODULE_UTILS.rglob("*.py")}
    for name in libraries:
        files |= library(name)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as program:
        for path in sorted(files):
            program.writestr(zipfile.ZipInfo(path), files[path])
    return b"#!/usr/bin/python3 -I\n" + archive.getvalue()


def kept(libraries: Sequence[str], folder: str) -> str:
    """Return the path of the program in a folder that is as old as the run. Raises ValueError, OSError."""
    path = os.path.join(folder, "-".join(["gb10", *sorted(libraries)]))
    if not os.path.exists(path):
        temporary = f"{path}.{os.getpid()}"
        Path(temporary).write_bytes(build(libraries))
        os.replace(temporary, path)
    return path


class LookupModule(LookupBase):
    """The lookup plugin."""

    def run(self, terms: list[Any], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return path and digest of the program."""
        del variables, kwargs
        libraries = [str(name) for term in terms for name in ([term] if isinstance(term, str) else term)]
        try:
            path = kept(libraries, constants.DEFAULT_LOCAL_TMP)
            return [{"path": path, "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}]
        except (OSError, ValueError) as error:
            raise AnsibleError(f"The program gb10 cannot be made: {error}") from error
