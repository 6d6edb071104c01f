"""The action inventory_check, below Ansible: what it asks of variables, and where it says that something has to be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import context
from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible_collections.gb10.cluster.plugins.action import inventory_check as action

PAIR = {"all": ["a", "b"], "gb10": ["a", "b"], "pair1": ["a", "b"]}
TWO = {"all": ["a", "b", "c", "d"], "gb10": ["a", "b", "c", "d"], "pair1": ["a", "b"], "pair2": ["c", "d"]}
SECOND = {"gb10_fabric_cidrs": ["192.168.202.0/24"]}


class View(Mapping[str, Any]):
    """Variables of one host; an exception stands for a template that fails with it."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.variables = variables

    def __getitem__(self, key: str) -> Any:
        value = self.variables[key]
        if isinstance(value, tuple):
            raise value[1]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)


class HostVars:
    """Like Ansible's; a failing value is (raw text, exception)."""

    def __init__(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        self.hosts = hosts

    def __getitem__(self, host: str) -> View:
        return View(self.hosts.get(host, {}))

    def raw_get(self, host: str) -> dict[str, Any]:
        """The variables before templating."""
        return {key: value[0] if isinstance(value, tuple) else value for key, value in self.hosts.get(host, {}).items()}


@pytest.fixture(autouse=True)
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The command line; tests change it."""
    given: dict[str, Any] = {"subset": None, "args": ()}
    monkeypatch.setattr(context, "CLIARGS", given)
    return given


def sentences(
    groups: Mapping[str, list[str]],
    hosts: Mapping[str, Mapping[str, Any]],
    sources: list[str] | None = None,
    extra: Mapping[str, Any] | None = None,
    played: list[str] | None = None,
    stages: list[str] | None = None,
) -> list[str]:
    """Everything that is wrong with an inventory."""
    task_vars = {"groups": groups, "hostvars": HostVars(hosts), "ansible_inventory_sources": sources or [], "playbook_dir": "/nowhere"}
    survey = action.Survey({**task_vars, "ansible_play_hosts_all": played}, extra or {})
    survey.group_stages = stages or []
    survey.run()
    return [survey.locate(fault).sentence() for fault in survey.found]


def test_nothing_wrong_without_any_file() -> None:
    """An inventory from a plugin or a script is as good."""
    assert sentences(PAIR, {}) == []


def test_a_source_without_files_is_named_itself() -> None:
    """A dynamic inventory has no line to show."""
    assert sentences(PAIR, {"a": {"vllm_tp2_contxt": 1}}, ["a,b,"]) == [
        "the inventory (a,b,): vllm_tp2_contxt: is no variable of the role vllm_tp2; did you mean vllm_tp2_context?"
    ]


class NoVars(HostVars):
    """Ansible's where a file of variables cannot be read: any question raises."""

    def raw_get(self, host: str) -> dict[str, Any]:
        """Fail as the reader of the files does."""
        raise AnsibleError("YAML parsing failed: Mapping values are not allowed in this context.")


def test_an_unreadable_file_is_named_and_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible's own error has no file, and comes with the first variable that is asked for."""
    monkeypatch.setitem(globals(), "HostVars", NoVars)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gb10.yml").write_text("a: 1\n b: [\n", encoding="utf-8")
    assert sentences(PAIR, {}, [str(tmp_path)]) == [
        f"{tmp_path}/group_vars/gb10.yml:2: YAML: the file is no valid YAML here (mapping values are not allowed in this context)"
    ]
    assert sentences(PAIR, {}, ["a,b,"]) == [
        "the inventory (a,b,): a: Ansible cannot read its variables: YAML parsing failed: Mapping values are not allowed in this context"
    ]


@pytest.mark.parametrize(
    ("limit", "played", "group", "missing"),
    [
        pytest.param("a", ["a"], "pair1", "b is", id="head alone"),
        pytest.param("pair1:d", ["a", "b", "d"], "pair2", "c is", id="a whole group and a part of another"),
        pytest.param("pair2", ["c", "d"], "", "", id="a whole group"),
        pytest.param(None, ["localhost", "a", "b", "c", "d"], "", "", id="no limit"),
    ],
)
def test_a_part_of_a_group(limit: str | None, played: list[str], group: str, missing: str, arguments: dict[str, Any]) -> None:
    """The roles of the whole group would fail after the others have run."""
    arguments.update(subset=limit)
    given = {"c": SECOND, "d": SECOND}
    expected = (
        f"the command line: --limit: {group} is one unit and {missing} not in this run; limit to the whole group (--limit {group}), "
        "or skip the stages that need all its hosts (--skip-tags image,vllm_tp2)"
    )
    assert sentences(TWO, given, played=played, stages=["image", "vllm_tp2"]) == ([expected] if group else [])
    assert sentences(TWO, given, played=played) == []


@pytest.mark.parametrize(
    ("run", "skip", "left"),
    [
        pytest.param(["all"], [], ["image", "vllm_tp2"], id="all"),
        pytest.param(["sysctl", "docker"], [], [], id="one node"),
        pytest.param(["sysctl", "image"], [], ["image"], id="one of them"),
        pytest.param(["all"], ["vllm_tp2", "image"], [], id="skipped"),
        pytest.param(["tagged"], ["image"], ["vllm_tp2"], id="tagged"),
    ],
)
def test_the_stages_that_tags_select(run: list[str], skip: list[str], left: list[str]) -> None:
    """Ansible's own words `all` and `tagged` select each stage."""
    assert action.selected(["image", "vllm_tp2"], run, skip) == left


@pytest.mark.parametrize(
    ("name", "raw", "error", "sentence"),
    [
        pytest.param("vllm_tp2_directory", "{{ x }}", "'x' is undefined", "its template fails: 'x' is undefined", id="undefined"),
        pytest.param("vllm_tp2_directory", "{{ ansible_facts.y }}", "'y' is undefined", "", id="a fact"),
        pytest.param("vllm_tp2_extra_env", {"A": ["{{ hostvars['b'].y }}"]}, "'y' is undefined", "", id="a fact of another host"),
        pytest.param("vllm_tp2_group", "{{ lookup('gb10.cluster.serving_group') | combine({}) }}", "failed: 'b'", "", id="the host's own group"),
        pytest.param(
            "vllm_tp2_api_key",
            "{{ x }}",
            "could not parse hunter2",
            "its template fails; the reason is not shown, because the value is a secret",
            id="secret",
        ),
        pytest.param(
            "vllm_tp2_api_key",
            "x",
            "Attempting to decrypt but no vault secrets found.",
            "is encrypted and the vault password given does not open it, or none was; run with --ask-vault-pass or --vault-password-file",
            id="vault",
        ),
    ],
)
def test_templates(name: str, raw: Any, error: str, sentence: str) -> None:
    """What needs facts is left to the roles."""
    found = sentences(PAIR, {"a": {name: (raw, AnsibleUndefinedVariable(error))}}, ["a,"])
    assert found == ([f"the inventory (a,): {name}: {sentence}"] if sentence else [])


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        pytest.param({"gb10_profile": "zzz"}, "gb10_profile: 'zzz' is not a known profile; known are: ", id="unknown"),
        pytest.param(
            {"gb10_profile": "fp8-1m", "gb10_profiles": {"fp8-1m": {"ranks": {"min": 3, "max": 3}}}},
            "gb10_profile: the profile fp8-1m is for 3 hosts, and the serving group has 2",
            id="for three hosts",
        ),
        pytest.param({"gb10_profiles": {"mine": {"extends": "mine"}}}, "gb10_profiles: profile mine: ", id="circle, though not selected"),
        pytest.param({"gb10_profiles": {"mine": 1}}, "gb10_profiles: profile mine: ", id="no mapping"),
        pytest.param({"gb10_profile": ["fp8-1m"]}, "gb10_profile: is a list, expected a text", id="name of a wrong type"),
        pytest.param({"gb10_profiles": [1]}, "gb10_profiles: is a list, expected a mapping", id="profiles of a wrong type"),
    ],
)
def test_profiles(variables: dict[str, Any], sentence: str) -> None:
    """The selected one of each group, and all of the user's own; each fault once."""
    found = set(sentences(PAIR, {"a": variables, "b": variables}, ["a,"]))
    assert len(found) == 1, found
    assert found.pop().startswith("the inventory (a,): " + sentence)


