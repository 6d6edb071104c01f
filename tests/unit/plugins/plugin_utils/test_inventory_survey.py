"""The check of an inventory: what it reads of variables, and the place of each fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import context
from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible_collections.gb10.cluster.plugins.action.inventory_check import selected
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE
from ansible_collections.gb10.cluster.plugins.plugin_utils import gate_expressions, inventory_profiles, inventory_survey
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import Located
from shipped_profiles import SHIPPED
from unit.fixtures.host.tree import write
from unit.fixtures.inventory.hosts import PAIR, SECOND, TWO


class View(dict[str, Any]):
    """Variables of one host; the template of a (raw text, value) gives the value, or fails if it is an exception."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        result = value[1] if isinstance(value, tuple) else value
        if isinstance(result, Exception):
            raise result
        return result


class HostVars:
    """Variables of all hosts, as Ansible passes them to an action; if a file cannot be read, each access fails."""

    def __init__(self, hosts: Mapping[str, Mapping[str, Any]], error: str = "") -> None:
        self.hosts = hosts
        self.error = error

    def __getitem__(self, host: str) -> View:
        return View(self.hosts.get(host, {}))

    def raw_get(self, host: str) -> dict[str, Any]:
        """The variables before templating."""
        if self.error:
            raise AnsibleError(self.error)
        return {key: value[0] if isinstance(value, tuple) else value for key, value in self.hosts.get(host, {}).items()}


