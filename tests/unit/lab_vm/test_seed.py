"""What is planted on a node's fresh disk, and the archive that carries it."""

from __future__ import annotations

import stat

from lab.vm import seed

KEYS = {"authorized": "ssh-ed25519 AAAA admin\n", "host_private": "PRIVATE\n", "host_public": "ssh-ed25519 BBBB host\n"}


def planted(node: int) -> dict[str, seed.Entry]:
    return {entry.path: entry for entry in seed.entries(node, **KEYS)}


def test_the_nodes_differ_in_everything_that_must_be_unique() -> None:
    for path in ("seed/etc/hostname", "seed/etc/machine-id"):
        assert planted(1)[path].data != planted(2)[path].data
    assert seed.management_address(1) != seed.management_address(2)


def test_secrets_are_closed_and_the_admins_things_are_the_admins() -> None:
    files = planted(1)
    assert stat.S_IMODE(files["seed/etc/ssh/ssh_host_ed25519_key"].mode) == 0o600
    assert files["seed/etc/ssh/ssh_host_ed25519_key"].owner == 0
    for path in ("seed/home/admin", "seed/home/admin/.ssh", "seed/home/admin/.ssh/authorized_keys"):
        assert files[path].owner == seed.ADMIN_ID
        assert stat.S_IMODE(files[path].mode) & 0o077 == 0
    assert files["seed/home"].owner == 0


def test_parents_come_before_what_is_in_them() -> None:
    paths = [entry.path for entry in seed.entries(1, **KEYS)]
    for number, path in enumerate(paths):
        if "/" in path:
            assert path.rsplit("/", 1)[0] in paths[:number]


def unpacked(archive: bytes) -> dict[str, tuple[int, int, bytes]]:
    """Read a newc archive as the kernel's Documentation/driver-api/early-userspace/buffer-format.rst describes it."""
    found: dict[str, tuple[int, int, bytes]] = {}
    at = 0
    while True:
        assert at % 4 == 0
        assert archive[at : at + 6] == b"070701"
        field = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, owner, size, name_size = field[1], field[2], field[6], field[11]
        name = archive[at + 110 : at + 110 + name_size]
        assert name.endswith(b"\0")
        data = (at + 110 + name_size + 3) // 4 * 4
        if name == b"TRAILER!!!\0":
            return found
        found[name[:-1].decode()] = (mode, owner, archive[data : data + size])
        at = (data + size + 3) // 4 * 4


def test_the_archive_reads_back_as_it_was_written() -> None:
    archive = [
        seed.Entry("dir", seed.DIRECTORY | 0o700, owner=1000),
        seed.Entry("dir/odd", seed.FILE | 0o640, b"12345"),
        seed.Entry("dir/empty", seed.FILE | 0o600),
        seed.Entry("link", seed.LINK | 0o777, b"dir/odd"),
    ]
    assert unpacked(seed.newc(archive)) == {entry.path: (entry.mode, entry.owner, entry.data) for entry in archive}


def test_an_archive_can_stand_behind_another() -> None:
    assert len(seed.newc(seed.entries(1, **KEYS))) % 4 == 0
