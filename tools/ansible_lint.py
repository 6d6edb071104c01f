"""Run ansible-lint with one syntax check of all playbooks and roles: a process for each takes as long as all rules."""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any

from ansiblelint.__main__ import main
from ansiblelint.errors import MatchError
from ansiblelint.file_utils import Lintable
from ansiblelint.runner import Runner

each_alone = Runner._map_syntax_check_workers


def all_at_once(runner: Runner, worker: Any, files: list[Lintable]) -> list[list[MatchError]]:
    """Check all files in one process; after a fault let ansible-lint check each alone, because it names the file and the line."""
    playbooks = [str(file.path.resolve()) for file in files if file.kind == "playbook"]
    roles = [str(file.path.resolve()) for file in files if file.kind == "role"]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as play:
        play.write("- hosts: localhost\n  tasks:\n" + "".join(f"    - ansible.builtin.import_role: {{name: {role}}}\n" for role in roles))
        play.flush()
        command = ["ansible-playbook", "--syntax-check", *playbooks, *([play.name] if roles else [])]
        done = subprocess.run(command, capture_output=True, check=False, env=runner.app.runtime.environ)
    return [] if done.returncode == 0 else each_alone(runner, worker, files)


if __name__ == "__main__":
    Runner._map_syntax_check_workers = all_at_once  # type: ignore[assignment]
    raise SystemExit(main())