def test_every_fault_of_a_profile_is_told_at_its_line(tmp_path: Path) -> None:
    """Not one a run."""
    (tmp_path / "group_vars").mkdir()
    text = "gb10_profiles:\n  mine:\n    extends: fp8-1m\n    engin: {}\n    container:\n      memlock: lots\n      volumes: [/a]\n"
    (tmp_path / "group_vars" / "gb10.yml").write_text(text, encoding="utf-8")
    found = sorted(set(sentences(PAIR, {host: yaml.safe_load(text) for host in "ab"}, [str(tmp_path)])))
    file = f"{tmp_path}/group_vars/gb10.yml"
    assert [line.partition(", expected")[0].partition(" (known")[0] for line in found] == [
        f"{file}:4: gb10_profiles: profile mine: engin is not a key of a profile; did you mean engine?",
        f"{file}:6: gb10_profiles: profile mine: container.memlock is the string 'lots'",
        f"{file}:7: gb10_profiles: profile mine: container.volumes[0] is '/a'",
    ]


def test_one_group_serves_one_profile() -> None:
    """Each rank would start another engine."""
    assert sentences(PAIR, {"b": {"gb10_profile": "fp8-1m"}}, ["a,"]) == [
        "the inventory (a,): gb10_profile: pair1 is to serve dspark-nvfp4-1m and fp8-1m; set one profile for the whole group"
    ]


