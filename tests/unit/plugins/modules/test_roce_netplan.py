"""roce_netplan through its own main(): plan, apply, confirm, take back, and each sentence with which it refuses.

The paths of its own files lie below a folder; netplan, systemd and ip are stand-ins, and `ip addr` shows what they were given.
What moves other people's files (roce_foreign_policy `replace`) needs a machine of its own and is proven in the VM lab.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import apply, netplan, restore
from ansible_collections.gb10.cluster.plugins.modules import roce_netplan
from unit.fixtures.roce.node import FakeNode
from unit.fixtures.roce.tree import ADDRESSES, PAIR, RAIL0, RAIL1, SPARK, V2, ZERO, bare, gid, spark, v4_gids

FOREIGN = (
    "network:\n  version: 2\n  ethernets:\n    enp1s0f0np0:\n      addresses: [{}]\n      mtu: 9000\n"
    "    enP2p1s0f0np0:\n      addresses: [{}]\n      mtu: 9000\n"
)


class Machine(FakeNode):
    """A Spark with netplan, NetworkManager and a place for the module's files."""

    root: Path

    def start(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Move every absolute path of the module below `root`."""
        self.root = root
        for name in ("STATE_DIR", "PENDING", "RESTORED", "BEFORE", "BACKUP_DIR"):
            monkeypatch.setattr(restore, name, f"{root}{getattr(restore, name)}")
        plain, real = netplan.OWN_PATH, netplan.read_files
        own = f"{root}/{plain}".lstrip("/")
        monkeypatch.setattr(netplan, "read_files", lambda files, *devices: real({plain if p == own else p: t for p, t in files.items()}, *devices))
        monkeypatch.setattr(netplan, "OWN_PATH", own)
        monkeypatch.setattr(netplan, "SYSCTL_PATH", f"{root}/{netplan.SYSCTL_PATH}".lstrip("/"))
        Path(restore.STATE_DIR).mkdir(parents=True)
        monkeypatch.setattr(apply, "RUN_FOLDERS", (f"{root}/run/systemd/network", f"{root}/run/NetworkManager/system-connections"))
        monkeypatch.setattr(apply, "GENERATORS", ())
        monkeypatch.setattr(apply, "SETTLE_SECONDS", 3)
        monkeypatch.setattr(roce_netplan, "container_reason", lambda _node: "")
        monkeypatch.setattr("os.geteuid", lambda: 0)
        self.before_read = self.own_file
        self.answers += [
            ("^netplan generate", self.generate),
            ("connection up", self.up),
            ("^/bin/ip ", self.ip),
            ("^/bin/sh -ec", self.save),
            (f"^/bin/sh {restore.BEFORE}/restore.sh", self.undo),
            (f"is-active --quiet (systemd-networkd|{restore.TIMER})", (3, "", "")),
        ]

    def own_file(self) -> None:
        """Show the module's own file to its reader."""
        place = Path("/" + netplan.OWN_PATH)
        shown = self.tree.root / "etc/netplan/60-gb10-cluster.yaml"
        shown.unlink(missing_ok=True)
        if place.exists():
            self.tree.file("etc/netplan/60-gb10-cluster.yaml", place.read_text())

    def generate(self, argv: list[str]) -> tuple[int, str, str]:
        """Write a keyfile per rail, and one for the management NIC which must not change."""
        folder = Path(argv[-1] + apply.RUN_FOLDERS[1])
        folder.mkdir(parents=True)
        place = Path(argv[-1], netplan.OWN_PATH)
        if place.exists():
            for name in re.findall(r"^    (\S+):$", place.read_text(), re.M):
                address = re.findall(r"- (\S+)", place.read_text().split(f"    {name}:\n")[1])[0]
                text = f"[connection]\nid=netplan-{name}\ninterface-name={name}\n\n[ipv4]\nmethod=manual\naddress1={address}\n"
                (folder / f"netplan-{name}.nmconnection").write_text(text)
        (folder / "netplan-enP7s7.nmconnection").write_text("")
        return 0, "", ""

    def up(self, argv: list[str]) -> tuple[int, str, str]:
        """Give a rail the values of our file."""
        name = argv[-1].replace("netplan-", "")
        text = Path("/" + netplan.OWN_PATH).read_text().split(f"    {name}:\n")[1].split("\n    en")[0]
        self.give(name, re.findall(r"- (\S+)", text), int(re.findall(r"mtu: (\d+)", text)[0]))
        return 0, "", ""

    def give(self, name: str, addresses: list[str], mtu: int) -> None:
        record = self.link(name)
        record["mtu"] = mtu
        record["addr_info"] = [{"family": "inet", "local": a.split("/")[0], "prefixlen": int(a.split("/")[1]), "scope": "global"} for a in addresses]
        self.gids(name)

    def gids(self, name: str, at: int = 2) -> None:
        """Put the GIDs of the first address of a port into its table, from this index on."""
        hca = next(row[1] for row in SPARK if row[0] == name)
        table = dict.fromkeys(range(2, 8), (V2, ZERO)) | v4_gids(next(iter(self.addresses(name)), None), at=at)
        for index, (kind, value) in table.items():
            gid(self.tree, hca, index, kind, value, name)

    def ip(self, argv: list[str]) -> tuple[int, str, str]:
        """Do what `ip` is asked to."""
        words = argv[1:]
        record = self.link(words[words.index("dev") + 1])
        if words[:2] in (["addr", "add"], ["addr", "replace"]):
            local, prefix = words[2].split("/")
            record["addr_info"].append({"family": "inet", "local": local, "prefixlen": int(prefix), "scope": "global"})
        elif words[:2] == ["addr", "del"]:
            record["addr_info"] = [a for a in record["addr_info"] if a["local"] != words[2].split("/")[0]]
        elif "mtu" in words:
            record["mtu"] = int(words[-1])
        self.gids(record["ifname"])
        return 0, "", ""

    def save(self, argv: list[str]) -> tuple[int, str, str]:
        """Make the files that the commands write."""
        folder = Path(re.findall(r"^cd (\S+)", argv[-1])[0])
        for name in re.findall(r">(\S+)", argv[-1]):
            (folder / name).write_text("saved")
        return 0, "", ""

    def undo(self, _argv: list[str]) -> tuple[int, str, str]:
        """Give back what test_restore.py shows that the script gives back."""
        for path in Path(restore.BEFORE).glob("*.link"):
            self.give(path.stem, [], 1500)
        shutil.rmtree(restore.BEFORE)
        return 0, "", ""

    def addresses(self, name: str) -> list[str]:
        """The addresses of a rail, live."""
        return [record["local"] for record in self.link(name)["addr_info"]]

    @property
    def own(self) -> str | None:
        """The text of the module's netplan file."""
        place = Path("/" + netplan.OWN_PATH)
        return place.read_text() if place.exists() else None


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that makes a machine of spark()'s arguments."""

    def machine(addresses: Any = None, **more: Any) -> Machine:
        node = Machine(monkeypatch, capsys, roce_netplan, spark(tmp_path / "node", addresses or {}, **{"mtu": 1500, **more}))
        node.start(tmp_path / "disk", monkeypatch)
        return node

    return machine


def present(node: Machine, **args: Any) -> dict[str, Any]:
    return node.call(**{"addresses": ADDRESSES, **args})


def confirmed(make: Any) -> Machine:
    """Return a machine whose rails are configured and confirmed."""
    node: Machine = make()
    present(node)
    node.call(state="confirmed")
    return node


# --- the way that works ----------------------------------------------------------------------------------------------------------


def test_a_fresh_node_gets_its_rails_and_waits_for_the_confirmation(make: Any) -> None:
    node = make()
    result = present(node)
    expected = {"changed": True, "pending": True, "managed": True, "restored": None, "firewall": False}
    assert ({key: result[key] for key in expected}, "failed" in result) == (expected, False)
    assert result["actions"][:2] == [f"write /{netplan.OWN_PATH}", f"write /{netplan.SYSCTL_PATH}"]
    assert [rail["netdev"] for rail in result["rails"]] == [RAIL0, RAIL1]
    assert node.own is not None
    assert "renderer: NetworkManager" in node.own
    assert Path("/" + netplan.OWN_PATH).stat().st_mode & 0o777 == 0o600
    assert f"-net/ipv4/conf/{RAIL1}/arp_announce = 2" in Path("/" + netplan.SYSCTL_PATH).read_text()
    # the timer is armed before NetworkManager is informed, and again at the end
    lines = [line for line in node.commands if "systemd-run" in line or "nmcli" in line]
    assert "--on-active=210s" in lines[0]
    assert lines[1] == "nmcli connection reload"
    assert "--on-active=120s" in lines[-1]
    connections = Path(apply.RUN_FOLDERS[1])
    assert sorted(path.name for path in connections.iterdir()) == [f"netplan-{RAIL1}.nmconnection", f"netplan-{RAIL0}.nmconnection"]
    assert (Path(restore.PENDING) / "restore.sh").exists()
    assert {f"{name}.{kind}" for name in (RAIL0, RAIL1) for kind in ("addr", "link", "route", "sysctl")} <= {
        path.name for path in Path(restore.BEFORE).iterdir()
    }
    assert result["diff"][0]["after"] == node.own


def test_confirmed_takes_the_way_back_away_and_the_second_run_changes_nothing(make: Any) -> None:
    node = make()
    present(node)
    done = node.call(state="confirmed")
    assert (done["confirmed"], done["pending"], done["changed"]) == (True, False, False)
    assert not Path(restore.PENDING).exists()
    assert node.ran(f"systemctl stop {restore.TIMER}.timer")
    node.commands.clear()
    again = present(node)
    assert (again["changed"], again["actions"], again["diff"], again["pending"]) == (False, [], [], False)
    assert not node.ran("systemd-run|netplan|nmcli|^/bin/ip")


def test_check_mode_shows_the_change_and_makes_none(make: Any) -> None:
    node = make()
    result = node.call(check=True, addresses=ADDRESSES)
    assert (result["changed"], result["pending"], node.own) == (True, False, None)
    assert any(f"give {RAIL0} 192.168.100.10/24 and MTU 9000 (now: no address, MTU 1500)" in action for action in result["actions"])
    assert not node.ran("systemd-run|nmcli|^/bin/ip")
    assert not Path(restore.BEFORE).exists()


def test_drift_is_put_right_on_the_rail_without_netplan(make: Any) -> None:
    node = confirmed(make)
    node.give(RAIL1, [], 1500)
    node.commands.clear()
    result = present(node)
    assert result["actions"] == [f"give {RAIL1} 192.168.101.10/24 and MTU 9000 (now: no address, MTU 1500)"]
    assert (result["changed"], result["pending"]) == (True, False)
    assert [entry["after"] for entry in result["diff"]] == [f"{result['actions'][0]}\n"]
    assert node.ran("^/bin/ip") == [f"/bin/ip link set dev {RAIL1} mtu 9000", f"/bin/ip addr add 192.168.101.10/24 brd + dev {RAIL1}"]
    assert not node.ran("systemd-run|nmcli")


def test_a_connection_that_does_not_come_up_is_reported_and_set_directly(make: Any) -> None:
    node = make()
    node.answers.insert(0, (f"connection up netplan-{RAIL1}", (4, "", "Error: Connection activation failed\n")))
    result = present(node)
    assert result["shown"] == [
        f"NetworkManager did not bring up {RAIL1}: Error: Connection activation failed",
        f"{RAIL1} stayed incomplete for 3 s; address and MTU were set directly.",
    ]
    assert f"/bin/ip addr add 192.168.101.10/24 brd + dev {RAIL1}" in node.commands


def test_networkd_where_networkmanager_does_not_run(make: Any) -> None:
    node = make()
    node.answers.insert(0, ("is-active --quiet NetworkManager", (3, "", "")))
    present(node)
    assert node.own is not None
    assert "renderer: networkd" in node.own


def test_absent_gives_back_what_stood_before(make: Any) -> None:
    node = confirmed(make)
    checked = node.call(check=True, state="absent")
    assert (checked["changed"], node.own is not None) == (True, True)
    result = node.call(state="absent")
    assert (result["changed"], result["pending"], node.own) == (True, True, None)
    restored = f"give {RAIL1}, {RAIL0} back what they were before the first run, of {restore.BEFORE}"
    assert result["actions"] == [f"remove /{netplan.OWN_PATH}", f"remove /{netplan.SYSCTL_PATH}", restored]
    assert (node.link(RAIL0)["addr_info"], node.link(RAIL0)["mtu"]) == ([], 1500)
    assert not Path(restore.BEFORE).exists()
    assert node.call(state="confirmed")["confirmed"] is True
    assert node.call(state="absent")["changed"] is False


def test_absent_when_our_file_was_removed(make: Any) -> None:
    """What netplan made of it is in force until netplan is applied again."""
    node = confirmed(make)
    Path("/" + netplan.OWN_PATH).unlink()
    assert node.call(check=True, state="absent")["changed"] is True
    assert node.addresses(RAIL0) == ["192.168.100.10"]
    result = node.call(state="absent")
    assert (result["changed"], result["pending"]) == (True, True)
    assert (node.addresses(RAIL0), node.addresses(RAIL1), node.link(RAIL0)["mtu"]) == ([], [], 1500)
    assert not list(Path(apply.RUN_FOLDERS[1]).glob("*"))
    node.call(state="confirmed")
    assert node.call(state="absent")["changed"] is False


# --- GID repair ------------------------------------------------------------------------------------------------------------------


def drifted(make: Any) -> Machine:
    """Return a machine of which the GID of the second rail has moved to index 5, and that puts it back at 3 with its address."""
    node = confirmed(make)
    node.gids(RAIL1, at=4)
    node.commands.clear()
    return node


def test_a_gid_that_drifted_is_repaired_once(make: Any) -> None:
    node = drifted(make)
    checked = node.call(check=True, addresses=ADDRESSES)
    assert (checked["changed"], node.ran("^/bin/ip")) == (True, [])
    result = present(node)
    assert checked["actions"] == result["actions"] == [f"remove and add 192.168.101.10/24 on {RAIL1} for its GID (now: index 5)"]
    assert node.ran("^/bin/ip") == [f"/bin/ip addr del 192.168.101.10/24 dev {RAIL1}", f"/bin/ip addr replace 192.168.101.10/24 brd + dev {RAIL1}"]
    assert (result["pending"], present(node)["changed"]) == (False, False)


def test_a_gid_in_use_is_left_and_reported(make: Any) -> None:
    node = drifted(make)
    node.users = ["VLLM::Worker (77)"]
    result = present(node)
    assert (result["changed"], node.ran("^/bin/ip")) == (False, [])
    assert result["shown"] == [f"The GIDs of {RAIL1} were left as they are, because VLLM::Worker (77) use(s) RDMA."]


def test_repair_can_be_switched_off(make: Any) -> None:
    assert present(drifted(make), gid_repair=False)["changed"] is False


def test_an_address_that_does_not_come_back_is_reported(make: Any) -> None:
    node = drifted(make)
    node.answers.insert(0, ("addr replace", (2, "", "RTNETLINK answers: Cannot assign requested address\n")))
    assert "Cannot assign requested address" in present(node)["msg"]


# --- other people's files --------------------------------------------------------------------------------------------------------


def test_a_foreign_file_is_refused(make: Any) -> None:
    node = make(PAIR)
    node.tree.file("etc/netplan/40-cx7.yaml", FOREIGN.format(*ADDRESSES))
    result = present(node)
    assert result["failed"] is True
    assert result["msg"] == (
        "/etc/netplan/40-cx7.yaml (NVIDIA's playbook, sparkrun or a fleet tool) configures enp1s0f0np0: 192.168.100.10/24; enP2p1s0f0np0: 192.168.101.10/24."
        " Nothing was changed: set roce_foreign_policy to `adopt` (the file stays in charge) or `replace` (it is moved to a backup), or remove it."
    )
    assert (result["pending"], node.own) == (False, None)


def test_a_foreign_file_is_adopted(make: Any) -> None:
    node = make(PAIR, mtu=9000)
    node.tree.file("etc/netplan/40-cx7.yaml", FOREIGN.format(*ADDRESSES))
    result = present(node, foreign="adopt")
    assert (result.get("failed"), result["pending"], node.own) == (None, False, None)
    assert result["actions"] == [f"write /{netplan.SYSCTL_PATH}"]


def test_an_adopted_file_that_gives_something_else(make: Any) -> None:
    node = make(PAIR)
    node.tree.file("etc/netplan/40-cx7.yaml", FOREIGN.format("10.0.9.1/24", ADDRESSES[1]))
    result = present(node, foreign="adopt")
    assert f"/etc/netplan/40-cx7.yaml gives {RAIL0} 10.0.9.1/24, expected 192.168.100.10/24" in result["msg"]
    good = node.call(check=True, addresses=["10.0.9.1/24", ADDRESSES[1]], foreign="adopt")
    assert f"{RAIL0} does not have what its adopted file configures (10.0.9.1/24, MTU 9000)." in good["shown"]


# --- refusals --------------------------------------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no address": ({"addresses": []}, "This node has no fabric address; set gb10_fabric_cidrs"),
    "no prefix": ({"addresses": ["192.168.100.10"]}, "The address 192.168.100.10 has no prefix length; write it like 192.168.100.10/24."),
    "a name that is not there": ({"interfaces": [RAIL0, "enp9s0"]}, "The interface enp9s0 of rail 1 does not exist on this node"),
    "management": ({"interfaces": ["enP7s7", RAIL1]}, "enP7s7 carries the default route, so the roce role does not change it. "),
    "a network in use": ({"addresses": ["10.0.1.9/24", ADDRESSES[1]]}, f"The fabric network 10.0.1.0/24 of {RAIL0} overlaps 10.0.1.60/24 on enP7s7"),
    "too many": ({"addresses": [f"192.168.{n}.10/24" for n in range(100, 105)]}, "1 configured rail(s) (192.168.104.10) have no port; this node has "),
}


