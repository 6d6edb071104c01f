# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Change a node, and list each change for the module's result. In check mode only the list is made."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, FileChange, HostError, Node, runner


class Changes:
    """The changes of a run: `messages` has one entry per change, `diff` is Ansible's list."""

    def __init__(self) -> None:
        """Create an empty list of changes."""
        self.messages: list[str] = []
        self._diff: list[dict[str, str]] = []
        self._steps: list[str] = []

    def file(self, change: FileChange, message: str) -> None:
        """Add a file."""
        self.messages.append(message)
        self._diff.append(change.diff())

    def live(self, title: str, before: str, after: str, messages: Iterable[str]) -> None:
        """Add values of the live system; `title` is the header of their diff."""
        self.messages.extend(messages)
        self._diff.append({"before": before, "after": after, "before_header": title, "after_header": title})

    def step(self, message: str) -> None:
        """Add a change that is neither a file nor a value: the message is its diff."""
        self.messages.append(message)
        self._steps.append(message)

    def result(self) -> dict[str, Any]:
        """Return the part of a module's result that reports changes."""
        return {"changed": bool(self.messages), "changes": self.messages, "diff": self.diff}

    @property
    def diff(self) -> list[dict[str, str]]:
        """Files and values first, then all steps as one entry."""
        after = "".join(f"{step}\n" for step in self._steps)
        steps = {"before": "", "after": after, "before_header": "live system", "after_header": "live system"}
        return [*self._diff, steps] if after else list(self._diff)


class Editor:
    """Applies changes to a node unless this is check mode. Its methods raise HostError and OSError."""

    def __init__(self, node: Node, check_mode: bool) -> None:
        """Start without a change."""
        self.node = node
        self.check_mode = check_mode
        self.changes = Changes()

    def command(self, *argv: str) -> None:
        """Run a command that must succeed."""
        if self.check_mode:
            return
        rc, out, err = self.node.run(list(argv))
        if rc != 0:
            last = ((err or out).strip().splitlines() or ["no output"])[-1]
            raise HostError(f"{argv[0]} failed (rc {rc}: {last}). The command was `{' '.join(argv)}`.")

    def step(self, message: str, *argv: str) -> None:
        """Add a change and run the command that makes it, if there is one."""
        self.changes.step(message)
        if argv:
            self.command(*argv)

    def write(self, path: str, text: str | None, message: str) -> bool:
        """Write a file, or remove it if `text` is None; return whether it changes."""
        change = FileChange(path, self.node.read(path), text)
        if not change.changed:
            return False
        self.changes.file(change, message)
        if not self.check_mode:
            self.node.apply(change)
        return True

    def write_live(self, title: str, values: Mapping[str, str], live: Mapping[str, str], path_of: Callable[[str], str]) -> None:
        """Write the values (name to value) that differ from `live` to the kernel files that `path_of` names."""
        writes = {name: value for name, value in values.items() if live.get(name) != value}
        if not writes:
            return
        before = {name: live.get(name, "not set") for name in writes}
        old, new = ("".join(f"{name} = {value}\n" for name, value in side.items()) for side in (before, writes))
        self.changes.live(title, old, new, (f"{name}: {before[name]} -> {value}" for name, value in writes.items()))
        if self.check_mode:
            return
        for name, value in writes.items():
            try:
                self.node.write_live(path_of(name), f"{value}\n")
            except OSError as error:
                raise HostError(
                    f"The kernel refuses {value} for {name} ({error.strerror} on {path_of(name)}). Correct the value, or check whether the file "
                    "system is read-only."
                ) from error

    def require_own(self, path: str) -> None:
        """Refuse to replace a file without our marker."""
        text = self.node.read(path)
        if text is not None and MARKER not in text:
            raise HostError(f"{path} exists and is not managed by gb10.cluster (it does not contain {MARKER!r}). Move it away, then run again.")

    def remove_own(self, path: str) -> bool:
        """Remove a file with our marker; return whether it was removed."""
        return MARKER in (self.node.read(path) or "") and self.write(path, None, f"{path} removed")

    def remove_empty_folder(self, path: str) -> None:
        """Remove a folder that has nothing in it."""
        if not self.check_mode and self.node.exists(path) and not self.node.listdir(path):
            os.rmdir(self.node.at(path))

    def save_record(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep the record of earlier values, see Node.save_record."""
        if not self.check_mode:
            self.node.save_record(name, dict(record))


def run_module(module: Any, work: Callable[[Editor], dict[str, Any]], *errors: type[Exception]) -> None:
    """Run the module of a role and exit. With its option `look` it changes nothing, reports no change, and shows no text: doctor.yml compares."""
    look = bool(module.params["look"])
    known: tuple[type[Exception], ...] = (HostError, *errors)
    edit = Editor(Node("/", runner(module, optional=True)), module.check_mode or look)
    try:
        result = work(edit)
    except known as error:
        module.fail_json(msg=str(error), changes=edit.changes.messages)  # also those before the failure
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}). Run with become, and check whether the file system is read-only.")
    module.exit_json(**{**result, **({"changed": False, "shown": []} if look else {})})
