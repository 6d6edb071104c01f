"""Run one stage of `make test`: print its name, run the command, print its duration. `stage.py NAME -- COMMAND ...`."""

from __future__ import annotations

import subprocess
import sys
import time


def main() -> int:
    """Return the command's exit code."""
    name, dashes, *command = sys.argv[1:]
    assert dashes == "--", "usage: stage.py NAME -- COMMAND ..."
    print(f"=== {name}", flush=True)
    start = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    print(f"=== {name}: {'ok' if code == 0 else f'FAILED (exit code {code})'} in {time.monotonic() - start:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
