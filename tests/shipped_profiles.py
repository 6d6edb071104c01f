"""The shipped profiles, and small ones of a user, for tests that also run without Ansible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "profiles"
IMAGES = FOLDER / "images"
SHIPPED: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}
# Their images are in no registry: an owner copies one into the folder of the profiles, and builds its image.
EXAMPLES: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((FOLDER / "examples").glob("*.yml"))}
# What every profile needs.
LEAST: dict[str, Any] = {"summary": "s", "image": {"reference": "e:1"}, "model": {"id": "a/b", "path": "a/b"}}


def arguments(words: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Group the words of a command line into (flag, values), in order."""
    out: list[tuple[str, tuple[str, ...]]] = []
    for word in words:
        if word.startswith("--"):
            flag, _unused, value = word[2:].partition("=")
            out.append((flag, (value,) if value else ()))
        elif out:
            out[-1] = (out[-1][0], (*out[-1][1], word))
    return out


def place(number: int, size: int = 2, **more: Any) -> dict[str, Any]:
    """The place of one rank in its group, as a rank is rendered."""
    addresses = [f"192.168.200.{i + 1}" for i in range(size)]
    return {"rank": number, "size": size, "master_addr": addresses[0], "fabric_ip": addresses[number], "env": {}, **more}


def ranks(*totals: float, available: float | None = 114.0, **more: Any) -> list[dict[str, Any]]:
    """The memory of one node for each total, in GiB, as the estimate of the KV pool reads it."""

    def kib(gib: float | None) -> int | None:
        return None if gib is None else int(gib * 2**20)

    names = ["spark-a", "spark-b", "spark-c", "spark-d"]
    return [{"rank": i, "host": names[i], "total_kib": kib(t), "available_kib": kib(available), **more} for i, t in enumerate(totals)]