def answers(pattern: str, answer: Any) -> Callable[[Machine], None]:
    return lambda node: node.answers.insert(0, (pattern, answer))


def unreadable(node: Machine) -> None:
    (node.tree.root / "etc/netplan/50-x.yaml").mkdir(parents=True)


# What the node is like, what is changed on it, the arguments, the sentence.
BLOCKED: dict[str, tuple[dict[str, Any], Callable[[Machine], Any], dict[str, Any], str]] = {
    "no cable": ({"up": ()}, lambda _node: None, {}, "^No port has a link.*Plug the QSFP cable"),
    "no card": (
        {}, lambda node: setattr(node, "tree", bare(node.root / "bare")), {}, r"^No mlx5 device is visible\.",
    ),
    "the SSH session": (
        {"addresses": PAIR}, lambda _node: None, {"ssh_connection": "192.168.100.11 5000 192.168.100.10 22"},
        f"{RAIL0} carries the SSH session, so the roce role does not change it",
    ),
    "RDMA in use": (
        {}, lambda node: setattr(node, "users", ["VLLM::Worker (77)"]), {},
        rf"^VLLM::Worker \(77\) use\(s\) RDMA on this node, and changing {RAIL0}, {RAIL1} would break that; nothing was changed\. Stop the serving group",
    ),
    "no netplan": ({}, lambda node: node.missing.add("netplan"), {}, "^The command `netplan` is missing: install netplan.io"),
    "netplan refuses": (
        {}, answers("^netplan generate", lambda argv: (1, "", f"{argv[-1]}/etc/netplan/1.yaml:3:1: Invalid YAML\n")), {},
        "^netplan refuses the new configuration, so nothing was changed: /etc/netplan/1.yaml:3:1: Invalid YAML$",
    ),
    "no timer": (
        {}, answers("systemd-run", (1, "", "Failed to connect to bus\n")), {},
        r"^The timer that restores the network could not be started \(Failed to connect to bus\); nothing was changed\.",
    ),
    "a file that cannot be read": ({}, unreadable, {}, r"^Could not read /etc/netplan/50-x\.yaml \(not a regular file\); run as root"),
    **{name: ({}, lambda _node: None, args, re.escape(sentence)) for name, (args, sentence) in REFUSALS.items()},
}  # fmt: skip


