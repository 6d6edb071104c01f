"""The GPU lab without a machine: what it lacks, what each node gets, the bundle on its way, and parts that are resumed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.container.plan import LabError
from lab.gpu import fake, nodes, pieces

ROOT = Path(__file__).resolve().parents[3]


def test_one_sentence_names_the_first_thing_that_a_machine_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ("nvidiactl", "nvidia0", "nvidia1")
    cases = (
        (1000, pair, "run it as root."),
        (0, (), "There is no "),
        (0, ("nvidiactl", "nvidia3"), "One GPU only (nvidia3 in "),
        (0, pair, "needs torch 2.11"),
    )
    for number, (user, devices, found) in enumerate(cases):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert found in fake.machine(tmp_path / str(number), *devices).missing()


def test_each_node_gets_one_gpu_under_its_own_name(tmp_path: Path) -> None:
    here = fake.machine(tmp_path, "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm")
    assert here.gpu_arguments(2)[:4] == ("--device", f"{tmp_path}/dev/nvidia10:/dev/nvidia10", "--device", f"{tmp_path}/dev/nvidiactl:/dev/nvidiactl")
    paths = [each["path"] for each in json.loads(nodes.cdi(here, 1))["devices"][0]["containerEdits"]["deviceNodes"]]
    assert paths == ["/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_bundle_is_unpacked_as_its_pieces_arrive_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    zstd = shutil.which("zstd") or pytest.skip("no zstd here")
    archives = []
    for name, size in (("first", 300), ("second", 5000), ("third", 10)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(os.urandom(size))
        subprocess.run(f"tar -c -C {tmp_path}/{name} . | zstd -q -o {tmp_path}/{name}.zst", shell=True, check=True)
        archives.append((name, tmp_path / f"{name}.zst"))
    folders = pieces.cut(archives, Path(zstd), tmp_path, piece=2000)
    home = tmp_path / "home"
    assert [pieces.take(folder, home) for folder in folders] == [["first"], [], ["second", "third"]]
    assert all((home / name / "file").read_bytes() == (tmp_path / name / "file").read_bytes() for name, _path in archives)
    assert [pieces.take(folder, home) for folder in folders] == [[], [], []]
    (home / "second.unpacked").unlink()
    (home / "pieces/piece.2").write_bytes(b"\0" * 2000)
    with pytest.raises(LabError, match="second of the bundle is damaged"):
        pieces.take(folders[1], home)


def test_a_part_that_is_started_again_runs_what_has_no_result_yet(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n@pytest.mark.skip\ndef test_c(): pass\n")

    def run(**more: str) -> str:
        env = {**os.environ, "GPU_LAB_PART": str(tmp_path / "x.jsonl"), "PYTHONPATH": str(ROOT), **more}
        words = [sys.executable, "-m", "pytest", "-p", "lab.gpu.results", "-q", "test_x.py"]
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stdout.splitlines()[-1]

    assert "1 failed, 1 passed, 1 skipped" in run()
    assert "3 deselected" in run()
    assert "1 failed, 1 skipped, 1 deselected" in run(GPU_LAB_AGAIN="1")
