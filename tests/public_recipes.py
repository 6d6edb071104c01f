"""Public recipes for two nodes, and where the shipped profile of each differs: unit/fixtures/public_recipes.yml."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Recipe:
    """One recipe, and the differences of the profile: each must be among its deviations."""

    model: str
    image: str
    arguments: str
    environment: str
    changed: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


_FILE = Path(__file__).parent / "unit/fixtures/public_recipes.yml"
RECIPES = {name: Recipe(**values) for name, values in yaml.safe_load(_FILE.read_text(encoding="utf-8"))["recipes"].items()}