def test_what_is_shared_is_to_be_written_for_the_one_that_differs(tmp_path: Path) -> None:
    """A definition for all of gb10 is not the line to change for pair2."""
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "hosts.yml").write_text("gb10: {children: {pair1: {hosts: {a: , b: }}, pair2: {hosts: {c: , d: }}}}\n", encoding="utf-8")
    (tmp_path / "group_vars" / "gb10.yml").write_text("gb10_fabric_cidrs: [10.1.0.0/24]\n", encoding="utf-8")
    both = {"gb10_fabric_cidrs": ["10.1.0.0/24"]}
    (found,) = sentences(TWO, dict.fromkeys(TWO["gb10"], both), [str(tmp_path)])
    assert found.startswith(f"{tmp_path}/group_vars/pair2.yml: gb10_fabric_cidrs: pair2 and pair1 share the fabric network 10.1.0.0/24;")
    (tmp_path / "group_vars" / "pair2.yml").write_text("\ngb10_fabric_cidrs: [10.1.0.0/24]\n", encoding="utf-8")
    (found,) = sentences(TWO, dict.fromkeys(TWO["gb10"], both), [str(tmp_path)])
    assert found.startswith(f"{tmp_path}/group_vars/pair2.yml:2: gb10_fabric_cidrs: ")


@pytest.mark.parametrize("odd", ["a", "b"])
@pytest.mark.parametrize(
    ("key", "group", "own", "text"),
    [
        pytest.param("gb10_fabric_cidrs", "[10.1.0.0/24]", "[10.2.0.0/24]", "differs between a and b of pair1; set it once, for the group pair1", id="cidrs"),
        pytest.param("gb10_profile", "fp8-1m", "fp8-512k", "pair1 is to serve {a} and {b}; set one profile for the whole group", id="profile"),
        pytest.param("gb10_serving_groups", "[pair1]", "[gb10]", "differs between a and b; set it once, for the group gb10", id="serving groups"),
    ],
)
def test_a_host_that_differs_from_its_group_is_the_file_to_change(odd: str, key: str, group: str, own: str, text: str, tmp_path: Path) -> None:
    """Whichever of the two it is."""
    for folder in ("group_vars", "host_vars"):
        (tmp_path / folder).mkdir()
    (tmp_path / "group_vars" / "gb10.yml").write_text(f"{key}: {group}\n", encoding="utf-8")
    (tmp_path / "host_vars" / f"{odd}.yml").write_text(f"# mine\n{key}: {own}\n", encoding="utf-8")
    values = {host: own if host == odd else group for host in "ab"}
    hosts = {host: {key: yaml.safe_load(value)} for host, value in values.items()}
    assert sentences(PAIR, hosts, [str(tmp_path)]) == [f"{tmp_path}/host_vars/{odd}.yml:2: {key}: {text.format(**values)}"]