@pytest.fixture(autouse=True)
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The command line; tests change it."""
    given: dict[str, Any] = {"subset": None, "args": ()}
    monkeypatch.setattr(context, "CLIARGS", given)
    return given


def survey(hosts: Mapping[str, Any], source: object = "a,", groups: Mapping[str, list[str]] = PAIR, error: str = "", **more: Any) -> list[Located]:
    """Check an inventory."""
    extra, stages = more.pop("extra", {}), more.pop("stages", ())
    task_vars = {"groups": groups, "hostvars": HostVars(hosts, error), "ansible_inventory_sources": [str(source)], "playbook_dir": "/nowhere", **more}
    return inventory_survey.Survey(task_vars, extra, stages).run()


def places(found: list[Located]) -> list[tuple[str, int, str]]:
    """File, line and key of each fault."""
    return [(each.file, each.line, each.key) for each in found]


def test_an_inventory_without_files_is_named_by_its_source() -> None:
    assert survey({}) == []
    (found,) = survey({"a": {"vllm_tp2_contxt": 1}}, "a,b,")
    assert found.sentence().startswith("the inventory (a,b,): vllm_tp2_contxt: ")
    assert found.sentence().endswith("; did you mean vllm_tp2_context?")


def test_an_unreadable_file_ends_the_check(tmp_path: Path) -> None:
    write(tmp_path, group_vars__gb10="a: 1\n b: [\n")
    (found,) = survey({}, tmp_path, error="YAML parsing failed: x.")
    assert places([found]) == [(f"{tmp_path}/group_vars/gb10.yml", 2, "YAML")]
    (found,) = survey({}, error="YAML parsing failed: x.\nmore")
    assert (found.key, found.text.endswith("YAML parsing failed: x")) == ("a", True)


@pytest.mark.parametrize(
    ("limit", "played", "group", "missing"),
    [
        pytest.param("a", ["a"], "pair1", "b is", id="head alone"),
        pytest.param("pair1:d", ["a", "b", "d"], "pair2", "c is", id="a group and a part of another"),
        pytest.param("pair2", ["c", "d"], "", "", id="a group"),
        pytest.param(None, ["localhost", "a", "b", "c", "d"], "", "", id="no limit"),
    ],
)
def test_a_limit_to_a_part_of_a_group_is_a_fault(limit: str | None, played: list[str], group: str, missing: str, arguments: dict[str, Any]) -> None:
    arguments.update(subset=limit)
    hosts = {"c": SECOND, "d": SECOND}
    found = survey(hosts, groups=TWO, ansible_play_hosts_all=played, stages=["image", "vllm_tp2"])
    assert places(found) == ([("the command line", 0, "--limit")] if group else [])
    assert all(part in each.text for each in found for part in (f"{group} is one unit and {missing} not", f"--limit {group}", "--skip-tags image,vllm_tp2"))
    assert survey(hosts, groups=TWO, ansible_play_hosts_all=played) == []


@pytest.mark.parametrize(
    ("run", "skip", "left"),
    [
        (["all"], [], ["image", "vllm_tp2"]),
        (["sysctl", "docker"], [], []),
        (["sysctl", "image"], [], ["image"]),
        (["all"], ["vllm_tp2", "image"], []),
        (["tagged"], ["image"], ["vllm_tp2"]),
    ],
)
def test_tags_select_stages(run: list[str], skip: list[str], left: list[str]) -> None:
    assert selected(["image", "vllm_tp2"], run, skip) == left


@pytest.mark.parametrize(
    ("name", "raw", "error", "part"),
    [
        pytest.param("vllm_tp2_directory", "{{ x }}", "'x' is undefined", "'x' is undefined", id="undefined"),
        pytest.param("vllm_tp2_directory", "{{ ansible_facts.y }}", "'y' is undefined", "gather no facts", id="a fact"),
        pytest.param("vllm_tp2_extra_env", {"A": ["{{ hostvars['b'].y }}"]}, "'y' is undefined", "", id="a fact of another host"),
        pytest.param("vllm_tp2_group", "{{ lookup('gb10.cluster.serving_group') | combine({}) }}", "failed: 'b'", "", id="the host's group"),
        pytest.param("vllm_tp2_api_key", "{{ x }}", "could not parse hunter2", "its template fails; the reason is not shown", id="secret"),
        pytest.param("vllm_tp2_api_key", "{{ x }}", "the file 'hunter2'. file not found", "its template fails; a file that it reads was not", id="no file"),
        pytest.param("vllm_tp2_api_key", "{{ x }}", "'hunter2' is undefined", "its template fails; it uses a variable that is not", id="secret, undefined"),
        pytest.param("vllm_tp2_api_key", "x", "Attempting to decrypt but no vault secrets found.", "--ask-vault-pass", id="vault"),
    ],
)
def test_a_template_that_fails_is_a_fault_unless_it_can_be_made_later(name: str, raw: Any, error: str, part: str) -> None:
    found = survey({"a": {name: (raw, AnsibleUndefinedVariable(error))}})
    assert [each.key for each in found] == ([name] if part else [])
    assert all(part in each.text and "hunter2" not in each.text for each in found)


def own(name: str, lines: str, more: str = "") -> str:
    """A file of variables with a profile of the user that is selected."""
    return f"gb10_profile: {name}\ngb10_profiles:\n  {name}:\n    {lines}{more}"


_MOUNT = "extends: fp8-1m\n    container:\n      volumes:\n        - /data/models:/root/.cache/huggingface\ngb10_model_store: /data/models\n"
_BASE = f"extends: base\n  base:\n    extends: {DEFAULT_PROFILE}\n    engine:\n      args:\n        "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm_tp2_context: 0\nreadahead_classes:\n  - nvme\n  - nvm\ngb10_fabric_first: 300\nimage_source: c\nroce_mtu: jumbo\n"
            "gb10_profiles:\n  mine:\n    extends: fp8-1m\n    engin: {}\n    container:\n      memlock: lots\n      volumes: [/a]\n",
            [(1, "vllm_tp2_context", ""), (4, "readahead_classes", ""), (5, "gb10_fabric_first", ""), (6, "image_source", ""), (7, "roce_mtu", ""),
             (11, "gb10_profiles", ""), (13, "gb10_profiles", ""), (14, "gb10_profiles", "")],
        ),
        ("model_store: /srv\n", [(1, "model_store", "^is not a variable of this collection; did you mean gb10_model_store?$")]),
        ("gb10:\n  gb10_model_store: /data\n", [(1, "gb10", "write each variable on a line of its own")]),
        (own("mine", _MOUNT), [(7, "gb10_profiles", "profile mine: container.volumes[0] is")]),
        (own("fp8-1m", _MOUNT), [(7, "gb10_profiles", "profile fp8-1m: container.volumes[0] is")]),
        (own("mine", _MOUNT, "vllm_tp2_weights_writable: 'yes'\n"), []),
        (own("mine", _MOUNT).replace("gb10_profile: mine", "gb10_profile: fp8-512k"), []),
        (own("mine", "extends: fp8-1m\n    engine:\n      args:\n        tensor-parallel-size: 4\n"), [(7, "gb10_profiles", "tensor-parallel-size 4 x")]),
        (own("mine", f"{_BASE}kv-cache-memory-bytes: 64424509440\n"), [(9, "gb10_profiles", "")]),
        (own("mine", f"{_BASE}gpu-memory-utilization: 0.9\n"), [(9, "gb10_profiles", "")]),
        (own("mine", f"{_BASE}max-model-len: 9000000\n"), [(9, "gb10_profiles", "")]),
        ("image_build_args: {PYTHON: 3.10, CUDA: '13.10', JOBS: 8}\n",
         [(1, "image_build_args", "^PYTHON has no quotes, and YAML reads it as 3.1; put it in quotes$")]),
        ("vllm_tp2_extra_env: {MASK: 010, RATIO: 0.8, ON: true, NONE: }\n",
         [(1, "vllm_tp2_extra_env", "^MASK has no quotes, and YAML reads it as 8; put it in quotes$")]),
        ("docker_compose_minimum: 2.20\n", [(1, "docker_compose_minimum", "^has no quotes, and YAML reads it as 2.2; put it in quotes$")]),
        ("vllm_tp2_api_key: 123_456_789\n", [(1, "vllm_tp2_api_key", "^has no quotes, and YAML reads it as another number; put it in quotes$")]),
        ("vllm_tp2_api_key: 123456789\ndocker_compose_minimum: 2.18\nvllm_tp2_context: 1_000_000\ngb10_fabric_first: 11\n", []),
        ("gb10_fabric_first: 011\n", [(1, "gb10_fabric_first", "is 011, which YAML reads as 9")]),
        ("gb10_fabric_first: 1:30\n", [(1, "gb10_fabric_first", "which YAML reads as 90")]),
        ("gb10_fabric_first: '011'\n", []),
    ],
)  # fmt: skip
def test_a_fault_of_a_file_of_variables_has_its_line(tmp_path: Path, text: str, expected: list[tuple[int, str, str]]) -> None:
    values = yaml.safe_load(text)
    found = survey({"a": values, "b": values}, write(tmp_path, hosts="all:", group_vars__gb10=text), stages=["vllm_tp2"])
    found.sort(key=lambda each: each.line)
    assert places(found) == [(f"{tmp_path}/group_vars/gb10.yml", line, key) for line, key, _part in expected]
    assert all(part in f"^{each.text}$" for each, (_line, _key, part) in zip(found, expected, strict=True))


_NAMED = "gb10: {children: {pair1: {hosts: {a1: {ansible_host: 10.0.0.1}, b: {ansible_host: 10.0.0.2}}}}}"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["group_vars/gb_10.yml", "group_vars/web.yml"], {"gb_10.yml": "no host reads this file: there is no group gb_10; did you mean gb10?"}),
        (["group_vars/pair2.yml", "other.yml"], {}),  # another inventory has the group
        (["group_vars/gb10.yml.txt"], {"gb10.yml.txt": "Ansible does not read this file, because of its ending; rename it to gb10.yml"}),
        (["host_vars/gb10.yml"], {"gb10.yml": "no host reads this file: gb10 is a group; move the file to group_vars"}),
        (["host_vars/10.0.0.1.yml"], {"10.0.0.1.yml": "no host reads this file: 10.0.0.1 is the address of a1; rename it to a1.yml"}),
        (["group_vars/pair1.yml", "group_vars/pair1.yml.bak"], {}),
        (["host_vars/a2.yml"], {}),
        (["group_vars/gb10 - Copy.yml"], {"gb10 - Copy.yml": "no host reads this file: there is no group gb10 - Copy"}),
        (["group_vars/gb10 (1).yml"], {"gb10 (1).yml": "no host reads this file: there is no group gb10 (1)"}),
        (["group_vars/gb10_old.yml"], {"gb10_old.yml": "no host reads this file: there is no group gb10_old"}),
        (["group_vars/pair1.yml -> /nowhere"], {"pair1.yml": "the file is a link to a file that does not exist; correct the link, or remove it"}),
    ],
)
def test_a_file_of_variables_that_no_host_reads(tmp_path: Path, names: list[str], expected: dict[str, str]) -> None:
    write(tmp_path, hosts=_NAMED)
    for name, _arrow, target in (each.partition(" -> ") for each in names):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if target:
            path.symlink_to(target)
        else:
            path.write_text("gb10: {children: {pair2: {hosts: {c: }}}}" if name == "other.yml" else "roce_mtu: 9000\n", encoding="utf-8")
    hosts = {"a1": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}}
    found = survey(hosts, tmp_path / "hosts.yml", {name: list(hosts) for name in ("all", "gb10", "pair1")})
    assert {Path(each.file).name for each in found} == set(expected)
    assert all(each.text == expected[Path(each.file).name] for each in found)
    assert [each.warning for each in found] == [name.startswith(("gb10 ", "gb10_")) for name in expected]


def test_a_variable_of_the_environment_that_is_not_set_is_a_fault() -> None:
    raw = "{{ lookup('env', 'SPARK_KEY') }}"
    found = survey({"a": {"vllm_tp2_api_key": (raw, "")}, "b": {"vllm_tp2_api_key": (raw, "a" * 20)}})
    assert [each.text for each in found] == ["reads a variable of the environment that is not set here, or is empty; export it, or remove the line"]


def test_a_value_that_two_groups_share_is_to_be_set_for_the_second(tmp_path: Path) -> None:
    shared = "gb10_fabric_cidrs: [10.1.0.0/24]\n"
    write(tmp_path, hosts="gb10: {children: {pair1: {hosts: {a: , b: }}, pair2: {hosts: {c: , d: }}}}\n", group_vars__gb10=shared)
    hosts = dict.fromkeys("abcd", yaml.safe_load(shared))
    assert places(survey(hosts, tmp_path, TWO)) == [(f"{tmp_path}/group_vars/pair2.yml", 0, "gb10_fabric_cidrs")]
    write(tmp_path, group_vars__pair2=f"\n{shared}")
    assert places(survey(hosts, tmp_path, TWO)) == [(f"{tmp_path}/group_vars/pair2.yml", 2, "gb10_fabric_cidrs")]


@pytest.mark.parametrize("odd", ["a", "b"])
@pytest.mark.parametrize(
    ("key", "group", "own"),
    [("gb10_fabric_cidrs", "[10.1.0.0/24]", "[10.2.0.0/24]"), ("gb10_profile", "fp8-1m", "fp8-512k"), ("gb10_serving_groups", "[pair1]", "[gb10]")],
)
def test_a_value_of_one_host_that_differs_is_the_line_to_change(odd: str, key: str, group: str, own: str, tmp_path: Path) -> None:
    write(tmp_path, group_vars__gb10=f"{key}: {group}\n", **{f"host_vars__{odd}": f"# mine\n{key}: {own}\n"})
    hosts = {host: {key: yaml.safe_load(own if host == odd else group)} for host in "ab"}
    assert places(survey(hosts, tmp_path)) == [(f"{tmp_path}/host_vars/{odd}.yml", 2, key)]


def test_a_wrong_extra_variable_is_one_fault(tmp_path: Path) -> None:
    hosts = {host: {"gb10_fabric_first": 300} for host in "ab"}
    assert places(survey(hosts, tmp_path, extra={"gb10_fabric_first": 300})) == [("the extra variables (-e)", 0, "gb10_fabric_first")]


def test_shows_paths_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, inv__hosts="gb10:\n  hosts:\n    a: {vllm_tp2_stat: x}\n    b:\n")
    for folder, file in ((tmp_path, "inv/hosts.yml"), (tmp_path / "inv", "hosts.yml")):
        monkeypatch.chdir(folder)
        (found,) = survey({"a": {"vllm_tp2_stat": "x"}}, tmp_path / "inv", {"all": ["a", "b"], "gb10": ["a", "b"]})
        assert places([found]) == [(file, 3, "vllm_tp2_stat")]


def test_missing_profiles_are_an_incomplete_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise AnsibleError("the installation is incomplete")

    monkeypatch.setattr(inventory_profiles, "shipped_profiles", missing)
    with pytest.raises(AnsibleError, match="the installation is incomplete"):
        survey({})


def test_a_fact_of_a_role_is_only_a_fault_in_a_file(tmp_path: Path) -> None:
    hosts = {"a": {"docker_reboot_required": False}}
    assert survey(hosts) == []
    write(tmp_path, hosts="gb10:\n  vars:\n    docker_reboot_required: false\n")
    assert places(survey(hosts, tmp_path)) == [(f"{tmp_path}/hosts.yml", 3, "docker_reboot_required")]


def gate(*expressions: Any, **more: Any) -> dict[str, Any]:
    """An inventory with criteria of its own."""
    return {"vllm_tp2_gate": {**({"expressions": list(expressions)} if expressions else {}), **more}}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"gb10_profile": "zzz"}, [("gb10_profile", "'zzz'")]),
        ({"gb10_profile": "fp8-1m", "gb10_profiles": {"fp8-1m": {"ranks": {"min": 3, "max": 3}}}}, [("gb10_profile", "made for 3 ranks, but the serving")]),
        ({"gb10_profiles": {"mine": {"extends": "mine"}}}, [("gb10_profiles", "profile mine")]),
        ({"gb10_profiles": {"mine": 1}}, [("gb10_profiles", "profile mine")]),
        ({"gb10_profile": ["fp8-1m"]}, [("gb10_profile", "is a list")]),
        ({"gb10_profiles": [1]}, [("gb10_profiles", "is a list")]),
        ({"vllm_tp2_extra_args": {"port": 9000}}, [("vllm_tp2_extra_args", "engine.args.port")]),
        ({"vllm_tp2_extra_args": {"max_model_len": 5}}, [("vllm_tp2_extra_args", "engine.args.max_model_len")]),
        ({"vllm_tp2_extra_args": {"--max-num-seqs": 5}}, [("vllm_tp2_extra_args", "expected a flag without its dashes")]),
        ({"vllm_tp2_extra_args": {"speculative-config": "method=mtp"}}, [("vllm_tp2_extra_args", "is the string 'method=mtp', expected a mapping, such as")]),
        ({"vllm_tp2_extra_args": {"speculative-config": {"model": "x/y"}}}, [("vllm_tp2_extra_args", "add drafter: {id: x/y, revision: <commit>, path: x/y}")]),
        ({"gb10_profile": "fp8-1m\n"}, [("gb10_profile", "is not a known profile; remove what follows fp8-1m")]),
        (gate("pool.concurrency >= '1.5'"), [("vllm_tp2_gate", "write `1.5` in backticks")]),
        (gate(effective_token={"min": 5}), [("vllm_tp2_gate", "gate.effective_token")]),
        (gate(effective_tokens=5), [("vllm_tp2_gate", "gate.effective_tokens is")]),
        (
            {**gate(context=4096), "vllm_tp2_context": 500000, "vllm_tp2_extra_args": {"nnodes": 3}},
            [("vllm_tp2_extra_args", "engine.args.nnodes"), ("vllm_tp2_gate", "gate.context is 4096")],
        ),
        (gate("pool.tokens > `1`", "pool.x >="), [("vllm_tp2_gate", "'pool.x >='")]),
        (gate({"expression": "pool.x >=", "remedy": "lower the context"}), [("vllm_tp2_gate", "'pool.x >='")]),
        (gate({"expression": "pool.x", "remedi": "lower it"}), [("vllm_tp2_gate", "did you mean remedy?")]),
        (gate({"expression": "pool.tokens > `1`", "name": "x", "remedy": "lower it"}, "head.nccl.ib && ranks[1].ready"), []),
        (gate("pool.tokenz >= `2`"), [("vllm_tp2_gate", "tokenz, which is not a fact of the gate; did you mean tokens?")]),
        (
            {"gb10_profile": "mine", "gb10_profiles": {"mine": {"extends": "dspark-nvfp4-1m-seed", "gate": {"expressions": ["a b"]}}}},
            [("gb10_profiles", "profile mine: gate.expressions[0]: the expression 'a b'")],
        ),
        ({**gate(context=500000, concurrency={"min": 3}), "vllm_tp2_context": 500000}, []),
        (gate(context=500000), [("vllm_tp2_gate", "engine.args.max-model-len is 1000000")]),
        ({"gb10_profiles": {"mine": {"extends": "yours"}, "yours": {"extends": "mine"}}}, [("gb10_profiles", "circular")]),
        (
            {"gb10_profiles": {"mine": {"extends": DEFAULT_PROFILE, "engine": {"args": {"max-num-seqs": [6]}}}}},
            [("gb10_profiles", "profile mine: engine.args.max-num-seqs is a list, expected a whole number from 1")],
        ),
        ({"gb10_profiles": {"extends": DEFAULT_PROFILE, "engine": {}}}, [("gb10_profiles", "name of a profile is expected; write gb10_profiles: {mine: ")]),
        ({"gb10_profiles": {"summary": "mine"}}, [("gb10_profiles", "where the name of a profile is expected; write gb10_profiles: {mine: ")]),
        ({"vllm_tp2_api_key": "a" * 20, "vllm_tp2_secret_env": {"VLLM_API_KEY": "b" * 20}}, [("vllm_tp2_api_key", "remove one of them")]),
        ({"vllm_tp2_api_key": "a" * 20, "vllm_tp2_secret_env": {"VLLM_API_KEY": "a" * 20}}, []),
        ({"vllm_tp2_watch": {"webhook": "ftp://hunter2"}}, [("vllm_tp2_watch", "webhook is not a URL that begins with http:// or https://")]),
        ({"vllm_tp2_watch": {"webhook": "hooks.example.org/hunter2"}}, [("vllm_tp2_watch", "webhook is not a URL")]),
        ({"vllm_tp2_watch": {"restarts": -1}}, [("vllm_tp2_watch", "restarts of the watch is -1.0. Expected: a number that is not negative")]),
        ({"vllm_tp2_watch": {"head_seconds": 10}}, [("vllm_tp2_watch", "head_seconds of the watch is 10.0")]),
        (
            {"vllm_tp2_watch": {"memory_drop_gib": 1}},
            [("vllm_tp2_watch", "memory_drop_gib of the watch does not fit: memory_drop_gib (1) is below memory_floor_gib (1.5)")],
        ),
        (
            {"vllm_tp2_watch": {"memory_floor_gib": 6}},
            [("vllm_tp2_watch", "memory_floor_gib of the watch does not fit: memory_drop_gib (4) is below memory_floor_gib (6)")],
        ),
        (
            {"vllm_tp2_watch": {"completion_timeout": 0}},
            [("vllm_tp2_watch", "completion_timeout of the watch is 0. Expected: a number above 0; the default is 30")],
        ),
        (
            {"vllm_tp2_watch": {"textfile": "/var/lib/x/gb10.prom"}},
            [("vllm_tp2_watch", "textfile is '/var/lib/x/gb10.prom', expected the folder")],
        ),
        ({"vllm_tp2_watch": {"restarts": "many"}}, [("vllm_tp2_watch", "restarts is 'many', expected a whole number")]),
        ({"vllm_tp2_watch": {"webhook": "https://hooks.example.org/x?y", "restarts": 0, "head_seconds": "45", "lost_seconds": None}}, []),
        ({"vllm_tp2_failure_classes": [{"class": "x", "pattern": "(", "remedy": "y"}]}, [("vllm_tp2_failure_classes", "'x'")]),
        ({"vllm_tp2_failure_classes": [{"klass": "x", "pattern": "a", "remedy": "y"}]}, [("vllm_tp2_failure_classes", "class")]),
    ],
)
def test_checks_profiles_and_what_the_inventory_changes_in_them(variables: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = survey({"a": variables, "b": variables})
    assert [each.key for each in found] == [key for key, _part in expected], found
    assert all(part in each.text and "hunter2" not in each.text for each, (_key, part) in zip(found, expected, strict=True)), found


_MINE = f"extends: {DEFAULT_PROFILE}\n"
_ARGS = f"{_MINE}engine:\n  args:\n    "


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("summary: s\nmodel: {id: m, path: m}\nimage: x\n", "mine.yml:3: image: is the string 'x', expected a mapping; write reference: ... below it"),
        (f"{_MINE}container:\n  memlock: lots\n", "mine.yml:3: container.memlock: is the string 'lots', expected a whole number"),
        (f"{_MINE}container:\n  volumes:\n    - a:/b\n", "mine.yml:4: container.volumes[0]: mounts 'a', expected an absolute path"),
        ("[a]\n", "mine.yml: mine: is a list, expected a mapping"),
        (
            "recipe_version: '2'\nmodel: a/b\nruntime: vllm\ncontainer: c\ndefaults: {port: 8000}\ncommand: vllm serve {model}\n",
            "mine.yml: mine: is a recipe of sparkrun, expected a profile; move it to a file elsewhere, and make a profile of it with "
            "ansible-playbook playbooks/import.yml -e recipe=FILE",
        ),
        ("extends: fp8-1mm\n", "mine.yml:1: extends: is 'fp8-1mm', which is not a known profile; did you mean fp8-1m?"),
        (f"mine:\n  {_MINE}", "mine.yml:1: mine: is not a key of a profile; remove the line mine: and indent the lines below it less"),
        (f"{_MINE}summary: a\nsummary: b\n", "mine.yml:3: summary: is set twice, first in line 2; remove one"),
        (f"{_ARGS}kv-cache-memory-bytes: 64424509440\n", "mine.yml:4: engine.args.kv-cache-memory-bytes: the share 1.21 that the weights"),
        (f"{_ARGS}gpu-memory-utilization: 0.9\n", "mine.yml:4: engine.args.gpu-memory-utilization: gpu-memory-utilization 0.9 is above 0.82"),
        (f"{_ARGS}max-model-len: 9000000\n", "mine.yml:4: engine.args.max-model-len: Estimated KV pool: "),
        (f"{_ARGS}gpu-memory-utilization: 0.6\n    max-model-len: 900000\n", "mine.yml:4: engine.args.gpu-memory-utilization: Estimated KV pool: "),
        (f"{_ARGS}tensor-parallel-size: 4\n", "mine.yml:4: engine.args.tensor-parallel-size: tensor-parallel-size 4 x "),
        (f"{_ARGS}max-num-seqs: false\n", "mine.yml:4: engine.args.max-num-seqs: is false, expected a number"),
        (f"{_MINE}engine:\n  api:\n    port: 22\n", "mine.yml:4: engine.api.port: port 22 is used by SSH (ansible_port) and by the API"),
        (f"{_MINE}gate:\n  expressions:\n    - a b\n", "mine.yml:4: gate.expressions[0]: the expression 'a b' is not valid JMESPath"),
        (f"{_MINE}container:\n  volumes:\n    - '{{model_store}}:/m'\n", "mine.yml:4: container.volumes[0]: is '{model_store}:/m', which lets the engine"),
        (f"{_MINE} engine: x\n", "mine.yml:2: YAML: the file is not valid YAML here (a second colon in one line"),
        (f"{_MINE}summary: !vault x\n", "mine.yml:2: YAML: the file is not valid YAML here (could not determine a constructor for the tag '!vault')"),
    ],
)
def test_a_fault_of_a_profile_in_a_file_has_its_line_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    """If the profile is selected, and if another one extends it."""
    (tmp_path / "mine.yml").write_text(text, encoding="utf-8")
    for more in ({"gb10_profile": "mine"}, {"gb10_profile": "other", "gb10_profiles": {"other": {"extends": "mine"}}}):
        own = {"gb10_profiles_directory": str(tmp_path), **more}
        (found,) = survey({"a": own, "b": own}, stages=["vllm_tp2"], extra=more)
        assert found.sentence().startswith(f"{tmp_path}/{sentence}")


def test_a_file_of_a_profile_that_is_not_read_is_the_only_fault(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(_MINE, encoding="utf-8")
    directory = {"gb10_profiles_directory": str(tmp_path)}
    (tmp_path / "broken.yml").write_text("a: @b", encoding="utf-8")
    broken = [f"{tmp_path}/broken.yml:1: YAML: the file is not valid YAML here (no value begins with this character; put the value in quotes)"]
    for name, sentences in (
        (DEFAULT_PROFILE, broken),
        ("broken", broken),
        ("mine", [*broken, f"{tmp_path}/mine.yaml: mine: is not read, because of its ending; rename it to mine.yml"]),
    ):
        own = {**directory, "gb10_profile": name}
        assert [each.sentence() for each in survey({"a": own, "b": own})] == sentences


@pytest.mark.parametrize("selected", [DEFAULT_PROFILE, "mine"])
def test_a_folder_of_profiles_that_the_user_names_must_exist(tmp_path: Path, selected: str) -> None:
    (tmp_path / "profiles").mkdir()
    for directory, hint in ((f"{tmp_path}/profils/", f"; did you mean {tmp_path}/profiles?"), ("~unknown-user/p", "")):
        own = {"gb10_profiles_directory": directory, "gb10_profile": selected}
        (found,) = survey({"a": own, "b": own})
        text = f"is {directory!r}, a folder that does not exist here; create it, correct the path, or leave the variable out{hint}"
        assert (found.key, found.text) == ("gb10_profiles_directory", text)
    own["gb10_profiles_directory"] = "own-profiles"
    assert [each.key for each in survey({"a": own, "b": own})] == (["gb10_profile"] if selected == "mine" else [])


def test_one_group_has_one_profile() -> None:
    (found,) = survey({"b": {"gb10_profile": "fp8-1m"}})
    assert (found.key, f"{DEFAULT_PROFILE} and fp8-1m" in found.text) == ("gb10_profile", True)


def test_expressions_need_jmespath(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_expressions, "jmespath", None)
    (found,) = survey({"a": gate("pool.tokens"), "b": gate("pool.tokens")})
    assert (found.key, "pip install jmespath" in found.text) == ("vllm_tp2_gate", True)
    assert survey({}) == []


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_shipped_profile_can_be_selected(name: str) -> None:
    own = {"gb10_profile": name}
    found = survey({"a": {"ansible_host": "10.0.0.1", **own}, "b": {"ansible_host": "10.0.0.2", **own}}, stages=["image", "weights", "vllm_tp2"])
    assert [each.sentence() for each in found] == []


@pytest.mark.parametrize(
    ("image", "more", "stages", "keys"),
    [
        ({"build": "mine"}, {}, ["image"], ["image.build"]),
        ({"build": "mine"}, {}, [], []),
        ({"build": "mine", "pull": True}, {}, ["image"], []),
        ({"build": "mine"}, {"image_distribution": "send"}, ["image"], []),
        ({"build": "mine"}, {"image_build_context": "{tmp}/context"}, ["image"], []),
        ({"build": "dspark-fp8-262k-baseline"}, {}, ["image"], []),
        ({"build": "{tmp}/context"}, {}, ["image"], []),
        ({"build": "{tmp}/none"}, {}, ["image"], ["image.build"]),
        ({"mods": [{"path": "fix"}, {"path": "{tmp}/x.diff"}, {"path": "good"}]}, {}, ["image"], ["image.mods[0].path", "image.mods[1].path"]),
    ],
)
def test_what_an_image_is_built_from_is_on_this_computer(
    tmp_path: Path, image: dict[str, Any], more: dict[str, str], stages: list[str], keys: list[str]
) -> None:
    """A status or a stop goes on without it."""
    for path in ("context/Dockerfile", "own/good/run.sh"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    (tmp_path / "own/fix").mkdir()

    def here(value: Any) -> Any:
        return yaml.safe_load(yaml.safe_dump(value).replace("{tmp}", str(tmp_path)))

    profile = {"extends": "fp8-1m", "image": {"reference": "mine:1", "pull": False, **here(image)}}
    own = {"gb10_profile": "own", "gb10_profiles": {"own": profile}, "gb10_profiles_directory": f"{tmp_path}/own", **here(more)}
    found = survey({"a": {"ansible_host": "10.0.0.1", **own}, "b": {"ansible_host": "10.0.0.2", **own}}, stages=stages)
    assert [each.text.split()[2] for each in found] == keys, [each.sentence() for each in found]
    assert all("does not exist on this computer" in each.text and str(tmp_path) in each.text for each in found)


def test_a_key_that_is_set_twice_is_a_fault_and_of_a_secret_a_warning_without_values(tmp_path: Path) -> None:
    text = "gb10_profile: a\ngb10_profile: b\nvllm_tp2_api_key: sk-one\nvllm_tp2_api_key: sk-two\n"
    found = survey(TWO, write(tmp_path, hosts="all:", group_vars__gb10=text))
    assert [(each.line, each.key, each.warning) for each in found] == [(2, "gb10_profile", False), (4, "vllm_tp2_api_key", True)]
    assert all("is set twice, first in line" in each.text and "sk-" not in each.text for each in found)


def test_values_that_a_group_shares_are_equal(tmp_path: Path) -> None:
    folder = write(tmp_path, hosts="all:", group_vars__gb10="roce_mtu: 9000\n", host_vars__b="roce_mtu: 1500\n")
    (found,) = survey({"a": {"roce_mtu": 9000}, "b": {"roce_mtu": 1500}}, folder)
    assert (Path(found.file).name, found.line, found.key) == ("b.yml", 1, "roce_mtu")


@pytest.mark.parametrize(
    ("variables", "key", "part"),
    [
        ({"vllm_tp2_extra_args": {"tensor-parallel-size": 3}}, "vllm_tp2_extra_args", "is 3, but the serving group has 2 nodes"),
        ({"vllm_tp2_extra_args": {"max-model-length": 5}}, "vllm_tp2_extra_args", "did you mean max-model-len?"),
        ({"ansible_port": 8000}, "gb10_profile", "port 8000 is used by SSH"),
        ({"ansible_hosts": "10.0.0.1"}, "ansible_hosts", "did you mean ansible_host?"),
        ({"vllm_context": 1}, "vllm_context", "did you mean vllm_tp2_context?"),
    ],
)
def test_what_validate_finds_is_found_before_a_host_is_touched(tmp_path: Path, variables: dict[str, Any], key: str, part: str) -> None:
    (name,) = variables
    folder = write(tmp_path, hosts="all:", group_vars__gb10=f"{name}: 1\n")
    found = survey({"a": {**variables, "ansible_host": "10.0.0.1"}, "b": {**variables, "ansible_host": "10.0.0.2"}}, folder)
    assert {(each.key, part in each.text) for each in found} == {(key, True)}


@pytest.mark.parametrize(
    ("extra", "key", "part"),
    [
        ({"vllm_context": 1}, "vllm_context", "did you mean vllm_tp2_context?"),
        ({"bench_second": 1}, "bench_second", "did you mean bench_seconds?"),
        ({"_raw_params": "roce_mtu"}, "-e", "roce_mtu has no value"),
        ({"_raw_params": "roce_mtu: 9000"}, "-e", "expected roce_mtu=VALUE"),
        ({"reboot_timeout": -1}, "reboot_timeout", "expected a whole number from 1"),
        ({"smoke_requests": "many"}, "smoke_requests", "expected a whole number"),
        ({"bench_concurrency": "1,x"}, "bench_concurrency", "entry 2"),
        ({"evidence_label": "../x"}, "evidence_label", "expected a name of letters"),
    ],
)
def test_a_wrong_extra_variable_is_reported_once(extra: dict[str, Any], key: str, part: str) -> None:
    hosts = {host: dict(extra) for host in "ab"}
    assert [(each.key, part in each.text) for each in survey(hosts, extra=extra)] == [(key, True)]


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({"recpie": "flash.yaml"}, ["recpie: is not a variable of this collection; did you mean recipe?"]),
        ({"servce": "web"}, ["servce: is not a variable of this collection; did you mean service?"]),
        ({"gb10_profle": "fp8-512k"}, ["gb10_profle: is not a variable of the cluster; did you mean gb10_profile?"]),
        ({"force": "maybe"}, ["force: is 'maybe', expected true or false"]),
        ({"gb10_profiles_directory": [1]}, ["gb10_profiles_directory: is a list, expected a path"]),
        ({"gb10_rank": "{{ 1 }}"}, []),
        ({"gb10_mine": 1}, []),
        ({"recipe": "flash.yaml", "profile_name": "mine", "env_file": ".env", "since": "2h", "my_own": 1}, []),
    ],
)
def test_extra_variables_are_checked_without_an_inventory(extra: dict[str, Any], found: list[str]) -> None:
    """Of an inventory that is given all the same, only the names of other collections count."""
    cases: list[tuple[Any, dict[str, Any]]] = [({"all": []}, {}), (PAIR, {"a": {"gb10_foreign_variables": ["gb10_mine"], "vllm_tp2_contxt": 1}})]
    for groups, hosts in cases:
        task_vars = {"groups": groups, "hostvars": HostVars(hosts), "ansible_inventory_sources": ["/etc/ansible/hosts"], "playbook_dir": "/nowhere"}
        expected = found or [f"{name}: " for name in extra if name == "gb10_mine" and not hosts]
        sentences = [each.sentence() for each in inventory_survey.Survey(task_vars, extra).run_extra()]
        assert len(sentences) == len(expected)
        assert all(each.startswith(f"the extra variables (-e): {part}") for each, part in zip(sentences, expected, strict=True))


def test_a_second_inventory_that_does_not_exist_ends_the_check(tmp_path: Path) -> None:
    write(tmp_path / "lab", hosts="all:")
    given = {"ansible_inventory_sources": [str(tmp_path / "lab"), str(tmp_path / "lba")]}
    task_vars = {"groups": PAIR, "hostvars": HostVars({}), "playbook_dir": "/nowhere", **given}
    (found,) = inventory_survey.Survey(task_vars, {}).run()
    assert found.key == "-i"
    assert re.fullmatch(r"\S+/lba does not exist; did you mean \S+/lab\?", found.text)


def test_a_folder_without_a_dockerfile_is_a_fault_of_a_run_that_builds(tmp_path: Path) -> None:
    own = {"image_build_context": str(tmp_path / "recipes")}
    (tmp_path / "recipe").mkdir()
    assert survey({"a": own, "b": own}) == []
    (found,) = survey({"a": own, "b": own}, stages=["image"])
    assert found.key == "image_build_context"
    assert found.text.endswith(f"expected the file {tmp_path}/recipes/Dockerfile, which does not exist on this computer; did you mean recipe?")
    own["image_build_context"] = str(tmp_path / "recipe")
    (found,) = survey({"a": own, "b": own}, stages=["image"])
    assert f"{tmp_path}/recipe/Dockerfile" in found.text
    (tmp_path / "recipe/Dockerfile").touch()
    assert survey({"a": own, "b": own}, stages=["image"]) == []


@pytest.mark.parametrize("key", ["vllm_tp2_gpu_memory_utilization", "vllm_tp2_context"])
def test_a_pool_that_is_too_small_is_a_fault_of_what_the_inventory_changes(key: str) -> None:
    own = {key: {"vllm_tp2_gpu_memory_utilization": 0.3, "vllm_tp2_context": 9_000_000}[key]}
    (found,) = survey({"a": own, "b": own}, stages=["vllm_tp2"])
    assert (found.key, "vllm_tp2_plan=report" in found.text) == (key, True)
    assert "set max-model-len" not in found.text if key == "vllm_tp2_context" else "set vllm_tp2_context" not in found.text
    assert survey({"a": {**own, "vllm_tp2_plan": "report"}, "b": {**own, "vllm_tp2_plan": "report"}}, stages=["vllm_tp2"]) == []


def test_a_host_may_have_a_name_that_begins_like_a_variable(tmp_path: Path) -> None:
    write(tmp_path, hosts="gb10:\n  children:\n    pair1:\n      hosts:\n        gb10-1:\n        gpu-1:\n")
    groups = {"gb10": ["gb10-1", "gpu-1"], "pair1": ["gb10-1", "gpu-1"], "all": ["gb10-1", "gpu-1"]}
    found = survey({host: {} for host in groups["pair1"]}, tmp_path, groups)
    assert [each.sentence() for each in found if "dashes" in each.sentence()] == []


@pytest.mark.parametrize(("foreign", "number"), [(["stat?"], 0), ([], 1)])
def test_an_extra_variable_of_another_collection_is_left_alone(foreign: list[str], number: int) -> None:
    found = survey({"a": {"gb10_foreign_variables": foreign}, "b": {}}, extra={"state": "present"})
    assert len([each for each in found if ": state: " in each.sentence()]) == number


def test_a_wrong_extra_variable_of_a_file_has_its_line(tmp_path: Path, arguments: dict[str, Any]) -> None:
    write(tmp_path, mine="roce_mtu: 9000\nvllm_tp2_contxt: 1\nsmoke_requests: 0\n")
    arguments["extra_vars"] = (f"@{tmp_path}/mine.yml",)
    extra = {"roce_mtu": 9000, "vllm_tp2_contxt": 1, "smoke_requests": 0}
    found = survey({"a": extra, "b": extra}, extra=extra)
    assert sorted(places(found)) == [(f"{tmp_path}/mine.yml", 2, "vllm_tp2_contxt"), (f"{tmp_path}/mine.yml", 3, "smoke_requests")]


def test_a_limit_that_names_an_unknown_host_is_a_fault(arguments: dict[str, Any]) -> None:
    arguments["subset"] = "a,b,c"
    (found,) = survey({}, ansible_play_hosts_all=["a", "b"])
    assert found.sentence() == "the command line: --limit: c is not a host or a group of this inventory"


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("ansible_connection", "shh", "is not a connection plugin of this computer, expected ssh or local; did you mean ssh?"),
        ("ansible_connection", "local", ""),
        ("ansible_connection", "ansible.builtin.ssh", ""),
        ("ansible_become_method", "sodu", "is not a become plugin of this computer, expected sudo"),
        ("ansible_become_method", "su", ""),
        ("ansible_ssh_private_key_file", "{tmp}/spark_1", "does not exist on this computer, expected the file of a private key"),
        ("ansible_ssh_private_key_file", "/" + "k" * 300, "does not exist on this computer"),  # no path: the kernel refuses to look at it
        ("ansible_ssh_private_key_file", "{tmp}/spark", ""),
        ("ansible_ssh_private_key_file", "~unknown-user/spark", ""),  # not an absolute path
        ("ansible_ssh_private_key_file", "{tmp}/%h", ""),
        ("gb10_receipts", "{tmp}/spark/receipts", "is a file here, expected a folder"),
        ("gb10_receipts", "{tmp}/new/receipts", ""),
    ],
)
def test_what_a_value_names_on_this_computer(name: str, value: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for each in ("spark", "spark.pub"):
        (tmp_path / each).touch()
    own = {name: value.replace("{tmp}", str(tmp_path))}
    found = [each.text for each in survey({"a": {"ansible_host": "10.0.0.1", **own}, "b": {"ansible_host": "10.0.0.2"}})]
    assert bool(found) is bool(part)
    assert part in "".join(found)
    if "private key" in part:
        assert found[0].endswith(f"did you mean {tmp_path}/spark?")
        monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
        assert survey({"a": {"ansible_host": "10.0.0.1", **own}, "b": {"ansible_host": "10.0.0.2"}}) == []


@pytest.mark.parametrize(("own", "arguments"), [({"ansible_ssh_pass": "hunter2"}, {}), ({}, {"ask_pass": True})])
def test_a_missing_key_is_accepted_where_ssh_has_a_password(own: dict[str, Any], arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    hosts = {name: {"ansible_ssh_private_key_file": "/nowhere/spark", **own} for name in ("a", "b")}
    monkeypatch.setattr(context, "CLIARGS", {**context.CLIARGS, **arguments})
    assert survey(hosts) == []


def test_a_file_in_the_place_of_a_folder_is_a_fault_of_an_extra_variable(tmp_path: Path) -> None:
    (tmp_path / "page").touch()
    extra = {"report_dest": str(tmp_path / "page")}
    assert [each.key for each in survey({"a": extra, "b": extra}, extra=extra)] == ["report_dest"]


@pytest.mark.parametrize(
    ("arguments", "option", "part"),
    [
        ({"remote_user": "root@10.0.0.1"}, "-u", "set the address in ansible_host"),
        ({"private_key_file": "id.pub"}, "--private-key", "is a public key; write the private one, id"),
        ({"private_key_file": "/nowhere/id"}, "--private-key", "does not exist on this computer"),
        ({"become_method": "sodu"}, "--become-method", "expected sudo"),
        ({"connection": "local"}, "-c", "is local for a, b, so each of them would be this computer"),
        ({"connection": "ssh", "remote_user": "nvidia", "become_method": "sudo"}, "", ""),
    ],
)
def test_ways_to_the_hosts_on_the_command_line(arguments: dict[str, Any], option: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(context, "CLIARGS", {**context.CLIARGS, **arguments})
    found = survey({"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}})
    assert [(each.file, each.key) for each in found] == ([("the command line", option)] if option else [])
    assert part in "".join(each.text for each in found)


@pytest.mark.parametrize(("local", "faults"), [(["a"], 0), (["a", "b"], 1)])
def test_at_most_one_host_of_a_group_is_this_computer(local: list[str], faults: int) -> None:
    found = survey(
        {host: {"ansible_host": f"10.0.0.{number}", **({"ansible_connection": "local"} if host in local else {})} for number, host in enumerate("ab", 1)}
    )
    assert [each.key for each in found] == ["ansible_connection"] * faults


def test_a_list_of_hosts_instead_of_an_inventory() -> None:
    (found,) = survey({}, "10.0.0.1,10.0.0.2", groups={"all": ["10.0.0.1", "10.0.0.2"]})
    assert (found.key, "has no groups; give an inventory" in found.text) == ("-i", True)


@pytest.mark.parametrize(("text", "faults"), [("just a text\n", 1), ("images: [a]\n", 1), ("images:\n  x: {digest: y}\n", 0), ("", 0)])
def test_a_lock_file_that_cannot_be_read_is_a_fault_before_a_run(text: str, faults: int, tmp_path: Path) -> None:
    folder = write(tmp_path, hosts="gb10: {hosts: {a: , b: }}\n")
    (folder / ".gb10.lock.yml").write_text(text, encoding="utf-8")
    found = survey({"a": {}, "b": {}}, folder)
    assert [each.sentence().partition(": ")[0] for each in found] == [f"{folder}/.gb10.lock.yml"] * faults


def test_each_lock_file_is_read(tmp_path: Path) -> None:
    for name in ("first.yml", "second.yml"):
        (tmp_path / name).write_text("" if name == "first.yml" else "just a text\n", encoding="utf-8")
    found = survey({"a": {"gb10_lock_file": str(tmp_path / "first.yml")}, "b": {"gb10_lock_file": str(tmp_path / "second.yml")}})
    assert [each.file for each in found] == [str(tmp_path / "second.yml")]
