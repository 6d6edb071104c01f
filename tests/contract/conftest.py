"""The contract tests start no test after the time that tools/test.sh gives them, and end with their process that forks."""

import last_start
import warm_playbook

pytest_runtest_setup = last_start.pytest_runtest_setup


def pytest_sessionfinish() -> None:
    """End the process that runs playbooks."""
    warm_playbook.end()
