"""On each node: the same files, proven by their hashes, and nothing left of the copy."""

from __future__ import annotations

import hashlib
import json
from typing import Any

MODEL = "/var/lib/docker/molecule/molecule-model"
WEIGHTS = b"molecule\n" * 60000


def test_each_node_has_exactly_these_files(host: Any) -> None:
    assert host.check_output(f"ls -A {MODEL}").split() == ["config.json", "model.safetensors"]
    assert host.file(f"{MODEL}/model.safetensors").sha256sum == hashlib.sha256(WEIGHTS).hexdigest()
    assert host.file(f"{MODEL}/config.json").content_string == "{}\n"


def test_what_was_hashed_is_remembered(host: Any) -> None:
    [record] = host.check_output("ls -d /var/lib/gb10-cluster/weights-molecule-model-*").split()
    assert hashlib.sha256(WEIGHTS).hexdigest() in json.dumps(host.check_output(f"find {record} -type f -exec cat {{}} +"))


def test_nothing_is_left_of_the_copy(host: Any) -> None:
    assert host.check_output("ls -A /var/lib/docker/molecule").split() == ["molecule-model"]
    assert host.check_output("ls -A /run/gb10-cluster 2>/dev/null || true") == ""
    assert host.check_output("systemctl is-active 'gb10-copy-*' || true") in ("", "inactive")
