# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The sources of an image on the node that builds it: a git checkout with merges, picks and patches, or the owner's folder.

What git prints can come from another host: it is shortened and masked before it is shown.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import masked
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import BUILD_LABEL, ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host import command
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Runner

#: No prompt, no hook, no protocol that runs commands, an end to a silent connection, and commits that are the same on every node.
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_HTTP_LOW_SPEED_LIMIT": "1000", "GIT_HTTP_LOW_SPEED_TIME": "60", "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": "/dev/null", "GIT_CONFIG_KEY_1": "commit.gpgSign", "GIT_CONFIG_VALUE_1": "false",
    "GIT_AUTHOR_NAME": "gb10.cluster", "GIT_AUTHOR_EMAIL": "gb10.cluster@localhost", "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "gb10.cluster", "GIT_COMMITTER_EMAIL": "gb10.cluster@localhost", "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z", "LC_ALL": "C.UTF-8",
}  # fmt: skip
OUTPUT = 1 << 20  # bytes that are kept of what a command of git prints
SECONDS = 3600.0  # for a command of git
OWN_SOURCES = "or give the sources as image_build_context (a directory or an archive on the controller)"
_CAUSES = (
    (
        "required executable|git: not found|command not found",
        "git is not installed on this node: run `apt install git` there",
    ),
    ("no space left on device", "the disk of this node is full: free space below /var/lib/gb10-cluster"),
    (
        "could not resolve|couldn't connect|failed to connect|connection (?:refused|timed out|reset)|network is unreachable|too slow|less than 1000"
        "|unable to access",
        f"this node does not reach it: give the node a way there, {OWN_SOURCES}",
    ),
    (
        "could not read username|authentication failed|not found|does not exist|not appear to be a git repository|correct access rights|dubious ownership",
        f"there is no such repository, or it is private: correct image.build.repository, {OWN_SOURCES}",
    ),
)
_ABSENT = re.compile("not our ref|not a tree|couldn't find remote ref|bad object|unable to read tree|did not match any|failed to checkout", re.IGNORECASE)


def protocols(repository: str) -> dict[str, str]:
    """Return the variable that allows the protocol of a repository, for its submodules too, and no other."""
    return {"GIT_ALLOW_PROTOCOL": repository.partition("://")[0]}


def runner(repository: str, seconds: float = SECONDS) -> Runner:
    """Return a Runner for git in the sources of a repository. A server can neither fill the memory with its messages nor keep it waiting."""
    environment = {**ENVIRONMENT, **protocols(repository)}

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        code, out, err = command.run_command(argv, seconds, env=environment, limit=OUTPUT)
        reasons = {command.LATE: f"fatal: connection timed out after {seconds:g} s", 127: f"{argv[0]}: command not found"}
        return code, out, reasons.get(code, err)

    return run


def shown(text: str) -> str:
    """Return the decisive line of what git printed, without secrets and control characters."""
    lines = [" ".join(line.split()) for line in text[-20_000:].splitlines() if line.strip() and not line.startswith(("hint:", "Cloning into", "warning:"))]
    wrong = [line for line in lines if re.match(r"(?:fatal|error|remote|CONFLICT|.*Failed to)\b", line)]
    line = (wrong or lines or ["no output"])[0]
    return "".join(each for each in str(masked(line))[:300] if each.isprintable())


def fetch_fault(text: str, repository: str, absent: str) -> str:
    """Return the sentence for a fetch that failed. `absent` is the sentence for a repository that has no such commit or reference."""
    if _ABSENT.search(text):
        return absent
    for pattern, remedy in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return f"{repository} cannot be fetched ({shown(text)}): {remedy}"
    return f"{repository} cannot be fetched ({shown(text)}): see the output of `git ls-remote {repository}` on this node, {OWN_SOURCES}"


