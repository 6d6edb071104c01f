"""The shipped profiles, for tests that also run without Ansible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SHIPPED: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((Path(__file__).parents[1] / "profiles").glob("*.yml"))}
