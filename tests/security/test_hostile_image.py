"""An archive of an image from a node that lies: no local tag moves, and an image with another content does not stay (M10)."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError, fingerprint_of

Members = dict[str, bytes]


def tar_of(members: Members) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def image_archive(content: bytes, tags: list[str]) -> Members:
    """Return an archive in the form of docker save, with one layer that holds `content`."""
    layer = tar_of({"x": content})
    rootfs = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/x"]}, "rootfs": rootfs}).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": tags, "Layers": ["l/layer.tar"]}]).encode()
    return {"l/layer.tar": layer, name: config, "manifest.json": manifest}


def retagged(data: bytes) -> tuple[list[str], dict[str, Any]]:
    """Return the names and the parsed naming members of what would be loaded."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as source, tarfile.open(fileobj=out, mode="w|") as archive:
        images.retag(source, archive, "t1")
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        names = tar.getnames()
        return names, {name: json.load(tar.extractfile(name)) for name in names if name in ("manifest.json", "index.json")}  # type: ignore[arg-type]


def test_names_of_the_archive_are_replaced() -> None:
    index = json.dumps({"manifests": [{"digest": "sha256:1", "annotations": {"io.containerd.image.name": "docker.io/library/debian:13"}}]}).encode()
    repositories = b'{"debian": {"13": "l"}}'
    members = {**image_archive(b"a", ["debian:13", "vllm:1"]), "index.json": index, "repositories": repositories, "l/repositories": repositories}
    names, naming = retagged(tar_of(members))
    assert naming["manifest.json"][0]["RepoTags"] == ["gb10-cluster-received:t1"]
    assert naming["index.json"]["manifests"][0]["annotations"] == {
        "io.containerd.image.name": "docker.io/library/gb10-cluster-received:t1",
        "org.opencontainers.image.ref.name": "t1",
    }
    assert not [name for name in names if name.endswith("repositories")]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"manifest.json": b"[]"}, "does not describe one image"),
        ({"manifest.json": b"[{}, {}]"}, "does not describe one image"),
        ({"manifest.json": b"{"}, "cannot be parsed"),
        ({"manifest.json": b"[" * 100_000}, "cannot be parsed"),
        ({"manifest.json": b"\xff"}, "cannot be parsed"),
        ({"index.json": b"{}"}, "cannot be parsed"),
        ({"./x/../manifest.json": b"[1]"}, "does not describe one image"),
        ({"manifest.json": b" " * (1 << 23)}, "has 8388608 bytes"),
        ({"../manifest.json": b"[]"}, "docker save does not write"),
    ],
)
def test_a_strange_archive_ends_in_a_sentence(members: Members, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        retagged(tar_of(members))


@pytest.mark.parametrize(
    ("kind", "name", "target"),
    [
        (tarfile.SYMTYPE, "manifest.json", "other.json"), (tarfile.LNKTYPE, "manifest.json", "other.json"), (tarfile.CHRTYPE, "manifest.json", ""),
        (tarfile.FIFOTYPE, "manifest.json", ""), (tarfile.SYMTYPE, "a/layer.tar", "/etc/layer.tar"), (tarfile.SYMTYPE, "a/layer.tar", "../../../x/layer.tar"),
        (tarfile.SYMTYPE, "/a/layer.tar", f"../{'a' * 64}/layer.tar"),
    ],
)  # fmt: skip
def test_a_link_or_device_is_refused(kind: bytes, name: str, target: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)
    with pytest.raises(ImageError, match="docker save does not write"):
        retagged(out.getvalue())


def smuggled(naming: str, headers: dict[str, str]) -> bytes:
    """Return an archive whose extended headers make a second naming member out of the data of the next one."""
    inner = tar_of({naming: json.dumps([{"Config": "c.json", "RepoTags": ["vllm/vllm-openai:v0.12.0"], "Layers": []}]).encode()})
    text = b"[{}]" if naming == "manifest.json" else b'{"manifests": [{}]}'
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data, pax in ((naming, text.ljust(1536), headers), ("l/layer.tar", inner, {})):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), pax
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("naming", ["manifest.json", "index.json"])
def test_an_extended_header_of_the_sender_is_not_passed_on(naming: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(smuggled(naming, {"size": "1536", "comment": "x"}))) as source, tarfile.open(fileobj=out, mode="w|") as archive:
        images.retag(source, archive, "t1")
    assert b"size=1536" not in out.getvalue()
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert [(member.name, member.pax_headers, member.type) for member in tar] == [(naming, {}, b"0"), ("l/layer.tar", {}, b"0")]


