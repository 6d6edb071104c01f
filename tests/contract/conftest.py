"""The contract tests end with their process that forks."""

import warm_playbook


def pytest_sessionfinish() -> None:
    """End the process that runs playbooks."""
    warm_playbook.end()
