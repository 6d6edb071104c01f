"""The try of a container's settings before anything is stopped: what it reports, and with which remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import trial

OTHER = 65534


CUDA, MOUNTS_OF_THIS_PROCESS = 'ctypes.CDLL("libcuda.so.1").cuInit(0)', "/proc/self/mountinfo"


def tried(env: dict[str, str] | None = None, other_user: bool = False, instead: tuple[str, str] = ("", ""), **wanted: Any) -> tuple[int, str]:
    """Run the script as the image's python3 would; return its exit code and output. `instead`: what stands for a part of it."""
    assert instead[0] in trial.PROBE_SCRIPT
    script = trial.PROBE_SCRIPT.replace(*instead) if instead[0] else trial.PROBE_SCRIPT
    asked = json.dumps({"devices": [], "cuda": False, "caches": trial.CACHES, "models": ["org/none"], "writable": True, "shared": 1, **wanted})
    # The image's files are readable for all users, those of this Python need not be: they are loaded before.
    first = f"import ctypes, errno, json, os, re, sys, tempfile, threading; os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})\n" if other_user else ""
    done = subprocess.run([sys.executable, "-IS", "-c", first + script, asked], capture_output=True, text=True, check=False, env=env or {})
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def test_what_works_is_silent_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    assert tried({"VLLM_CACHE_ROOT": str(tmp_path / "cache/vllm")}, models=[str(tmp_path / "model")], devices=["/dev/null"]) == (0, "")
    assert os.listdir(tmp_path) == ["model"]


def test_a_device_that_cannot_be_opened_is_named_with_its_variable() -> None:
    code, text = tried(devices=["/dev/infiniband/none9"])
    assert code == 3
    assert "/dev/infiniband/none9" in text
    assert "vllm_tp2_infiniband" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_cache_of_another_user_and_a_model_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    for name in ("cache", "model"):
        (tmp_path / name).mkdir(mode=0o700)
    code, text = tried({"VLLM_CACHE_ROOT": str(tmp_path / "cache")}, other_user=True, models=[str(tmp_path / "model")])
    assert code == 3
    found = [line.split(" (")[0] for line in text.splitlines()]
    assert found == [f"it cannot write into VLLM_CACHE_ROOT={tmp_path / 'cache'}", f"it cannot read {tmp_path / 'model'}"]
    assert text.count("vllm_tp2_cap_add: [DAC_OVERRIDE]") == 2


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        ("ctypes.CDLL('libcuda.so.1.none').cuInit(0)", ("libcuda.so.1.none", "library of the driver")),
        *[
            (code, (f"cuInit returns {code}", part))
            for code, part in (
                ("2", "compute mode"), ("3", "NOT_INITIALIZED"), ("34", "`stubs`"), ("36", "older CUDA"), ("46", "another process"),
                ("100", "CUDA_VISIBLE_DEVICES"), ("101", "NVIDIA_VISIBLE_DEVICES"), ("802", "fabric manager"), ("803", "Reboot the node"),
                ("804", "/usr/local/cuda/compat"), ("807", "CUDA_MPS_PIPE_DIRECTORY"), ("999", "dmesg"), ("12345", "the driver fails"),
            )
        ],
    ],
)  # fmt: skip
def test_cuda_that_does_not_start_names_the_gpu_and_its_driver_and_not_privileges(result: str, parts: tuple[str, ...]) -> None:
    code, text = tried(cuda=True, instead=(CUDA, result))
    assert code == 3
    assert text.startswith("CUDA does not start (")
    assert "\n" not in text
    for part in (*parts, "`nvidia-smi`", "`nvidia-ctk cdi list`", "--tags docker"):
        assert part in text
    assert "privileges" not in text
    assert "cap_add" not in text


@pytest.mark.parametrize("result", ["1", "304", "800"])
def test_cuda_that_is_not_permitted_names_the_privileges(result: str) -> None:
    code, text = tried(cuda=True, instead=(CUDA, result))
    assert (code, "vllm_tp2_no_new_privileges" in text, "vllm_tp2_cap_add: [ALL]" in text) == (3, True, True)


def test_cuda_that_starts_is_silent() -> None:
    assert tried(cuda=True, instead=(CUDA, "0")) == (0, "")


def test_shared_memory_that_is_too_small_is_named() -> None:
    code, text = tried(shared=1 << 24)  # 16 TiB
    assert code == 3
    assert text.startswith(f"it cannot use {1 << 24} MiB of /dev/shm (")
    assert "container.shm_size" in text
    assert "vllm_tp2_ipc: host" in text


MOUNTS = {
    "ro": (["8:1 /srv/models {}/models ro", "8:1 /srv/models/cache {}/models/cache rw", "8:2 /srv/models {}/other rw"], ""),
    "rw": (["8:1 /srv/models {}/models rw"], "models"),
    "a link to the folder above": (["8:1 /srv/models {}/models ro", "8:1 /srv {}/scratch rw"], "scratch"),
    "a part below is rw": (["8:1 /srv/models {}/models ro", "8:1 /srv/models/m {}/models/m rw"], "models/m"),
    "mounted over it": (["8:1 /srv/models {}/models rw", "8:3 / {}/models ro"], ""),
    "in the image": (["0:9 / / rw"], ""),
}


@pytest.mark.parametrize("name", MOUNTS)
def test_weights_that_the_engine_can_change_are_named_for_links_too(tmp_path: Path, name: str) -> None:
    lines, named = MOUNTS[name]
    (tmp_path / "a b/models/m").mkdir(parents=True)
    blank = str(tmp_path / "a b").replace(" ", "\\040")
    rows = ["1 0 0:9 / / rw - overlay x rw", *("2 1 {} {} {} {},relatime - ext4 x rw".format(*line.format(blank).split()) for line in lines)]
    (tmp_path / "mountinfo").write_text("\n".join(rows) + "\n", encoding="utf-8")
    model, mounts = f"{tmp_path}/a b/models/m", (MOUNTS_OF_THIS_PROCESS, str(tmp_path / "mountinfo"))
    for writable in (False, True):
        code, text = tried(instead=mounts, caches=[], models=[model], writable=writable)
        wrong = bool(named and not writable)
        assert (code, text.startswith(f"it can change the weights in {model} ({tmp_path}/a b/{named}/ is mounted writable): ")) == (3 if wrong else 0, wrong)
        assert ("vllm_tp2_weights_writable: true" in text) is wrong


def test_the_try_ends_by_itself(tmp_path: Path) -> None:
    """Signals are ignored, as they are by the first process of a container."""
    os.mkfifo(tmp_path / "weights")  # a read of it waits for ever
    begin = time.monotonic()
    script = trial.PROBE_SCRIPT.replace(f"= {trial.PROBE_SECONDS}, ", "= 1, ")
    asked = json.dumps({"devices": [], "cuda": False, "caches": [], "models": [str(tmp_path)], "writable": True, "shared": 1})
    words = ["timeout", "20", "env", "--ignore-signal=ALRM", sys.executable, "-IS", "-c", script, asked]
    assert subprocess.run(words, check=False, capture_output=True).returncode == trial.PROBE_TIMED_OUT
    assert time.monotonic() - begin < 15


def test_only_device_nodes_of_rdma_are_tried() -> None:
    profile = {"container": {"gpus": "none"}, "model": {"path": "org/name"}, "drafter": None}
    words = trial.probe_words(profile, ["/dev/infiniband/uverbs0:/dev/infiniband/uverbs0", "/dev/infiniband:/dev/infiniband", "/dev/kvm:/dev/kvm"])
    assert json.loads(words[-1])["devices"] == ["/dev/infiniband/uverbs0"]