def test_a_bad_extra_variable_is_told_once(tmp_path: Path) -> None:
    """What follows from it is no fault of the networks."""
    hosts = {host: {"gb10_fabric_first": 300} for host in "ab"}
    assert set(sentences(PAIR, hosts, [str(tmp_path)], {"gb10_fabric_first": 300})) == {
        "the extra variables (-e): gb10_fabric_first: is 300, expected a whole number from 1 to 254"
    }


def test_paths_below_the_working_directory_are_shown_as_the_user_would_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are absolute."""
    (tmp_path / "inv").mkdir()
    (tmp_path / "inv" / "hosts.yml").write_text("gb10:\n  hosts:\n    a: {vllm_tp2_stat: x}\n    b:\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    groups = {"all": ["a", "b"], "gb10": ["a", "b"]}
    assert sentences(groups, {"a": {"vllm_tp2_stat": "x"}}, [str(tmp_path / "inv")])[0].startswith("inv/hosts.yml:3: vllm_tp2_stat: ")
    monkeypatch.chdir("/")
    monkeypatch.chdir(tmp_path / "inv")
    assert sentences(groups, {"a": {"vllm_tp2_stat": "x"}}, [str(tmp_path / "inv")])[0].startswith("hosts.yml:3: ")


def test_values_out_of_range_are_told_at_their_lines_all_in_one_go(tmp_path: Path) -> None:
    """Beside a wrong type, and once for a group; what follows from a bad value is no second fault."""
    (tmp_path / "group_vars").mkdir()
    lines = ["vllm_tp2_context: 0", "readahead_classes:", "  - nvme", "  - nvm", "gb10_fabric_first: 300", "image_source: c", "roce_mtu: jumbo"]
    (tmp_path / "group_vars" / "gb10.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = {"vllm_tp2_context": 0, "readahead_classes": ["nvme", "nvm"], "gb10_fabric_first": 300, "image_source": "c", "roce_mtu": "jumbo"}
    file = f"{tmp_path}/group_vars/gb10.yml"
    assert set(sentences(PAIR, {"a": given, "b": given}, [str(tmp_path)])) == {
        f"{file}:1: vllm_tp2_context: is 0, expected a whole number from 1 on",
        f"{file}:4: readahead_classes: entry 2 is 'nvm', expected one of nvme, sd, virtio, md, dm; did you mean nvme?",
        f"{file}:5: gb10_fabric_first: is 300, expected a whole number from 1 to 254",
        f"{file}:6: image_source: is 'c', expected auto or a host of the serving group: a, b",
        f"{file}:7: roce_mtu: is 'jumbo', expected a whole number",
    }


def test_every_role_of_the_collection_is_known() -> None:
    """The specs lie beside the plugin, in a checkout and in an installed collection."""
    specs = action.load_specs()
    assert {"docker", "vllm_tp2"} <= set(specs)
    assert specs["vllm_tp2"]["vllm_tp2_context"]["type"] == "int"


def test_missing_profiles_are_an_incomplete_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, not a traceback."""

    def missing() -> None:
        raise AnsibleError("the collection's profiles are not at /x: the installation is incomplete, install it again")

    monkeypatch.setattr(action, "shipped_profiles", missing)
    with pytest.raises(AnsibleError, match="the installation is incomplete"):
        sentences(PAIR, {})


