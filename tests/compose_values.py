"""Values of environment variables that a reader of YAML, Docker Compose or a shell could change (tests/security and tests/lab)."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import render_rank
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import SHIPPED

VALUES = [
    "a'b", 'a"b', "a\n      privileged: true", "$(id)", "`id`", "${HOME}", "$HOME", "$$", "%n", "a: b", "&x", "*x", "!!python/x", "{{ 7*7 }}", "#c", "a #c",
    "\ttab", "null", "~", "true", "on", "yes", "0x10", "0b11", ".5", "+1", "1_000", "12:34:56", "=", "<<", "\x85x", "\u2028x", "a\\", "-p", "é", ".inf", "0777",
    "0.0", "2026-01-01", "a\x1b[31m", "1e3", "0o17", "1E3", "-1e-3", "+.5e1", "5.", "-0o17", "1e3x", "", " ", "x ", "---", "- a", "? a", ".nan", "y", "NO",
]  # fmt: skip
#: What YAML 1.2 and the reader of Docker Compose (Go) take for a number, in quotes or not at all.
NUMBERS = ["1e3", "1E3", "-1e-3", "+1e3", "5.e3", "1.5e3", ".5e1", "0o17", "-0o17", "+0o7", "0O17"]
PLACE = {"rank": 0, "size": 2, "master_addr": "192.168.200.1", "fabric_ip": "192.168.200.1"}


def rendered(values: dict[str, str]) -> str:
    """Return the Compose file of a shipped profile with these variables."""
    profile = resolve("dspark-nvfp4-1m-seed", SHIPPED)
    profile["env"] = {**profile["env"], **values}
    return compose_yaml(render_rank(profile, PLACE, {"model_store": "/srv/models", "infiniband": []})["compose"])
