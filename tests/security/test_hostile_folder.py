"""A file that root writes into a folder of another user gives that user nothing (S1)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import Outside
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings

SAMPLE = {"containers": [{"running": True}], "memory": {"available_kib": 1024, "total_kib": 2048}, "gpus": [], "rails": []}
NAME = "gb10_pair1.prom"
Writer = Callable[[Path], None]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the node that only root may read."""
    path = tmp_path / "shadow"
    path.write_text("root:$6$x\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def owner(tmp_path: Path, victim: Path) -> Iterator[Path]:
    """A folder whose owner puts a link to the victim in the place of each name that appears in it."""
    folder = tmp_path / "node-exporter"
    folder.mkdir()
    stopped = threading.Event()

    def loop() -> None:
        while not stopped.is_set():
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if not os.path.islink(folder / name):
                        os.unlink(folder / name)
                        os.symlink(victim, folder / name)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    yield folder
    stopped.set()
    thread.join(10)
    sys.setswitchinterval(interval)


def metrics(folder: Path) -> None:
    found = Outside({"group": "pair1", "rank": 1, "hosts": ["one", "two"]}, merged_settings({"textfile": str(folder)}), str(folder), dict)
    found.sampled(SAMPLE, -1.0)


WRITERS: dict[str, Writer] = {
    "metrics": metrics,
    "file of the agent": lambda folder: Folder(str(folder)).write(NAME, "x\n", 0o644),
    "file of the controller": lambda folder: write_atomically(str(folder / NAME), "x\n", 0o644),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_owner_of_a_folder_cannot_change_the_mode_or_text_of_another_file(owner: Path, victim: Path, writer: str) -> None:
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            WRITERS[writer](owner)
    assert victim.stat().st_mode & 0o777 == 0o600
    assert victim.read_text() == "root:$6$x\n"


def test_a_folder_that_becomes_a_link_during_a_write_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = tmp_path / "node-exporter", tmp_path / "etc"
    folder.mkdir()
    other.mkdir()
    sync = os.fsync

    def swapped(descriptor: int) -> None:
        sync(descriptor)
        if not folder.is_symlink():
            (planted,) = (name for name in os.listdir(folder) if name.startswith(".gb10-"))
            folder.rename(tmp_path / "before")
            folder.symlink_to(other)
            (other / planted).write_text("of another user\n")

    monkeypatch.setattr(os, "fsync", swapped)
    write_atomically(str(folder / NAME), "x\n", 0o644)
    assert not (other / NAME).exists()
    assert (tmp_path / "before" / NAME).read_text() == "x\n"


def test_a_write_that_fails_leaves_no_file_and_names_the_target(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(str(tmp_path / NAME), "x\n", 0o644)
    assert caught.value.filename == str(tmp_path / NAME)
    assert os.listdir(tmp_path) == [NAME]
