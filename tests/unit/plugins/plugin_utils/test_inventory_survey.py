"""The check of an inventory, as Ansible's own managers read it: what it finds, and the place of each fault. One process for all cases."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.vars import host_group_vars
from ansible.utils.vars import load_extra_vars
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from ansible_collections.gb10.cluster.plugins.action.inventory import selected
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE
from ansible_collections.gb10.cluster.plugins.plugin_utils import gate_expressions, inventory_profiles
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import Located
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_survey import Survey
from playbook import REPO
from shipped_profiles import EXAMPLES, FOLDER, SHIPPED
from unit.fixtures.host.tree import write

HOSTS = "gb10:\n  children:\n    pair1:\n      hosts:\n        a: {ansible_host: 10.0.0.1}\n        b: {ansible_host: 10.0.0.2}\n"
TWO = HOSTS + "    pair2:\n      hosts:\n        c: {ansible_host: 10.0.0.3}\n        d: {ansible_host: 10.0.0.4}\n"
SECOND = "gb10_fabric_cidrs: [192.168.202.0/24, 192.168.203.0/24]\n"
# The answers of Ansible's own command line.
NO_ARGUMENTS: dict[str, Any] = {"subset": None, "args": (), "extra_vars": ()}


class Desk:
    """An inventory in a folder, which is also the working directory, so that places are short."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        for found in (host_group_vars.FOUND, host_group_vars.CANONICAL_PATHS, host_group_vars.NAK):
            found.clear()  # Ansible keeps for a process which files a folder has

    def write(self, **files: str) -> None:
        write(self.folder, **files)

    def survey(
        self, text: str = "", *, extra: Sequence[str] = (), stages: Sequence[str] = (), hosts: str = HOSTS, source: str = "hosts.yml", **more: Any
    ) -> Survey:
        """Return the check of the inventory with a text as group_vars/gb10.yml."""
        if text:
            self.write(group_vars__gb10=text)
        if hosts:
            self.write(hosts=hosts)
        arguments: dict[str, Any] = {key: more.pop(key) for key in ("subset", "args") if key in more}
        self.monkeypatch.setattr(context, "CLIARGS", {**NO_ARGUMENTS, **arguments, "extra_vars": tuple(extra)})
        self.monkeypatch.setattr(load_extra_vars, "extra_vars", None, raising=False)
        path = source if "," in source else str(self.folder / source)
        loader = DataLoader()
        inventory = InventoryManager(loader, [path])
        manager = VariableManager(loader, inventory)
        task_vars = {"groups": inventory.get_groups_dict(), "hostvars": HostVars(inventory, manager, loader), "ansible_inventory_sources": [path]}
        return Survey({**task_vars, "playbook_dir": "/nowhere", **more}, load_extra_vars(loader), loader, stages)

    def found(self, *arguments: Any, **more: Any) -> list[Located]:
        """Return what the check finds."""
        return self.survey(*arguments, **more).run()

    def sentences(self, *arguments: Any, **more: Any) -> list[str]:
        """Return what the check finds, as it is printed."""
        return [each.sentence() for each in self.found(*arguments, **more)]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


VARS = "group_vars/gb10.yml"


