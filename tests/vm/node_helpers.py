"""What the tests of the roles on VMs share: one converged state, and what a run returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

TAGS = "preflight,sysctl,readahead,docker,roce"


def site(lab: VmLab, *arguments: str, tags: str = TAGS, **variables: Any) -> Run:
    """Run site.yml for some roles, of one node too: site.yml refuses `--limit` to a part of a group for the role roce."""
    if "--limit" in arguments:
        variables["inventory_check_group_stages"] = []
    return lab.play("playbooks/site.yml", "--tags", tags, *arguments, variables=variables)


def converged(lab: VmLab) -> None:
    """See that the roles have run on these machines once in this session."""
    mark = lab.folder / "converged"
    if not mark.exists():
        lab.docker_answers()
        run = site(lab)
        assert run.rc == 0, run.stdout[-4000:]
        mark.touch()


def task_result(run: Run, task: str, host: str) -> dict[str, Any]:
    """Return a task's result on a host, failed or not."""
    kinds = ("runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped")
    found = [e["event_data"] for e in run.events if e["event"] in kinds]
    found = [d for d in found if d["host"] == host and task in d["task"]]
    assert found, f"{task} did not run on {host}:\n{run.stdout[-3000:]}"
    return dict(found[-1].get("res") or {})
