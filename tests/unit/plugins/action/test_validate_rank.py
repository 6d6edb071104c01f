"""The action plugin validate_rank: what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import validate_rank as plugin
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.kv_estimate import KIB_PER_GIB
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve


def run(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, Any]:
    monkeypatch.setattr(plugin, "compose_refusal", lambda _content: None)
    args = {
        "group": {"name": "pair1", "rank": 0, "hosts": ["a", "b"]}, "profile": resolve("b12x-fp8-1m", shipped_profiles(), {}),
        "compose": {"services": {"vllm": {"image": "x"}}}, "env": {"RANK": "0"}, "memory": {"total_kib": int(SPARK_GIB * KIB_PER_GIB)}, **arguments,
    }  # fmt: skip
    task = SimpleNamespace(args=args, check_mode=False, diff=False, async_val=0, resolved_action="", action="")
    module = plugin.ActionModule(task=task, connection=None, play_context=None, loader=None, templar=None, shared_loader_obj=None)
    out: dict[str, Any] = module.run(None, {"inventory_hostname": "a"})
    return out


def test_writes_the_files_of_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(monkeypatch, dest=str(tmp_path))["checked"]
    assert (out["path"], out["compose_check"]) == (str(tmp_path / "pair1"), "skipped, not installed here")
    assert (tmp_path / "pair1/rank0-a/environment").read_text(encoding="utf-8") == "RANK=0\n"


def test_a_folder_that_cannot_be_written_is_named_with_its_cause_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible adds the causes of an error to its message."""
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match=r"cannot be written: .*/out/pair1.*; give another folder with -e validate_output=DIR\.$"):
        run(monkeypatch, dest=str(tmp_path / "out"))