class Checkout:
    """A git checkout on this node. Its functions raise ImageError."""

    def __init__(self, run: Runner, folder: str, data: Mapping[str, Any]) -> None:
        """Take the folder of the checkout and the build data of the profile."""
        self.run, self.folder, self.data = run, folder, data
        self.repository, self.commit = str(data["repository"]), str(data["commit"])

    def git(self, *words: str) -> tuple[int, str, str]:
        """Run git in the checkout."""
        return self.run(["git", "-C", self.folder, *words])

    def must(self, *words: str) -> str:
        """Run git in the checkout and return its output."""
        rc, out, err = self.git(*words)
        if rc != 0:
            raise ImageError(f"git {words[0]} failed in {self.folder} ({shown(err or out)}): run again")
        return out.strip()

    def prepare(self) -> dict[str, str]:
        """Merge, pick and patch as the profile requires; return the labels with the provenance."""
        head = self.must("rev-parse", "HEAD")
        if head != self.commit:
            raise ImageError(f"{self.folder} has the commit {head[:12]}, expected {self.commit[:12]} of {self.repository}: run again")
        self.must("reset", "--quiet", "--hard", self.commit)  # nothing but the commit gets into the image
        self.must("clean", "-ffdxq")
        labels = {"repository": self.repository, "commit": self.commit}
        merged = [f"{each['number']}@{self._merge(each['number'], each.get('commit'))}" for each in self.data.get("pull_requests") or []]
        for pick in self.data.get("cherry_picks") or []:
            self._pick(pick)
        patches = [f"{path}@sha256:{self._patch(path)}" for path in self.data.get("patches") or []]
        labels.update(pull_requests=" ".join(merged), cherry_picks=" ".join(self.data.get("cherry_picks") or []), patches=" ".join(patches))
        labels["tree"] = self.must("write-tree")
        if self.data.get("submodules"):
            self._submodules()
        return {f"{BUILD_LABEL}.{key}": value for key, value in labels.items() if value}

    def _fetch(self, reference: str, absent: str) -> str:
        """Fetch a reference or commit and return its commit."""
        rc, out, err = self.git("fetch", "--quiet", "origin", reference)
        if rc != 0:
            raise ImageError(fetch_fault(err or out, self.repository, absent))
        return self.must("rev-parse", "FETCH_HEAD^{commit}")

    def _has(self, commit: str) -> bool:
        return self.git("cat-file", "-e", f"{commit}^{{commit}}")[0] == 0

    def _conflict(self, what: str, text: str, undo: str, remedy: str) -> ImageError:
        files = [line for line in self.git("diff", "--name-only", "--diff-filter=U")[1].splitlines() if line]
        self.git(undo, "--abort")
        reason = f"conflicts in {shown(', '.join(files[:10]))}{' and more' if len(files) > 10 else ''}" if files else f"cannot be applied ({shown(text)})"
        return ImageError(f"{what} of {self.repository} {reason}, on the commit {self.commit[:12]}: {remedy}")

    def _merge(self, number: int, wanted: str | None) -> str:
        what = f"pull request {number}"
        absent = f"{self.repository} has no {what} (refs/pull/{number}/head): correct image.build.pull_requests of the profile"
        commit = self._fetch(f"refs/pull/{number}/head", absent)
        if wanted and not self._has(wanted):
            absent = f"{self.repository} has no commit {wanted[:12]} of {what} any more (its newest is {commit[:12]}): correct image.build.pull_requests"
            self._fetch(wanted, absent)
        commit = wanted or commit
        rc, out, err = self.git("merge", "--no-ff", "--quiet", "-m", f"Merge {what} ({commit})", commit)
        if rc != 0:
            remedy = "name a commit of the pull request that fits (image.build.pull_requests), or another image.build.commit"
            raise self._conflict(f"{what} ({commit[:12]})", err or out, "merge", remedy)
        return commit

    def _pick(self, commit: str) -> None:
        if not self._has(commit):
            self._fetch(commit, f"{self.repository} has no commit {commit}, which image.build.cherry_picks of the profile names: correct it")
        rc, out, err = self.git("cherry-pick", "--allow-empty", "--keep-redundant-commits", commit)
        if rc != 0:
            raise self._conflict(f"the cherry-pick {commit[:12]}", err or out, "cherry-pick", "correct image.build.cherry_picks or image.build.commit")

    def _patch(self, path: str) -> str:
        where = below(self.folder, path)
        if not where or not os.path.isfile(where):
            raise ImageError(f"{self.repository} has no {path} at {self.commit[:12]}, which image.build.patches of the profile names: correct it")
        patch = bounded.data(where)
        rc, out, err = self.git("apply", "--index", "--whitespace=nowarn", "--", path)
        if rc != 0:
            raise ImageError(
                f"the patch {path} does not apply to {self.repository} at {self.commit[:12]} ({shown(err or out)}): correct image.build.patches or "
                "image.build.commit"
            )
        return hashlib.sha256(patch).hexdigest()

    def _submodules(self) -> None:
        rc, out, err = self.git("submodule", "update", "--init", "--recursive", "--force")
        if rc != 0:
            absent = f"a submodule of {self.repository} has no such commit ({shown(err or out)}): correct image.build.commit"
            raise ImageError(fetch_fault(err or out, f"a submodule of {self.repository}", absent))


def below(folder: str, path: str) -> str:
    """Return the real path of something below a folder; empty if it is not below it."""
    root = os.path.realpath(folder)
    where = os.path.realpath(os.path.join(root, path))
    return where if where == root or where.startswith(root + os.sep) else ""


def unpacked(folder: str) -> str:
    """Return the folder with the sources: the one folder of an archive that has nothing else, as archives of a repository have."""
    entries = os.listdir(folder)
    inner = os.path.join(folder, entries[0]) if len(entries) == 1 else ""
    return inner if inner and os.path.isdir(inner) and not os.path.islink(inner) else folder


def check_steps(folder: str, steps: Sequence[Mapping[str, Any]], what: str) -> None:
    """Raise ImageError for a context or Dockerfile that the sources do not have."""
    for number, step in enumerate(steps, 1):
        for key, kind, exists in (("context", "folder", os.path.isdir), ("dockerfile", "Dockerfile", os.path.isfile)):
            where = below(folder, step[key])
            if not where or not exists(where):
                raise ImageError(
                    f"step {number} of the build needs the {kind} {step[key]}, and {what} does not have it: correct image.build.steps, {OWN_SOURCES}"
                )
