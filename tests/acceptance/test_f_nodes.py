"""What an owner has on the two nodes: each role alone, image and model equal on both, an undo, and other names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from acceptance import commands
from acceptance.commands import ROLES, SERVING, tags
from acceptance.owner import Owner

ONLY_SERVING = tags(SERVING)
IMAGE, MODEL = "gb10-net/other:1", "net-other"
SHARD = "model.safetensors"


class Other:
    """An image and a model of a second profile of the owner's own. Only the head has them, and the pair goes on serving the first profile."""

    def __init__(self, owner: Owner) -> None:
        self.owner, self.folder = owner, f"{owner.places.models}/{MODEL}"
        model = {"id": f"gb10-net/{MODEL}", "path": f"/models/{MODEL}", "served_names": [MODEL], "relative_path": MODEL}
        own = {**owner.variables()[commands.SETTINGS["profiles"]], "other": {"extends": owner.model, "image": {"reference": IMAGE}, "model": model}}
        self.settings: dict[str, Any] = {"profile": "other", "profiles": own, "lock_file": str(owner.folder / "other-lock.yml")}
        self.clean()
        owner.on(1, f"cp -r {owner.places.models}/{owner.model} {self.folder}")
        self.build("first")

    def build(self, word: str) -> None:
        """Build the image on the head, with a word in it."""
        base = self.owner.variables()[commands.SETTINGS["profiles"]][self.owner.model]["image"]["reference"]
        lines = f"FROM {base}\\nCOPY word /word\\n"
        folder = "/tmp/net-build"
        self.owner.on(
            1,
            f"mkdir -p {folder} && cd {folder} && echo {word} >word && printf '{lines}' >Dockerfile && docker build -q --network none -t {IMAGE} .",
            timeout=300,
        )

    def image(self, node: int) -> str:
        """Return the id of the image on a node; empty without one."""
        return self.owner.on(node, f"docker images -q --no-trunc {IMAGE}").strip()

    def sums(self, node: int) -> str:
        """Return the hashes of the model's files on a node."""
        return sums(self.owner, node, self.folder)

    def clean(self) -> None:
        """Remove both from the nodes, with what the collection noted about them."""
        for node in self.owner.nodes:
            self.owner.on(node, f"docker rmi -f {IMAGE} 2>/dev/null; rm -rf {self.folder} /var/lib/gb10-cluster/weights-{MODEL}-* /tmp/net-build", check=False)
        Path(str(self.settings["lock_file"])).unlink(missing_ok=True)


@pytest.fixture
def other(served: Owner) -> Iterator[Other]:
    """A second profile, whose image and model only the head has."""
    found = Other(served)
    yield found
    found.clean()


def sums(owner: Owner, node: int, folder: str) -> str:
    """Return the hashes of a folder's files on a node; empty without it."""
    return owner.on(node, f"cd {folder} 2>/dev/null && find . -type f | LC_ALL=C sort | xargs -r sha256sum || true")


@pytest.mark.quick
def test_a_setting_of_docker_is_changed_alone_as_the_check_run_reported(served: Owner) -> None:
    before, places = served.identity(), served.places
    daemon = [served.on(node, f"cat {places.daemon}") for node in served.nodes]
    limit = 4 * 1024 * 1024
    change: dict[str, Any] = {"locked_memory": str(limit), "log_driver": "local"}
    check = served.run("bring up", "--check", "--diff", *tags("docker"), **change).passed()
    assert [served.on(node, f"cat {places.daemon}") for node in served.nodes] == daemon
    run = served.run("bring up", *tags("docker"), **change).passed()
    try:
        assert run.roles == {"docker"}
        assert check.changes == run.changes != set()
        for node in served.nodes:
            found = json.loads(served.on(node, f"cat {places.daemon}"))
            assert (found["default-ulimits"]["memlock"]["Hard"], found["log-driver"]) == (limit, "local")
            assert str(limit) in served.on(node, f"cat {places.daemon_limits[0]}")
    finally:
        served.run("bring up", *tags("docker")).passed()
    assert [served.on(node, f"cat {places.daemon}") for node in served.nodes] == daemon
    assert (served.identity(), served.serves()) == (before, True)


