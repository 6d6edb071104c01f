"""A disk that is full when a rank dies."""

from __future__ import annotations

from acceptance.owner import wait_for

from benchmarks.scenes.scene import Pair, Scene, situations


def full(pair: Pair, path: str) -> None:
    """Put a folder of the head on a file system of its own without a free byte."""
    pair.on(
        1,
        f"rm -rf /root/kept; cp -a {path} /root/kept || cp -a {path}/. /root/kept/; size=$(( $(du -sk {path} | cut -f1) + 2048 ))k"
        f" && mount -t tmpfs -o size=$size tmpfs {path} && cp -a /root/kept/. {path}/ && left=$(df --output=avail -k {path} | tail -1)"
        f" && head -c $(( left * 1024 )) /dev/zero > {path}/filler",
    )


def room_again(pair: Pair, path: str) -> None:
    """Put the folder back with what it holds now. The agent reads it at times, so the file system may be busy."""
    pair.on(
        1,
        f"rm -f {path}/filler; rm -rf /root/kept; cp -a {path} /root/kept; for _ in 1 2 3 4 5; do umount {path} && break; sleep 1; done;"
        f" mountpoint -q {path} && umount -l {path}; cp -a /root/kept/. {path}/ && rm -rf /root/kept",
    )


@situations("""
35   | file system of the group full on the head, then a rank dies    | restarts
""")
def a_full_disk(scene: Scene) -> None:
    """The folder of the group is a file system of its own without a free byte."""
    pair, row = scene.pair, scene.row("35")
    since = pair.now()
    full(pair, pair.places.folder)
    try:
        pair.die()
        row.must(pair.noticed(since, "rank 1 on lab-2", 30), "the fault is not noticed")
        back = wait_for(pair.serves, 120, 1)
        row.must(back, "the pair does not come back while the disk is full")
        row.must(pair.starts(since) <= 1, f"{pair.starts(since)} starts")
        status = pair.on_node("status")
        row.ran(status, status.code)
        row.tells(status, "(?i)no space")
        row.saw("; ".join(pair.events(since, "(?i)space"))[:300])
    finally:
        room_again(pair, pair.places.folder)
    row.must(pair.comes_back(), "the pair does not serve with room again")
