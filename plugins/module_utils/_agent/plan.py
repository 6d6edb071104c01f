# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of site.yml does with a group, and why: the release that must serve, the decision, and what is repaired or removed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent import standing
from ansible_collections.gb10.cluster.plugins.module_utils._release import release as releases
from ansible_collections.gb10.cluster.plugins.module_utils._release.group import group_status

Infos = Sequence[Mapping[str, Any]]


def named(infos: Infos, release: str, inputs: Sequence[str], restart: bool) -> str:
    """Return the release that must serve.

    `release` is the one of the inventory today. One that another version of the collection rendered from the same inputs stays until a restart is asked for.
    """
    current = {str(info.get("current") or "") for info in infos}
    kept = [str(info.get("inputs") or "") for info in infos]
    stays = not restart and len(current) == 1 and "" not in kept and kept == [str(each) for each in inputs]
    return current.pop() if stays else release


def of_run(
    infos: Infos, hosts: Sequence[str], name: str, rank: int, release: str, wanted: Mapping[str, Any], judged: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Return what the run does on this rank and for its group.

    `infos` is what vllm_rank_info returned on each rank, the head first. `release` is the one that must serve, see named(). `wanted` is what the inventory
    asks for: release, inputs (by rank), files (mode and hash of those of this rank), keep (releases), options, criteria, restart, takeover, again, new_key
    (a phrase; empty if the API's key stays). `judged` is the receipt of `release`, if it has passed its gate.
    """
    stands = release != wanted["release"]
    probe = infos[0].get("alive") or None
    reasons = [
        reason
        for number, (host, info) in enumerate(zip(hosts, infos))
        for reason in releases.start_reasons(info, release, f"rank {number} on {host}", None if number else probe, bool(wanted["restart"]), judged)
    ] + ([str(wanted["new_key"])] if wanted["new_key"] else [])
    state = (infos[0].get("agent") or {}).get("state") or {}
    decision = standing.decide(
        state, release, list(dict.fromkeys(reasons)), name, bool(wanted["restart"]), bool(wanted["takeover"]), bool(wanted["again"]), wanted["options"],
        wanted["criteria"], judged,
    )  # fmt: skip
    good = releases.last_good(infos, release)
    return {
        **decision, "release": release, "stands": stands, "judged": dict(judged), "good": good, "sentence": group_status(infos, name, hosts)["sentence"],
        "lost": releases.lost_ways(infos, hosts, release, judged),
        "repairs": releases.repairs(infos[rank], release, {} if stands else wanted["files"], judged),
        "stale": releases.stale_releases(infos[rank], int(wanted["keep"]), [release, good]),
    }  # fmt: skip
