"""Write the ELF kernel that a compressed Linux image carries: unpack_kernel.py VMLINUZ OUT."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ELF_MAGIC = b"\x7fELF"


def elf_in(image: bytes) -> bytes:
    """Return the first zstd stream of the image that unpacks to an ELF file."""
    start = image.find(ZSTD_MAGIC)
    while start >= 0:
        unpacked = subprocess.run(["zstd", "-dcq"], input=image[start:], capture_output=True, check=False).stdout
        if unpacked.startswith(ELF_MAGIC):
            return unpacked
        start = image.find(ZSTD_MAGIC, start + 4)
    raise SystemExit("No zstd-compressed ELF kernel found in the image; Debian's kernel packaging has changed.")


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(elf_in(Path(sys.argv[1]).read_bytes()))
