"""What a reader copies from a page works as it is printed: each snippet of an inventory passes validate.yml, and the printed ansible.cfg is the checkout's."""

from __future__ import annotations

import configparser
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from playbook import REPO, Run
from warm_playbook import ansible, run

PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md")), *sorted((REPO / "roles").glob("*/README.md"))]
FENCE = re.compile(r"^( *)```ya?ml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}[^\n]*\n)+)")
PREFIXES = ("gb10_", *(f"{path.name}_" for path in (REPO / "roles").iterdir()))
#: Variables with such a name in a file that is not an inventory: of the rulebook in docs/eda.md.
OTHER_FILES = {"gb10_eda_token"}
PAIR = {
    "spark-1": {"ansible_host": "10.255.255.1", "ansible_connection": "ssh"},
    "spark-2": {"ansible_host": "10.255.255.2", "ansible_connection": "ssh"},
}


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


def validate(folder: Path, snippet: Snippet) -> Run:
    """Run validate.yml on an inventory with the snippet."""
    hosts = {name: {**PAIR.get(name, {}), **values} for name, values in snippet.values.items()} if snippet.kind == "hosts" else {}
    inventory = snippet.values if snippet.kind == "inventory" else {"gb10": {"children": {"pair1": {"hosts": {**PAIR, **hosts}}}}}
    (folder / "mine/group_vars").mkdir(parents=True)
    (folder / "mine/hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8")
    if snippet.kind == "variables":
        (folder / "mine/group_vars/gb10.yml").write_text(yaml.safe_dump(snippet.values, sort_keys=False), encoding="utf-8")
    return run(folder, "playbooks/validate.yml", folder / "mine")


def test_the_pages_have_snippets_of_each_kind() -> None:
    """A page that loses its block, or a block that is not recognized any more, is noticed."""
    assert {each.kind for each in ALL} == {"variables", "hosts", "inventory"}
    assert {"docs/tuning.md", "docs/profiles.md", "docs/inventory.md", "docs/first-hour.md"} <= {each.page for each in ALL}


@pytest.mark.parametrize("snippet", ALL, ids=[f"{Path(each.page).parent.name}-{Path(each.page).stem}-{each.line}" for each in ALL])
def test_a_snippet_of_a_page_is_accepted_as_it_is_printed(tmp_path: Path, snippet: Snippet) -> None:
    outcome = validate(tmp_path, snippet)
    assert outcome.rc == 0, f"{snippet.page}:{snippet.line}\n{outcome.stdout[-4000:]}"
    assert outcome.failures == []


def test_a_snippet_that_cannot_work_is_refused(tmp_path: Path) -> None:
    """A utilization that leaves no pool, in a block as pages have it."""
    text = 'Text:\n\n```yaml\ngb10_profile: b12x-fp8-1m\nvllm_tp2_gpu_memory_utilization: "0.70"\n```\n'
    (snippet,) = snippets("page.md", text)
    assert "at least 1,000,000 are needed" in str(validate(tmp_path, snippet).failures)


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


@pytest.mark.parametrize("place", ["checkout", "page"])
def test_an_ansible_that_is_too_old_is_named(tmp_path: Path, place: str) -> None:
    """The collection requires a version that does not exist yet, so that this one is too old."""
    collection = tmp_path / "ansible_collections/gb10/cluster"
    collection.mkdir(parents=True)
    for path in REPO.iterdir():
        if path.name not in (".git", ".venv", "collections", "meta"):
            (collection / path.name).symlink_to(path)
    shutil.copytree(REPO / "meta", collection / "meta")
    runtime = collection / "meta/runtime.yml"
    runtime.write_text(re.sub(r"^requires_ansible: .*$", 'requires_ansible: ">=99.0.0"', runtime.read_text(encoding="utf-8"), flags=re.MULTILINE))
    config = tmp_path / "ansible.cfg"
    config.write_text((REPO / "ansible.cfg").read_text(encoding="utf-8") if place == "checkout" else printed_config(), encoding="utf-8")
    settings = {"ANSIBLE_CONFIG": str(config), "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "ANSIBLE_STDOUT_CALLBACK": "gb10.cluster.pair"}
    done = ansible(tmp_path, ["gb10.cluster.profiles"], cwd=tmp_path, env=settings)
    assert done.rc != 0
    assert "Collection gb10.cluster does not support Ansible version" in done.stdout
    assert "Traceback" not in done.stdout
