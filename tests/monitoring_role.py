"""The role monitoring for its tests and for tools/monitoring_image.py: its rules, panels and templates, and the programs of Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import yaml
from ansible.plugins.filter.core import FilterModule

ROLE = Path(__file__).resolve().parents[1] / "roles/monitoring"
RULES = yaml.safe_load((ROLE / "files/rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))["__monitoring_panels"]


def program(name: str, folder: Path) -> str:
    """Return a program of Prometheus, or else that of Debian's package, unpacked and not installed: no service comes with it. Raises OSError."""
    found = os.environ.get(name.upper()) or shutil.which(name)
    if found:
        return found
    line = "{ apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } && dpkg-deb -x prometheus_*.deb ."
    done = subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"no {name}, and apt-get does not download it: {done.stderr[-300:]}")
    return str(folder / "usr/bin" / name)


def rendered(name: str, **more: Any) -> str:
    """Return a template of the role as Ansible renders it."""
    env = jinja2.Environment(trim_blocks=True, autoescape=False, loader=jinja2.FileSystemLoader(ROLE / "templates"))
    env.filters = {**FilterModule().filters(), **env.filters}  # the default of Ansible does not know this Jinja's undefined values
    return env.get_template(name).render(__monitoring_panels=PANELS, __monitoring_ui="/classic", __monitoring_rules_text=json.dumps(RULES), **more)