@pytest.mark.parametrize(
    ("limit", "played", "group", "missing"),
    [
        pytest.param("a", ["a"], "pair1", "b is", id="head alone"),
        pytest.param("pair1:d", ["a", "b", "d"], "pair2", "c is", id="a group and a part of another"),
        pytest.param("pair2", ["c", "d"], "", "", id="a group"),
        pytest.param(None, ["localhost", "a", "b", "c", "d"], "", "", id="no limit"),
    ],
)
def test_a_limit_to_a_part_of_a_group_is_a_fault(limit: str | None, played: list[str], group: str, missing: str, desk: Desk) -> None:
    desk.write(group_vars__pair2=SECOND)
    found = desk.sentences(hosts=TWO, subset=limit, ansible_play_hosts_all=played, stages=["image", "vllm_tp2"])
    assert len(found) == bool(group)
    parts = (f"the command line: --limit: {group} is one unit and {missing} not", f"--limit {group}", "--skip-tags image,vllm_tp2")
    assert all(part in each for each in found for part in parts)
    assert desk.found(hosts=TWO, subset=limit, ansible_play_hosts_all=played) == []


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
    ("text", "expected"),
    [
        ('vllm_tp2_directory: "{{ x }}/y"', ":1: vllm_tp2_directory: its template fails: 'x' is undefined"),
        ("vllm_tp2_directory: \"{{ ansible_facts['y'] }}\"", ":1: vllm_tp2_directory: its template fails: it reads a fact of a machine"),
        ("vllm_tp2_extra_env:\n  A: \"{{ hostvars['b'].y }}\"", ""),
        ("vllm_tp2_api_key: \"{{ 'hunter2' | nosuch }}\"", ":1: vllm_tp2_api_key: its template fails: the reason is not shown"),
        ('vllm_tp2_api_key: "hunter2 {{ x }}"', ":1: vllm_tp2_api_key: its template fails: the reason is not shown"),
        (
            "vllm_tp2_api_key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6133\n",
            ":1: vllm_tp2_api_key: is encrypted, and the vault password is missing or wrong; run with --ask-vault-pass",
        ),
        ("vllm_tp2_api_key: \"{{ lookup('env', 'NO_SUCH_KEY_HERE') }}\"", ":1: vllm_tp2_api_key: reads a variable of the environment that is not set here"),
    ],
)
def test_a_template_that_fails_is_a_fault_unless_it_can_be_made_later(text: str, expected: str, desk: Desk) -> None:
    found = sorted(set(desk.sentences(text)))
    assert [each.startswith(f"{VARS}{expected}") for each in found] == [True] * bool(expected), found
    assert "hunter2" not in "".join(found)


def own(name: str, lines: str, more: str = "") -> str:
    """Return a file of variables with a profile of the user that is selected."""
    return f"gb10_profile: {name}\ngb10_profiles:\n  {name}:\n    {lines}{more}"


_MOUNT = "extends: fp8-1m\n    container:\n      volumes:\n        - /data/models:/root/.cache/huggingface\ngb10_model_store: /data/models\n"
_BASE = f"extends: {DEFAULT_PROFILE}\n    engine:\n      args:\n        "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm_tp2_context: 0\npreflight_ignore:\n  - gb10\n  - gb1\ngb10_fabric_first: 300\nroce_mtu: jumbo\n"
            "gb10_profiles:\n  mine:\n    extends: fp8-1m\n    engin: {}\n    container:\n      memlock: lots\n      volumes: /a\n",
            [(1, "vllm_tp2_context", ""), (4, "preflight_ignore", ""), (5, "gb10_fabric_first", ""), (6, "roce_mtu", ""),
             (10, "gb10_profiles", ""), (12, "gb10_profiles", ""), (13, "gb10_profiles", "")],
        ),
        ("# one\n\nvllm_tp2_keep_serving: maybe\nvllm_tp2_extra_env:\n\n  # two\n  B: 1\n  A: [1]\n",
         [(3, "vllm_tp2_keep_serving", "expected true or false"), (8, "vllm_tp2_extra_env", "^A is a list")]),
        ("model_store: /srv\n", [(1, "model_store", "^is not a variable of this collection; did you mean gb10_model_store?$")]),
        ("ansible_hosts: 10.0.0.9\n", [(1, "ansible_hosts", "^is not a variable of Ansible; did you mean ansible_host?$")]),
        (own("mine", _MOUNT), [(7, "gb10_profiles", "profile mine: container.volumes[0] is")]),
        (own("fp8-1m", _MOUNT), [(7, "gb10_profiles", "profile fp8-1m: container.volumes[0] is")]),
        (own("mine", _MOUNT, "vllm_tp2_weights_writable: 'yes'\n"), []),
        (own("mine", _MOUNT).replace("gb10_profile: mine", "gb10_profile: fp8-512k"), []),
        (own("mine", "extends: fp8-1m\n    engine:\n      args:\n        tensor-parallel-size: 4\n"), [(3, "gb10_profiles", "tensor-parallel-size 4 x")]),
        (own("mine", f"{_BASE}kv-cache-memory-bytes: 64424509440\n"), [(3, "gb10_profiles", "")]),
        (own("mine", f"{_BASE}gpu-memory-utilization: 0.9\n"), [(3, "gb10_profiles", "")]),
        (own("mine", f"{_BASE}max-model-len: 9000000\n"), [(3, "gb10_profiles", "")]),
        ("vllm_tp2_extra_args: {tensor-parallel-size: 3}\n", [(1, "vllm_tp2_extra_args", "is 3, but the serving group has 2 nodes")]),
        ("vllm_tp2_extra_args: {max-model-length: 5}\n", [(1, "vllm_tp2_extra_args", "did you mean max-model-len?")]),
        ("ansible_port: 8000\n", [(0, "gb10_profile", "port 8000 is used by SSH")]),
    ],
)  # fmt: skip
def test_a_fault_of_a_file_of_variables_has_its_line(text: str, expected: list[tuple[int, str, str]], desk: Desk) -> None:
    found = sorted(desk.found(text, stages=["vllm_tp2"]), key=lambda each: each.line)
    assert [(each.file, each.line, each.key) for each in found] == [(VARS, line, key) for line, key, _part in expected], found
    assert all(part in f"^{each.text}$" for each, (_line, _key, part) in zip(found, expected, strict=True)), found


