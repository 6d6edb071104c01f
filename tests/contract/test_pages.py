"""What a reader copies from a page works as it is printed: each snippet of an inventory passes validate.yml, and the printed ansible.cfg is the checkout's."""

from __future__ import annotations

import configparser
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from playbook import REPO, Run
from warm_playbook import ansible, run

PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md")), *sorted((REPO / "roles").glob("*/README.md"))]
FENCE = re.compile(r"^( *)```ya?ml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}[^\n]*\n)+)")
PREFIXES = ("gb10_", *(f"{path.name}_" for path in (REPO / "roles").iterdir()))
#: Variables with such a name in a file that is not an inventory: of the rulebook in docs/keeps-serving.md.
OTHER_FILES = {"gb10_eda_token"}


class Snippet(NamedTuple):
    """A block of a page that a reader copies into an inventory. `kind` is where: variables, hosts, or a whole inventory."""

    page: str
    line: int
    kind: str
    values: dict[str, Any]


def kind_of(values: object) -> str:
    """Return what a block is; empty if it does not belong into an inventory."""
    if not isinstance(values, dict) or OTHER_FILES & set(values):
        return ""
    if all(str(key).startswith(PREFIXES) for key in values):
        return "variables"
    below = [each for each in values.values() if isinstance(each, dict)]
    if len(below) == len(values) and any({"children", "hosts"} & set(each) for each in below):
        return "inventory"
    return "hosts" if len(below) == len(values) and any(str(key).startswith("ansible_") for each in below for key in each) else ""


def snippets(page: str, text: str) -> list[Snippet]:
    """Return the blocks of a page that belong into an inventory. A block that is not YAML is text."""
    found = []
    # Without the blocks in fences, with as many lines.
    plain = re.sub(r"^( *)```.*?^\1```$", lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    fenced = [(text.count("\n", 0, match.start()) + 1, match[2]) for match in FENCE.finditer(text)]
    indented = [(plain.count("\n", 0, match.start()) + 1, match[1]) for match in INDENTED.finditer(plain)]
    for line, block in [*fenced, *indented]:
        try:
            values = yaml.safe_load(textwrap.dedent(block))
        except yaml.YAMLError:
            continue
        kind = kind_of(values)
        if kind:
            found.append(Snippet(page, line, kind, values))
    return found


ALL = [each for path in PAGES for each in snippets(str(path.relative_to(REPO)), path.read_text(encoding="utf-8"))]


def validate(folder: Path, found: list[Snippet]) -> Run:
    """Run validate.yml once, on an inventory in which each snippet has a serving group of its own."""
    groups: dict[str, Any] = {}
    (folder / "mine/group_vars").mkdir(parents=True)
    for number, snippet in enumerate(found, 1):
        name = f"{Path(snippet.page).stem}-{snippet.line}"
        names = list(snippet.values) if snippet.kind == "hosts" else []
        hosts = {host: {"ansible_host": f"10.255.{number}.{rank}"} for rank, host in enumerate([*names, f"a{number}", f"b{number}"][:2], 1)}
        values = {"gb10_fabric_cidrs": [f"10.1.{number}.0/24", f"10.2.{number}.0/24"], **(snippet.values if snippet.kind == "variables" else {})}
        groups[name] = {"hosts": {host: {**given, **(snippet.values[host] if host in names else {})} for host, given in hosts.items()}}
        (folder / f"mine/group_vars/{name}.yml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    (folder / "mine/hosts.yml").write_text(yaml.safe_dump({"gb10": {"children": groups}}, sort_keys=False), encoding="utf-8")
    return run(folder, "playbooks/validate.yml", folder / "mine")


def test_the_pages_have_snippets_of_each_kind() -> None:
    """A page that loses its block, or a block that is not recognized any more, is noticed."""
    assert {each.kind for each in ALL} == {"variables", "hosts", "inventory"}
    assert {"docs/tuning.md", "docs/reference/profiles.md", "docs/inventory.md", "docs/first-hour.md"} <= {each.page for each in ALL}


def test_the_snippets_of_the_pages_are_accepted_as_they_are_printed(tmp_path: Path) -> None:
    found = [each for each in ALL if each.kind != "inventory"]
    outcome = validate(tmp_path, found)
    assert (outcome.rc, outcome.failures) == (0, []), outcome.stdout[-4000:]
    assert len(re.findall("^[a-zA-Z0-9-]+: valid", outcome.stdout, re.M)) == len(found)


def test_the_inventory_of_a_page_is_accepted_as_it_is_printed(tmp_path: Path) -> None:
    [snippet] = [each for each in ALL if each.kind == "inventory"]
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(snippet.values, sort_keys=False), encoding="utf-8")
    outcome = run(tmp_path, "playbooks/validate.yml", tmp_path / "hosts.yml")
    assert (outcome.rc, outcome.failures) == (0, []), outcome.stdout[-4000:]


# --- an ansible-core that is too old ---------------------------------------------------------------------------------------------


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
