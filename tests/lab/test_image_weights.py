"""The image and weights roles on the container lab: 2 GiB of weights on the head only, images that are built, and what can go wrong on the way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import copy_helpers as copy
import playbook
import pytest
from container_lab import NODE, Lab
from copy_helpers import IMAGE, MODEL, STORE, play, result

FETCH = "Fetch and put in place"


@pytest.fixture(scope="module")
def head_only(lab: Lab) -> Iterator[Lab]:
    """The lab, with the model and the image on the head only."""
    copy.clean(lab)
    copy.make_model(1)
    yield lab
    copy.clean(lab)


def test_a_copy_killed_half_way_resumes(head_only: Lab) -> None:
    waiting = f"{STORE}/.gb10-incoming-copy-model"
    killer = subprocess.Popen(
        ["docker", "exec", f"{NODE}2", "sh", "-c",
         f"for i in $(seq 6000); do s=$(du -sm {waiting} 2>/dev/null | cut -f1); [ \"${{s:-0}}\" -gt 500 ] && break; sleep 0.01; done; "
         "systemctl kill -s KILL gb10-copy-weights-pair1-fetch.service"],
    )  # fmt: skip
    run = play(head_only, "weights", weights_streams=1)
    assert killer.wait(90) == 0
    assert run.rc != 0
    assert "or from outside: run again, it goes on from there" in output(run)
    assert "lab-2 of pair1 failed (the message is above), so lab-1 stops as well" in run.last_message
    kept = int(head_only.on(2, f"du -sm {waiting} | cut -f1"))
    assert 400 < kept < 2048
    # The offer has been closed although the copy failed, and no key is left on either node.
    for node in (1, 2):
        assert head_only.on(node, "systemctl is-active 'gb10-copy-*' || true").strip() in ("", "inactive")
        assert head_only.on(node, "ls -A /run/gb10-cluster 2>/dev/null || true") == ""

    run = play(head_only, "weights")
    assert run.rc == 0, run.stdout[-3000:]
    moved = result(run, "lab-2", FETCH)["moved_bytes"]
    assert moved <= 2 * 1024**3 - 400 * 1024**2
    assert copy.sums(head_only, 1) == copy.sums(head_only, 2)
    assert head_only.on(2, f"ls -A {STORE}") == "copy-model\n"
    print(f"\nresumed: {moved / 1e6:.0f} MB moved, {result(run, 'lab-2', FETCH)['mb_per_second']} MB/s")


def test_the_key_of_a_copy_reads_the_model_and_nothing_else(head_only: Lab) -> None:
    """While the copy runs, as root of the other rank: another command, a tunnel, a write, another folder, and a link that a container has put there."""
    step = {"path": MODEL, "name": "probe"}
    fabric = [head_only.on(node, "ip -o -4 addr show enp1s0f0np0 | awk '{print $4}' | cut -d/ -f1").strip() for node in (1, 2)]
    offered = {**step, "work": "offer", "max_seconds": 600, "fabric": fabric[:1], "allow": fabric[1:], "keys": ["{{ hostvars['lab-2'].made.public_key }}"]}
    tasks = [
        {"hosts": "lab-2", "tasks": [{"gb10.cluster.job": {**step, "work": "key"}, "become": True, "register": "made"}]},
        {"hosts": "lab-1", "tasks": [{"gb10.cluster.job": offered, "become": True, "register": "offer"}]},
    ]
    path = head_only.folder / "offer.yml"
    path.write_text(json.dumps([{**play, "gather_facts": False} for play in tasks]), encoding="utf-8")
    head_only.on(1, f"ln -s /etc {MODEL}/link; echo x >{MODEL}/seen")
    run = head_only.play(str(path))
    assert run.rc == 0, run.stdout[-3000:]
    offer = result(run, "lab-1", "job")
    known = f"echo 'gb10-copy {offer['host_key']}' >/tmp/known"
    ssh = f"ssh -F none -i /run/gb10-cluster/copy-probe-fetch/key -p {offer['listen'][0]['port']} -o HostKeyAlias=gb10-copy -o UserKnownHostsFile=/tmp/known"
    at = f"root@{fabric[0]}"
    copy_ = f"rsync -e '{ssh}'"
    try:
        shown = head_only.on(
            2,
            f"{known}; {ssh} {at} id; {ssh} -W 127.0.0.1:22 {at} </dev/null; {copy_} /etc/hostname {at}:new; {copy_} {at}:../../../../etc/hostname /tmp/a;"
            f"{copy_} {at}:/etc/hostname /tmp/b; {copy_} {at}:link/hostname /tmp/c; {copy_} {at}:seen /tmp/seen; cat /tmp/seen; ls /tmp/a /tmp/b /tmp/c",
            check=False,
        )
        assert shown == "x\n"
        assert head_only.on(1, f"ls {MODEL}/new 2>/dev/null || true") == ""
    finally:
        for node in (1, 2):
            head_only.on(node, f"systemctl stop 'gb10-copy-probe-*'; rm -rf /run/gb10-cluster {MODEL}/link {MODEL}/seen /tmp/known /tmp/seen", check=False)


def output(run: playbook.Run) -> str:
    """Return the messages of all ranks that failed."""
    return "\n".join(message for _first, _second, message in run.failures)


FAKE_HUB = """
import os
def snapshot_download(repo_id, revision, cache_dir=None, local_dir=None):
    if os.environ.get("HF_TOKEN") != "hf_of_this_test":
        raise SystemExit("GatedRepoError: 403 Client Error: access to model %s is restricted" % repo_id)
    os.makedirs(local_dir, exist_ok=True)
    open(os.path.join(local_dir, "model.safetensors"), "wb").write(os.urandom(5 << 20))
    open(os.path.join(local_dir, "config.json"), "w").write("{}")