def test_the_name_of_another_role_is_a_warning_unless_it_is_nearly_ours(desk: Desk) -> None:
    [warned] = desk.found("docker_users: [me]\n")
    assert warned.warning
    assert warned.sentence() == (
        f"{VARS}:1: docker_users: is not a variable of the role docker; correct the name, remove it, or list it in gb10_foreign_variables"
        " if another role reads it"
    )
    [refused] = desk.found("docker_memlok: 1\n")
    assert (refused.warning, refused.text) == (False, "is not a variable of the role docker; did you mean docker_memlock?")
    assert desk.found("docker_memlok: 1\ndocker_users: [me]\ngb10_foreign_variables: ['docker_*']\n") == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["group_vars/gb_10.yml", "group_vars/web.yml"], "group_vars/gb_10.yml: gb_10: no host reads this file: there is no group gb_10; did you mean gb10?"),
        (["host_vars/sprak.yml", "host_vars/c9.yml"], ""),
        (["group_vars/pair2.yml"], ""),  # of another inventory in this folder
        (["group_vars/gb10.yml.txt"], "group_vars/gb10.yml.txt: gb10.yml.txt: no host reads this file: there is no group gb10.yml.txt; rename it to gb10.yml"),
        (["group_vars/pair1.yml", "group_vars/pair1.yml.bak"], ""),
    ],
)
def test_a_file_of_variables_that_no_host_reads(names: list[str], expected: str, desk: Desk) -> None:
    for name in names:
        path = desk.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("roce_mtu: 9000\n", encoding="utf-8")
    assert desk.sentences() == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("key", "group", "value"),
    [("gb10_fabric_cidrs", "[10.1.0.0/24]", "[10.2.0.0/24]"), ("gb10_profile", "fp8-1m", "fp8-512k"), ("gb10_serving_groups", "[pair1]", "[gb10]"),
     ("roce_mtu", "9000", "1500")],
)  # fmt: skip
def test_a_value_of_one_host_that_differs_is_the_line_to_change(key: str, group: str, value: str, desk: Desk) -> None:
    desk.write(host_vars__b=f"# mine\n{key}: {value}\n")
    [found] = desk.found(f"{key}: {group}\n")
    assert (found.file, found.line, found.key) == ("host_vars/b.yml", 2, key)


