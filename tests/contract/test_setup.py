"""setup.yml without a terminal: what it writes, keeps and refuses. A stand-in for ssh runs what two machines would run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import warm_playbook
import yaml
from playbook import Run

pytestmark = pytest.mark.slow

# The last argument is the command. The login of setup.yml sees two machines. A host key that is not in the file ends the connection.
SSH = """#!/bin/sh
printf '%s\\n' "$*" >>{folder}/calls
if [ "$1" = -G ]; then printf 'identityfile {folder}/id_ed25519\\n'; exit 0; fi
for last; do :; done
case "$*" in *10.0.0.1*) host=10.0.0.1;; *) host=10.0.0.2;; esac
if ! grep -q "^$host " {folder}/known_hosts 2>/dev/null; then
  echo 'Host key verification failed.' >&2; exit 255
fi
case "$last" in
*gb10-machine*) echo "gb10-machine spark-$(echo $host | tr . -) id-$host yes";;
*) PATH={folder}/remote:/usr/sbin:/usr/bin:/sbin:/bin exec sh -c "$last";;
esac
"""
SUDO = '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do case "$1" in -u|-p) shift 2;; *) shift;; esac; done\nexec "$@"\n'
ANSWERS = {"setup_head": "10.0.0.1", "setup_worker": "10.0.0.2", "setup_user": "nvidia"}


class Setup:
    """A controller with its own programs and its own inventory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mine = folder, folder / "mine"
        programs = folder / "bin"
        python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        files = {"bin/ssh": SSH.format(folder=folder), "remote/sudo": SUDO, "remote/python3": python}
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        self.env = {"PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *arguments: str, **answers: str) -> Run:
        """Run it with these extra variables, and without a terminal."""
        variables = json.dumps({"setup_inventory": str(self.mine), **answers})
        return warm_playbook.ansible(self.folder, ["playbooks/setup.yml", "-e", variables, *arguments], env=self.env)


class Written(NamedTuple):
    """A controller whose inventory setup.yml has written, that run, and the values that it wrote."""

    setup: Setup
    first: Run
    values: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    setup = Setup(tmp_path_factory.mktemp("setup"))
    unknown = setup.run(**ANSWERS)
    assert "its SSH host key is not known on this computer" in unknown.last_message
    assert not setup.mine.exists()
    (setup.folder / "known_hosts").write_text("10.0.0.1 key\n10.0.0.2 key\n", encoding="ascii")
    done = setup.run(**ANSWERS)
    assert done.rc == 0, done.stdout[-3000:]
    return Written(setup, done, (setup.mine / "group_vars/gb10.yml").read_text(encoding="utf-8"))


def test_with_all_answers_it_asks_nothing_and_writes_an_inventory_that_is_valid(written: Written) -> None:
    setup = written.setup
    hosts = yaml.safe_load((setup.mine / "hosts.yml").read_text(encoding="utf-8"))["gb10"]["children"]["pair1"]["hosts"]
    assert hosts == {"spark-10-0-0-1": {"ansible_host": "10.0.0.1"}, "spark-10-0-0-2": {"ansible_host": "10.0.0.2"}}
    assert yaml.safe_load(written.values) == {"ansible_user": "nvidia", "gb10_profile": "b12x-fp8-1m", "gb10_model_store": "/srv/models"}
    assert f"ansible-playbook site.yml -i {setup.mine} --check --diff" in written.first.stdout
    assert "StrictHostKeyChecking=no" not in (setup.folder / "calls").read_text(encoding="utf-8")
    checked = warm_playbook.run(setup.folder, "playbooks/inventory.yml", setup.mine)
    assert checked.rc == 0, checked.stdout[-2000:]
