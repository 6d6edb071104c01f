"""The sources of an image, from real git repositories with the layout of the seeds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._docker import build_sources as sources
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError

REPO = Path(__file__).resolve().parents[5]
UNKNOWN = "0123456789" * 4
PATCH = "--- a/vllm/envs.py\n+++ b/vllm/envs.py\n@@ -1 +1 @@\n-KEYS = 0\n+KEYS = 1\n"


def environment(repository: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **sources.ENVIRONMENT, **sources.protocols(repository)}


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True, env=environment("file://")).stdout.strip()


def commit(folder: Path, text: str, **files: str) -> str:
    """Write files (`a__b` is a/b), commit them and return the commit."""
    for name, content in files.items():
        where = folder / name.replace("__", "/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", text)
    return git(folder, "rev-parse", "HEAD")


class Seed:
    """A bare repository with a base, a cherry-pick, a pull request whose commit no branch has, a conflict, a patch and a submodule."""

    def __init__(self, folder: Path) -> None:
        """Make it."""
        work, part, self.bare = folder / "work", folder / "part", folder / "seed.git"
        for each in (work, part):
            each.mkdir()
            git(each, "init", "-q", "-b", "main")
        commit(part, "part", part="one")
        commit(work, "base", **{"recipe__keys": PATCH, "recipe__stage": "FROM x\n", "vllm__envs.py": "KEYS = 0\n"})
        git(work, "-c", "protocol.file.allow=always", "submodule", "add", "-q", f"file://{part}", "part")
        self.base = commit(work, "submodule")
        git(work, "checkout", "-qb", "fixes")
        self.pick = commit(work, "fix", fix="fix")
        self.clash = commit(work, "clash", **{"vllm__envs.py": "KEYS = 2\n"})
        git(work, "checkout", "-q", "main")
        git(work, "checkout", "-qb", "pr")
        self.pull = commit(work, "pull request", pull="request")
        self.newest = commit(work, "newer", pull="newer")
        git(work, "clone", "-q", "--bare", str(work), str(self.bare))
        git(self.bare, "update-ref", "refs/pull/7/head", self.newest)
        git(self.bare, "update-ref", "refs/pull/8/head", self.clash)
        git(self.bare, "branch", "-qD", "pr")
        self.url = f"file://{self.bare}"
        self.folder = folder

    def prepare(self, **data: Any) -> tuple[Path, dict[str, str]]:
        """Check the base out, dirty, and complete it."""
        there = self.folder / f"checkout-{len(list(self.folder.iterdir()))}"
        git(self.folder, "clone", "-q", self.url, str(there))
        git(there, "checkout", "-q", self.base)
        (there / "left-over").write_text("of an earlier build")
        (there / "recipe" / "stage").write_text("changed")

        return there, sources.Checkout(sources.runner(self.url), str(there), {"repository": self.url, "commit": self.base, **data}).prepare()


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Seed:
    return Seed(tmp_path_factory.mktemp("seed"))


def test_all_parts_are_in_the_checkout_and_in_the_labels(seed: Seed) -> None:
    wanted: dict[str, Any] = {
        "pull_requests": [{"number": 7, "commit": seed.pull}], "cherry_picks": [seed.pick], "patches": ["recipe/keys"], "submodules": True,
    }  # fmt: skip
    there, labels = seed.prepare(**wanted)
    assert [(there / name).read_text() for name in ("pull", "fix", "vllm/envs.py", "recipe/stage", "part/part")] == [
        "request", "fix", "KEYS = 1\n", "FROM x\n", "one",
    ]  # fmt: skip
    assert not (there / "left-over").exists()
    named = {key.rpartition("gb10.cluster.build.")[2]: value for key, value in labels.items()}
    assert (named["repository"], named["commit"]) == (seed.url, seed.base)
    assert named["pull_requests"] == f"7@{seed.pull}"
    assert named["cherry_picks"] == seed.pick
    assert named["patches"].startswith("recipe/keys@sha256:")
    assert named["tree"] == git(there, "write-tree")
    assert seed.prepare(**wanted)[1] == labels, "another node gets the same commits"


def test_newest_commit_of_a_pull_request_is_recorded(seed: Seed) -> None:
    there, labels = seed.prepare(pull_requests=[{"number": 7}])
    assert labels["gb10.cluster.build.pull_requests"] == f"7@{seed.newest}"
    assert (there / "pull").read_text() == "newer"


def test_a_pick_that_is_already_there_is_accepted(seed: Seed) -> None:
    assert seed.prepare(cherry_picks=[seed.pick, seed.pick])[0].joinpath("fix").exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"pull_requests": [{"number": 9}]}, ["has no pull request 9 (refs/pull/9/head)", "image.build.pull_requests"]),
        ({"pull_requests": [{"number": 7, "commit": UNKNOWN}]}, [f"has no commit {UNKNOWN[:12]} of pull request 7 any more (its newest is "]),
        ({"cherry_picks": [UNKNOWN]}, [f"has no commit {UNKNOWN}", "image.build.cherry_picks"]),
        ({"patches": ["recipe/none"]}, ["has no recipe/none at", "image.build.patches"]),
        ({"patches": ["recipe/stage"]}, ["the patch recipe/stage does not apply", "No valid patches in input", "image.build.patches"]),
        ({"patches": ["recipe/keys", "recipe/keys"]}, ["the patch recipe/keys does not apply", "vllm/envs.py"]),
        ({"patches": ["recipe/keys"], "commit": UNKNOWN}, ["has the commit", f"expected {UNKNOWN[:12]}"]),
    ],
)
def test_each_fault_is_one_sentence(seed: Seed, data: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ImageError) as caught:
        seed.prepare(**data)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pull_requests", "cherry_picks"])
def test_a_conflict_names_the_commit_and_the_files(seed: Seed, kind: str) -> None:
    edits = commit_on(seed)
    data: dict[str, Any] = {"cherry_picks": [edits, seed.clash]} if kind == "cherry_picks" else {"pull_requests": [{"number": 8}, {"number": 10}]}
    with pytest.raises(ImageError) as caught:
        seed.prepare(**data)
    what = f"the cherry-pick {seed.clash[:12]}" if kind == "cherry_picks" else f"pull request 10 ({edits[:12]})"
    assert f"{what} of {seed.url} conflicts in vllm/envs.py, on the commit {seed.base[:12]}" in str(caught.value)
    assert f"image.build.{kind}" in str(caught.value)


def commit_on(seed: Seed) -> str:
    """Put a pull request 10 into the repository that changes what pull request 8 changes, and return its commit."""
    there = seed.folder / "ten"
    if not there.exists():
        git(seed.folder, "clone", "-q", seed.url, str(there))
        git(there, "checkout", "-q", seed.base)
        git(there, "push", "-q", "origin", f"{commit(there, 'ten', **{'vllm__envs.py': 'KEYS = 10'})}:refs/pull/10/head")
    return git(there, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fatal: remote error: upload-pack: not our ref 0123", "NO COMMIT"),
        ("Failed to checkout 0123", "NO COMMIT"),
        ("fatal: unable to access 'https://h/': Could not resolve host: h", "does not reach it"),
        ("fatal: unable to access 'https://h/': Failed to connect to h port 443", "does not reach it"),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", "it is private"),
        ("fatal: '/x' does not appear to be a git repository", "there is no such repository"),
        ("error: copy-fd: write returned: No space left on device\nfatal: cannot copy", "the disk of this node is full"),
        ('Failed to find required executable "git" in paths: /bin', "apt install git"),
        ("something else\x1b[31m", "git ls-remote https://h/r"),
        ("", "no output"),
    ],
)
def test_a_failed_fetch_has_its_cause(text: str, words: str) -> None:
    found = sources.fetch_fault(text, "https://h/r", "NO COMMIT")
    assert words in found
    assert found.isprintable()
    assert words == "NO COMMIT" or "image_build_context" in found or "node" in found


def test_a_secret_in_the_output_of_git_is_masked() -> None:
    assert "s3cret-9x8y7z" not in sources.fetch_fault("fatal: unable to access 'https://me:s3cret-9x8y7z@h/r'", "https://h/r", "")


def test_steps_need_their_context_and_dockerfile_below_the_sources(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "Dockerfile").write_text("FROM x")
    (tmp_path / "out").symlink_to("/etc")
    sources.check_steps(str(tmp_path), [{"context": "a", "dockerfile": "a/Dockerfile"}], "r")
    for context, dockerfile, words in (
        ("recipe/overlay", "a/Dockerfile", "step 1 of the build needs the folder recipe/overlay, and r does not have it"),
        ("a", "Dockerfile", "needs the Dockerfile Dockerfile"),
        ("out", "a/Dockerfile", "needs the folder out"),
        ("a", "out/passwd", "needs the Dockerfile out/passwd"),
    ):
        with pytest.raises(ImageError, match=words):
            sources.check_steps(str(tmp_path), [{"context": context, "dockerfile": dockerfile}], "r")


def test_the_folder_of_an_archive_of_a_repository_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "name-0123"
    inner.mkdir()
    assert sources.unpacked(str(tmp_path)) == str(inner)
    (tmp_path / "Dockerfile").write_text("FROM x")
    assert sources.unpacked(str(tmp_path)) == str(tmp_path)


def test_the_checkout_of_the_role_has_the_limits_of_the_module() -> None:
    role = yaml.safe_load((REPO / "roles/image/vars/main.yml").read_text())["__image_git"]
    assert role.pop("GIT_ALLOW_PROTOCOL")
    assert role == {key: value for key, value in sources.ENVIRONMENT.items() if key in role}
    assert {"GIT_TERMINAL_PROMPT", "GIT_CONFIG_VALUE_0"} <= role.keys()
    assert sources.protocols("https://h/r") == {"GIT_ALLOW_PROTOCOL": "https"}


def test_a_command_that_does_not_end_is_ended_and_its_output_is_bounded(tmp_path: Path) -> None:
    run = sources.runner("https://h/r", seconds=0.3)
    code, _out, err = run(["sh", "-c", "echo $$ >pid; exec sleep 60".replace("pid", str(tmp_path / "pid"))])
    assert code != 0
    assert "does not reach it" in sources.fetch_fault(err, "https://h/r", "")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert len(sources.runner("https://h/r")(["sh", "-c", "head -c 3000000 /dev/zero"])[1]) == sources.OUTPUT
    assert "apt install git" in sources.fetch_fault(run(["git-is-not-here"])[2], "https://h/r", "")
    assert run(["sh", "-c", "echo $GIT_ALLOW_PROTOCOL $GIT_TERMINAL_PROMPT"])[1] == "https 0\n"
