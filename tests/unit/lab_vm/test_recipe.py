"""When the lab builds again, where it keeps its files, and its messages about wrong settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.container.plan import LabError
from lab.vm import recipe


def test_the_first_lab_stands_on_the_ports_of_the_inventory() -> None:
    lab = recipe.lab_from({})
    assert (lab.container, lab.port(1), lab.port(2)) == ("gb10-vmlab", 22201, 22202)
    assert lab.state == recipe.CHECKOUT / ".lab" / "vm"


def test_a_second_lab_shares_nothing_but_the_built_images() -> None:
    first, second = recipe.lab_from({}), recipe.lab_from({"GB10_VMLAB_INSTANCE": "3"})
    assert {first.container, first.port(1), first.port(2)}.isdisjoint({second.container, second.port(1), second.port(2)})
    assert first.state != second.state
    assert first.images_volume == second.images_volume


def test_the_state_directory_follows_the_environment(tmp_path: Path) -> None:
    lab = recipe.lab_from({"GB10_VMLAB_DIR": str(tmp_path)})
    assert (lab.state, lab.key) == (tmp_path, tmp_path / "id_ed25519")


@pytest.mark.parametrize(
    ("name", "value"),
    [("INSTANCE", "10"), ("INSTANCE", "-1"), ("INSTANCE", "two"), ("MEMORY_MIB", "512"), ("MEMORY_MIB", "1.5G")],
)
def test_a_wrong_setting_is_named_with_its_value_and_range(name: str, value: str) -> None:
    with pytest.raises(LabError, match=rf"GB10_VMLAB_{name} is '{value}'; give a whole number from \d+ to \d+") as caught:
        recipe.lab_from({f"GB10_VMLAB_{name}": value})
    assert "\n" not in str(caught.value)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    (tmp_path / "build.sh").write_text("echo one\n")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "unit").write_text("[Unit]\n")
    return tmp_path


def test_the_same_recipe_is_built_once(copied: Path) -> None:
    before = recipe.guest_digest(copied)
    (copied / "__pycache__").mkdir()
    (copied / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert recipe.guest_digest(copied) == before


@pytest.mark.parametrize("change", ["content", "name", "mode", "new file"])
def test_a_changed_recipe_is_built_again(copied: Path, change: str) -> None:
    before = recipe.guest_digest(copied)
    if change == "content":
        (copied / "files" / "unit").write_text("[Unit]\n#\n")
    elif change == "name":
        (copied / "files" / "unit").rename(copied / "files" / "other")
    elif change == "mode":
        (copied / "build.sh").chmod(0o755)
    else:
        (copied / "more").write_text("")
    assert recipe.guest_digest(copied) != before


def test_parts_do_not_run_into_each_other() -> None:
    assert recipe.digest_of({"a": b"bc"}) != recipe.digest_of({"ab": b"c"})
    assert recipe.digest_of({"a": b"", "b": b"x"}) != recipe.digest_of({"a": b"x", "b": b""})