def test_a_fact_that_a_role_exported_is_no_misspelt_variable(tmp_path: Path) -> None:
    """A second playbook in the same run looks at the inventory again; in a file the name would be wrong."""
    hosts = {"a": {"docker_reboot_required": False}}
    assert sentences(PAIR, hosts) == []
    (tmp_path / "hosts.yml").write_text("gb10:\n  vars:\n    docker_reboot_required: false\n", encoding="utf-8")
    (found,) = sentences(PAIR, hosts, [str(tmp_path)])
    assert "docker_reboot_required: is no variable of the role docker" in found


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"vllm_tp2_extra_args": {"port": 9000}}, ["vllm_tp2_extra_args: profile dspark-nvfp4-1m: engine.args.port is the number 9000"]),
        ({"vllm_tp2_extra_args": {"max_model_len": 5}}, ["vllm_tp2_extra_args: profile dspark-nvfp4-1m: engine.args.max_model_len and max-model-len are"]),
        ({"vllm_tp2_gate": {"effective_token": {"min": 5}}}, ["vllm_tp2_gate: profile dspark-nvfp4-1m: gate.effective_token"]),
        ({"vllm_tp2_gate": {"effective_tokens": 5}}, ["vllm_tp2_gate: profile dspark-nvfp4-1m: gate.effective_tokens is"]),
        (
            {"vllm_tp2_gate": {"context": 4096}, "vllm_tp2_context": 500000, "vllm_tp2_extra_args": {"nnodes": 3}},
            ["vllm_tp2_extra_args: profile dspark-nvfp4-1m: engine.args.nnodes", "vllm_tp2_gate: profile dspark-nvfp4-1m: gate.context is 4096, but"],
        ),
        ({"vllm_tp2_gate": {"expressions": ["pool.tokens", "pool.x >="]}}, ["vllm_tp2_gate: the expression 'pool.x >=' is no JMESPath: "]),
        (
            {"vllm_tp2_gate": {"expressions": [{"expression": "pool.x >=", "remedy": "lower the context"}]}},
            ["vllm_tp2_gate: the expression 'pool.x >=' is no JMESPath: "],
        ),
        (
            {"vllm_tp2_gate": {"expressions": [{"expression": "pool.x", "remedi": "lower it"}]}},
            ["vllm_tp2_gate: profile dspark-nvfp4-1m: gate.expressions[0].remedi is not a key of a profile; did you mean remedy?"],
        ),
        ({"vllm_tp2_gate": {"expressions": [{"expression": "pool.x", "name": "x", "remedy": "lower it"}, "pool.x"]}}, []),
        (
            {"gb10_profile": "mine", "gb10_profiles": {"mine": {"extends": "dspark-nvfp4-1m", "gate": {"expressions": ["a b"]}}}},
            ["gb10_profiles: the expression 'a b' is no JMESPath: "],
        ),
        ({"vllm_tp2_context": 500000, "vllm_tp2_gate": {"context": 500000, "concurrency": {"min": 3}}}, []),
        ({"vllm_tp2_gate": {"context": 500000}}, ["vllm_tp2_gate: profile dspark-nvfp4-1m: gate.context is 500000, but engine.args.max-model-len is 1048576"]),
        ({"vllm_tp2_failure_classes": [{"class": "x", "pattern": "(", "remedy": "y"}]}, ["vllm_tp2_failure_classes: The pattern of failure class 'x' is no"]),
        ({"vllm_tp2_failure_classes": [{"klass": "x", "pattern": "a", "remedy": "y"}]}, ["vllm_tp2_failure_classes: The failure class '?' has no class"]),
    ],
)
def test_what_is_changed_of_a_profile_is_judged_before_any_host_is_touched(variables: dict[str, Any], wanted: list[str]) -> None:
    found = sentences(PAIR, {"a": variables, "b": variables})
    told = [text for text in dict.fromkeys(text.partition(": ")[2] for text in found) if text.startswith(("vllm_tp2", "gb10_profiles"))]
    assert len(told) == len(wanted), found
    for text, start in zip(told, wanted):
        assert text.startswith(start)


def test_expressions_need_jmespath_before_a_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "jmespath", None)
    found = {text.partition("vllm_tp2_gate: ")[2] for text in sentences(PAIR, {"a": {"vllm_tp2_gate": {"expressions": ["pool.tokens"]}}})}
    assert found == {"gate.expressions need jmespath on this computer, which is not there: pip install jmespath"}
    assert sentences(PAIR, {}) == []
