# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The VM lab's command: `python3 lab/vm/vmlab.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.version_info < (3, 12):
        sys.exit("The VM lab needs Python 3.12 or newer; run it with the checkout's .venv/bin/python.")
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from lab.vm.cli import main

    sys.exit(main(sys.argv[1:]))
