"""Comparison of the images of the ranks, and the plan that makes them the same."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, images
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.images import ImageError
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
        "layers": list(layers), "fingerprint": fingerprint(layers, {}), "store": "classic", "architecture": "arm64", "build": "",
        "served": "",
    }  # fmt: skip
    return {**out, **more}


def none(**more: Any) -> dict[str, Any]:
    """Return the info of a node without the image."""
    return {**image(), "exists": False, "id": "", "layers": [], "fingerprint": "", **more}


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
    ("infos", "kind"),
    [
        ([image(repo_digests=[f"a/vllm@{DIGEST}"]), image(repo_digests=[f"b/vllm@{DIGEST}"], id="sha256:x")], "repository digest"),
        ([image(repo_digests=[f"a/vllm@{DIGEST}"]), image()], "image id"),
        ([image(), image(id="sha256:containerd", store="containerd")], "content fingerprint"),
        ([image(), image(BASE, OTHER)], ""),
        ([image(), none()], ""),
        ([image(), image(), image(id="sha256:x")], "content fingerprint"),
        ([image(), image(), image(BASE, OTHER)], ""),
    ],
    ids=["digest", "id", "another-store", "another-image", "absent", "three", "three-different"],
)
def test_strongest_proof_that_holds_for_all_ranks(infos: list[dict[str, Any]], kind: str) -> None:
    plan = images.plan([*HOSTS, "spark-3"][: len(infos)], infos)
    assert plan["proof"][0] == kind
    assert plan["equal"] is bool(kind)


@pytest.mark.parametrize("receivers", [[none()], [image(id="sha256:x", fingerprint="x")], [none(), none()], [none(), image(BASE, OTHER)]])
def test_each_rank_without_the_image_or_with_another_one_receives_it(receivers: list[dict[str, Any]]) -> None:
    plan = images.plan([*HOSTS, "spark-3"][: len(receivers) + 1], [image(), *receivers], pull=False)
    assert plan["send"][0] == ""
    assert all(plan["send"][1:])
    assert not plan["equal"]


def test_source_is_the_rank_with_the_image_or_the_chosen_one() -> None:
    assert images.plan(HOSTS, [none(), image()], pull=False)["source"] == "spark-2"
    assert images.plan(HOSTS, [image(), image(BASE, OTHER)], source="spark-2")["source"] == "spark-2"
    with pytest.raises(ImageError, match="image_source is spark-9"):
        images.plan(HOSTS, [image(), image()], source="spark-9")


@pytest.mark.parametrize(
    ("hosts", "infos", "options", "obtain", "receive"),
    [
        (HOSTS, [none(), none()], {}, ["pull", ""], [False, True]),
        (HOSTS, [none(), none()], {"distribution": "pull"}, ["pull", "pull"], [False, False]),
        (HOSTS, [image(), none()], {"distribution": "pull"}, ["", "pull"], [False, False]),
        (HOSTS, [image(), image(BASE, OTHER)], {"distribution": "pull"}, ["", "pull"], [False, False]),
        (HOSTS, [none(), none()], {"pull": False, "build": "abc"}, ["build", ""], [False, True]),
        (HOSTS, [image(build="old"), image(build="old")], {"pull": False, "build": "abc"}, ["build", ""], [False, True]),
        (HOSTS, [image(build="abc"), none()], {"pull": False, "build": "abc"}, ["", ""], [False, True]),
        (HOSTS, [none(), image(build="abc")], {"source": "spark-1", "build": "abc"}, ["build", ""], [False, True]),
        (HOSTS, [image(), image()], {"digest": DIGEST}, ["pull", ""], [False, True]),
        (HOSTS, [image(repo_digests=[f"vllm@{DIGEST}"]), image()], {"digest": DIGEST}, ["", ""], [False, False]),
        (HOSTS, [none(), image(repo_digests=[f"vllm@{DIGEST}"])], {"source": "spark-1", "digest": DIGEST}, ["pull", ""], [False, False]),
        (HOSTS, [none(), none()], {"source": "spark-2"}, ["", "pull"], [True, False]),
        ([*HOSTS, "spark-3"], [none(), none(), none()], {}, ["pull", "", ""], [False, True, True]),
    ],
    ids=[
        "auto", "each", "the-other", "moved-tag", "build", "changed-context", "built", "no-two-builds-are-equal", "another-digest",
        "loaded-copy-of-the-digest", "keeps-the-digest", "chosen-rank", "three",
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
        ([none(), none()], {"distribution": "send"}, ["image_distribution is send", "spark-1"]),
        ([none(), none()], {"distribution": "pull", "pull": False}, ["image_distribution is pull", "set it to auto"]),
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
    assert images.plan(HOSTS, infos, source="spark-2", size_gib=31.5, **options)["complaint"] == ""


def test_caches_of_another_image_are_stale() -> None:
    mark = image()["fingerprint"]
    assert not images.plan(HOSTS, [image(), image()])["changed"], "the first run keeps them"
    assert not images.plan(HOSTS, [image(served=mark), image(served=mark)])["changed"]
    assert images.plan(HOSTS, [image(served=mark), image(served="other")])["changed"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (image(BASE, OTHER), "1 of 2 layers differ"),
        (image(id="sha256:ffffffffffff0", fingerprint="x"), "the configuration differs"),
        (image(architecture="amd64", id="x", fingerprint="x"), "for amd64, spark-1 for arm64"),
        (none(), "spark-2 has no vllm:1"),
    ],
)
def test_difference_is_described(other: dict[str, Any], words: str) -> None:
    assert words in images.plan(HOSTS, [image(), other])["why"][0]


@pytest.mark.parametrize(
    ("keep", "current", "gone"),
    [(2, ["c"], ["a"]), (1, ["c"], ["b", "a"]), (3, ["c"], []), (1, ["a"], ["c", "b"]), (1, ["a", "b"], ["c"]), (5, [], [])],
)
def test_old_images_are_removed_and_current_ones_kept(keep: int, current: list[str], gone: list[str]) -> None:
    imported = [{"id": "a", "at": 1}, {"id": "b", "at": 2}, {"id": "c", "at": 3}]
    assert images.stale(imported, current, keep) == gone


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
        status = [["Backing Filesystem", "extfs"]]
        fake.info = {"DriverStatus": status, "DockerRootDir": "/", "ServerVersion": "26.1.5", "Driver": "overlay2"}
        fake.images = {"vllm:1": IMAGE, str(IMAGE["Id"]): IMAGE}
        yield fake, str(tmp_path / "docker.sock")


def test_image_is_described(engine: tuple[FakeEngine, str]) -> None:
    fake, socket_path = engine
    info = images.info("vllm:1", socket_path)
    assert (info["exists"], info["build"], info["store"]) == (True, "b1", "classic")
    assert info["fingerprint"] == images.fingerprint_of(IMAGE)
    assert not images.info("other:1", socket_path)["exists"]
    fake.info["DriverStatus"].append(["driver-type", "io.containerd.snapshotter.v1"])
    assert images.info("vllm:1", socket_path)["store"] == "containerd"


def test_an_engine_that_hangs_is_named_with_the_time_that_was_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PAUSE", 1.0)
    monkeypatch.setattr(docker_api, "api", lambda _path: "/v1.44")
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(tmp_path / "hangs.sock"))
        hangs.listen()
        with pytest.raises(DockerError, match=r"no reply within 1 s"):
            images.call("DELETE", "/images/vllm:1", str(tmp_path / "hangs.sock"))


# --- The docker commands of a build, and the message for logs of real failed builds (Docker 20.10.24, buildx 0.13.1).

LOGS = Path(__file__).resolve().parents[3] / "fixtures" / "build_logs"


def params(**more: Any) -> dict[str, Any]:
    return {"reference": "reg:5000/o/vllm:1", "context": "/src", "build_args": {}, "label": "hash", **more}


def test_a_build_is_one_command_with_its_label_and_name() -> None:
    argv = images.build_command(params(build_args={"JOBS": "8", "http_proxy": "http://p:1"}), buildkit=False)
    assert argv[:2] == ["env", "DOCKER_BUILDKIT=0"]
    assert "--progress" not in argv
    assert (argv[-1], argv[argv.index("--tag") + 1], argv[argv.index("--label") + 1]) == ("/src", "reg:5000/o/vllm:1", "gb10.cluster.build=hash")
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--build-arg"] == ["JOBS=8", "http_proxy=http://p:1"]
    newer = images.build_command(params(), buildkit=True)
    assert (newer[1], newer[newer.index("--progress") + 1]) == ("DOCKER_BUILDKIT=1", "plain")


@pytest.mark.parametrize("builder", ["classic", "buildkit"])
def test_a_failed_build_shows_its_step_the_last_lines_of_its_log_and_the_remedy(builder: str) -> None:
    first, *lines, remedy = images.explain_failure((LOGS / f"failed_command_{builder}.txt").read_text(), "vllm:1").splitlines()
    assert first == "building vllm:1 failed in step 2 of 2: RUN echo hello; echo decisive cause >&2; exit 3. The last lines of the build:"
    assert (any("decisive cause" in line for line in lines[:-1]), "code: 3" in lines[-1], len(lines) <= images.BUILD_LINES) == (True, True, True)
    assert "correct the Dockerfile of image.build, or the mod" in remedy


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ((LOGS / "source_gone_buildkit.txt").read_text(), "failed in http://127.0.0.1:18765/gone.tar.gz."),
        ((LOGS / "source_gone_buildkit.txt").read_text(), "invalid response status 404\n"),
        ("fatal: hf_abcdefGHIJKL0123456789abcdefGHIJKL\x1b[31m failed", "fatal: "),
        ("", "failed in its first step. The last lines of the build:\nno output\n"),
    ],
)
def test_any_log_becomes_a_message_without_secrets_and_control_characters(log: str, words: str) -> None:
    found = images.explain_failure(log, "vllm:1")
    assert words in found
    assert "hf_abcdef" not in found
    assert found.replace("\n", "").isprintable()


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
