"""Comparison of the images of the ranks, and the plan that makes them the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, images
from unit.fixtures.docker.engine import FakeEngine, serving

HOSTS = ["spark-1", "spark-2"]
BASE, TOP, OTHER = ("sha256:" + c * 64 for c in "abc")
DIGEST = "sha256:" + "d" * 64


def fingerprint(layers: tuple[str, ...], config: dict[str, Any], architecture: str = "arm64") -> str:
    return images.fingerprint_of({"RootFS": {"Layers": list(layers)}, "Config": config, "Architecture": architecture, "Os": "linux"})


def image(*layers: str, **more: Any) -> dict[str, Any]:
    """Return an info of an image with these layers."""
    layers = layers or (BASE, TOP)
    out: dict[str, Any] = {
        "reference": "vllm:1", "exists": True, "id": f"sha256:{hashlib.sha256(''.join(layers).encode()).hexdigest()}", "repo_digests": [],
        "fingerprint": fingerprint(layers, {}), "architecture": "arm64", "build": "",
    }  # fmt: skip
    return {**out, **more}


def none(**more: Any) -> dict[str, Any]:
    """Return the info of a node without the image."""
    return {**image(), "exists": False, "id": "", "fingerprint": "", **more}


@pytest.mark.parametrize(
    ("layers", "config", "architecture", "same"),
    [
        ((BASE, TOP), {"Env": ["A=1"], "Image": "y", "Hostname": "h", "Cmd": None}, "arm64", True),
        ((TOP, BASE), {"Env": ["A=1"]}, "arm64", False),
        ((BASE, TOP), {"Env": ["A=2"]}, "arm64", False),
        ((BASE, TOP), {"Env": ["A=1"]}, "amd64", False),
    ],
    ids=["another build", "order", "environment", "architecture"],
)
def test_fingerprint_covers_content_and_behaviour(layers: tuple[str, ...], config: dict[str, Any], architecture: str, same: bool) -> None:
    assert (fingerprint(layers, config, architecture) == fingerprint((BASE, TOP), {"Env": ["A=1"]})) is same


@pytest.mark.parametrize(
    ("infos", "equal"),
    [
        ([image(), image(id="sha256:containerd")], True),
        ([image(), image(BASE, OTHER)], False),
        ([image(), none()], False),
        ([image(), image(), image(id="sha256:x")], True),
        ([image(), image(), image(BASE, OTHER)], False),
    ],
    ids=["another-store", "another-image", "absent", "three", "three-different"],
)
def test_ranks_with_the_same_content_are_equal(infos: list[dict[str, Any]], equal: bool) -> None:
    plan = images.plan([*HOSTS, "spark-3"][: len(infos)], infos)
    assert (plan["equal"], any(plan["send"]), plan["send"][0]) == (equal, not equal, "")


def test_source_is_the_rank_with_the_image() -> None:
    assert images.plan(HOSTS, [none(), image()], pull=False)["source"] == "spark-2"


@pytest.mark.parametrize(
    ("hosts", "infos", "options", "obtain", "receive"),
    [
        (HOSTS, [none(), none()], {}, ["pull", ""], [False, True]),
        (HOSTS, [none(), none()], {"pull": False, "build": "abc"}, ["build", ""], [False, True]),
        (HOSTS, [image(build="old"), image(build="old")], {"pull": False, "build": "abc"}, ["build", ""], [False, True]),
        (HOSTS, [image(build="abc"), none()], {"pull": False, "build": "abc"}, ["", ""], [False, True]),
        (HOSTS, [image(), image()], {"digest": DIGEST}, ["pull", ""], [False, True]),
        (HOSTS, [image(repo_digests=[f"vllm@{DIGEST}"]), image()], {"digest": DIGEST}, ["", ""], [False, False]),
        ([*HOSTS, "spark-3"], [none(), none(), none()], {}, ["pull", "", ""], [False, True, True]),
    ],
    ids=[
        "auto", "build", "changed-context", "built", "another-digest", "loaded-copy-of-the-digest", "three",
    ],
)  # fmt: skip
def test_ranks_obtain_or_receive_the_image(
    hosts: list[str], infos: list[dict[str, Any]], options: dict[str, Any], obtain: list[str], receive: list[bool]
) -> None:
    plan = images.plan(hosts, infos, **options)
    assert plan["obtain"] == obtain
    assert [bool(send) for send in plan["send"]] == receive
    assert plan["complaint"] == ""


@pytest.mark.parametrize(
    ("infos", "options", "words"),
    [
        ([none(), none()], {"pull": False}, ["no rank has vllm:1", "load it on spark-1 (docker load)", "image_build_context"]),
        ([image(), image()], {"digest": DIGEST, "obtained": True}, ["spark-1 has pulled or built vllm:1", "image.digest"]),
        ([image(), image()], {"digest": DIGEST, "pull": False}, ["is not the pinned sha256:dddd"]),
    ],
)
def test_unavailable_image_is_reported_with_the_remedy(infos: list[dict[str, Any]], options: dict[str, Any], words: list[str]) -> None:
    plan = images.plan(HOSTS, infos, **options)
    assert all(word in plan["complaint"] for word in words)
    assert not any(plan["send"])


@pytest.mark.parametrize(
    ("built", "loaded", "obtain"),
    [("", True, ["", ""]), ("", False, ["build", ""]), ("another", True, ["build", ""]), ("hash", True, ["", ""])],
    ids=["loaded by hand", "own sources", "other build data", "built"],
)
def test_an_image_that_was_loaded_is_kept_where_the_profile_builds(built: str, loaded: bool, obtain: list[str]) -> None:
    infos = [image(build=built), image(build=built)]
    assert images.plan(HOSTS, infos, build="hash", loaded=loaded, pull=False)["obtain"] == obtain


@pytest.mark.parametrize("options", [{"pull": True}, {"pull": False, "build": "hash"}])
def test_a_rank_without_space_for_the_image_is_named_before_it_is_obtained(options: dict[str, Any]) -> None:
    infos = [none(free_bytes=12 << 30), none(free_bytes=500 << 30)]
    found = images.plan(HOSTS, infos, size_gib=31.5, **options)["complaint"]
    assert "spark-1 has 12.0 GiB free in Docker's data folder, and vllm:1 needs 31.5 GiB as published" in found
    assert images.plan(HOSTS, infos, size_gib=11, **options)["complaint"] == ""


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (image(id="sha256:ffffffffffff0", fingerprint="x"), "spark-2 has ffffffffffff for arm64 under vllm:1, spark-1 has "),
        (image(architecture="amd64", id="x", fingerprint="x"), "for amd64 under vllm:1, spark-1 has "),
        (none(), "spark-2 has no vllm:1"),
    ],
)
def test_difference_is_described(other: dict[str, Any], words: str) -> None:
    assert words in images.plan(HOSTS, [image(), other])["why"][0]


# --- What was imported.


@pytest.mark.parametrize("check", [True, False])
def test_older_imports_are_removed_except_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    used, free, broken, gone, new = (f"sha256:{letter * 64}" for letter in "abcde")
    removed: list[str] = []

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        removed.append(argv[-1])
        return (1, "", "conflict\n") if argv[-1] == broken else (0, "", "")

    node = Node(str(tmp_path), run)
    node.save_record(images.RECORD, {"imported": [{"id": each, "reference": "vllm:1", "at": 1} for each in (used, free, broken, gone, new)]})
    monkeypatch.setattr(images, "inspect_image", lambda reference: None if reference == gone else {"RepoTags": []})
    monkeypatch.setattr(docker_api, "list_containers", lambda _labels: [{"ImageID": used, "Names": ["/gb10-pair1-rank0"]}])
    found, left = images.remove_imported(node, 1, check)
    kept = [each["id"] for each in node.load_record(images.RECORD)["imported"]]
    stays = "vllm:1 (aaaaaaaaaaaa) stays: the container gb10-pair1-rank0 uses it"
    if check:
        assert (found, left, kept, removed) == ([broken, free], [stays], [used, free, broken, gone, new], [])
    else:
        assert (found, left, kept, removed) == ([free], ["vllm:1 (cccccccccccc) stays: conflict", stays], [used, broken, new], [broken, free])


# --- Inspecting images: an engine on a socket replies as Docker 26 does.

LAYERS = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in (b"base" * 600_000, b"top" * 700_000)}
DIFFS = list(LAYERS)
CONFIG = json.dumps({"rootfs": {"type": "layers", "diff_ids": DIFFS}, "config": {"Env": ["A=1"]}}).encode()
IMAGE = {
    "Id": "sha256:" + hashlib.sha256(CONFIG).hexdigest(), "RepoDigests": [], "Architecture": "arm64", "Os": "linux", "Size": 5,
    "RootFS": {"Layers": DIFFS}, "Config": {"Env": ["A=1"], "Labels": {"gb10.cluster.build": "b1"}},
}  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[FakeEngine, str]]:
    with serving(tmp_path / "docker.sock") as fake:
        fake.info = {"DockerRootDir": "/"}
        fake.images = {"vllm:1": IMAGE, str(IMAGE["Id"]): IMAGE}
        yield fake, str(tmp_path / "docker.sock")


def test_image_is_described(engine: tuple[FakeEngine, str]) -> None:
    _fake, socket_path = engine
    info = images.info("vllm:1", socket_path)
    assert (info["exists"], info["build"], info["architecture"]) == (True, "b1", "arm64")
    assert info["fingerprint"] == images.fingerprint_of(IMAGE)
    assert not images.info("other:1", socket_path)["exists"]


# --- The docker commands of a build, and the message for logs of real failed builds (Docker 20.10.24, buildx 0.13.1).

LOGS = Path(__file__).resolve().parents[3] / "fixtures" / "build_logs"


def test_a_build_is_one_command_with_its_label_and_name() -> None:
    first, script = images.build_script(
        {"reference": "reg:5000/o/vllm:1", "path": "/s r c", "build_args": {"JOBS": "8", "http_proxy": "http://p:1"}, "label": "hash"}
    ).splitlines()
    assert first == "docker buildx version >/dev/null 2>&1 && export DOCKER_BUILDKIT=1 BUILDKIT_PROGRESS=plain || export DOCKER_BUILDKIT=0"
    assert script == (
        "docker build --network host --label gb10.cluster.build=hash --tag reg:5000/o/vllm:1 --build-arg JOBS=8 --build-arg http_proxy=http://p:1 '/s r c'"
    )


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("failed_command_classic", ["decisive cause", "exit 3' returned a non-zero code: 3"]),
        ("failed_command_buildkit", ["decisive cause", "exit code: 3"]),
        ("source_gone_buildkit", ["http://127.0.0.1:18765/gone.tar.gz", "ERROR: failed to solve: failed to load cache key: invalid response status 404"]),
    ],
)
def test_a_failed_build_shows_the_last_lines_of_its_log_and_the_remedy(log: str, words: list[str]) -> None:
    *lines, remedy = images.build_failure((LOGS / f"{log}.txt").read_text()).splitlines()
    assert len(lines) <= images.BUILD_LINES
    assert all(any(word in line for line in lines) for word in words)
    assert "correct the Dockerfile of image.build, or the mod" in remedy


def test_any_log_becomes_a_message_without_secrets_and_control_characters() -> None:
    found = images.build_failure("fatal: hf_abcdefGHIJKL0123456789abcdefGHIJKL\x1b[31m failed")
    assert "fatal: " in found
    assert "hf_abcdef" not in found
    assert found.replace("\n", "").isprintable()
    assert images.build_failure("").startswith("no output\n")


# --- The image layer of mods: its Dockerfile and its name.


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
