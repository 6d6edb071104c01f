"""The last step of setup.yml: what it proposes for configuration of other tools, and what it writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail, AnsiblePromptNoninteractive
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import setup_inventory as plugin
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve

NODE = {
    "machine": {"arch": "aarch64", "product": "NVIDIA_DGX_Spark", "gb10": True},
    "dgx": {"present": True, "name": "DGX Spark", "base": "7.2.3", "ota": ""},
    "driver": {"loaded": "580"}, "kernel": {"release": "6.17", "reboot_required": False},
    "fabric": {"management": {"interface": "enP7s7", "address": "10.0.0.1", "wireless": False}},
    "disks": [{"path": "/srv/models", "device": "1:1", "free_gib": 100.0, "total_gib": 3666.0}],
}  # fmt: skip


def fabric(last: int, foreign: bool = True) -> dict[str, Any]:
    """Rails that NVIDIA Sync configured."""
    rails = [{"netdev": f"r{net}", "carrier": True, "cage": 0, "ipv4": f"10.100.{net}.{last}", "prefix": 24} for net in (192, 193)]
    addresses = {rail["netdev"]: [f"{rail['ipv4']}/24"] for rail in rails}
    files = [{"path": "/etc/netplan/99-nvidia-sync-cluster.yaml", "writer": "NVIDIA Sync", "parsed": True, "addresses": addresses}]
    return {"ports": rails, "rails": rails, "foreign": files if foreign else []}


def machine(rank: int, **more: Any) -> dict[str, Any]:
    """One machine of setup_access."""
    found = {"name": f"spark-{rank}", "address": f"10.0.0.{rank}", "user": "nvidia", "port": "", "key": ""}
    return found | {"local": False, "asks": False, "same_password": True} | more


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, fabrics: list[dict[str, Any]], asks: bool = False, **options: Any) -> tuple[dict[str, Any], str]:
    """Run the action without a terminal; return its result and what it printed."""
    lines: list[str] = []

    def no_terminal(*_args: Any, **_more: Any) -> bytes:
        raise AnsiblePromptNoninteractive("stdin is not interactive")

    monkeypatch.setattr(Display, "display", lambda _self, text, *_args, **_more: lines.append(str(text)))
    monkeypatch.setattr(Display, "prompt_until", no_terminal)
    monkeypatch.setattr(ActionBase, "run", lambda *_args, **_more: {})
    machines = [
        machine(1, asks=asks, same_password=not asks),
        machine(2, asks=asks, same_password=not asks),
    ]
    known = shipped_profiles()
    given = {
        "inventory": str(folder), "machines": machines, "nodes": [NODE, NODE], "fabrics": fabrics, "profile": None, "model_store": "/srv/models",
        "foreign_policy": None, "write": None, "profiles": {name: resolve(name, known, {}) for name in ("b12x-fp8-1m", "fp8-1m")},
    } | options  # fmt: skip
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    action.validate_argument_spec = lambda **_more: (None, given)
    return action.run(), "\n".join(lines)


def test_addresses_of_nvidia_sync_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, text = call(monkeypatch, tmp_path / "mine", [fabric(1), fabric(2)], foreign_policy="adopt")
    assert result["changed"]
    values = yaml.safe_load((tmp_path / "mine/group_vars/gb10.yml").read_text(encoding="utf-8"))
    assert (values["roce_foreign_policy"], values["gb10_fabric_cidrs"]) == ("adopt", ["10.100.192.0/24", "10.100.193.0/24"])
    hosts = yaml.safe_load((tmp_path / "mine/hosts.yml").read_text(encoding="utf-8"))["gb10"]["children"]["pair1"]["hosts"]
    assert hosts["spark-2"]["gb10_fabric_addresses"] == ["10.100.192.2", "10.100.193.2"]
    assert "Network configuration of NVIDIA Sync on the rails: /etc/netplan/99-nvidia-sync-cluster.yaml" in text
    assert "spark-1 has 100 GiB free at /srv/models. b12x-fp8-1m requires 183 GiB." in text
    again, text = call(monkeypatch, tmp_path / "mine", [fabric(1), fabric(2)])
    assert not again["changed"], text


def test_the_policy_needs_an_answer_without_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="setup_foreign_policy is not set"):
        call(monkeypatch, tmp_path / "mine", [fabric(1), fabric(2)])
    assert not (tmp_path / "mine").exists()


def test_a_machine_that_could_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lost = {"failed": True, "msg": "spark-2: the Python interpreter is missing. Install python3."}
    with pytest.raises(AnsibleActionFail, match=r"^spark-2 could not be read: the Python interpreter is missing"):
        call(monkeypatch, tmp_path / "mine", [fabric(1), fabric(2)], nodes=[NODE, lost])


def test_the_next_commands_have_the_option_of_sudo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _result, text = call(monkeypatch, tmp_path / "mine", [fabric(1, False), fabric(2, False)], asks=True)
    assert f"site.yml -i {tmp_path / 'mine'} -K --check --diff" in text
    assert "different passwords for sudo" in text


def test_a_value_of_another_file_is_not_written_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fabrics = [fabric(1, False), fabric(2, False)]
    call(monkeypatch, tmp_path / "mine", fabrics)
    (tmp_path / "mine/group_vars/all.yml").write_text("gb10_profile: fp8-1m\n", encoding="utf-8")
    path = tmp_path / "mine/group_vars/gb10.yml"
    path.write_text(path.read_text(encoding="utf-8").replace("gb10_profile: b12x-fp8-1m\n", ""), encoding="utf-8")
    result, _text = call(monkeypatch, tmp_path / "mine", fabrics)
    assert not result["changed"]
    with pytest.raises(AnsibleActionFail, match=r"gb10_profile is set in .*all\.yml"):
        call(monkeypatch, tmp_path / "mine", fabrics, profile="b12x-fp8-1m")


def test_how_ssh_reaches_a_machine_is_written_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines = [machine(1), machine(2, user="bob", port="2222", key="~/.ssh/spark")]
    fabrics = [fabric(1, False), fabric(2, False)]
    call(monkeypatch, tmp_path, fabrics, machines=machines)
    group = yaml.safe_load((tmp_path / "group_vars/gb10.yml").read_text(encoding="utf-8"))
    hosts = yaml.safe_load((tmp_path / "hosts.yml").read_text(encoding="utf-8"))["gb10"]["children"]["pair1"]["hosts"]
    assert group["ansible_user"] == "nvidia"
    assert hosts == {
        "spark-1": {"ansible_host": "10.0.0.1"},
        "spark-2": {"ansible_host": "10.0.0.2", "ansible_user": "bob", "ansible_port": 2222, "ansible_ssh_private_key_file": "~/.ssh/spark"},
    }  # fmt: skip
    assert not call(monkeypatch, tmp_path, fabrics, machines=machines)[0]["changed"]
    moved = [machines[0], {**machines[1], "user": "nvidia", "port": "22"}]
    assert call(monkeypatch, tmp_path, fabrics, machines=moved, write="yes")[0]["changed"]
    hosts = yaml.safe_load((tmp_path / "hosts.yml").read_text(encoding="utf-8"))["gb10"]["children"]["pair1"]["hosts"]
    assert (hosts["spark-2"]["ansible_user"], hosts["spark-2"]["ansible_port"]) == ("nvidia", 22)


def test_a_port_of_the_group_is_not_repeated_at_its_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fabrics = [fabric(1, False), fabric(2, False)]
    call(monkeypatch, tmp_path, fabrics)
    (tmp_path / "group_vars/all.yml").write_text("ansible_port: 2222\n", encoding="utf-8")
    machines = [machine(1, port="2222"), machine(2, port="2222")]
    assert not call(monkeypatch, tmp_path, fabrics, machines=machines)[0]["changed"]
