# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what the filter plugins share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError


def raises(*errors: type[Exception]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that turns these errors of a filter into AnsibleFilterError with the same text."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except errors as exc:
                raise AnsibleFilterError(str(exc)) from exc

        return run

    return wrap
