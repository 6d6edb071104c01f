# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/failures_doc.py: what a contributor reads after a mistake in failures.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import failures_doc

SOURCE = failures_doc.SOURCE.read_text(encoding="utf-8")
RACE = "      - 'Error in memory profiling'\n"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    needle: NCCL WARN\n", "", "The row 'nccl_warn' of benign has no needle. Add it."),
        ("    why: Another process rel", "    because: Another process rel", "The row 'memory_profiling_race' of failures has no why. Add it."),
        ("    any_level: true\n", "    anylevel: true\n", "The row 'rdma_register' of failures has the unknown key 'anylevel'. Use class, means,"),
        ("    any_level: true\n", "    any_level: often\n", "The row 'rdma_register' of failures has in any_level a value that is not true or false."),
        (RACE, "      - Error: profiling\n", "The row 'memory_profiling_race' of failures has in patterns a value that is not a list. Correct it"),
        (RACE, "      - 'Error (in memory'\n", "The row 'memory_profiling_race' of failures has an expression in patterns that is not valid (missing ), "),
        (RACE, "      - '(?:Error \\w+)*'\n", "The row 'memory_profiling_race' of failures has an expression in patterns that repeats a group that repeats"),
        (RACE, "      - '\\d+'\n", "The row 'memory_profiling_race' of failures has a pattern without a literal of three letters"),
        (RACE, "      - 'Error in {PROFILING}'\n", "The part {PROFILING} is not defined. Add it to parts, or correct the name."),
        ("    case: ray_memory\n", "", "failures has two rows with the name 'oom_killed'. Give one of them another case."),
        ("  - class: shm_full\n", "  - class: shm_full\n    case: full\n", "The class 'shm_full' has no row without a case."),
        ("    kind: strong\n", "    kind: strogn\n", "The row 'kv_too_small' of failures has the kind 'strogn'. Use strong, weak, tail."),
        ("at most {estimate}", "at most {estimat}", "The row 'kv_too_small' of failures has {estimat} in its remedy, and no expression with a group of this"),
        ("  - class: mamba_blocks", "  - class: kv_too_small\n    case: mamba", "The rows of the class 'kv_too_small' in failures do not stand together."),
        ("  addr_in_use, ", "  addr_in_usage, ", "transient has the unknown class 'addr_in_usage'. Correct it."),
        ("    show: xid\n", "", "The row 'gpu_xid' of kernel needs one of show and command. Add or remove one."),
        ("    boot_log: cuda_fault\n", "    boot_log: cuda_falt\n", "kernel has the unknown class 'cuda_falt' in boot_log. Correct it."),
        ("    severity: error\n", "    severity: fatal\n", "The row 'gpu_lost' of kernel has the severity 'fatal'. Use error or warning."),
        ("    least: 10\n", "    least: many\n", "The row 'driver_no_memory' of kernel has in least a value that is not a number."),
        ("benign:\n", "benign: [\n", "failures.yml is not valid YAML: "),
    ],
)  # fmt: skip
def test_names_the_class_and_the_mistake(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in SOURCE
    path = tmp_path / "failures.yml"
    path.write_text(SOURCE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SystemExit) as raised:
        failures_doc.load(path)
    assert sentence in str(raised.value)