@pytest.mark.parametrize(("spark_is", "change", "args", "sentence"), BLOCKED.values(), ids=BLOCKED.keys())
def test_a_node_that_cannot_get_rails_now_is_not_changed(
    make: Any, spark_is: dict[str, Any], change: Callable[[Machine], Any], args: dict[str, Any], sentence: str
) -> None:
    node = make(**spark_is)
    change(node)
    result = present(node, **args)
    assert result["failed"] is True
    assert re.search(sentence, result["msg"]), result["msg"]
    assert (result["pending"], node.own) == (False, None)
    assert not node.ran("nmcli|^/bin/ip")


def test_absent_does_not_touch_what_became_the_management_path(make: Any) -> None:
    node = confirmed(make)
    result = node.call(state="absent", ssh_connection="192.168.100.11 5000 192.168.100.10 22")
    assert result["msg"] == (
        f"{RAIL0} carries the default route or this SSH session now, so it is not changed; nothing was changed. Move that to another interface first."
    )
    assert node.own is not None


def test_not_root(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert present(node)["msg"] == "roce_netplan reads and writes files of root; set become: true."


@pytest.mark.parametrize(("state", "extra"), [("present", {"rails": []}), ("confirmed", {"confirmed": False}), ("absent", {})])
def test_a_container_is_left_alone(make: Any, monkeypatch: pytest.MonkeyPatch, state: str, extra: dict[str, Any]) -> None:
    node = make()
    monkeypatch.setattr(roce_netplan, "container_reason", lambda _node: "docker")
    monkeypatch.setattr(roce_netplan, "FIREWALL", __file__)
    result = present(node, state=state)
    assert result["firewall"] is True
    assert (result["managed"], result["changed"], result["pending"], node.commands) == (False, False, False, [])
    assert result["shown"] == ["This is a container (docker): its rails belong to the host, so nothing is written here."]
    assert {key: result[key] for key in extra} == extra


# --- the way back ----------------------------------------------------------------------------------------------------------------


def test_nothing_waits_for_a_confirmation(make: Any) -> None:
    node = make()
    result = node.call(state="confirmed")
    assert result["failed"] is True
    assert result["msg"].startswith("No change waits for its confirmation on this node: the connection was lost before the change began")
    assert node.call(check=True, state="confirmed").get("failed") is None


def test_a_restore_is_reported_once(make: Any) -> None:
    node = make()
    sentence = "At 2026-11-20T10:00:00Z this node put its network back as it was before (write x), because the change was not confirmed within 120 s."
    record = {"when": "2026-11-20T10:00:00Z", "message": sentence}
    Path(restore.RESTORED).write_text(json.dumps(record))
    confirmed = node.call(state="confirmed")
    assert confirmed["msg"] == f"{sentence} The fabric is not as configured: look at {restore.STATE_DIR}/restore.log on the node."
    assert not Path(restore.RESTORED).exists()
    Path(restore.RESTORED).write_text(json.dumps(record))
    result = present(node)
    assert (node.warnings, result["restored"]["message"]) == ([sentence], sentence)
    assert present(node)["restored"] is None


def test_a_change_that_no_run_has_confirmed_is_confirmed_by_the_next_one(make: Any) -> None:
    """Also after a restart of the node, which ends the timer."""
    node = make()
    present(node)
    again = present(node)
    assert (again["changed"], again["pending"]) == (False, True)
    result = present(node, mtu=4000)
    assert (result.get("failed"), result["pending"]) == (None, True)
    first, second = node.ran(f"^/bin/sh -ec cd {restore.STATE_DIR}/staging")
    assert f" /{netplan.OWN_PATH}" not in re.findall("tar .*", first)[0]
    assert f" /{netplan.OWN_PATH}" in re.findall("tar .*", second)[0], "the first change stays"
    assert node.call(state="confirmed")["confirmed"] is True