def test_a_network_that_two_groups_share_has_the_line_of_the_second(desk: Desk) -> None:
    desk.write(group_vars__pair2="\ngb10_fabric_cidrs: [10.1.0.0/24]\n")
    [found] = desk.found("gb10_fabric_cidrs: [10.1.0.0/24]\n", hosts=TWO)
    assert (found.file, found.line, found.key) == ("group_vars/pair2.yml", 2, "gb10_fabric_cidrs")


@pytest.mark.parametrize(
    ("hosts", "source", "expected"),
    [
        (HOSTS.replace("        b:", "        b: {ansible_host: x}\n        c:"), "hosts.yml", []),
        (HOSTS.replace("        b: {ansible_host: 10.0.0.2}\n", ""), "hosts.yml", ["hosts.yml:3: pair1: the serving group pair1 has no worker, only a"]),
        (HOSTS.replace("gb10:\n", "gb10:\n  hosts:\n    x: \n"), "hosts.yml", ["hosts.yml:3: x: x is in gb10 but not in a serving group"]),
        (HOSTS.replace("10.0.0.2", "10.0.0.1"), "hosts.yml", ["hosts.yml:6: ansible_host: a and b have the same management address 10.0.0.1"]),
        (HOSTS.replace("10.0.0.2", "me@10.0.0.2"), "hosts.yml", ["hosts.yml:6: ansible_host: contains '@'"]),
        (HOSTS.replace("10.0.0.2", "10.0.0.2, ansible_port: 70000"), "hosts.yml", ["hosts.yml:6: ansible_port: is 70000, expected a port from 1 to 65535"]),
        (HOSTS.replace("10.0.0.2", "10.0.0.2, gb10_rank: 2"), "hosts.yml", ["hosts.yml:6: gb10_rank: is 2 for b; the ranks of"]),
        ("", "a,b,", ["the inventory (a,b,): gb10: there is no group gb10"]),
        ("sparks: {hosts: {a: , b: }}", "hosts.yml", ["hosts.yml: gb10: there is no group gb10"]),
    ],
)
def test_groups_and_hosts_have_their_line(hosts: str, source: str, expected: list[str], desk: Desk) -> None:
    found = desk.sentences(hosts=hosts, source=source)
    assert len(found) == len(expected), found
    assert all(each.startswith(part) for each, part in zip(found, expected, strict=True)), found


def test_an_inventory_in_ini_has_its_lines(desk: Desk) -> None:
    (desk.folder / "hosts").write_text("[pair1]\na ansible_host=10.0.0.1 gb10_rnk=0\n\n[gb10:children]\npair1\n", encoding="utf-8")
    assert [each.partition("; ")[0] for each in desk.sentences(hosts="", source="hosts")] == [
        "hosts:2: gb10_rnk: is not a variable of the cluster",
        "hosts: pair1: the serving group pair1 has no worker, only a. A serving group needs two hosts or more",
    ]


