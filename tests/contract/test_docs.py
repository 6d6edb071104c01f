"""The tables of the READMEs are those of argument_specs, and the specs' defaults are the roles'."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.filter import vllm_boot_log
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from playbook import REPO

from tools import docs

SPECS = """
argument_specs:
  main:
    options:
      image_state:
        type: str
        choices: [present, absent]
        default: present
        description: ["V(present) pulls,", "V(absent) removes.", 'See M(gb10.cluster.x), P(gb10.cluster.y#lookup), C(a | b).']
      image_mirrors:
        type: list
        elements: dict
        default: []
        description: Where else to look.
        options:
          url: {type: str, required: true, description: The mirror.}
      image_limit:
        type: int
        description: No default.
      image_group:
        type: dict
        description: Computed.
"""
DEFAULTS = "image_state: present\nimage_mirrors: []\nimage_limit:\nimage_group: \"{{ lookup('x') }}\"\n"
README = "# image\n\n<!-- variables -->\n<!-- /variables -->\n\nend\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one role whose table is not written yet."""
    role = tmp_path / "roles" / "image"
    for folder in ("meta", "defaults", "tasks"):
        (role / folder).mkdir(parents=True)
    (role / "meta" / "argument_specs.yml").write_text(SPECS, encoding="utf-8")
    (role / "defaults" / "main.yml").write_text(DEFAULTS, encoding="utf-8")
    (role / "tasks" / "main.yml").write_text('- ansible.builtin.debug:\n    msg: "{{ image_state }}"\n', encoding="utf-8")
    (role / "README.md").write_text(README, encoding="utf-8")
    for folder, name in (("docs", "inventory.md"), ("docs", "day-to-day.md"), ("roles/preflight", "README.md"), ("roles/vllm_tp2", "README.md")):
        (tmp_path / folder).mkdir(exist_ok=True)
        shutil.copy(REPO / folder / name, tmp_path / folder / name)
    return tmp_path


def test_the_check_names_what_differs_and_writes_nothing(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that was edited by hand."""
    docs.run(repo, check=False)
    readme = repo / "roles" / "image" / "README.md"
    edited = readme.read_text(encoding="utf-8").replace("No default.", "Ten.")
    readme.write_text(edited, encoding="utf-8")
    assert docs.main(["--check", "--repo", str(repo)]) == 1
    error = capsys.readouterr().err
    assert "roles/image/README.md is out of date, run tools/docs.py:" in error
    assert "-| `image_limit` | int |  | Ten. |\n+| `image_limit` | int |  | No default. |" in error
    assert readme.read_text(encoding="utf-8") == edited


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        pytest.param("defaults/main.yml", "present", "absent", "{d}: image_state is 'absent', but meta/argument_specs.yml has 'present'", id="value"),
        pytest.param("defaults/main.yml", "image_limit:\n", "", "{m}: image_limit is not in defaults/main.yml", id="no default"),
        pytest.param("defaults/main.yml", "image_limit:", "image_limt:", "{d}: image_limt is not in meta/argument_specs.yml", id="no spec"),
        pytest.param(
            "meta/argument_specs.yml",
            "type: dict\n        description: C",
            "type: dict\n        default: '{{ {} }}'\n        description: C",
            "{m}: image_group is not a string, so its computed default belongs in defaults/main.yml only",
            id="computed",
        ),
        pytest.param("tasks/main.yml", "image_state", "image_stat", "roles/image/tasks/main.yml:2: image_stat is not in meta/argument_specs.yml", id="used"),
        pytest.param("README.md", "<!-- /variables -->", "", "roles/image/README.md has no <!-- variables -->", id="markers"),
    ],
)
def test_every_difference_has_a_sentence(repo: Path, file: str, old: str, new: str, sentence: str) -> None:
    """One change each."""
    path = repo / "roles" / "image" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    sentence = sentence.replace("{d}", "roles/image/defaults/main.yml").replace("{m}", "roles/image/meta/argument_specs.yml")
    assert any(sentence in each for each in docs.run(repo, check=True))


SECOND = """
- gb10.cluster.job: {streams: "{{ image_streams }}"}
- ansible.builtin.debug: {msg: "{{ gb10_model_store | default('/srv/models') }}"}
"""


def test_a_second_name_default_or_description_has_a_sentence(repo: Path) -> None:
    shutil.copytree(REPO / "plugins" / "modules", repo / "plugins" / "modules")
    role, other = repo / "roles" / "image", repo / "roles" / "other" / "meta"
    other.mkdir(parents=True)
    (other / "argument_specs.yml").write_text("argument_specs: {main: {options: {other_group: {type: dict, description: In other words.}}}}", encoding="utf-8")
    text = SPECS + "      image_streams: {type: int, default: 99, description: How many.}\n      gb10_rank: {type: int, description: Twice.}\n"
    (role / "meta" / "argument_specs.yml").write_text(text, encoding="utf-8")
    (role / "tasks" / "main.yml").write_text(SECOND, encoding="utf-8")
    (role / "defaults" / "main.yml").write_text('image_limit: "{{ since | default(\'10m\') }}"\nimage_store: "{{ gb10_model_store }}"\n', encoding="utf-8")
    assert list(docs.one_home(repo)) == [
        "meta/argument_specs.yml: gb10_rank is an option of a role as well. Remove one of them",
        "roles/image/defaults/main.yml: since has a second default. Read it by lookup('gb10.cluster.setting', 'since')",
        "roles/image/defaults/main.yml: image_store is a second name of gb10_model_store. Remove it",
        "roles/image/tasks/main.yml: gb10_model_store has a second default. Read it by lookup('gb10.cluster.setting', 'gb10_model_store')",
        "plugins/modules/job.py: streams has the default 4, and roles/image/tasks/main.yml gives it image_streams with 99",
        "roles/other/meta/argument_specs.yml: other_group has another description than image_group, which is the same",
    ]


@pytest.mark.parametrize("log", sorted((REPO / "tests/unit/fixtures/vllm_log").glob("*.log")), ids=lambda path: path.stem)
def test_what_is_read_from_a_boot_log_is_documented_key_by_key(log: Path) -> None:
    documented = yaml.safe_load(vllm_boot_log.RETURN)["_value"]["contains"]
    facts = parse(log.read_text(encoding="utf-8"))
    assert facts.keys() == documented.keys()
    for key in ("kv_cache", "failure"):
        assert facts[key] is None or facts[key].keys() == documented[key]["contains"].keys()