@pytest.mark.quick
def test_an_image_and_a_model_of_the_head_are_copied_and_equal_while_the_pair_serves(other: Other, served: Owner) -> None:
    before = served.identity()
    assert (other.image(2), other.sums(2)) == ("", "")
    run = served.run("bring up", *tags("image", "weights"), **other.settings).passed().shows(rf"{IMAGE}: the same on lab-1, lab-2", r"equal on lab-1, lab-2")
    assert run.roles == {"image", "weights"}
    assert other.image(1) == other.image(2) != ""
    assert other.sums(1) == other.sums(2) != ""
    assert served.on(2, f"docker run --rm --network none --entrypoint cat {IMAGE} /word").strip() == "first"
    assert served.run("bring up", *tags("image", "weights"), **other.settings).passed().changes == set()
    assert (served.identity(), served.serves()) == (before, True)


@pytest.mark.quick
def test_a_damaged_file_of_the_model_is_named_and_repaired(served: Owner) -> None:
    before, folder = served.identity(), f"{served.places.models}/{served.model}"
    good = sums(served, 1, folder)
    served.on(2, f"printf damaged | dd of={folder}/{SHARD} bs=1 seek=3000 conv=notrunc status=none")
    assert sums(served, 2, folder) != good
    run = served.run("bring up", *tags("weights")).passed().shows(SHARD, "another content", "equal on lab-1, lab-2")
    assert run.changes
    assert sums(served, 1, folder) == sums(served, 2, folder) == good
    assert (served.identity(), served.serves()) == (before, True)


def test_an_image_that_is_not_the_one_of_the_lock_file_is_refused(served: Owner) -> None:
    before, lock = served.identity(), served.folder / "lock.yml"
    text = lock.read_text(encoding="utf-8")
    try:
        lock.write_text(re.sub(r"(?<=fingerprint: )\S+", "f" * 64, text), encoding="utf-8")
        run = served.run("bring up", lock_update=False).failed(str(lock), "delete this entry", "Nothing was stopped")
        assert run.changes == set()
    finally:
        lock.write_text(text, encoding="utf-8")
    assert (served.identity(), served.serves()) == (before, True)


def test_a_disk_without_room_is_told_before_a_copy_begins(other: Other, served: Owner) -> None:
    store = "/var/lib/docker/net-store"
    try:
        served.on(1, f"mkdir -p {store} && cp -r {other.folder} {store}/")
        served.on(2, f"mkdir -p {store} && mount -t tmpfs -o size=16m tmpfs {store}")
        run = served.run("bring up", *tags("weights"), **{**other.settings, "model_store": store})
        run.failed(r"lab-2 has [\d.]+ MiB free", "are to be copied", "model_store")
        assert served.on(2, f"ls -A {store}") == ""
    finally:
        served.on(2, f"umount {store}; rmdir {store}", check=False)
        served.on(1, f"rm -rf {store}")
    assert served.serves()


@pytest.mark.quick
def test_undo_of_serving_leaves_nothing_and_the_next_run_serves(served: Owner) -> None:
    places, model = served.places, f"{served.places.models}/{served.model}"
    kept = [sums(served, node, model) for node in served.nodes]
    served.undo(SERVING).passed()
    assert served.gone()
    for node in served.nodes:
        assert served.on(node, f"ls -d {places.folder} {places.agent} {places.caches} 2>/dev/null || true") == ""
        assert served.on(node, "docker ps -aq") == ""
        assert served.on(node, f"getent passwd {places.agent_user}; getent group {places.agent_user}", check=False) == ""
        assert served.on(node, "pgrep -fl '[g]b10.agent' || true") == ""
        assert served.on(node, "systemctl list-units --all --no-legend '*gb10*'; systemctl list-unit-files --no-legend '*gb10*' || true") == ""
    assert [sums(served, node, model) for node in served.nodes] == kept
    assert served.undo(SERVING).passed().changes == set()
    served.run("bring up", *ONLY_SERVING).passed()
    assert served.serves()


