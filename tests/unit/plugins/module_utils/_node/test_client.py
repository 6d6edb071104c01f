"""The negotiated API version, and what the client reports of an engine that it cannot use."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from unit.fixtures.docker.engine import VERSIONS, Handler, serving


@pytest.mark.parametrize("version", list(VERSIONS))
def test_uses_the_highest_version_that_both_support(version: str) -> None:
    assert docker_api.choose_api(VERSIONS[version]["reply"]) == VERSIONS[version]["path"]


@pytest.mark.parametrize(
    ("newest", "oldest", "expected"),
    [
        ("1.60", "1.40", "/v1.52"),
        ("1.45", "1.44", "/v1.45"),
        ("1.40", "1.12", "needs 1.41 to 1.52. The engine is too old. Install Docker Engine 20.10 or later."),
        ("1.60", "1.53", "supports API 1.53 to 1.60, and gb10.cluster needs 1.41 to 1.52. The engine is too new. Install a newer gb10.cluster"),
    ],
)
def test_chooses_within_both_ranges_or_names_them(newest: str, oldest: str, expected: str) -> None:
    reply = {"Version": "9.9", "ApiVersion": newest, "MinAPIVersion": oldest}
    if expected.startswith("/"):
        assert docker_api.choose_api(reply) == expected
        return
    with pytest.raises(DockerError) as error:
        docker_api.choose_api(reply)
    assert expected in str(error.value)


@pytest.mark.parametrize("version", list(VERSIONS))
def test_reads_from_each_engine_and_asks_for_the_version_once(tmp_path: Path, version: str) -> None:
    path = tmp_path / "docker.sock"
    with serving(path, version) as engine:
        engine.containers["rank0"] = {"Id": "c1"}
        assert docker_api.inspect("rank0", str(path)) == {"Id": "c1"}
        assert docker_api.inspect("rank1", str(path)) is None
        assert docker_api.list_containers(["a=b"], str(path)) == [{"Id": "c1"}]
    assert engine.asked.count("/version") == 1


def test_negotiates_again_after_the_engine_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with serving(path, "29.0") as engine:
        assert docker_api.inspect("rank0", str(path)) is None
        engine.version = VERSIONS["20.10"]["reply"]
        with pytest.raises(DockerError, match="HTTP 400"):
            docker_api.inspect("rank0", str(path))
        assert docker_api.inspect("rank0", str(path)) is None


def test_an_engine_that_does_not_run_differs_from_one_without_access_and_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "absent.sock", tmp_path / "dead.sock"):
        if path.name == "dead.sock":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        with pytest.raises(DockerError, match=r"^The Docker Engine is not running: .* Run site.yml with --tags docker, or `systemctl start docker`\.$"):
            docker_api.get("/info", socket_path=str(path))
    assert "Run with become" in str(docker_api.silence(PermissionError(13, "denied"), "/s"))
    monkeypatch.setattr(docker_api, "TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(tmp_path / "hangs.sock"))
        hangs.listen()
        with pytest.raises(DockerError, match=r"does not answer on .*no reply within .*journalctl -u docker"):
            docker_api.get("/info", socket_path=str(tmp_path / "hangs.sock"))


def test_a_reply_that_is_not_json_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "docker.sock"
    with serving(path):
        monkeypatch.setattr(docker_api, "get", lambda *_arguments: b"<html>")
        for call in (lambda: docker_api.inspect("rank0", str(path)), lambda: docker_api.list_containers(["a=b"], str(path))):
            with pytest.raises(DockerError, match="does not answer as a Docker Engine does"):
                call()


def test_the_end_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with serving(path) as engine:
        engine.logs["c1"] = [("2026-11-21T05:00:00Z", b"%d\n" % number, 1) for number in range(100)]
        assert docker_api.log_text(docker_api.logs("c1", socket_path=str(path), tail=2), 1 << 20) == (b"98\n99\n", False)
        assert docker_api.log_text(docker_api.logs("c1", socket_path=str(path)), 6) == (b"98\n99\n", True)


def test_the_engines_own_message_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(self: Handler) -> None:
        full = "images" in self.path
        self.reply(500 if full else 200, b'{"message": "no space left on device"}' if full else b'{"ApiVersion": "1.45"}')

    monkeypatch.setattr(Handler, "do_GET", reply)
    with (
        serving(tmp_path / "docker.sock"),
        pytest.raises(DockerError, match=r"answers HTTP 500 to /v1\.45/images/json: no space left on device") as error,
    ):
        docker_api.get("/images/json", socket_path=str(tmp_path / "docker.sock"))
    assert error.value.status == 500
