"""A second run of setup.yml changes only the lines of its answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._setup import inventory_text
from ansible_collections.gb10.cluster.plugins.module_utils._setup.inventory_text import GROUP, HOSTS, Host
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_files

PAIR = [Host("spark-1", "192.168.1.11"), Host("spark-2", "192.168.1.12")]
VALUES = {"ansible_user": "nvidia", "gb10_profile": "b12x-fp8-1m", "gb10_model_store": "/srv/models"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An inventory that setup.yml wrote."""
    mine = tmp_path / "inventories" / "mine"
    setup_files.write(mine, {HOSTS: "", GROUP: ""}, {HOSTS: inventory_text.hosts_text(PAIR), GROUP: inventory_text.group_text(VALUES)})
    return mine


def existing(folder: Path) -> setup_files.Existing:
    """Read it."""
    found = setup_files.read(folder)
    assert found is not None
    return found


def edited(folder: Path, hosts: list[Host], text: str | None = None) -> str:
    """Return hosts.yml, which is ``text``, with these machines."""
    if text is not None:
        (folder / HOSTS).write_text(text, encoding="utf-8")
    return setup_files.edited_hosts(existing(folder), hosts, folder / HOSTS)


def test_what_was_written_is_read_back(folder: Path) -> None:
    found = existing(folder)
    assert found.hosts == [("spark-1", {"ansible_host": "192.168.1.11"}), ("spark-2", {"ansible_host": "192.168.1.12"})]
    assert found.values == VALUES
    assert setup_files.read(folder.parent / "none") is None
    assert yaml.safe_load(found.texts[GROUP]) == VALUES


def test_equal_answers_change_nothing(folder: Path) -> None:
    found = existing(folder)
    assert edited(folder, PAIR) == found.texts[HOSTS]
    assert setup_files.edited_group(found.texts[GROUP], VALUES, folder / GROUP) == found.texts[GROUP]


def test_only_the_lines_of_new_answers_change(folder: Path) -> None:
    text = existing(folder).texts[GROUP].replace("gb10_profile: b12x-fp8-1m", "gb10_profile: 'fp8-512k'  # mine") + "roce_mtu: 1500  # switch\n"
    after = setup_files.edited_group(text, {"gb10_profile": "fp8-1m", "roce_foreign_policy": "adopt"}, folder / GROUP)
    assert "gb10_profile: fp8-1m  # mine\n" in after
    assert "roce_mtu: 1500  # switch\n" in after
    assert after.endswith("adopt, replace or refuse.\nroce_foreign_policy: adopt\n")
    changed = [line for line in setup_files.diff(folder, {GROUP: text}, {GROUP: after}) if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) == 5


def test_a_commented_variable_of_the_example_is_set_in_its_place(folder: Path) -> None:
    after = setup_files.edited_group("---\n# ansible_user: nvidia\ngb10_profile: p\n", {"ansible_user": "me"}, folder / GROUP)
    assert after == "---\nansible_user: me\ngb10_profile: p\n"
    assert yaml.safe_load(setup_files.edited_group("", {"ansible_user": "me"}, folder / GROUP)) == {"ansible_user": "me"}