def test_missing_profiles_are_an_incomplete_installation(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LookupError("the installation is incomplete")

    monkeypatch.setattr(inventory_profiles, "shipped_profiles", missing)
    with pytest.raises(LookupError, match="the installation is incomplete"):
        desk.found()


def gate(*expressions: Any, **more: Any) -> dict[str, Any]:
    """An inventory with criteria of its own."""
    return {"vllm_tp2_gate": {**({"expressions": list(expressions)} if expressions else {}), **more}}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"gb10_profile": "zzz"}, [("gb10_profile", "'zzz'")]),
        ({"gb10_profile": "fp8-1m", "gb10_profiles": {"fp8-1m": {"ranks": {"min": 3, "max": 3}}}}, [("gb10_profiles", "made for 3 ranks, but the serving")]),
        ({"gb10_profile": ["fp8-1m"]}, [("gb10_profile", "is a list")]),
        ({"gb10_profiles": [1]}, [("gb10_profiles", "is a list")]),
        ({"vllm_tp2_extra_args": {"port": 9000}}, [("vllm_tp2_extra_args", "engine.args.port")]),
        ({"vllm_tp2_extra_args": {"speculative-config": {"model": "x/y"}}}, [("vllm_tp2_extra_args", "add drafter: {id: x/y, revision: <commit>, path: x/y}")]),
        (gate("pool.concurrency >= '1.5"), [("vllm_tp2_gate", "is not valid JMESPath")]),
        (gate(effective_tokens=5), [("vllm_tp2_gate", "gate.effective_tokens is")]),
        (
            {**gate(context=4096), "vllm_tp2_context": 500000, "vllm_tp2_extra_args": {"nnodes": 3}},
            [("vllm_tp2_extra_args", "engine.args.nnodes"), ("vllm_tp2_gate", "gate.context is 4096")],
        ),
        (gate({"expression": "pool.tokens > `1`", "name": "x", "remedy": "lower it"}, "head.nccl.ib && ranks[1].ready"), []),
        (gate("pool.tokenz >= `2`"), [("vllm_tp2_gate", "tokenz, which is not a fact of the gate; did you mean tokens?")]),
        (
            {"gb10_profile": "mine", "gb10_profiles": {"mine": {"extends": "dspark-nvfp4-1m-seed", "gate": {"expressions": ["a b"]}}}},
            [("gb10_profiles", "profile mine: gate.expressions[0]: the expression 'a b'")],
        ),
        ({**gate(context=500000, concurrency={"min": 3}), "vllm_tp2_context": 500000}, []),
        ({"vllm_tp2_api_key": "a" * 20, "vllm_tp2_secret_env": {"VLLM_API_KEY": "b" * 20}}, [("vllm_tp2_api_key", "remove one of them")]),
        ({"vllm_tp2_api_key": "a" * 20, "vllm_tp2_secret_env": {"VLLM_API_KEY": "a" * 20}}, []),
        ({"vllm_tp2_watch": {"webhook": "ftp://hunter2"}}, [("vllm_tp2_watch", "webhook is not a URL that begins with http:// or https://")]),
        (
            {"vllm_tp2_watch": {"memory_drop_gib": 1}},
            [("vllm_tp2_watch", "memory_drop_gib of the watch does not fit: memory_drop_gib (1) is below memory_floor_gib (1.5)")],
        ),
        ({"vllm_tp2_watch": {"webhook": "https://hooks.example.org/x?y", "restarts": 0, "head_seconds": "45", "lost_seconds": None}}, []),
        ({"vllm_tp2_failure_classes": [{"class": "x", "pattern": "(", "remedy": "y"}]}, [("vllm_tp2_failure_classes", "'x'")]),
    ],
)
def test_checks_profiles_and_what_the_inventory_changes_in_them(variables: dict[str, Any], expected: list[tuple[str, str]], desk: Desk) -> None:
    found = desk.found(yaml.safe_dump(variables))
    assert sorted(each.key for each in found) == sorted(key for key, _part in expected), found
    assert all(any(each.key == key and part in each.text for each in found) for key, part in expected), found
    assert "hunter2" not in str(found)


