"""tools/limits.py: what counts as a line, and when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import limits

LONG_FILE = "x = 1\n" * 501
LONG_FUNCTION = "class C:\n    def f(self) -> None:\n" + "        pass\n" * 60
DOCUMENTED = 'DOCUMENTATION = r"""\n' + "text\n" * 400 + '"""\n' + "x = 1\n" * 500


def run(root: Path, allowed: dict[str, int], capsys: pytest.CaptureFixture[str], **files: str) -> tuple[int, list[str]]:
    (root / "tests").mkdir()
    (root / "tests/test_a.py").write_text(LONG_FILE)
    (root / "plugins").mkdir()
    for name, text in files.items():
        (root / f"plugins/{name}.py").write_text(text)
    return limits.main(root, allowed), capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("text", "allowed", "expected"),
    [
        pytest.param("x = 1\n", {}, [], id="short"),
        pytest.param(DOCUMENTED, {}, [], id="documentation is not counted"),
        pytest.param(DOCUMENTED + "x = 1\n", {}, ["plugins/a.py has 501 lines, expected at most 500. Split it."], id="long behind documentation"),
        pytest.param(LONG_FILE, {"plugins/a.py": 600}, [], id="shorter than allowed"),
        pytest.param(LONG_FILE + "x = 1\n", {"plugins/a.py": 501}, ["plugins/a.py has 502 lines, expected at most 501. Split it."], id="longer than allowed"),
        pytest.param("x = 1\n", {"plugins/a.py": 501}, ["plugins/a.py is within the limit. Remove it from ALLOWED."], id="no longer needed"),
        pytest.param(LONG_FUNCTION, {}, ["plugins/a.py:C.f has 61 lines, expected at most 60. Split it."], id="long function"),
        pytest.param(LONG_FUNCTION, {"plugins/a.py:C.f": 61}, [], id="allowed function"),
        pytest.param(LONG_FUNCTION.replace("pass", '"""Return nothing."""', 1), {}, [], id="a docstring is not counted"),
        pytest.param(LONG_FILE + LONG_FUNCTION, {"plugins/a.py:C.f": 61, "plugins/a.py": 563}, ["ALLOWED is not sorted. Sort it."], id="not sorted"),
    ],
)
def test_reports_what_is_too_long_and_what_is_not_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, allowed: dict[str, int], expected: list[str]
) -> None:
    code, lines = run(tmp_path, allowed, capsys, a=text)
    assert lines[:-1] == [f"tools/limits.py: {line}" for line in expected]
    assert code == bool(expected)


def test_fails_above_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUDGET", {**limits.BUDGET, "Python lines of tests/": (500, 100)})
    code, lines = run(tmp_path, {}, capsys, a="x = 1\n")
    assert (code, lines[0]) == (1, "tools/limits.py: Python lines of tests/: 501, and the budget is 500. Make something smaller.")
