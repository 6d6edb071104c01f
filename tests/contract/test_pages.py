"""The ansible.cfg that docs/first-hour.md prints is the checkout's, and names an ansible-core that is too old.

tests/unit/plugins/plugin_utils/test_inventory_survey.py has the blocks of inventories on all pages.
"""

from __future__ import annotations

import configparser
import re
import shutil
import textwrap
from pathlib import Path

from playbook import REPO
from warm_playbook import ansible


def printed_config() -> str:
    """The ansible.cfg of docs/first-hour.md."""
    (text,) = re.findall(r"```ini\n(.*?)```", (REPO / "docs/first-hour.md").read_text(encoding="utf-8"), re.DOTALL)
    return textwrap.dedent(str(text))


def test_the_printed_settings_are_those_of_the_checkout() -> None:
    own, printed = configparser.ConfigParser(), configparser.ConfigParser()
    own.read(REPO / "ansible.cfg", encoding="utf-8")
    printed.read_string(printed_config())
    assert {(section, *item) for section in printed.sections() for item in printed[section].items()} <= {
        (section, *item) for section in own.sections() for item in own[section].items()
    }


def test_an_ansible_that_is_too_old_is_named(tmp_path: Path) -> None:
    """The collection requires a version that does not exist yet, so that this one is too old."""
    collection = tmp_path / "ansible_collections/gb10/cluster"
    collection.mkdir(parents=True)
    for path in REPO.iterdir():
        if path.name not in (".git", ".venv", "collections", "meta"):
            (collection / path.name).symlink_to(path)
    shutil.copytree(REPO / "meta", collection / "meta")
    runtime = collection / "meta/runtime.yml"
    runtime.write_text(re.sub(r"^requires_ansible: .*$", 'requires_ansible: ">=99.0.0"', runtime.read_text(encoding="utf-8"), flags=re.MULTILINE))
    (tmp_path / "ansible.cfg").write_text(printed_config(), encoding="utf-8")
    settings = {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "ANSIBLE_STDOUT_CALLBACK": "gb10.cluster.pair"}
    done = ansible(tmp_path, ["gb10.cluster.profiles"], cwd=tmp_path, env=settings)
    assert done.rc != 0
    assert "Collection gb10.cluster does not support Ansible version" in done.stdout
    assert "Traceback" not in done.stdout
