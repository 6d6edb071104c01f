"""The commands of a pull or build, and the message if it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import images
from ansible_collections.gb10.cluster.plugins.module_utils._node.images import ImageError
from ansible_collections.gb10.cluster.plugins.modules import image_get

DIGEST = "sha256:" + "a" * 64


def params(**more: Any) -> dict[str, Any]:
    return {"how": "pull", "reference": "reg:5000/o/vllm:1", "digest": "", "context": "/src", "build_args": {}, "label": "", "name": "image-pair1", **more}


def test_pinned_image_is_pulled_by_digest_and_tagged() -> None:
    assert image_get.pull_commands("reg:5000/o/vllm:1", "") == [["docker", "pull", "reg:5000/o/vllm:1"]]
    pinned = f"reg:5000/o/vllm@{DIGEST}"
    assert image_get.pull_commands("reg:5000/o/vllm:1", DIGEST) == [["docker", "pull", pinned], ["docker", "tag", pinned, "reg:5000/o/vllm:1"]]


@pytest.mark.parametrize(("rc", "buildkit"), [(0, "DOCKER_BUILDKIT=1"), (1, "DOCKER_BUILDKIT=0")])
def test_buildkit_is_used_if_the_node_has_it(rc: int, buildkit: str) -> None:
    (build,) = image_get.commands(params(how="build"), lambda _argv: (rc, "", ""))
    assert (build[1], build[-1]) == (buildkit, "/src")
    assert image_get.commands(params(), lambda _argv: (rc, "", "")) == [["docker", "pull", "reg:5000/o/vllm:1"]]


def test_an_archive_is_saved_hashed_and_loaded(tmp_path: Path) -> None:
    folder = params(how="save", folder=str(tmp_path))
    save, hashing = image_get.commands(folder, lambda _argv: (0, "", ""))
    assert (save[:2], hashing) == (["docker", "save"], ["sha256sum", f"{tmp_path}/image.tar"])
    assert image_get.commands({**folder, "how": "load"}, lambda _argv: (0, "", "")) == [["docker", "load", "--quiet", "--input", f"{tmp_path}/image.tar"]]
    (tmp_path / "image.tar").write_bytes(b"12345")
    [item] = image_get.archive_of(str(tmp_path), f"{'a' * 64}  {tmp_path}/image.tar\n")
    assert {key: item[key] for key in ("path", "size", "sha256")} == {"path": "image.tar", "size": 5, "sha256": "a" * 64}


@pytest.mark.parametrize(("size", "words"), [(1 << 60, "are needed to send vllm:1: free space there"), (5, ""), (None, "is not on this node any more")])
def test_an_archive_that_does_not_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None, words: str) -> None:
    monkeypatch.setattr(images, "inspect_image", lambda _reference: None if size is None else {"Size": size})
    folder = tmp_path / "send"
    folder.mkdir()
    (folder / "image.tar").write_text("of an earlier run")
    if words:
        with pytest.raises(ImageError, match=words):
            image_get.make_room("vllm:1", str(folder))
    else:
        image_get.make_room("vllm:1", str(folder))
        assert (list(folder.iterdir()), folder.stat().st_mode & 0o777) == ([], 0o700)


def test_progress_counts_layers() -> None:
    log = "1: Pulling from x\na: Pulling fs layer\nb: Pulling fs layer\nc: Already exists\na: Pull complete\n"
    assert image_get.progress(log) == "2 of 3 layers"
    assert image_get.progress("Step 1/2 : FROM x\n ---> abc\n") == "step 1 of 2: FROM x  ---> abc"
    assert image_get.progress("") == ""
    assert image_get.progress(f"{log}b: Pull complete\nStep 2/3 : RUN make\ncompiling\n") == "step 2 of 3: RUN make  compiling"
    assert image_get.progress("#5 [base 2/3] RUN make\n#5 12.1 compiling\n") == "step 2 of 3: RUN make  #5 12.1 compiling"


@pytest.mark.parametrize(
    ("log", "percent"),
    [
        ("a: Pulling fs layer\nb: Pulling fs layer\na: Pull complete\n", 50),
        ("#5 [1/4] FROM x\n#6 [2/4] RUN y\n#6 12.1 compiling\n", 25),
        ("#9 [base 3/4] RUN z\n", 50),
        ("Step 3/4 : RUN z\n", 50),
        ("#5 [3/0] RUN z\n", None),
        ("something else\n", None),
        ("", None),
    ],
)
def test_report_has_the_share_of_layers_or_build_steps(log: str, percent: int | None) -> None:
    assert image_get.report_of(log).get("percent") == percent


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("Error response from daemon: Get https://r/v2/: dial tcp: lookup r: no such host", "a way to the registry"),
        ("Error response from daemon: pull access denied for x", "docker login"),
        ("Error response from daemon: manifest unknown", "image.reference"),
        ("write /var/lib/docker/tmp: no space left on device", "free space"),
        ("", "no output"),
    ],
)
def test_failed_pull_is_reported_with_its_remedy(log: str, words: str) -> None:
    text = image_get.explain_failure(log, params())
    assert text.startswith("pulling reg:5000/o/vllm:1 failed (")
    assert words in text
    assert "the Dockerfile of image.build" in image_get.explain_failure("COPY failed: x", params(how="build"))