def test_undo_of_docker_gives_the_factory_settings_back(served: Owner) -> None:
    places, before = served.places, served.identity()
    ours = " ".join(places.daemon_limits)
    settings = [served.on(node, f"cat {places.daemon}") for node in served.nodes]
    served.undo("docker").passed()
    try:
        for node in served.nodes:
            assert served.on(node, f"ls -d {ours} 2>/dev/null || true") == ""
            factory = json.loads(served.on(node, f"cat {places.daemon} 2>/dev/null || echo '{{}}'"))
            assert not factory.keys() & {"default-ulimits", "log-driver", "log-opts"}
        assert served.undo("docker").passed().changes == set()
    finally:
        run = served.run("bring up", *tags("docker")).passed()
    assert run.changes
    assert [served.on(node, f"cat {places.daemon}") for node in served.nodes] == settings
    assert (served.identity(), served.serves()) == (before, True)


def test_undo_of_image_and_weights_removes_the_copies_alone(other: Other, served: Owner) -> None:
    before, both = served.identity(), tags("image", "weights")
    own = other.image(1), other.sums(1)
    served.run("bring up", *both, **other.settings).passed()
    assert (other.image(2), other.sums(2)) == own
    gone = ("-e", json.dumps({**commands.absent("image"), **commands.absent("weights")}))
    served.run("bring up", *both, *gone, **other.settings).passed()
    assert (other.image(2), other.sums(2)) == ("", "")
    assert (other.image(1), other.sums(1)) == own
    assert served.run("bring up", *both, *gone, **other.settings).passed().changes == set()
    assert (served.identity(), served.serves()) == (before, True)


def test_other_names_and_another_address_need_no_restart(served: Owner) -> None:
    """The worker has a second management address, and both hosts have other names."""
    served.run("bring up", *ONLY_SERVING).passed()  # prints the verdict of a restart that no run has read, with the names of then
    before, path = served.identity(), served.inventory / "hosts.yml"
    text = path.read_text(encoding="utf-8")
    inventory = yaml.safe_load(text)
    head, worker = inventory["gb10"]["children"]["pair1"]["hosts"].values()
    old = worker["ansible_host"]
    moved = {"ansible_host": old.replace(".12", ".112"), "ansible_ssh_extra_args": f"-o HostKeyAlias={old}"}
    inventory["gb10"]["children"]["pair1"]["hosts"] = {"desk": head, "shelf": {**worker, **moved}}
    device = served.on(2, f"ip -o -4 addr show | grep -F ' {old}/' | cut -d' ' -f2").strip()
    try:
        served.on(2, f"ip addr add {moved['ansible_host']}/24 dev {device}")
        path.write_text(yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8")
        run = served.run("bring up", *ONLY_SERVING).passed().shows("desk", "shelf", "pair1 serves")
        assert "lab-2" not in run.text
        assert served.identity() == before
        served.on_node("status").shows("desk", "shelf")
        served.run("status").passed().shows("shelf")
    finally:
        path.write_text(text, encoding="utf-8")
        served.run("bring up", *ONLY_SERVING).passed()
        served.on(2, f"ip addr del {moved['ansible_host']}/24 dev {device}", check=False)
    assert (served.identity(), served.serves()) == (before, True)


def test_each_tag_runs_its_role_alone(served: Owner) -> None:
    before = served.identity()
    for role in ROLES:
        run = served.run("bring up", *tags(role)).passed()
        assert (run.roles, run.changes) == ({role}, set()), run
    assert served.identity() == before
