"""What the tests of the image and weights roles need on the lab: a model and an image of their own, and plays of a few lines."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import playbook
from container_lab import NODE, Lab

# The one place of a node that is a real file system: its other folders are the container's layers.
STORE = "/var/lib/docker/test-copy"
MODEL = f"{STORE}/copy-model"
IMAGE = "gb10-test/copy:1"
BASE = "gb10-lab/stub:1"
SHARDS = 4
SHARD_MIB = 512

PROFILE = {
    "summary": "Random bytes, to be copied",
    "image": {"reference": IMAGE, "pull": False},
    "model": {"id": "gb10-test/copy-model", "path": "/models/copy-model", "layout": "directory", "relative_path": "copy-model"},
    "engine": {"args": {"max-model-len": 4096}},
    "container": {"volumes": ["{model_store}:/models:ro"], "cache_dirs": ["{model_store}/copy-cache"]},
}
VARIABLES: dict[str, Any] = {
    "gb10_profile": "copy-test",
    "gb10_profiles": {"copy-test": PROFILE},
    "gb10_model_store": STORE,
    "weights_download": "never",
    "weights_reserve_gib": 0.1,
}

MAKE_MODEL = """
import json, os, sys
folder, shards, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(folder, exist_ok=True)
names = ["model-%05d-of-%05d.safetensors" % (i + 1, shards) for i in range(shards)]
for name in names:
    with open(os.path.join(folder, name), "wb") as sink:
        for _ in range(mib):
            sink.write(os.urandom(1 << 20))
index = {"metadata": {}, "weight_map": {"layer.%d" % i: name for i, name in enumerate(names)}}
open(os.path.join(folder, "model.safetensors.index.json"), "w").write(json.dumps(index))
open(os.path.join(folder, "config.json"), "w").write("{}")
"""


def play(lab: Lab, role: str, *arguments: str, **variables: Any) -> playbook.Run:
    """Run one role with the test's profile."""
    path = lab.folder / f"{role}.yml"
    path.write_text(json.dumps([{"hosts": "gb10", "gather_facts": False, "roles": [f"gb10.cluster.{role}"]}]), encoding="utf-8")
    return lab.play(str(path), *arguments, variables={**VARIABLES, **variables})


def result(run: playbook.Run, host: str, task: str) -> dict[str, Any]:
    """Return a task's result on a host."""
    for event in run.events:
        data = event.get("event_data", {})
        if event["event"] in ("runner_on_ok", "runner_on_failed") and data.get("host") == host and task in data.get("task", ""):
            return dict(data["res"])
    raise AssertionError(f"{task!r} did not run on {host}:\n{run.stdout[-3000:]}")


def make_model(node: int) -> None:
    """Put the model on a node."""
    subprocess.run(
        ["docker", "exec", "-i", f"{NODE}{node}", "python3", "-", MODEL, str(SHARDS), str(SHARD_MIB)], input=MAKE_MODEL, text=True, check=True, timeout=300
    )


def sums(lab: Lab, node: int) -> str:
    """Return the hashes of all of the model's files, as sha256sum sees them."""
    return lab.on(node, f"cd {MODEL} && find . -type f | LC_ALL=C sort | xargs sha256sum", timeout=120)


def clean(lab: Lab) -> None:
    """Remove all that these tests make."""
    for node in (1, 2):
        records = "cd /var/lib/gb10-cluster && rm -rf weights-copy-model-* image* build-pair1"
        lab.on(node, f"umount {STORE}/full 2>/dev/null; rm -rf {STORE}; {records}", check=False)
        lab.on(node, "docker images -q gb10-test/copy | xargs -r docker rmi -f", check=False)
