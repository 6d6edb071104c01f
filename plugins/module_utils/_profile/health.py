# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The health check of a rank's container, by its rank: headless workers have no API, so their processes are checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import api_url

#: Runs in the container with the image's Python: SCRIPT /proc [HOST:PORT of the API]. The rules are those of _release/node.py.
SCRIPT = """\
import os, sys
table = {}
for pid in filter(str.isdigit, os.listdir(sys.argv[1])):
    try:
        with open(f"{sys.argv[1]}/{pid}/stat", errors="replace") as stat, open(f"{sys.argv[1]}/{pid}/cmdline", errors="replace") as line:
            (name, _, rest), words = stat.read().partition("(")[2].rpartition(")"), line.read()
    except OSError:
        continue
    state, parent = rest.split()[:2]
    engine = name.startswith("VLLM::") or "vllm" in words.lower() or "multiprocessing.spawn" in words
    table[pid] = parent, state, name, engine
ranks = ["1"]
for pid in ranks:
    ranks += [child for child in table if table[child][0] == pid]
for pid in ranks:
    parent, state, name, engine = table[pid]
    if state in "Tt" and (engine or pid == "1"):
        sys.exit(f"the engine process is stopped (PID {pid}, {name})")
    if state == "Z" and name.startswith("VLLM::"):
        sys.exit(f"the engine process is dead (PID {pid}, {name})")
if table["1"][3] and not any(table[pid][3] and table[pid][1] not in "ZXx" for pid in ranks[1:]):
    sys.exit("the engine process does not run")
for place in sys.argv[2:]:
    from http.client import HTTPConnection
    api = HTTPConnection(place, timeout=5)
    api.request("GET", "/health")
    status = api.getresponse().status
    if status != 200:
        sys.exit(f"/health: HTTP {status}")
"""


def health_check(api: Mapping[str, Any], rank: int, changes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `healthcheck` of a rank's service. `changes` are keys of Compose that win, `disable` among them; None renders no health check.

    The first success ends the start period, so it only has to be longer than any launch. It does not depend on the limits of a launch, which
    are not part of a release.
    """
    if changes is None or changes.get("disable"):
        return None if changes is None else {"disable": True}
    test = ["CMD", "python3", "-IS", "-c", SCRIPT, "/proc", *([] if rank else [urlsplit(api_url(api)).netloc])]
    return {"test": test, "interval": "15s", "timeout": "10s", "retries": 3, "start_period": "2h", **changes}
