# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What follows a failed boot. Pure.

| release | failure | action |
|---|---|---|
| new, never passed | any | stop, evidence, last good release; none: stopped, with the sentence |
| has passed | transient (`transient` in failures.yml) | the same release again, after a pause that grows; after the last attempt as for lasting |
| has passed | lasting | held with the sentence; never replaced by another release without being asked |
| has passed, and the change was asked for while another release was current | lasting, or the last attempt | back to that release |
"""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import TRANSIENT

#: Seconds before the second, third, ... attempt. The last one counts for all that follow.
PAUSES = (5.0, 20.0, 60.0, 180.0)

RETRY, RETURN, HOLD, STOP = "retry", "return", "hold", "stop"


def pause_before(attempt: int) -> float:
    """Return the seconds to wait before an attempt; the first one is attempt 1."""
    return PAUSES[min(max(attempt - 2, 0), len(PAUSES) - 1)]


def action(passed_before: bool, failure: str, attempt: int, attempts: int, fallback: str, switched: bool = False) -> str:
    """Return what follows the failed `attempt` (1 or more) of a release.

    `failure` is the verdict's class, `attempts` how often a release that has passed is started, `fallback` the last good release, empty without one.
    `switched` tells that another release was current when this one was asked for.
    """
    if not passed_before:
        return RETURN if fallback else STOP
    if failure in TRANSIENT and attempt < attempts:
        return RETRY
    return RETURN if switched and fallback else HOLD
