# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the options of the roles. Controller only."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import names
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

# Follows the checkout's links, and works from an installed collection as well.
ROLES_DIR = Path(__file__).resolve().parents[2] / "roles"


def _load(path: Path) -> Any:
    with contextlib.suppress(FileNotFoundError, yaml.YAMLError):  # a tag such as !unsafe
        return yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader)  # noqa: S506  see above
    return None


@cache
def load_specs() -> dict[str, dict[str, dict[str, Any]]]:
    """Return role name to its options, for every role of the collection."""
    specs = sorted(ROLES_DIR.glob("*/meta/argument_specs.yml"))
    return {path.parts[-3]: names.role_options(_load(path) or {}, _load(path.parents[1] / "defaults" / "main.yml") or {}) for path in specs}
