"""Work on one node: what is refused before a unit starts, what each unit runs, its progress, and how it ends. systemd and Docker are replaced."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, images, manifest, model_folder, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.modules import job
from module_run import run_module
from unit.fixtures.page_cache import cached_share, needs_page_cache, write_out

DIGEST = "sha256:" + "a" * 64
OFFER = {"listen": [{"address": "127.0.0.1", "port": 5}], "host_key": "ssh-ed25519 HOST"}
PEERS = {"fabric": ["127.0.0.1"], "allow": ["127.0.0.2"], "keys": ["ssh-ed25519 AAAA"]}
PARAMS: dict[str, Any] = {
    "work": "download", "store": "/srv/models/", "path": "/srv/models/hub/models--o--n", "model": "o/n", "revision": "main", "layout": "hub",
    "reference": "vllm:1", "token": "hf_secret", "endpoint": "", "max_seconds": 60,
}  # fmt: skip


class Systemd:
    """A node whose units end at once, with this code and log, or run for ever."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.code, self.log, self.active, self.stays = folder, "0", "", False, False
        self.script, self.words = "", list[str]()
        self.commands: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.commands.append(list(argv))
        if argv[0] == "ssh-keygen":
            Path(f"{argv[-1]}.pub").write_text("ssh-ed25519 AAAA gb10-copy\n")
            Path(argv[-1]).write_text("private")
        if argv[0] == "systemd-run":
            self.active = self.active or self.stays
            self.words, self.script = list(argv), Path(argv[-1]).read_text()
            place = str(Path(argv[-1]).parent)
            Path(f"{place}.log").write_text(self.log)
            if self.code:
                Path(f"{place}.code").write_text(self.code)
        return (0 if self.active else 3) if argv[:2] == ["systemctl", "is-active"] else 0, "", ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    made = Systemd(tmp_path / "run")
    monkeypatch.setattr(job, "runner", lambda _module: made)
    monkeypatch.setattr(job, "Job", lambda name, run: transfer.Job(name, run, str(made.folder)))
    monkeypatch.setattr(job, "Node", lambda _root, run=made: Node(str(tmp_path / "node"), run))
    monkeypatch.setattr(job, "SLICE_SECONDS", 0.01)
    monkeypatch.setattr(job, "READY_SECONDS", 0)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, name, *_a, **_k: f"/usr/bin/{name}")
    monkeypatch.setattr(docker_api, "list_containers", lambda _labels: [])
    monkeypatch.setattr(images, "inspect_image", lambda reference: {"Id": "sha256:new" if reference == "vllm:1" else reference, "Size": 5})
    (tmp_path / "node").mkdir()
    (tmp_path / "store").mkdir()
    return made