def test_a_new_address_and_this_computer_are_edited_in_place(folder: Path) -> None:
    text = existing(folder).texts[HOSTS].replace("ansible_host: 192.168.1.12", "ansible_host: 192.168.1.12  # desk\n            ansible_port: 2222")
    text = text.replace("            ansible_port", "          ansible_port")
    after = edited(folder, [Host("x", "192.168.1.11", local=True), Host("y", "192.168.1.99")], text)
    hosts = yaml.safe_load(after)["gb10"]["children"]["pair1"]["hosts"]
    assert hosts == {
        "spark-1": {"ansible_host": "192.168.1.11", "ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
        "spark-2": {"ansible_host": "192.168.1.99", "ansible_port": 2222},
    }  # fmt: skip
    assert "192.168.1.99  # desk" in after
    remote = edited(folder, [Host("x", "192.168.1.11"), Host("y", "192.168.1.99")], after)
    assert "ansible_connection: ssh" in remote, "a run from another computer"


@pytest.mark.parametrize("name", ["spark-1.yml", "spark-1", "spark-1/ssh.yml"])
def test_what_host_vars_sets_is_known_and_stays_there(folder: Path, name: str) -> None:
    own = folder / "host_vars" / name
    own.parent.mkdir(parents=True)
    own.write_text("ansible_host: 10.0.0.1\nansible_port: 2222\n", encoding="utf-8")
    (folder / "host_vars/spark-2.yml~").write_text("ansible_host: 10.0.0.9\n", encoding="utf-8")
    found = existing(folder)
    assert found.hosts == [("spark-1", {"ansible_host": "10.0.0.1", "ansible_port": "2222"}), ("spark-2", {"ansible_host": "192.168.1.12"})]
    same = [Host("spark-1", "10.0.0.1", login={"ansible_port": "2222"}), PAIR[1]]
    assert edited(folder, same) == found.texts[HOSTS]
    with pytest.raises(AnsibleActionFail, match=rf"{name} sets ansible_host, which has to be 10\.0\.0\.2\. Change it there"):
        edited(folder, [Host("spark-1", "10.0.0.2"), PAIR[1]])


def test_a_variable_of_another_file_is_known(folder: Path) -> None:
    (folder / "group_vars" / "all.yml").write_text("gb10_profile: other\nsecret: x\n", encoding="utf-8")
    assert existing(folder).elsewhere == {"gb10_profile": str(folder / "group_vars" / "all.yml")}


def test_an_encrypted_value_is_not_read(folder: Path) -> None:
    (folder / GROUP).write_text("vllm_tp2_api_key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n", encoding="utf-8")
    assert existing(folder).values == {"vllm_tp2_api_key": None}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gb10:\n  children:\n    a: {hosts: {x: , y: }}\n    b: {hosts: {z: }}\n", "2 groups"),
        ("gb10:\n  children:\n    a:\n      hosts:\n        x:\n", "1 hosts"),
        ("gb10:\n  hosts: {x: , y: }\n", "0 groups"),
        ("key: [s3cret\n", "hosts.yml:2 is not valid YAML"),
        ("", "0 groups"),
    ],
)
def test_an_inventory_of_another_shape_is_refused_with_what_to_do(folder: Path, text: str, words: str) -> None:
    (folder / HOSTS).write_text(text, encoding="utf-8")
    with pytest.raises(AnsibleActionFail) as raised:
        setup_files.read(folder)
    assert words in str(raised.value)
    assert "setup_inventory=FOLDER" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_keeps_its_mode_and_a_file_that_changed_meanwhile_is_not_overwritten(folder: Path) -> None:
    before = existing(folder).texts
    (folder / GROUP).chmod(0o600)
    assert setup_files.write(folder, before, {**before, GROUP: "---\na: 1\n"}) == [str(folder / GROUP)]
    assert (folder / GROUP).stat().st_mode & 0o777 == 0o600
    with pytest.raises(AnsibleActionFail, match="changed by another process"):
        setup_files.write(folder, before, {**before, GROUP: "---\na: 2\n"})
    assert (folder / GROUP).read_text(encoding="utf-8") == "---\na: 1\n"


def test_a_diff_shows_no_neighbouring_line(folder: Path) -> None:
    before = "---\ngb10_profile: a\nvllm_tp2_api_key: sk-SECRET\n"
    assert "SECRET" not in "".join(setup_files.diff(folder, {GROUP: before}, {GROUP: before.replace(": a", ": b")}))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("gb10_model_store: &m /srv\nimage_dir: *m\n", r"gb10\.yml:1 has a value with an anchor"),
        ("base: &m /srv\ngb10_model_store: *m\n", r"gb10\.yml:1 has a value with an anchor"),
        ("a: 1\n...\n", r"gb10\.yml.* is not valid YAML"),
    ],
    ids=["anchor", "alias", "end of the document"],
)
def test_a_value_that_others_use_is_left_to_the_user(folder: Path, text: str, what: str) -> None:
    with pytest.raises(AnsibleActionFail, match=what):
        setup_files.edited_group(text, {"gb10_model_store": "/data"}, folder / GROUP)


@pytest.mark.parametrize("place", ["hosts", "all"])
def test_variables_of_other_places_are_read(folder: Path, place: str) -> None:
    text = existing(folder).texts[HOSTS]
    (folder / GROUP).write_text("---\n", encoding="utf-8")
    if place == "hosts":
        (folder / HOSTS).write_text(text.replace("gb10:\n", "gb10:\n  vars:\n    ansible_user: me\n"), encoding="utf-8")
    else:
        (folder / "group_vars/all.yml").write_text("ansible_user: me\n", encoding="utf-8")
    found = existing(folder)
    assert found.values["ansible_user"] == "me"
    assert found.elsewhere == {"ansible_user": str(folder / (HOSTS if place == "hosts" else "group_vars/all.yml"))}


@pytest.mark.parametrize("name", ["hosts.ini", GROUP])
def test_another_inventory_in_the_folder_is_not_mixed_with_a_new_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match=rf"{name} is there, and .*hosts\.yml is not"):
        setup_files.read(tmp_path)


def test_a_folder_of_group_variables_hides_the_file(folder: Path) -> None:
    (folder / "group_vars/gb10").mkdir()
    with pytest.raises(AnsibleActionFail, match="is a folder"):
        setup_files.read(folder)


def test_a_host_that_is_reached_by_its_name_stays_as_it_is(folder: Path) -> None:
    text = "gb10:\n  children:\n    pair1:\n      hosts:\n        spark-1:\n        spark-2:\n"
    assert edited(folder, [Host("spark-1", "spark-1"), Host("spark-2", "spark-2")], text) == text
