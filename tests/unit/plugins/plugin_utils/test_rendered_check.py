"""The check of a rendered rank without its node: what it writes and refuses. tests/contract/test_validate.py has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.kv_estimate import KIB_PER_GIB
from ansible_collections.gb10.cluster.plugins.plugin_utils import rendered_check
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.serving_plan import Place
from shipped_profiles import SHIPPED


def check(monkeypatch: pytest.MonkeyPatch, dest: Path | None = None, gib: float = SPARK_GIB, **options: Any) -> tuple[dict[str, Any], list[str]]:
    monkeypatch.setattr(rendered_check, "compose_refusal", lambda _content: None)
    group = {"name": "pair1", "rank": 0, "hosts": ["a", "b"]}
    place = Place(group, {"plan": "enforce", "allow_unsafe_memory": False, **options}, resolve("dspark-nvfp4-1m-seed", SHIPPED), {})
    rendered = {"compose": {"services": {"vllm": {"image": "x"}}}, "env": {"RANK": "0"}, "secret_names": []}
    return rendered_check.check(place, "a", rendered, {"total_kib": int(gib * KIB_PER_GIB)}, 22, str(dest or ""))


def test_writes_the_files_of_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _warnings = check(monkeypatch, tmp_path)
    assert (out["path"], out["compose_check"]) == (str(tmp_path / "pair1"), "skipped, not installed here")
    assert (tmp_path / "pair1/rank0-a/environment").read_text(encoding="utf-8") == "RANK=0\n"
    assert check(monkeypatch)[0]["path"] == "", "nothing is written without validate_output"


def test_a_folder_that_cannot_be_written_is_named_with_its_cause_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible adds the causes of an error to its message."""
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match=r"cannot be written: .*/out/pair1.*; give another folder with -e validate_output=DIR\.$"):
        check(monkeypatch, tmp_path / "out")


@pytest.mark.parametrize(("mode", "text"), [("report", "at least 1,890,000 are needed"), ("off", "The KV pool is not estimated: vllm_tp2_plan is off.")])
def test_a_refused_estimate_ends_an_enforced_check_alone(mode: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleActionFail, match=r"^pair1: .*Set yours with -e validate_memory \(KiB\), or set vllm_tp2_plan=report\.$"):
        check(monkeypatch, tmp_path, gib=119.63)
    assert not list(tmp_path.iterdir())
    assert text in check(monkeypatch, tmp_path, gib=119.63, plan=mode)[0]["pool"]["text"]