_MINE = f"extends: {DEFAULT_PROFILE}\n"
_ARGS = f"{_MINE}engine:\n  args:\n    "


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{_MINE}container:\n  volumes:\n    - a:/b\n", "mine.yml:4: container.volumes[0]: is 'a:/b', expected host:container or host:container:ro"),
        ("[a]\n", "mine.yml:1: YAML: the file contains a list here, expected variables"),
        (f"{_MINE}summary: a\nsummary: b\n", "mine.yml:3: summary: is set twice, first in line 2; remove one"),
        (f"{_ARGS}kv-cache-memory-bytes: 64424509440\n", "mine.yml:1: mine: the share 1.21 that the weights"),
        (f"{_ARGS}gpu-memory-utilization: 0.9\n", "mine.yml:1: mine: gpu-memory-utilization 0.9 is above 0.82"),
        (f"{_ARGS}max-model-len: 9000000\n", "mine.yml:1: mine: Estimated KV pool: "),
        (f"{_ARGS}tensor-parallel-size: 4\n", "mine.yml:1: mine: tensor-parallel-size 4 x "),
        (f"{_MINE}engine:\n  api:\n    port: 22\n", "mine.yml:4: engine.api.port: port 22 is used by SSH (ansible_port) and by the API"),
        (f"{_MINE}gate:\n  expressions:\n    - a b\n", "mine.yml:4: gate.expressions[0]: the expression 'a b' is not valid JMESPath"),
        (f"{_MINE}container:\n  volumes:\n    - '{{model_store}}:/m'\n", "mine.yml:4: container.volumes[0]: is '{model_store}:/m', which lets the engine"),
        (f"{_MINE} engine: x\n", "mine.yml:2: YAML: the file is not valid YAML here (a second colon in one line"),
    ],
)
def test_a_fault_of_a_profile_in_a_file_has_its_line_and_key(text: str, sentence: str, desk: Desk) -> None:
    desk.write(own__mine=text)
    [found] = desk.sentences("gb10_profiles_directory: own\ngb10_profile: mine\n", stages=["vllm_tp2"])
    assert found.startswith(f"own/{sentence}")


def test_expressions_need_jmespath(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_expressions, "jmespath", None)
    [found] = desk.found(yaml.safe_dump(gate("pool.tokens")))
    assert (found.key, "pip install jmespath" in found.text) == ("vllm_tp2_gate", True)


def test_each_shipped_profile_and_each_example_can_be_selected(desk: Desk) -> None:
    text, stages = f"gb10_profiles_directory: {FOLDER / 'examples'}\n", ["image", "weights", "vllm_tp2"]
    assert {name: found for name in (*SHIPPED, *EXAMPLES) if (found := desk.sentences(f"{text}gb10_profile: {name}\n", stages=stages))} == {}


@pytest.mark.parametrize(
    ("image", "more", "stages", "keys"),
    [
        ({"build": "mine"}, {}, ["image"], ["image.build"]),
        ({"build": "mine"}, {}, [], []),
        ({"build": "mine", "pull": True}, {}, ["image"], []),
        ({"build": "mimo26-flash"}, {}, ["image"], []),
        ({"mods": [{"path": "fix"}, {"path": "good"}]}, {}, ["image"], ["image.mods[0].path"]),
    ],
)
def test_what_an_image_is_built_from_is_on_this_computer(image: dict[str, Any], more: dict[str, str], stages: list[str], keys: list[str], desk: Desk) -> None:
    """A status or a stop goes on without it."""
    (desk.folder / "own/fix").mkdir(parents=True)
    (desk.folder / "own/good").mkdir()
    (desk.folder / "own/good/run.sh").touch()
    profile = {"extends": "fp8-1m", "image": {"reference": "mine:1", "pull": False, **image}}
    text = yaml.safe_dump({"gb10_profile": "own", "gb10_profiles": {"own": profile}, "gb10_profiles_directory": str(desk.folder / "own"), **more})
    found = desk.found(text, stages=stages)
    assert [each.text.split()[2] for each in found] == keys, found
    assert all("does not exist on this computer" in each.text for each in found)


@pytest.mark.parametrize("key", ["vllm_tp2_gpu_memory_utilization", "vllm_tp2_context"])
def test_a_pool_that_is_too_small_is_a_fault_of_what_the_inventory_changes(key: str, desk: Desk) -> None:
    text = f"{key}: {'0.3' if key.endswith('utilization') else '9000000'}\n"
    [found] = desk.found(text, stages=["vllm_tp2"])
    assert (found.key, "vllm_tp2_plan=report" in found.text) == (key, True)
    assert "set max-model-len" not in found.text if key == "vllm_tp2_context" else "set vllm_tp2_context" not in found.text
    assert desk.found(f"{text}vllm_tp2_plan: report\n", stages=["vllm_tp2"]) == []


