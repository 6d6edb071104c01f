# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start, inspect and remove the container lab: `lab.py up|status|down`. See lab/README.md."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.version_info < (3, 12):
        raise SystemExit("The lab needs Python 3.12 or later; this is " + sys.version.split()[0] + ". `make lab` finds one and uses it.")
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from lab.container.cli import main

    raise SystemExit(main())
