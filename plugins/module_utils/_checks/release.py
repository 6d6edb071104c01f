# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the last boot, and of how the nodes differ from the release that is current and the inventory from both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import DOCKER, GROUP, RANK, SERVE, SYSCTL, Event, Group, Rank, check, skip
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, INFO, WARNING, found
from ansible_collections.gb10.cluster.plugins.module_utils._node import release

_AGAIN = "the next start fails in the same way until the cause is corrected"
_SETTINGS = "the node runs with other settings than the inventory has"


def _verdict(group: Group) -> Mapping[str, Any]:
    """Return the verdict on the last boot, if it failed."""
    outcome: Mapping[str, Any] = ((group.ranks[0].info.get("agent") or {}).get("state") or {}).get("outcome") or {}
    verdict: Mapping[str, Any] = outcome.get("verdict") or {}
    return {} if verdict.get("passed", True) else {"msg": outcome.get("sentence") or "no sentence", **verdict}


@check("boot_failed", "boot", ERROR, _AGAIN, command="{head} sudo gb10 why", of=GROUP)
def boot_failed(head: Rank, group: Group) -> Iterator[Event]:
    """the verdict of the last boot; a warning while the group serves"""
    verdict = _verdict(group)
    if verdict:
        place = (verdict.get("finding") or {}).get("host")
        yield found(str(verdict["msg"]), severity=WARNING if group.serves else "", hosts=[place] if place in group.hosts else ())
    receipt = head.info.get("receipt") or {}
    if receipt.get("passed"):
        yield f"release {receipt.get('release')} passed its gate at {receipt.get('time')}"


@check("boot_log", "boot", ERROR, _AGAIN, command="{play}evidence{end}", of=RANK)
def boot_log(rank: Rank, group: Group) -> Iterator[Event]:
    """a failure in the log of a container, or in the newest evidence if no container exists; a warning while the group serves"""
    verdict, kept = _verdict(group), rank.health.get("boot") or {}
    kept = {} if rank.info.get("containers") or rank.info.get("stopped") or not kept.get("label") else kept
    log = rank.log or kept
    failure = log.get("failure")
    if failure and failure["class"] != verdict.get("class"):
        where = f" (evidence {kept['label']})" if kept else ""
        yield found(f"{failure['class']}: {failure['line']}{where}", str(failure.get("remedy") or ""), severity=WARNING if group.serves else "")
    elif log.get("state") and not failure:
        # The log of a worker does not show when it is ready.
        yield f"{rank.host}: {'no failure' if rank.number else log['state']}"
    elif not log and "containers" not in rank.info:
        yield skip(rank.not_read)
    elif not log and not verdict:
        yield skip("no container and no evidence has a boot log")


def _current(group: Group) -> set[str]:
    """Return the releases that are current."""
    return {str(rank.info.get("current") or "") for rank in group.ranks} - {""}


@check(
    "release_differs", "drift", WARNING, "the next run of site.yml starts another release: minutes without service", command="{site} --check --diff",
    of=GROUP)  # fmt: skip
def release_differs(_head: Rank, group: Group) -> Iterator[Event]:
    """the inventory describes another release than the current one"""
    current, read = _current(group), [rank.host for rank in group.ranks if "current" in rank.info]
    if not current:
        yield skip("no release is current" if read else group.ranks[0].not_read, hosts=read)
    elif not group.named:
        yield skip(f"the release was not rendered{', because a rank was not read' if len(read) < len(group.ranks) else ''}")
    elif current != {group.named}:
        yield found(f"release {', '.join(sorted(current))} is current, and the inventory describes {group.named}")
    else:
        yield f"release {group.named} is the one of the inventory"


@check("release_files", "drift", WARNING, "a restart after a fault or a reboot needs these files", command=SERVE, of=RANK)
def release_files(rank: Rank, group: Group) -> Iterator[Event]:
    """files of the release are missing or differ"""
    current = _current(group)
    if current and rank.info.get("current") == "":
        yield found("no release is current, although another rank has one")
    yield from map(found, rank.repairs if group.named and current == {group.named} else ())


@check(
    "image_moved", "drift", WARNING, "the next start uses another image than the one that was judged", command="{site} --tags image,vllm_tp2", of=RANK,
    looks="image or weights are not those that were judged")  # fmt: skip
@check(
    "weights_differ", "drift", WARNING, "the next boot loads other weights than the ones that were judged", command="{site} --tags weights", of=RANK,
    looks="image or weights are not those that were judged")  # fmt: skip
def inputs(rank: Rank, group: Group) -> Iterator[Event]:
    """Image and weights of the current release."""
    if not _current(group):
        return
    moved = release.moved_tag(rank.info)
    if moved:
        yield found(moved)
    differ = list(rank.info.get("weights_differ") or ())
    if differ:
        yield found("; ".join(differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else ""), name="weights_differ")


@check("settings_sysctl", "drift", WARNING, _SETTINGS, command=SYSCTL, of=RANK)
@check("settings_readahead", "drift", WARNING, _SETTINGS, command="{site} --tags readahead", of=RANK)
@check("settings_gpu", "drift", WARNING, _SETTINGS, command="{site} --tags gpu", of=RANK)
@check("settings_docker", "drift", WARNING, _SETTINGS, command=DOCKER, of=RANK)
def settings(rank: Rank, group: Group) -> Iterator[Event]:
    """what the role would change"""
    for role, result in rank.settings.items() if _current(group) else ():
        changes = [str(each) for each in result.get("changes") or ()]
        if result.get("failed"):
            yield skip(f"settings of the role {role}: {str(result.get('msg') or 'no message').rstrip('.')[:160]}", f"settings_{role}")
        elif changes:
            yield found("; ".join(changes[:4]) + (f" and {len(changes) - 4} more" if len(changes) > 4 else ""), name=f"settings_{role}")


@check("no_way_back", "drift", INFO, "if the next boot fails, there is less to go back to", command="{play}rollback{end} -e rollback_release=list", of=GROUP)
def no_way_back(_head: Rank, group: Group) -> Iterator[Event]:
    """an earlier release cannot be started again"""
    current, ranks = _current(group), [rank for rank in group.ranks if rank.info.get("releases")]
    if len(current) == 1:
        infos, hosts, (now,) = [rank.info for rank in ranks], [rank.host for rank in ranks], current
        for sentence in release.lost_ways(infos, hosts, now, release.judged_receipt(infos, now)):
            yield found(sentence, hosts=hosts)