_AGAINST = "the extra variables (-e): soak_against"


@pytest.mark.parametrize(
    ("option", "place", "part"),
    [
        ("vllm_context=1", "the extra variables (-e): vllm_context", "did you mean vllm_tp2_context?"),
        ("roce_mtu", "the extra variables (-e): -e", "expected NAME=VALUE"),
        ("evidence_label=../x", "the extra variables (-e): evidence_label", "expected a name of letters"),
        ('{"gb10_fabric_first": 300}', "the extra variables (-e): gb10_fabric_first", "from 1 to 254"),
        ("@mine.yml", "mine.yml:2: vllm_tp2_contxt", "did you mean vllm_tp2_context?"),
        ('{"soak_against": {"vllm_tp2_max_num_seq": 8}}', _AGAINST, "that another release can have; did you mean vllm_tp2_max_num_seqs?"),
        ('{"soak_against": {"vllm_tp2_state": "absent"}}', _AGAINST, "vllm_tp2_state is not a variable of the role vllm_tp2 that another"),
        ('{"soak_against": {"vllm_tp2_api_key": "x"}}', _AGAINST, "vllm_tp2_api_key is not a variable of the role vllm_tp2 that another"),
        ('{"soak_against": {"vllm_tp2_max_num_seqs": 0}}', _AGAINST, "vllm_tp2_max_num_seqs is 0, expected"),
        ("soak_against=vllm_tp2_max_num_seqs", _AGAINST, "expected a mapping"),
        ('{"soak_against": {"vllm_tp2_max_num_seqs": 8}}', "", ""),
        ("roce_mtu=1500", "", ""),
        ("own_name=1", "", ""),
    ],
)
def test_a_wrong_extra_variable_is_reported_once(option: str, place: str, part: str, desk: Desk) -> None:
    desk.write(mine="roce_mtu: 9000\nvllm_tp2_contxt: 1\n")
    found = desk.sentences("x: 1\n", extra=[option])
    assert [each.startswith(f"{place}: ") and part in each for each in found] == [True] * bool(place), found


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("recpie=flash.yaml", ["recpie: is not a variable of this collection; did you mean recipe?"]),
        ("gb10_profle=fp8-512k", ["gb10_profle: is not a variable of the cluster; did you mean gb10_profile?"]),
        ("force=maybe", ["force: is 'maybe', expected true or false"]),
        ('{"gb10_profiles_directory": [1]}', ["gb10_profiles_directory: is a list, expected a path"]),
        ('{"gb10_rank": "{{ 1 }}"}', []),
        ("recipe=flash.yaml profile_name=mine env_file=.env since=2h my_own=1", []),
    ],
)
def test_extra_variables_are_checked_without_an_inventory(option: str, found: list[str], desk: Desk) -> None:
    """Of an inventory that is given all the same, only the names of other collections count."""
    for hosts, source in (("", "localhost,"), (HOSTS, "hosts.yml")):
        sentences = [each.sentence() for each in desk.survey("vllm_tp2_contxt: 1\n", extra=[option], hosts=hosts, source=source).run_extra()]
        assert sentences == [f"the extra variables (-e): {each}" for each in found]


def test_an_inventory_that_does_not_exist_ends_the_check(desk: Desk) -> None:
    desk.write(lab=HOSTS)
    [found] = desk.found(ansible_inventory_sources=[f"{desk.folder}/lba.yml"])
    assert (found.key, found.text) == ("-i", "lba.yml does not exist; did you mean lab.yml?")


def test_what_does_not_fit_together_is_reported_for_each_group(desk: Desk) -> None:
    desk.write(group_vars__pair1="vllm_tp2_api_key: hunter2\n", group_vars__pair2=f"vllm_tp2_secret_env: {{VLLM_API_KEY: hunter2}}\n{SECOND}")
    found = desk.sentences("vllm_tp2_api_open: 'yes'\n", hosts=TWO)
    where = f"{VARS}:1: vllm_tp2_api_open: is true, and"
    remedy = "sets a key; remove one of them"
    assert found == [f"{where} vllm_tp2_api_key {remedy}", f"{where} VLLM_API_KEY in vllm_tp2_secret_env {remedy}"]