def test_a_global_extended_header_is_not_passed_on() -> None:
    out = io.BytesIO()
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "manifest.json", "comment": "all"}) as tar:
        info = tarfile.TarInfo("l/layer.tar")
        tar.addfile(info, io.BytesIO(b""))
    sent.seek(0)
    with tarfile.open(fileobj=sent) as source, tarfile.open(fileobj=out, mode="w|") as archive, contextlib.suppress(ImageError):
        images.retag(source, archive, "t1")
    assert b"comment=all" not in out.getvalue()


def test_a_directory_and_a_layer_link_of_an_older_engine_are_passed_on() -> None:
    sent, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as tar:
        for name, kind, target in (("blobs", tarfile.DIRTYPE, ""), ("b/layer.tar", tarfile.SYMTYPE, f"../{'a' * 64}/layer.tar")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    sent.seek(0)
    with tarfile.open(fileobj=sent) as source, tarfile.open(fileobj=out, mode="w|") as archive:
        images.retag(source, archive, "t1")
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert [(member.name, member.type, member.linkname) for member in tar] == [("blobs", b"5", ""), ("b/layer.tar", b"2", f"../{'a' * 64}/layer.tar")]


@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_a_sparse_file_is_refused(version: str) -> None:
    out = io.BytesIO()
    sparse = {"GNU.sparse.major": version[0], "GNU.sparse.minor": version[2], "GNU.sparse.name": "x", "GNU.sparse.size": "4", "GNU.sparse.map": "0,4"}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("x")
        data = b"1\n0\n4\n".ljust(512, b"\0") + b"data" if version == "1.0" else b"data"
        info.size, info.pax_headers = len(data), sparse
        tar.addfile(info, io.BytesIO(data))
    with pytest.raises(ImageError, match="docker save does not write"):
        retagged(out.getvalue())


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture
def names(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two names: the one that is sent, and a local image that the archive is after."""
    if not docker("version", "--format", "{{.Server.Version}}"):
        pytest.skip("needs a Docker Engine")
    one, other = (f"gb10-test-{uuid.uuid4().hex[:8]}:{name}" for name in ("sent", "local"))
    (tmp_path / "local.tar").write_bytes(tar_of(image_archive(uuid.uuid4().bytes, [other])))
    docker("load", "--input", str(tmp_path / "local.tar"))
    yield one, other
    docker("rmi", one, other)


@pytest.mark.parametrize("honest", [True, False])
def test_a_hostile_archive_moves_no_tag_of_a_real_engine(tmp_path: Path, names: tuple[str, str], honest: bool) -> None:
    sent, local = names
    before = docker("images", "--quiet", "--no-trunc", local)
    members = image_archive(uuid.uuid4().bytes, [local, sent])
    config = json.loads(next(data for name, data in members.items() if name.endswith(".json") and name != "manifest.json"))
    inspection = {"Config": config["config"], "RootFS": {"Layers": config["rootfs"]["diff_ids"]}, "Architecture": "amd64", "Os": "linux"}
    fingerprint = fingerprint_of(inspection)
    (tmp_path / "image.tar").write_bytes(tar_of(members))
    loaded = "sha256:" + next(name for name in members if name.endswith(".json") and name != "manifest.json").partition(".")[0]
    if honest:
        images.load(str(tmp_path / "image.tar"), sent, fingerprint)
    else:
        with pytest.raises(ImageError, match="another content than the one that was sent, and was removed"):
            images.load(str(tmp_path / "image.tar"), sent, "0" * 64)
    assert docker("images", "--quiet", "--no-trunc", local) == before != ""
    assert docker("images", "--quiet", "--no-trunc", sent) == (loaded if honest else "")
    assert bool(docker("image", "inspect", "--format", "{{.Id}}", loaded)) is honest
    assert not docker("images", "--quiet", "gb10-cluster-received")


def test_an_archive_that_the_engine_refuses_ends_in_a_sentence(tmp_path: Path, names: tuple[str, str]) -> None:
    members = image_archive(b"a", [names[0]])
    (tmp_path / "image.tar").write_bytes(tar_of({**members, "l/layer.tar": b"not a layer"}))
    with pytest.raises((ImageError, DockerError), match=r"cannot load the received archive|another content"):
        images.load(str(tmp_path / "image.tar"), names[0], "0" * 64)
    assert not docker("images", "--quiet", names[0])
