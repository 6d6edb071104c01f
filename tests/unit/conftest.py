"""Settings of Hypothesis, and modules without the warnings of earlier tests."""

from __future__ import annotations

import pytest
from ansible.module_utils.common import warnings
from hypothesis import HealthCheck, settings

# A busy machine is not a failure: examples have no deadline and may be slow to generate. They are the same each time.
settings.register_profile("gb10", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("gb10")


@pytest.fixture(autouse=True)
def no_earlier_warnings() -> None:
    """Forget what the modules of earlier tests warned of: on a node each module is a process of its own."""
    warnings._global_warnings.clear()
