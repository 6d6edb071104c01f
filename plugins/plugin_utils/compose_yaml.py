# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the text of a Compose file. PyYAML writes YAML 1.1 and Docker Compose reads 1.2, where 1e3 and 0o17 without quotes are numbers."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml


class Dumper(yaml.SafeDumper):
    """Quotes what is a number in YAML 1.1 or 1.2."""


Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"), list("-+.0123456789"))
Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?0[oO][0-7]+\Z"), list("-+0"))


def compose_yaml(data: dict[str, Any]) -> str:
    """Return the text of a Compose file."""
    plain = json.loads(json.dumps(data))  # without the tags of ansible-core, which PyYAML cannot write
    return yaml.dump(plain, Dumper=Dumper, sort_keys=False, width=160)
