# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: questions of setup.yml on the terminal, with any stdout callback. Controller only."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail, AnsiblePromptInterrupt, AnsiblePromptNoninteractive
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable
from ansible_collections.gb10.cluster.plugins.module_utils._setup.questions import Question, is_yes

_STOPPED = "setup.yml was stopped by the user. No inventory was written. Run it again to continue."


class NoTerminalError(Exception):
    """No terminal is there to ask on."""


class Terminal:
    """Asks and prints. Display passes both to the main process, because the worker of a task has no terminal."""

    def show(self, *lines: str, color: str | None = None) -> None:
        """Print lines."""
        for line in lines:
            Display().display(printable(line), color=color)

    def _input(self, prompt: str, private: bool = False) -> str:
        try:
            answer: Any = Display().prompt_until(printable(prompt), private=private)
        except AnsiblePromptNoninteractive:
            raise NoTerminalError from None
        except AnsiblePromptInterrupt:
            raise AnsibleActionFail(_STOPPED) from None
        return bytes(answer).decode("utf-8", "replace").strip("\r\n")

    def ask(self, question: Question, default: str = "", given: Any = None, reason: str = "", needed: bool = False, about: str = "") -> str:
        """Return a valid answer: the given one, else that of the user, else the default.

        :param needed: whether the default is not taken without a terminal. ``about`` names what is asked for, such as a machine.
        """
        why = reason or question.reason
        fault = ""
        if given not in (None, ""):
            text = str(given).strip()
            fault = question.check(text)
            if not fault:
                return text
        while True:
            shown = f"{question.variable} {fault}.\n" if fault else ""
            prompt = f"\n{shown}{why}\n{question.text}{f' {about}' if about else ''}{f' [{default}]' if default else ''}:"
            try:
                answer = self._input(prompt).strip() or default
            except NoTerminalError:
                return self._default(question, default, needed, fault, about)
            fault = question.check(answer) if printable(answer) == answer else f"is {printable(answer)!r}, which has characters that cannot be printed"
            if not fault:
                return answer

    @staticmethod
    def _default(question: Question, default: str, needed: bool, fault: str, about: str) -> str:
        if fault:
            raise AnsibleActionFail(f"{question.variable} {fault}.")
        if needed or not default or question.check(default):
            what = f"{question.text.rstrip('?')}{f' {about}' if about else ''}"
            raise AnsibleActionFail(f"setup.yml has no terminal to ask on, and {question.variable} is not set. Add -e {question.variable}=VALUE ({what}).")
        return default

    def confirm(self, question: Question, given: Any, about: str = "") -> bool:
        """Return whether the answer is yes, which is the default."""
        return is_yes(self.ask(question, "yes", given, about=about))

    def password(self, prompt: str, remedy: str) -> str:
        """Return a password, which is not echoed. Without a terminal, fail with the remedy."""
        try:
            return self._input(f"\n{prompt} (it is not shown):", private=True)
        except NoTerminalError:
            raise AnsibleActionFail(remedy) from None
