# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bundle on its way: archives as one run of bytes, cut into pieces, and unpacked on the other machine as far as the pieces reach."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.container.host import report
from lab.container.plan import LabError

PIECE = 55_500_000  # bytes: a call to the machine carries 64 MiB at most, the checkout included
MANIFEST = "manifest.json"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A tree as a tar archive under zstd: its name, and its place in the run of bytes."""

    name: str
    start: int
    size: int
    sha256: str


def cut(archives: Sequence[tuple[str, Path]], zstd: Path, out: Path, piece: int = PIECE) -> list[Path]:
    """Cut archives into the folders p1, p2 ... of `out`. Each has a piece and the manifest; the first one has zstd too."""
    for old in out.glob("p[0-9]*"):
        shutil.rmtree(old)
    found, folders, at = [], [], 0
    for name, path in archives:
        digest = hashlib.sha256()
        with path.open("rb") as source:
            begin = at
            while block := source.read(min(BLOCK, piece - at % piece)):
                folder = out / f"p{at // piece + 1}"
                folder.mkdir(exist_ok=True)
                with (folder / f"piece.{at // piece + 1}").open("ab") as part:
                    part.write(block)
                digest.update(block)
                at += len(block)
                if folder not in folders:
                    folders.append(folder)
        found.append(Archive(name, begin, at - begin, digest.hexdigest()))
    text = json.dumps({"piece": piece, "archives": [asdict(each) for each in found]}, indent=1)
    for folder in folders:
        (folder / MANIFEST).write_text(text + "\n", encoding="ascii")
    shutil.copy2(zstd, folders[0] / "zstd")
    return folders


def read(store: Path, archive: Archive, piece: int) -> Iterator[bytes]:
    """Yield the bytes of an archive from the pieces in `store`; OSError or LabError if they do not reach."""
    at, end = archive.start, archive.start + archive.size
    while at < end:
        path = store / f"piece.{at // piece + 1}"
        with path.open("rb") as part:
            part.seek(at % piece)
            block = part.read(min(BLOCK, end - at, piece - at % piece))
        if not block:
            raise LabError(f"{path} ends too early: take that piece again.")
        yield block
        at += len(block)


def unpack(store: Path, archive: Archive, piece: int, target: Path) -> None:
    """Unpack one archive into a fresh folder, and check its sum."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    zstd = store / "zstd" if (store / "zstd").exists() else Path(shutil.which("zstd") or "zstd")
    digest = hashlib.sha256()
    with (
        subprocess.Popen([zstd, "-q", "-dc", "--long=27"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as plain,
        subprocess.Popen(["tar", "-x", "--numeric-owner", "-C", target], stdin=plain.stdout) as tar,
    ):
        assert plain.stdin is not None
        assert plain.stdout is not None
        plain.stdout.close()
        for block in read(store, archive, piece):
            digest.update(block)
            plain.stdin.write(block)
        plain.stdin.close()
    if plain.returncode or tar.returncode or digest.hexdigest() != archive.sha256:
        raise LabError(f"The archive {archive.name} of the bundle is damaged: take its pieces again.")


def take(folder: Path, home: Path) -> list[str]:
    """Keep a piece, and unpack the archives that are complete by now into `home`; the names of those that were unpacked. A second call does nothing."""
    store = home / "pieces"
    if (store / MANIFEST).is_file() and (store / MANIFEST).read_bytes() != (folder / MANIFEST).read_bytes():
        shutil.rmtree(store)  # pieces of another bundle
    store.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if not (store / path.name).is_file() or (store / path.name).stat().st_size != path.stat().st_size:
            shutil.copy2(path, store / path.name)
    manifest = json.loads((store / MANIFEST).read_text(encoding="ascii"))
    done = []
    for each in manifest["archives"]:
        archive, mark = Archive(**each), home / f"{each['name']}.unpacked"
        last = (archive.start + archive.size - 1) // manifest["piece"] + 1
        needed = [store / f"piece.{number}" for number in range(archive.start // manifest["piece"] + 1, last + 1)]
        if not all(path.is_file() for path in needed) or (mark.is_file() and mark.read_text(encoding="ascii") == archive.sha256):
            continue
        unpack(store, archive, manifest["piece"], home / archive.name)
        mark.write_text(archive.sha256, encoding="ascii")
        report(f"unpacked {archive.name}")
        done.append(archive.name)
    return done
