# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The image layer of a profile's mods: its Dockerfile, and its name. Pure.

A mod is applied as launch-cluster.sh of eugr/spark-vllm-docker applies it to a container (read 2026-11-26): the folder is /workspace/mods/<name>, where
recipes name its files, ``run.sh`` runs in it, and WORKSPACE_DIR is the working directory of the image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

PLACE = "/workspace/mods"
_SOURCES = "/opt/gb10-source"
# Where vLLM is installed, without an import of it. Images of the sources have it in an environment that need not be in PATH.
_SITE = "import importlib.util as u, os; print(os.path.dirname(os.path.dirname(u.find_spec('vllm').origin)))"
_PYTHONS = "/opt/env/bin/python /opt/venv/bin/python python3"


def is_patch(path: str) -> bool:
    """Report whether a mod is one patch; it is a folder otherwise."""
    return path.endswith((".patch", ".diff"))


def names(mods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each mod in the build context, in order."""
    return [f"{number}-{_name(mod)}" for number, mod in enumerate(mods, 1)]


def _name(mod: Mapping[str, Any]) -> str:
    return re.sub(r"[^\w.-]", "-", mod["path"].rstrip("/").rpartition("/")[2])


def _is_remote(mod: Mapping[str, Any]) -> bool:
    return bool(mod["repository"])


def _archive(mod: Mapping[str, Any]) -> str:
    return f"{mod['repository'].rstrip('/').removesuffix('.git')}/archive/{mod['commit']}.tar.gz"


def dockerfile(base: str, mods: Sequence[Mapping[str, Any]]) -> str:
    """Return the Dockerfile that applies mods, in order, over an image.

    :param base: the image, as ``name@sha256:...`` or ``name:tag``.
    :param mods: ``repository``, ``commit`` and ``path`` of each. One without a repository is in the build context under its name of :func:`names`.
    """
    lines: list[str] = []
    stages = {archive: f"source-{number}" for number, archive in enumerate(dict.fromkeys(map(_archive, filter(_is_remote, mods))), 1)}
    for archive, stage in stages.items():
        unpack = f"mkdir {_SOURCES} && tar -xzf {_SOURCES}.tar.gz -C {_SOURCES} --strip-components=1"
        lines += [f"FROM {base} AS {stage}", "USER root", f"ADD {archive} {_SOURCES}.tar.gz", f"RUN {unpack}"]
    lines.append(f"FROM {base}")
    for mod, context_name in zip(mods, names(mods)):
        there, copy = f"{PLACE}/{_name(mod)}", f"COPY {context_name}"
        if _is_remote(mod):
            copy = f"COPY --from={stages[_archive(mod)]} {_SOURCES}/{mod['path'].strip('/')}"
        run = f"cd {there} && bash run.sh"
        if is_patch(mod["path"]):
            run = f'for python in {_PYTHONS}; do site=$($python -c "{_SITE}" 2>/dev/null) && break; done; '
            run += f'cd "${{site:?no Python of the image has vLLM}}" && patch -p1 --batch -i {there}'
        lines += [f"{copy} {there}", f'RUN export WORKSPACE_DIR="$PWD"; {run}']
    return "\n".join([*lines, ""])


def reference(base: str, mark: str) -> str:
    """Return the name of the image with the mods: that of its base without the registry, and with 12 digits of the hash of the mods."""
    registry, slash, rest = base.partition("/")
    name, _colon, tag = (rest if slash and re.search(r"[.:]|^localhost$", registry) else base).partition(":")
    return f"{name}:{(tag or 'latest')[:110]}-mods-{mark[:12]}"
