"""What the tests of actions have in common: Ansible's own part of an action is left out, and what is displayed is kept."""

from __future__ import annotations

import pytest
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were displayed."""
    texts: list[str] = []
    monkeypatch.setattr(ActionBase, "run", lambda *_args, **_more: {})
    monkeypatch.setattr(Display, "display", lambda _self, text, *_args, **_more: texts.append(str(text)))
    return texts
