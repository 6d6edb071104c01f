"""The GPU lab without a machine: what it lacks, what each node gets, the bundle on its way, and parts that are resumed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from lab.container.plan import LabError  # noqa: E402  the labs are programs, not an installed package
from lab.gpu import machine, nodes, pieces  # noqa: E402


def fake(home: Path, *devices: str) -> machine.Machine:
    (home / "dev").mkdir()
    for name in devices:
        (home / "dev" / name).symlink_to("/dev/null")
    return machine.Machine(home, devices=home / "dev", torch=home, driver=Path("/d"))


@pytest.mark.parametrize(
    ("user", "devices", "found"),
    [
        (1000, (), "run it as root."),
        (0, (), "There is no "),
        (0, ("nvidiactl", "nvidia3"), "One GPU only (nvidia3 in "),
        (0, ("nvidiactl", "nvidia0", "nvidia1"), "needs torch 2.11"),
    ],
)
def test_one_sentence_names_the_first_thing_that_a_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, devices: tuple[str, ...], found: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert found in fake(tmp_path, *devices).missing()


def test_each_node_gets_one_gpu_under_its_own_name(tmp_path: Path) -> None:
    here = fake(tmp_path, "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm")
    assert here.gpu_arguments(2)[:4] == ("--device", f"{tmp_path}/dev/nvidia10:/dev/nvidia10", "--device", f"{tmp_path}/dev/nvidiactl:/dev/nvidiactl")
    paths = [each["path"] for each in json.loads(nodes.cdi(here, 1))["devices"][0]["containerEdits"]["deviceNodes"]]
    assert paths == ["/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def stand_in() -> Any:
    loader = importlib.machinery.SourceFileLoader("stand_in", str(nodes.STAND_INS / "usr/local/sbin/nvidia-container-runtime"))
    spec = importlib.util.spec_from_loader("stand_in", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(("env", "given"), [(["NVIDIA_VISIBLE_DEVICES=all"], ["/dev/null"]), (["NVIDIA_VISIBLE_DEVICES=void"], []), ([], [])])
def test_the_stand_in_for_the_runtime_adds_gpus_to_a_container_that_asks(tmp_path: Path, env: list[str], given: list[str]) -> None:
    module, path = stand_in(), tmp_path / "config.json"
    edits = {"deviceNodes": [{"path": "/dev/null"}]}
    (tmp_path / "cdi.json").write_text(json.dumps({"containerEdits": {}, "devices": [{"name": "all", "containerEdits": edits}]}), encoding="ascii")
    module.CDI = str(tmp_path / "cdi.json")
    hooks = {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}, {"path": "/usr/bin/other"}]}
    path.write_text(json.dumps({"process": {"env": env}, "hooks": hooks, "linux": {"resources": {}}, "mounts": []}), encoding="ascii")
    module.prepare(str(path))
    made = json.loads(path.read_text(encoding="ascii"))
    assert [each["path"] for each in made["linux"].get("devices", [])] == given
    assert made["hooks"]["prestart"] == [{"path": "/usr/bin/other"}]


def test_a_bundle_is_unpacked_as_its_pieces_arrive_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    archives = []
    for name, size in (("first", 300), ("second", 5000), ("third", 10)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(os.urandom(size))
        subprocess.run(f"tar -c -C {tmp_path}/{name} . | zstd -q -o {tmp_path}/{name}.zst", shell=True, check=True)
        archives.append((name, tmp_path / f"{name}.zst"))
    folders = pieces.cut(archives, Path("/usr/bin/zstd"), tmp_path, piece=2000)
    home = tmp_path / "home"
    assert [pieces.take(folder, home) for folder in folders] == [["first"], [], ["second", "third"]]
    assert all((home / name / "file").read_bytes() == (tmp_path / name / "file").read_bytes() for name, _path in archives)
    assert [pieces.take(folder, home) for folder in folders] == [[], [], []]
    (home / "second.unpacked").unlink()
    (folders[1] / "piece.2").write_bytes(b"\0" * 2000)
    (home / "pieces/piece.2").unlink()
    with pytest.raises(LabError, match="second of the bundle is damaged"):
        pieces.take(folders[1], home)


def test_a_part_that_is_started_again_runs_what_has_no_result_yet(tmp_path: Path) -> None:
    text = "import pytest\ndef test_passes(): pass\ndef test_fails(): assert 0\n@pytest.mark.skip\ndef test_skips(): pass\n"
    (tmp_path / "test_x.py").write_text(text, encoding="ascii")

    def run(**more: str) -> str:
        env = {**os.environ, "GPU_LAB_PART": str(tmp_path / "x.jsonl"), "PYTHONPATH": str(ROOT), **more}
        words = [sys.executable, "-m", "pytest", "-p", "lab.gpu.results", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_x.py"]
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stdout.splitlines()[-1]

    assert "1 failed, 1 passed, 1 skipped" in run()
    assert "3 deselected" in run()
    assert "1 failed, 1 skipped, 1 deselected" in run(GPU_LAB_AGAIN="1")