"""


@pytest.fixture
def hub(lab: Lab) -> Iterator[Lab]:
    """An image on the head whose huggingface_hub answers without a network; no rank has the model."""
    copy.clean(lab)
    lab.on(
        1,
        f"mkdir -p {STORE}/build && cd {STORE}/build && cat >huggingface_hub.py <<'END'\n{FAKE_HUB}\nEND\n"
        f"printf 'FROM {copy.BASE}\\nCOPY huggingface_hub.py /lib/\\nENV PYTHONPATH=/lib\\n' >Dockerfile && docker build -q --network none -t {copy.IMAGE} . "
        f"&& rm -rf {STORE}/build",
    )
    yield lab
    copy.clean(lab)


def test_one_rank_downloads_and_the_token_is_nowhere(hub: Lab) -> None:
    refused = play(hub, "weights", "-vvv", weights_download="auto", weights_hf_token="hf_another_secret")
    assert refused.rc != 0
    assert "access to model gb10-test/copy-model is restricted" in output(refused)
    assert "weights_hf_token" in output(refused)
    run = play(hub, "weights", "-vvv", weights_download="auto", weights_hf_token="hf_of_this_test")
    assert run.rc == 0, run.stdout[-3000:]
    assert copy.sums(hub, 1) == copy.sums(hub, 2) != ""
    # What the test itself gives with -e is in its own file of variables, and nowhere in what Ansible shows or keeps.
    assert "hf_another_secret" not in refused.text()
    assert "hf_of_this_test" not in run.text()
    for node in (1, 2):
        assert hub.on(node, "ls /run/gb10-cluster 2>/dev/null || true") == ""
        assert hub.on(node, "journalctl --no-pager | grep -c hf_of_this || true").strip() == "0"


def image_variables(**image: Any) -> dict[str, Any]:
    return {"gb10_profiles": {"copy-test": {**copy.PROFILE, "image": {"reference": IMAGE, "pull": False, **image}}}}


def folder(path: Path, dockerfile: str, **files: str) -> str:
    """Write a folder with a Dockerfile."""
    path.mkdir(parents=True)
    for name, text in {"Dockerfile": f"FROM {copy.BASE}\n{dockerfile}", **files}.items():
        (path / name).write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def buildkit(lab: Lab) -> Iterator[Lab]:
    """The lab, with BuildKit on the head and without the images of these tests."""
    copy.clean(lab)
    lab.on(1, "mkdir -p /root/.docker/cli-plugins && ln -sf /usr/local/lib/docker-buildx /root/.docker/cli-plugins/")
    yield lab
    lab.on(1, "rm -rf /root/.docker/cli-plugins")
    copy.clean(lab)


def test_an_image_is_built_from_a_folder_on_one_rank_and_sent(buildkit: Lab, tmp_path: Path) -> None:
    """BuildKit builds it, and the classic builder after that. No failure changes the image of that name."""
    lab = buildkit
    profiles = {"gb10_profiles_directory": str(tmp_path / "own")}
    lines = "ARG FLAVOUR=plain\nCOPY keys /keys\nRUN echo $FLAVOUR >/flavour\nRUN grep -qx 1 /keys\n"
    built = folder(tmp_path / "own/images/recipe", lines, keys="1\n")
    wanted = {**image_variables(build="recipe"), **profiles, "image_build_args": {"FLAVOUR": "mint"}}
    check = play(lab, "image", "--check", **wanted)
    run = play(lab, "image", **wanted)
    assert run.rc == 0, run.stdout[-3000:]
    assert {host for host, _task in check.changed} == {host for host, _task in run.changed} == {"lab-1", "lab-2"}
    for node in (1, 2):
        assert lab.on(node, f"docker run --rm --network none {IMAGE} cat /keys /flavour") == "1\nmint\n"
    assert play(lab, "image", **wanted).changed == set()

    before = image_ids(lab)
    own = folder(tmp_path / "context", "RUN exit 3\n")
    for text, variables, words in (
        ("2\n", {}, "grep -qx 1 /keys"),
        ("2\n", {"image_build_context": own}, "The command '/bin/sh -c exit 3' returned a non-zero code: 3 Remedy: correct the Dockerfile"),
    ):
        Path(built, "keys").write_text(text, encoding="utf-8")
        if variables:
            lab.on(1, "rm /root/.docker/cli-plugins/docker-buildx")
        failed = play(lab, "image", **wanted, **variables)
        assert failed.rc != 0
        assert words in " ".join(output(failed).split())
        assert image_ids(lab) == before
    Path(own, "Dockerfile").write_text(f"FROM {copy.BASE}\nRUN echo own >/flavour\n", encoding="utf-8")
    replaced = play(lab, "image", **wanted, image_build_context=own, gb10_lock_update=True)
    assert replaced.rc == 0, replaced.stdout[-3000:]
    assert [lab.on(node, f"docker run --rm --network none {IMAGE} cat /flavour") for node in (1, 2)] == ["own\n", "own\n"]


def test_mods_are_a_layer_over_a_built_image_and_the_same_on_all_ranks(buildkit: Lab, tmp_path: Path) -> None:
    """A second run changes nothing; another content is another image, which is built over the base that is there."""
    lab = buildkit
    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / "run.sh").write_text(f'set -e\ncp text "$WORKSPACE_DIR"/{name}\ncat /base - <name >>/order\n', encoding="utf-8")
        (tmp_path / "own" / name / "name").write_text(f"{name}\n", encoding="utf-8")
        (tmp_path / "own" / name / "text").write_text(f"from {name}\n", encoding="utf-8")
    folder(tmp_path / "own/images/recipe", "WORKDIR /srv\nRUN echo base >/base\n")
    wanted = {**image_variables(build="recipe", mods=[{"path": "b"}, {"path": str(tmp_path / "own/a")}]), "gb10_profiles_directory": str(tmp_path / "own")}

    def served(run: playbook.Run) -> str:
        found = [word.rstrip(":") for word in run.stdout.split() if word.startswith("gb10-test/copy:1-mods-")]
        return found[0]

    assert play(lab, "image", "--check", **wanted).rc == 0
    run = play(lab, "image", **wanted)
    assert run.rc == 0, run.stdout[-3000:]
    name = served(run)
    for node in (1, 2):
        found = lab.on(node, f"docker run --rm --network none {name} sh -c 'cat /srv/a /srv/b /order; ls /workspace/mods'")
        assert found.split("\n") == ["from a", "from b", "base", "b", "base", "a", "a", "b", ""]
    again = play(lab, "image", **wanted)
    assert (again.rc, again.changed) == (0, set())
    assert lab.on(2, f"docker image ls -q {IMAGE}") == "", "the base stays where the layer was built"

    base = lab.on(1, f"docker image inspect -f '{{{{.Id}}}}' {IMAGE}")
    (tmp_path / "own/a/text").write_text("from another\n", encoding="utf-8")
    changed = play(lab, "image", **wanted)
    assert changed.rc == 0, changed.stdout[-3000:]
    assert served(changed) != name
    assert lab.on(2, f"docker run --rm --network none {served(changed)} cat /srv/a") == "from another\n"
    assert lab.on(1, f"docker image inspect -f '{{{{.Id}}}}' {IMAGE}") == base

    (tmp_path / "own/a/run.sh").write_text("echo no such function >&2\nexit 3\n", encoding="utf-8")
    failed = play(lab, "image", **wanted)
    assert failed.rc != 0
    shown = " ".join(output(failed).split())
    assert all(words in shown for words in ("no such function", "exit code: 3", "correct the Dockerfile of image.build, or the mod"))


def image_ids(lab: Lab) -> list[str]:
    return [lab.on(node, f"docker image inspect -f '{{{{.Id}}}}' {copy.IMAGE}").strip() for node in (1, 2)]
