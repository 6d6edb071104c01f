"""From two addresses to an inventory: what is asked, what is refused, where passwords do not appear, and what is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail, AnsiblePromptInterrupt, AnsiblePromptNoninteractive
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import inventory as plugin
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_login
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from unit.fixtures.node_facts import cabled, facts

FINGERPRINT = "SHA256:plhvoUvCXMV09zskKPOzZ4KTAE0rcWMnby3GXAMQATA"
HOST_KEY = f"The authenticity of host 'x' can't be established.\nED25519 key fingerprint is {FINGERPRINT}.\nContinue (yes/no/[fingerprint])? "
GIVEN = {"setup_head": "10.0.0.1", "setup_worker": "10.0.0.2", "setup_user": "nvidia", "gb10_profile": "b12x-fp8-1m", "gb10_model_store": "/srv/models"}
PROFILES = {name: resolve(name, shipped_profiles(), {}) for name in ("b12x-fp8-1m", "fp8-1m")}
NODE = facts(fabric={"management": {"interface": "enP7s7", "address": "10.0.0.1", "wireless": False}})


class World:
    """The machines as SSH sees them, the user's terminal, and what was shown and asked on it."""

    def __init__(self, folder: Path, screen: list[str]) -> None:
        self.folder, self.lines, self.interactive = folder, screen, True
        self.questions: dict[str, list[str]] = {}  # of OpenSSH, by address
        self.asks, self.same = list[str](), False  # the addresses where sudo asks for a password
        self.answers, self.prompts, self.private = list[str](), list[str](), list[str]()
        self.replies: list[tuple[str, str]] = []
        self.become_pass = ""

    def run(self, *answers: str, extra: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Run the action with these extra variables and these answers on the terminal."""
        self.answers, self.prompts, self.private = list(answers), [], []
        self.lines.clear()
        given = {"folder": str(self.folder), "machines": None, "nodes": None, "fabrics": None, "profiles": PROFILES, "variables": None} | options
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        action._task = SimpleNamespace(check_mode=False)
        action._loader = extra or {}
        action._play_context = SimpleNamespace(become_pass=self.become_pass)
        action.validate_argument_spec = lambda **_more: (None, {"pair": given})
        return action.run()

    @property
    def screen(self) -> str:
        """All that was shown."""
        return "\n".join(self.lines + self.prompts)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, screen: list[str]) -> World:
    """Two machines that know this computer, and a terminal."""
    here = World(tmp_path / "mine", screen)

    def prompt(_self: Any, text: str, private: bool = False, **_more: Any) -> bytes:
        if not here.interactive:
            raise AnsiblePromptNoninteractive("stdin is not interactive")
        (here.private if private else here.prompts).append(text)
        answer = here.answers.pop(0)
        if answer == "^C":
            raise AnsiblePromptInterrupt("user interrupt")
        return answer.encode()

    def reach(machine: Any) -> None:
        here.replies += [(machine.address, setup_login._answer(text)) for text in here.questions.get(machine.address, [])]
        machine.name, machine.machine_id = "spark-1" if here.same else f"spark-{machine.address[-1]}", "id of the image"
        machine.asks = machine.address in here.asks

    monkeypatch.setattr(Display, "prompt_until", prompt)
    monkeypatch.setattr(plugin, "load_extra_vars", lambda loader: loader)
    monkeypatch.setattr(setup_login.Machine, "reach", reach)
    monkeypatch.setattr(setup_login, "configured_user", lambda _address: "me-in-config")
    return here


def test_from_nothing_by_answering(world: World) -> None:
    world.questions = {"10.0.0.1": [HOST_KEY, "nvidia@10.0.0.1's password: "], "10.0.0.2": [HOST_KEY]}
    world.asks = ["10.0.0.1", "10.0.0.2"]
    result = world.run("10.0.0.1", "10.0.0.2", "", "", "", "yes", "login-1", FINGERPRINT, "pw-1")
    assert [(each["name"], each["user"], each["address"]) for each in result["machines"]] == [
        ("spark-1", "me-in-config", "10.0.0.1"), ("spark-2", "me-in-config", "10.0.0.2"),
    ]  # fmt: skip
    assert result["variables"] == {"ansible_user": "me-in-config", "gb10_profile": "b12x-fp8-1m", "gb10_model_store": "/srv/models"}
    assert (result["password"], result["_ansible_no_log"]) == ("pw-1", True)
    assert world.replies == [("10.0.0.1", "yes"), ("10.0.0.1", "login-1"), ("10.0.0.2", FINGERPRINT)]
    assert world.answers == []
    assert f"{FINGERPRINT}." in world.prompts[5]
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in world.prompts[5]
    assert world.prompts[5].endswith("Continue (yes/no/[fingerprint]):")
    assert "pw-1" not in world.screen + "".join(world.private)
    assert "login-1" not in world.screen + "".join(world.private)
    assert len(world.private) == 2


def test_the_password_of_a_login_is_not_shown_and_is_given_to_its_own_machine_only(world: World) -> None:
    """Also of a login with yes in its name."""
    world.questions = {"10.0.0.1": ["reyes@10.0.0.1's password: ", HOST_KEY, "Please type 'yes', 'no' or the fingerprint: "]}
    world.questions["10.0.0.2"] = ["reyes@10.0.0.2's password: "]
    world.run("login-1", "maybe", "yes", "login-2", extra=GIVEN)
    assert [each.partition("'")[0].split()[-1] for each in world.private] == ["reyes@10.0.0.1", "reyes@10.0.0.2"]
    assert world.replies == [("10.0.0.1", "login-1"), ("10.0.0.1", "maybe"), ("10.0.0.1", "yes"), ("10.0.0.2", "login-2")]


def test_with_all_answers_given_nothing_is_asked(world: World) -> None:
    world.asks, world.become_pass, world.interactive = ["10.0.0.2"], "pw-2", False
    assert world.run(extra=GIVEN)["password"] == "pw-2"


def test_a_second_run_proposes_the_answers_of_the_first(world: World) -> None:
    (world.folder / "group_vars").mkdir(parents=True)
    hosts = {f"spark-{number}": {"ansible_host": f"10.0.0.{number}"} for number in (1, 2)}
    (world.folder / "hosts.yml").write_text(yaml.safe_dump({"gb10": {"children": {"pair1": {"hosts": hosts}}}}), encoding="utf-8")
    values = {"ansible_user": "nvidia", "gb10_profile": "fp8-1m", "gb10_model_store": "{{ elsewhere }}"}
    (world.folder / "group_vars/gb10.yml").write_text(yaml.safe_dump(values), encoding="utf-8")
    result = world.run("", "", "", "", "")
    assert [each["address"] for each in result["machines"]] == ["10.0.0.1", "10.0.0.2"]
    assert result["variables"] == {"ansible_user": "nvidia", "gb10_profile": "fp8-1m", "gb10_model_store": "/srv/models"}
    (world.folder / "hosts.yml").write_text("- none\n", encoding="utf-8")
    assert world.run(extra=GIVEN)["variables"]["gb10_profile"] == "b12x-fp8-1m"


def test_an_invalid_answer_is_asked_again_with_the_reason(world: World) -> None:
    world.run("10.0.0.256", "10.0.0.1", "10.0.0.2", "-x", "a\x1b[D", "nvidia", "3", "2", "/data")
    for number, part in ((1, "not a valid IPv4"), (4, "login name"), (5, "login name"), (7, "gb10_profile is '3', expected one of b12x-fp8-1m")):
        assert part in world.prompts[number]
    assert "\x1b" not in world.screen


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({}, "no terminal to ask on. Add -e setup_head=VALUE"),
        ({"setup_head": "10.0.0.1"}, "-e setup_worker=VALUE"),
        ({"setup_head": "10.0.0.256", "setup_worker": "10.0.0.2"}, "setup_head is '10.0.0.256', which is not a valid IPv4 address"),
        ({**GIVEN, "setup_worker": "10.0.0.1"}, "setup_worker is the address of the first machine"),
        ({**GIVEN, "setup_user": "-x"}, "setup_user is '-x', expected a login name"),
        ({**GIVEN, "gb10_model_store": "models"}, "gb10_model_store is 'models', expected an absolute path"),
        ({**GIVEN, "gb10_profile": "fp8-1n"}, "gb10_profile is 'fp8-1n', expected one of b12x-fp8-1m, fp8-1m; did you mean fp8-1m"),
    ],
)  # fmt: skip
def test_without_a_terminal_one_sentence_names_what_is_missing(world: World, extra: dict[str, Any], words: str) -> None:
    world.interactive, world.questions = False, {"10.0.0.1": [HOST_KEY]}
    with pytest.raises(AnsibleActionFail) as raised:
        world.run(extra=extra)
    assert words in str(raised.value)
    assert world.replies == [], "no machine was contacted"


def test_the_user_can_stop_it(world: World) -> None:
    with pytest.raises(AnsibleActionFail, match="stopped by the user"):
        world.run("^C")


def test_two_addresses_of_one_machine_are_refused(world: World) -> None:
    world.same = True
    with pytest.raises(AnsibleActionFail, match="are the same machine"):
        world.run(extra=GIVEN)


def test_a_password_of_sudo_names_the_machines_that_get_it(world: World) -> None:
    world.asks = ["10.0.0.1", "10.0.0.2"]
    assert world.run("pw-1", extra=GIVEN)["password"] == "pw-1"
    assert "sudo on 10.0.0.1 and 10.0.0.2 asks for a password" in world.private[0]
    world.interactive = False
    with pytest.raises(AnsibleActionFail, match=r"no terminal to ask on\. sudo on .* Add -K \(--ask-become-pass\)"):
        world.run(extra=GIVEN)


def machine(rank: int, **more: Any) -> dict[str, Any]:
    """One machine of the first step."""
    return {"name": f"spark-{rank}", "address": f"10.0.0.{rank}", "user": "nvidia", "asks": False} | more


def propose(world: World, *answers: str, foreign: bool = False, extra: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Run the second step without a terminal."""
    world.interactive = bool(answers)
    given = {
        "machines": [machine(1), machine(2)], "nodes": [NODE, NODE], "fabrics": [cabled(last, foreign=foreign, nets=(192, 193)) for last in (1, 2)],
        "variables": {key: GIVEN[key] for key in ("gb10_profile", "gb10_model_store")} | {"ansible_user": "nvidia"},
    } | options  # fmt: skip
    return world.run(*answers, extra=extra, **given)


def written(world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return hosts and variables of the inventory."""
    hosts = yaml.safe_load((world.folder / "hosts.yml").read_text(encoding="utf-8"))["gb10"]["children"]["pair1"]["hosts"]
    return hosts, yaml.safe_load((world.folder / "group_vars/gb10.yml").read_text(encoding="utf-8"))


def test_addresses_of_another_tool_are_kept(world: World) -> None:
    assert propose(world, foreign=True, extra={"roce_foreign_policy": "adopt"})["changed"]
    hosts, values = written(world)
    assert (values["roce_foreign_policy"], values["gb10_fabric_cidrs"]) == ("adopt", ["192.168.192.0/24", "192.168.193.0/24"])
    assert hosts["spark-2"]["gb10_fabric_addresses"] == ["192.168.192.2", "192.168.193.2"]
    assert not propose(world, foreign=True, extra={"roce_foreign_policy": "adopt"})["changed"], world.screen


def test_the_policy_needs_an_answer_without_a_terminal(world: World) -> None:
    with pytest.raises(AnsibleActionFail, match="-e roce_foreign_policy=VALUE"):
        propose(world, foreign=True)
    assert not world.folder.exists()


def test_a_machine_that_could_not_be_read_is_named(world: World) -> None:
    lost = {"failed": True, "msg": "spark-2: the Python interpreter is missing. Install python3."}
    with pytest.raises(AnsibleActionFail, match=r"^spark-2 could not be read: the Python interpreter is missing"):
        propose(world, nodes=[NODE, lost])


def test_the_next_commands_have_the_option_of_sudo(world: World) -> None:
    propose(world, machines=[machine(1, asks=True), machine(2)])
    assert f"site.yml -i {world.folder} -K --check --diff" in world.screen


def test_a_file_with_other_content_is_replaced_after_a_question_and_kept(world: World) -> None:
    propose(world)
    hosts, values = written(world)
    assert values == {"ansible_user": "nvidia", "gb10_profile": "b12x-fp8-1m", "gb10_model_store": "/srv/models"}
    assert hosts == {"spark-1": {"ansible_host": "10.0.0.1"}, "spark-2": {"ansible_host": "10.0.0.2"}}
    path = world.folder / "group_vars/gb10.yml"
    mine = path.read_text(encoding="utf-8") + "vllm_tp2_api_key: do-not-print\n"
    path.write_text(mine, encoding="utf-8")
    for answers, words in (((), "-e setup_write=VALUE"), (("",), "Nothing was written")):
        with pytest.raises(AnsibleActionFail, match=words):
            propose(world, *answers)
        assert path.read_text(encoding="utf-8") == mine
    for kept in ("gb10.yml~", "gb10.yml1~"):  # lines of the owner are lost by no number of answers
        path.write_text(mine, encoding="utf-8")
        assert propose(world, "yes")["written"] == [str(path)]
        assert (path.with_name(kept)).read_text(encoding="utf-8") == mine
    assert "do-not-print" not in world.screen
    assert not propose(world)["changed"]


def test_what_cannot_be_written_is_reported(world: World) -> None:
    world.folder.mkdir()
    (world.folder / "group_vars").write_text("", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match=r"group_vars.* cannot be written"):
        propose(world)