@pytest.fixture
def call(node: Systemd, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the steps that the action plugin runs, and return the last result."""

    def run(**options: Any) -> dict[str, Any]:
        options = {"max_seconds": 60, **options}
        found = run_module(capsys, job, **options)
        return run_module(capsys, job, **options, step="status") if found.get("started") else found

    return run


@pytest.mark.parametrize(
    ("options", "script"),
    [
        ({"work": "pull", "reference": "reg:5000/o/vllm:1"}, "( docker pull reg:5000/o/vllm:1\n)"),
        (
            {"work": "pull", "reference": "reg:5000/o/vllm:1", "digest": DIGEST},
            f"( docker pull reg:5000/o/vllm@{DIGEST} && docker tag reg:5000/o/vllm@{DIGEST} reg:5000/o/vllm:1\n)",
        ),
        ({"work": "save", "path": "{tmp}/send", "reference": "vllm:1"}, "( docker save --output {tmp}/send/image.tar vllm:1\n)"),
        ({"work": "load", "path": "{tmp}/there", "reference": "vllm:1"}, "( docker load --quiet --input {tmp}/there/image.tar\n)"),
    ],
)
def test_the_work_with_an_image_is_one_script(node: Systemd, capsys: Any, tmp_path: Path, options: dict[str, str], script: str) -> None:
    options = {key: value.replace("{tmp}", str(tmp_path)) for key, value in options.items()}
    assert run_module(capsys, job, **options, max_seconds=60)["started"]
    assert node.script.startswith(script.replace("{tmp}", str(tmp_path)))
    assert ("--property=MemoryMax=1G" in node.words) is (options["work"] in ("save", "load"))


def test_a_saved_archive_has_its_size_and_one_that_does_not_fit_is_not_begun(call: Any, node: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "send").mkdir()
    (tmp_path / "send/image.tar").write_text("12345")
    assert call(work="save", path=str(tmp_path / "send"), reference="vllm:1")["size"] == 5
    node.words = []
    monkeypatch.setattr(images, "inspect_image", lambda _reference: {"Size": 1 << 60})
    assert "are needed for vllm:1" in call(work="save", path=str(tmp_path / "send"), reference="vllm:1")["msg"]
    assert node.words == []


@pytest.mark.parametrize(("keep", "removed"), [(None, None), (0, []), (2, []), (1, ["sha256:old"])])
def test_an_image_that_has_come_is_recorded_and_older_ones_go(call: Any, node: Systemd, tmp_path: Path, keep: int | None, removed: list[str] | None) -> None:
    old = [{"id": "sha256:old", "reference": "vllm:0", "at": 1}]
    Node(str(tmp_path / "node")).save_record(images.RECORD, {"imported": old})
    found = call(work="pull", reference="vllm:1", keep=keep)
    assert (found["id"], found.get("removed")) == ("sha256:new", removed)
    ids = [item["id"] for item in Node(str(tmp_path / "node")).load_record(images.RECORD)["imported"]]
    assert ids == [each for each in ("sha256:old", "sha256:new") if each not in (removed or ()) and (each == "sha256:old" or keep is not None)]


@pytest.mark.parametrize(
    ("log", "text", "percent"),
    [
        ("1: Pulling from x\na: Pulling fs layer\nb: Pulling fs layer\nc: Already exists\na: Pull complete\n", "2 of 3 layers", 66),
        ("a: Pulling fs layer\na: Pull complete\n#5 [base 2/3] RUN make\n#5 12.1 compiling\n", "#5 12.1 compiling", 33),
        ("Step 3/4 : RUN z\n", "Step 3/4 : RUN z", 50),
        ("#5 [3/0] RUN z\n", "#5 [3/0] RUN z", None),
        ("", "", None),
    ],
)
def test_progress_is_the_share_of_layers_or_build_steps(node: Systemd, capsys: Any, log: str, text: str, percent: int | None) -> None:
    node.log, node.code, node.active = log, "", True
    run_module(capsys, job, work="pull", reference="vllm:1", max_seconds=60)
    found = run_module(capsys, job, work="pull", reference="vllm:1", max_seconds=60, step="status")["report"]
    assert found == {"state": "running", "text": text, "percent": percent}


FAILURES = [
    ("pull", "Error response from daemon: Get https://r/v2/: dial tcp: lookup r: no such host", "a way to the registry"),
    ("pull", "Error response from daemon: pull access denied for x", "docker login"),
    ("pull", "Error response from daemon: manifest unknown", "image.reference"),
    ("pull", "write /var/lib/docker/tmp: no space left on device", "free space"),
    ("pull", "", "(no output)"),
    ("build", "COPY failed: x", "COPY failed: x\nRemedy: correct the Dockerfile of image.build"),
    ("download", "ModuleNotFoundError: No module named 'huggingface_hub'", "weights_download_image"),
    ("download", "GatedRepoError: 403 Client Error: hf_secret", "weights_hf_token"),
    ("download", "RepositoryNotFoundError: 404", "model.id"),
    ("download", "MaxRetryError: Failed to resolve 'huggingface.co'", "a way to the registry or the hub"),
    ("download", "docker: Error: No such image: vllm:1", "image role"),
    ("fetch", "rsync: [receiver] write failed on a: No space left on device (28)\nrsync error: x", "free space there, and run again: it goes on"),
    ("fetch", "ssh: connect to host 127.0.0.1 port 5: Connection refused\nrsync error: unexplained error", "check the cable, and that no firewall"),
    ("fetch", "mv: cannot overwrite directory 'x'\n./x", "correct that, and run again"),
]


@pytest.mark.parametrize(("work", "log", "words"), FAILURES)
def test_failed_work_is_its_decisive_line_with_a_remedy(work: str, log: str, words: str) -> None:
    text = job.failure(1, log, {**PARAMS, "work": work, "model": "o/n" if work == "download" else ""})
    assert words in text
    assert "failed" in text
    assert "hf_secret" not in text


def test_work_that_is_ended_from_outside_goes_on_in_the_next_run(call: Any, node: Systemd) -> None:
    node.code = ""
    text = call(work="pull", reference="vllm:1", max_seconds=60)["msg"]
    assert text.startswith("pulling vllm:1 was ended after 60 s or from outside: run again, it goes on from there")
    assert not node.folder.exists()


# --- The download of a model.


def download(folder: Path) -> dict[str, str]:
    return {"work": "download", "store": str(folder / "store"), "path": str(folder / "store/m"), "model": "o/n", "reference": "vllm:1"}


def test_the_token_is_only_in_the_env_file_which_goes_with_the_download(call: Any, node: Systemd, tmp_path: Path) -> None:
    found = call(**download(tmp_path), token="hf_secret")
    assert found["changed"]
    assert "hf_secret" not in node.script + str(node.words)
    assert f"--env-file {node.folder}/copy-job-download/env" in node.script
    assert f"--volume {tmp_path}/store:{tmp_path}/store " in node.script
    assert not node.folder.exists()
    assert "HF_TOKEN=hf_secret\n" in job.environment(PARAMS)
    assert "HF_TOKEN" not in job.environment({**PARAMS, "token": ""})
    with pytest.raises(ManifestError, match="line break"):
        job.environment({**PARAMS, "token": "a\nLD_PRELOAD=x"})


def test_a_container_that_outlives_its_unit_is_removed(call: Any, node: Systemd, tmp_path: Path) -> None:
    node.code = ""
    assert "downloading o/n was ended" in call(**download(tmp_path))["msg"]
    assert node.commands.count(["docker", "rm", "-f", "gb10-copy-job-download"]) == 2, "before the start, and after the end"


def test_downloaded_files_are_counted_once_and_leave_the_page_cache(tmp_path: Path) -> None:
    blobs = tmp_path / "model/blobs"
    blobs.mkdir(parents=True)
    write_out(blobs / "x", bytes(8 << 20))
    (tmp_path / "outside").write_bytes(bytes(1 << 20))
    (blobs / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(blobs / "pipe")
    assert job.size_of(str(tmp_path / "model")) == 8 << 20
    assert job.size_of(str(tmp_path / "none")) == 0
    needs_page_cache(tmp_path)
    assert cached_share(blobs / "x") == 0
    assert cached_share(tmp_path / "outside") == 1


@pytest.mark.parametrize(("layout", "where"), [("hub", {"cache_dir": "/srv/models/hub"}), ("directory", {"local_dir": "/srv/models/hub/x"})])
def test_the_program_downloads_to_the_place_of_the_layout(tmp_path: Path, layout: str, where: dict[str, str]) -> None:
    (tmp_path / "huggingface_hub.py").write_text("def snapshot_download(**given):\n    import json\n    print(json.dumps(given))\n")
    words = [sys.executable, "-c", job.PROGRAM, "o/n", "main", layout, "/srv/models/hub/x"]
    done = subprocess.run(words, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"repo_id": "o/n", "revision": "main", **where}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"work": "download", "path": "elsewhere"}, "is not below"),
        ({"work": "download", "size_gib": 10**9}, "nothing was written"),
        ({"work": "fetch", "fetch": {"a": 1 << 60}}, "nothing was copied"),
    ],
)
def test_refusal_in_check_mode_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("PATH", "")  # no command can be run
    store = tmp_path / "store"
    given = {"path": str(store / "m"), "store": str(store), "model": "o/n", "reference": "vllm:1", "max_seconds": 60, "_ansible_check_mode": True, **arguments}
    assert message in run_module(capsys, job, **given)["msg"]
    assert not store.exists()


# --- The ends of a copy.


def test_a_copy_without_rsync_names_the_package(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, name, *_a, **_k: None if name == "rsync" else name)
    assert call(work="key")["msg"].startswith("rsync is not installed on this node: install the packages rsync")


def test_a_key_is_for_one_copy_and_its_private_half_stays(call: Any, node: Systemd) -> None:
    found = call(work="key", name="weights")
    assert found["public_key"] == "ssh-ed25519 AAAA"
    assert "private" not in str(found)
    assert (node.folder / "copy-weights-fetch").stat().st_mode & 0o777 == 0o700
    assert call(work="close", name="weights")["changed"]
    assert not node.folder.exists()
    assert not call(work="close", name="weights")["changed"]


@pytest.mark.parametrize("lacks", ["fabric", "allow", "keys"])
def test_files_are_offered_to_named_peers_only(call: Any, node: Systemd, tmp_path: Path, lacks: str) -> None:
    assert "files are offered to named peers only" in call(work="offer", path=str(tmp_path), **{**PEERS, lacks: []})["msg"]
    assert node.words == []


def test_an_address_that_is_not_on_the_node_and_a_port_in_use_are_named(call: Any, tmp_path: Path) -> None:
    assert "cannot listen on the fabric address 192.0.2.1" in call(work="offer", path=str(tmp_path), **{**PEERS, "fabric": ["192.0.2.1"]})["msg"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "is the port free?" in call(work="offer", path=str(tmp_path), port=taken.getsockname()[1], **PEERS)["msg"]


def test_an_offer_is_a_bounded_unit_that_reads_the_folder(call: Any, node: Systemd, tmp_path: Path) -> None:
    node.stays, node.code = True, ""
    found = call(work="offer", path=str(tmp_path / "store"), **PEERS)
    assert (found["host_key"], found["listen"][0]["address"]) == ("ssh-ed25519 AAAA", "127.0.0.1")
    assert f'--property=BindReadOnlyPaths="{tmp_path}/store"' in node.words
    assert "--property=MemoryMax=1G" in node.words
    assert (node.folder / "copy-job-offer/authorized_keys").read_text() == 'restrict,from="127.0.0.2" ssh-ed25519 AAAA\n'
    node.stays, node.active, node.log = False, False, "Bind to port 5 failed\n"
    assert "does not start on 127.0.0.1, port " in call(work="offer", path=str(tmp_path / "store"), **PEERS)["msg"]


def test_copied_files_and_imported_images_are_removed(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "absent", lambda _node, path, check, store: ([path], [store, str(check)]))
    monkeypatch.setattr(images, "remove_imported", lambda _node, check: (["sha256:a"], [str(check)]))
    found = call(work="remove", path="/srv/m", store="/srv")
    assert (found["changed"], found["removed"], found["left"]) == (True, ["/srv/m"], ["/srv", "False"])
    found = call(work="remove", _ansible_check_mode=True)
    assert (found["changed"], found["removed"], found["left"]) == (True, ["sha256:a"], ["True"])


def test_a_fetch_needs_a_key_and_an_offer(call: Any, node: Systemd, tmp_path: Path) -> None:
    given = {"work": "fetch", "path": str(tmp_path / "store/m"), "fetch": {"a": 5}}
    assert "work=key" in call(**given, provider=OFFER)["msg"]
    call(work="key")
    assert "does not offer them" in call(**given)["msg"]
    assert node.words == []


def test_a_fetch_is_a_bounded_unit_that_writes_next_to_the_model_and_is_recorded(call: Any, node: Systemd, tmp_path: Path) -> None:
    path = tmp_path / "store/m"
    call(work="key")
    path.mkdir()
    (path / "old").touch()
    node.log = "began 1.0\nLiteral data: 5000000 bytes\nended 3.0\n"
    given = {"work": "fetch", "path": str(path), "fetch": {"a.safetensors": 5}, "provider": OFFER, "fabric": ["127.0.0.1"]}
    found = call(**given, new=["a.safetensors"], remove=["old"])
    assert (found["copied"], found["moved_bytes"], found["mb_per_second"]) == (["a.safetensors"], 5000000, 2)
    assert found["report"] == {"state": "done", "done": 5, "total": 5, "rate": 2}
    assert f'--property=BindPaths="{node.folder}" "{tmp_path}/store"' in node.words
    assert {f"--property={each}" for each in transfer.BOUNDS} <= set(node.words)
    assert (tmp_path / "store/.gb10-incoming-m").stat().st_mode & 0o777 == 0o700
    assert not (path / "old").exists()
    assert Node(str(tmp_path / "node")).load_record(manifest.record_name(str(path)))["copied"] == ["a.safetensors"]
    assert not node.folder.exists(), "the key is gone"


def test_a_link_in_place_of_the_staging_folder_is_refused(call: Any, node: Systemd, tmp_path: Path) -> None:
    call(work="key")
    (tmp_path / "etc").mkdir(mode=0o755)
    (tmp_path / "store/.gb10-incoming-m").symlink_to(tmp_path / "etc")
    assert "Not a directory" in call(work="fetch", path=str(tmp_path / "store/m"), fetch={"a": 5}, provider=OFFER)["msg"]
    assert ((tmp_path / "etc").stat().st_mode & 0o777, node.words) == (0o755, [])


def test_new_files_are_recorded_before_the_unit_that_moves_them(call: Any, node: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    path = str(tmp_path / "store/m")
    monkeypatch.setattr(job, "start", lambda *_given: seen.append(Node(str(tmp_path / "node")).load_record(manifest.record_name(path))["copied"]))
    call(work="fetch", path=path, fetch={"a": 5}, new=["a"], provider=OFFER)
    assert seen == [["a"]]


def test_files_are_removed_without_a_unit_if_there_is_nothing_to_fetch(call: Any, node: Systemd, tmp_path: Path) -> None:
    (tmp_path / "store/m").mkdir()
    (tmp_path / "store/m/old").touch()
    assert call(work="fetch", path=str(tmp_path / "store/m"), remove=["old"])["changed"]
    assert (node.words, list((tmp_path / "store").iterdir())) == ([], [])