@pytest.mark.parametrize(
    ("text", "part"), [("$ANSIBLE_VAULT;1.1;AES256\n6133\n", "hosts.yml:5: a: one of its files is encrypted"), ("a: 1\n b: [\n", f"{VARS}:2: YAML: ")]
)
def test_an_unreadable_file_ends_the_check(text: str, part: str, desk: Desk) -> None:
    [found] = desk.sentences(text)
    assert found.startswith(part)


def test_a_key_that_is_set_twice_is_a_fault_and_of_a_secret_a_warning_without_values(desk: Desk) -> None:
    found = desk.found("gb10_profile: fp8-1m\ngb10_profile: fp8-1m\nvllm_tp2_api_key: sk-one\nvllm_tp2_api_key: sk-two\n")
    assert [(each.line, each.key, each.warning) for each in found] == [(2, "gb10_profile", False), (4, "vllm_tp2_api_key", True)]
    assert all(re.match("is set twice, first in line", each.text) for each in found)


# --- What a reader copies from a page into an inventory.

PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md")), *sorted((REPO / "roles").glob("*/README.md"))]
FENCE = re.compile(r"^( *)```(.*?)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}[^\n]*\n)+)")
PREFIXES = ("gb10_", *(f"{path.name}_" for path in (REPO / "roles").iterdir()))
RULEBOOK = {"gb10_eda_token"}  # of the rulebook in docs/keeps-serving.md


def kind_of(values: object) -> str:
    """Return what a block is: variables, hosts, or an inventory; empty if it does not belong into an inventory."""
    if not isinstance(values, dict) or RULEBOOK & set(values):
        return ""
    if all(str(key).startswith(PREFIXES) for key in values):
        return "variables"
    below = [each for each in values.values() if isinstance(each, dict)]
    if len(below) == len(values) and any({"children", "hosts"} & set(each) for each in below):
        return "inventory"
    return "hosts" if len(below) == len(values) and any(str(key).startswith("ansible_") for each in below for key in each) else ""


def shown() -> list[tuple[str, str, Any]]:
    """Return page, kind and content of each block. A block that is not YAML is text."""
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for block in [*(block for _indent, language, block in FENCE.findall(text) if language in ("yaml", "yml")), *INDENTED.findall(FENCE.sub("", text))]:
            with contextlib.suppress(yaml.YAMLError):
                values = yaml.safe_load(textwrap.dedent(block))
                found += [(str(path.relative_to(REPO)), kind, values)] if (kind := kind_of(values)) else []
    return found


def test_a_block_of_a_page_is_accepted_as_it_is_printed(desk: Desk) -> None:
    """A page that loses its block, or a block that is not recognized any more, is noticed."""
    places = {(page, kind) for page, kind, _values in shown()}
    assert {"docs/tuning.md", "docs/reference/profiles.md", "docs/inventory.md", "docs/first-hour.md"} <= {page for page, _kind in places}
    assert {kind for _page, kind in places} == {"variables", "hosts", "inventory"}
    for page, kind, values in shown():
        pair = {host: {"ansible_host": f"10.0.0.{number}"} for number, host in enumerate((*(values if kind == "hosts" else ()), "a", "b")[:2])}
        inventory = values if kind == "inventory" else yaml.safe_load(HOSTS)
        if kind == "hosts":
            inventory["gb10"]["children"]["pair1"]["hosts"] = {host: {**given, **values.get(host, {})} for host, given in pair.items()}
        text = yaml.safe_dump(values) if kind == "variables" else "{}"
        assert desk.sentences(text, hosts=yaml.safe_dump(inventory, sort_keys=False), stages=["vllm_tp2"]) == [], page
