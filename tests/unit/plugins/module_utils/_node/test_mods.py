"""The image layer of mods: its Dockerfile and its name."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import images


def mod(path: str, repository: str | None = None, commit: str | None = None) -> dict[str, Any]:
    return {"repository": repository, "commit": commit, "path": path}


def test_mods_are_applied_in_their_order_as_the_launcher_of_their_authors_does() -> None:
    """An archive of a repository is in no layer of the image, and is fetched once for all its mods."""
    hub, other, one = "https://github.com/eugr/spark-vllm-docker", "https://github.com/o/r.git", "1" * 40
    wanted = [mod("mods/fix-x", hub, one), mod("/srv/my mod/"), mod("mods/fix-y/", hub + "/", one), mod("a.patch", other, "2" * 40), mod("own.diff")]
    lines = images.mods_dockerfile("o/vllm:1@sha256:d", wanted).splitlines()
    assert [line for line in lines if line.startswith(("FROM", "ADD"))] == [
        "FROM o/vllm:1@sha256:d AS source-1",
        f"ADD {hub}/archive/{one}.tar.gz /opt/gb10-source.tar.gz",
        "FROM o/vllm:1@sha256:d AS source-2",
        f"ADD https://github.com/o/r/archive/{'2' * 40}.tar.gz /opt/gb10-source.tar.gz",
        "FROM o/vllm:1@sha256:d",
    ]
    last = lines[lines.index("FROM o/vllm:1@sha256:d") + 1 :]
    assert [line for line in last if line.startswith("COPY")] == [
        "COPY --from=source-1 /opt/gb10-source/mods/fix-x /workspace/mods/fix-x",
        "COPY 2-my-mod /workspace/mods/my-mod",
        "COPY --from=source-1 /opt/gb10-source/mods/fix-y /workspace/mods/fix-y",
        "COPY --from=source-2 /opt/gb10-source/a.patch /workspace/mods/a.patch",
        "COPY 5-own.diff /workspace/mods/own.diff",
    ]
    assert last[1] == 'RUN export WORKSPACE_DIR="$PWD"; cd /workspace/mods/fix-x && bash run.sh'
    assert last[-1].endswith(" && patch -p1 --batch -i /workspace/mods/own.diff")
    assert images.mod_names(wanted)[1] == "2-my-mod"


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("ghcr.io/bjk110/vllm-spark:dsv4-d568", "bjk110/vllm-spark:dsv4-d568-mods-abcdefabcdef"),
        ("reg:5000/vllm", "vllm:latest-mods-abcdefabcdef"),
        ("localhost/o/vllm:1", "o/vllm:1-mods-abcdefabcdef"),
        ("eugr/vllm:1", "eugr/vllm:1-mods-abcdefabcdef"),
        ("vllm:" + "t" * 128, "vllm:" + "t" * 110 + "-mods-abcdefabcdef"),
    ],
)
def test_the_name_of_the_image_with_mods(base: str, name: str) -> None:
    assert images.mods_reference(base, "abcdef" * 8) == name
