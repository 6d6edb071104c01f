"""When the lab builds again, where it keeps its files, and its messages about wrong settings."""

from __future__ import annotations

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


@pytest.mark.parametrize(("name", "value"), [("INSTANCE", "10"), ("INSTANCE", "-1"), ("INSTANCE", "two"), ("MEMORY_MIB", "512"), ("MEMORY_MIB", "1.5G")])
def test_a_wrong_setting_is_named_with_its_value_and_range(name: str, value: str) -> None:
    with pytest.raises(LabError, match=rf"GB10_VMLAB_{name} is '{value}'; give a whole number from \d+ to \d+") as caught:
        recipe.lab_from({f"GB10_VMLAB_{name}": value})
    assert "\n" not in str(caught.value)
