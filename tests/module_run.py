"""Run a module of the collection in this process."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args


def run_module(capsys: pytest.CaptureFixture[str], module: ModuleType, **arguments: Any) -> dict[str, Any]:
    """Return the result of the module's main()."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    return dict(json.loads(capsys.readouterr().out))
