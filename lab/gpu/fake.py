# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine without a GPU for tests: /dev/zero under the names of an NVIDIA driver, and a program that counts them."""

from __future__ import annotations

from pathlib import Path

from lab.gpu.machine import Machine


def machine(home: Path, *devices: str) -> Machine:
    """Make a machine with these device nodes. Docker follows the links."""
    (home / "dev").mkdir(parents=True)
    for name in devices:
        (home / "dev" / name).symlink_to("/dev/zero")
    smi = home / "driver/bin/nvidia-smi"
    smi.parent.mkdir(parents=True)
    smi.write_text("#!/bin/sh\nls /dev | grep -c 'nvidia[0-9]'\n", encoding="ascii")
    smi.chmod(0o755)
    return Machine(home, devices=home / "dev", torch=home, driver=home / "driver")
