"""gb10 check and gb10 bench on a head that answers from a script: requests, documents and text, and the sentence if nothing can be asked."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, bench
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands, verbs_measure

RELEASE = {"release": "4f0c61d2a9be", "profile": "mine", "host": "10.0.0.11", "port": 8888}
FRANCE = [{"prompt": "The capital of France is", "expect": "Paris"}]
VERDICT = "pair1: 3 replies, none bad. If an agent still shows garbage, see docs/tuning.md#garbled-replies: its session, its fallback models, its parameters."


class Head:
    """A node without an agent, with a release and an API; keeps what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.patch, self.capsys, self.folder = monkeypatch, capsys, folder
        self.texts, self.asked = ["Paris.", "Paris.", "It is\n Paris."], list[dict[str, Any]]()
        self.probe: dict[str, Any] = {}
        (folder / "pair1/current").mkdir(parents=True)
        (folder / "pair1/current/release.json").write_text(json.dumps(RELEASE), encoding="utf-8")
        monkeypatch.setattr(api_probe, "run", self.answer)
        monkeypatch.setattr(verbs_measure, "status_document", lambda *_arguments: {"faults": []})

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(arguments)
        replies = [{"ok": True, "text": self.texts.pop(0), "completion_tokens": 4, "seconds": 0.5, "error": ""} for _request in arguments["requests"]]
        return self.probe or {"models": [{"id": "m"}], "error": "", "replies": replies}

    def gb10(self, *words: str, code: int = 0, prompts: object = None) -> tuple[list[str], str]:
        """Run gb10 check, which returns this code, and return its lines and its stderr."""
        given = {"group": "pair1", "rank": 0, "hosts": ["spark-1", "spark-2"], "directory": str(self.folder)}
        self.patch.setattr(sys, "stdin", io.StringIO(json.dumps(FRANCE if prompts is None else prompts)))
        assert commands.run(["check", "--prompts=-", "--concurrency=1,2", *words], path=str(self.folder / "none"), given=given) == code
        printed = self.capsys.readouterr()
        return printed.out.splitlines(), printed.err

    def document(self, *words: str, code: int = 0, prompts: object = None) -> dict[str, Any]:
        [line], _error = self.gb10("--json", *words, code=code, prompts=prompts)
        return dict(json.loads(line))


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Head:
    return Head(monkeypatch, capsys, tmp_path)


def test_every_level_is_asked_at_once_with_the_key_of_the_release_that_runs(head: Head) -> None:
    lines, error = head.gb10()
    assert [(asked["concurrency"], len(asked["requests"]), asked["url"]) for asked in head.asked] == [
        (level, level, "http://10.0.0.11:8888") for level in (1, 2)
    ]
    folder = head.folder / "pair1"
    assert all(asked["env_file"] == [f"{folder}/current/secrets.env", f"{folder}/api_key"] for asked in head.asked)
    assert lines[1] == "pair1: release 4f0c61d2a9be of profile mine, port 8888"
    assert [line.split()[:3] for line in lines[3:6]] == [["at", "once", "replies"], ["1", "1", "0"], ["2", "2", "0"]]
    assert (lines[-1], error) == (VERDICT, "")


def test_the_document_has_all_that_the_text_has(head: Head) -> None:
    found = head.document()
    assert bench.check_lines(found)[-1] == found["sentence"] == VERDICT
    assert (found["schema"], found["group"], found["release"], found["passed"]) == ("gb10.cluster/sanity/1", "pair1", "4f0c61d2a9be", True)
    assert [(each["concurrency"], each["aggregate_tok_s"]) for each in found["rows"]] == [(1, 8.0), (2, 16.0)]
    head.texts = ["Paris.", "It is\n Paris."]
    assert "2          0.50       4    8.0  It is Paris." in bench.check_lines(head.document("--streams", "--concurrency=2"))


@pytest.mark.parametrize("streams", [(), ("--streams",)])
def test_one_bad_reply_of_three_is_named_and_returns_2(head: Head, streams: tuple[str, ...]) -> None:
    head.texts = ["Paris.", "Paris.", ""]
    lines, error = head.gb10(*streams, code=2)
    assert error.startswith("pair1: 1 of 3 replies are bad: at 2 at once, to 'The capital of France is': the reply is empty.")
    start = lines.index("at once  prompt                    reply  reason")
    assert lines[start + 1] == "      2  The capital of France is  -      the reply is empty"
    head.texts = ["Paris.", "Paris.", ""]
    found = head.document(*streams, code=2)
    assert (found["passed"], f"{found['sentence']}\n") == (False, error)


def test_prompts_of_a_file_are_asked_and_those_of_the_collection_without_one(head: Head) -> None:
    (head.folder / "own.json").write_text('["One?"]', encoding="utf-8")
    head.gb10(f"--prompts={head.folder}/own.json", "--concurrency=1")
    head.gb10("--concurrency=1", code=2, prompts=[])
    assert [asked["requests"][0]["prompt"][:7] for asked in head.asked] == ["One?", "What is"]


@pytest.mark.parametrize(
    ("words", "prompts", "sentence"),
    [
        (["--concurrency=zero"], None, "expected are whole numbers from 1 to 1024"),
        ([], [{"promt": "x"}], "Prompt 1 is "),
        ([], {"prompt": "x"}, "The prompts are not a list."),
        ([], [{"prompt": "x", "max_tokens": "many"}], "Prompt 1 is "),
        (["--prompts=/none"], None, "No such file"),
    ],
)
def test_what_is_not_a_prompt_or_a_level_is_refused_without_a_request(head: Head, words: list[str], prompts: object, sentence: str) -> None:
    lines, error = head.gb10(*words, code=1, prompts=prompts)
    assert sentence in error
    assert (lines, head.asked) == ([], [])


@pytest.mark.parametrize(
    ("probe", "sentence"),
    [
        ({"error": "it is down", "models": [], "replies": []}, "spark-1 does not serve: it is down. See playbooks/status.yml"),
        ({"error": "", "models": [], "replies": []}, "spark-1 does not serve: it lists no model."),
        ({"failed": True, "msg": "Cannot read the API key"}, "Cannot read the API key"),
    ],
)
def test_a_head_that_does_not_serve_has_its_sentence(head: Head, probe: dict[str, Any], sentence: str) -> None:
    head.probe = probe
    assert sentence in head.gb10(code=1)[1]


def test_a_node_without_a_release_has_its_sentence(head: Head) -> None:
    path = head.folder / "pair1/current/release.json"
    path.unlink()
    assert head.gb10(code=1)[1] == f"pair1: nothing is known to serve on spark-1 ({path}: No such file or directory): run site.yml first.\n"
    path.write_text("{", encoding="utf-8")
    assert "nothing is known to serve on spark-1" in head.gb10(code=1)[1]


# --- gb10 bench

API_KEY = "sk-a-secret-key"
RESULT = {
    "completed": 2, "total_input_tokens": 32, "total_output_tokens": 32, "duration": 1.0, "output_throughput": 32.0, "median_ttft_ms": 10.0,
    "median_tpot_ms": 5.0, "median_itl_ms": 5.0,
}  # fmt: skip
PAGES = {"/v1/models": json.dumps({"data": [{"id": "m", "root": "/models/m", "max_model_len": 4096}]}), "/metrics": "vllm:num_preemptions_total 0\n"}


class Bench(Head):
    """A head whose container answers `vllm bench serve` from a script, the last answer again and again, and loses memory with each level."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        (self.folder / "pair1/api_key").write_text(f"VLLM_API_KEY={API_KEY}\n", encoding="utf-8")
        self.answers, self.calls, self.available, self.lost = [(0, json.dumps(RESULT), "")], list[list[str]](), 8.0, 0.0
        self.patch.setattr(api_probe.Server, "call", lambda _server, _method, path, **_more: (200, PAGES[path]))
        self.patch.setattr(verbs_measure, "run_command", self.command)
        self.patch.setattr(verbs_measure, "looks", self.looks)

    def command(self, argv: list[str], *_more: object) -> tuple[int, str, str]:
        self.calls.append(argv)
        self.available -= self.lost
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def looks(self, _group: object) -> list[tuple[int, str, dict[str, Any] | None, str]]:
        memory = {"total_kib": 9 << 20, "available_kib": int(self.available * 2**20), "free_kib": 4 << 20}
        return [(0, "spark-1", {"memory": memory}, ""), (1, "spark-2", None, "no reply")]

    def bench(self, *words: str, code: int = 0, published: object = None) -> tuple[dict[str, Any], str]:
        given = {"group": "pair1", "rank": 0, "hosts": ["spark-1", "spark-2"], "directory": str(self.folder)}
        self.patch.setattr(sys, "stdin", io.StringIO(json.dumps(published or {})))
        argv = ["bench", "--json", "--published=-", "--depths=0,64", "--concurrency=1", "--output-tokens=16", *words]
        assert commands.run(argv, path=str(self.folder / "none"), given=given) == code
        printed = self.capsys.readouterr()
        return json.loads(printed.out or "{}"), printed.err


PUBLISHED = [{"tool": "llama-benchy", "prompt": 2048, "output": 128, "figures": {"decode_tok_s": 100}}]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    return Bench(monkeypatch, capsys, tmp_path)


def test_each_level_is_measured_in_the_container_of_the_head_and_the_key_is_nowhere(measured: Bench) -> None:
    found, _error = measured.bench(published={"profile": "mine", "figures": PUBLISHED})
    assert [(row["depth"], row["completed"], row["tok_s"]) for row in found["rows"]] == [(0, 2, 32.0), (64, 2, 32.0)]
    assert [argv[:3] for argv in measured.calls] == [["docker", "exec", "gb10-pair1-rank0"]] * 2
    assert len({argv[argv.index("--seed") + 1] for argv in measured.calls}) == 2, "each level has its own prompts"
    assert all(argv[argv.index("--tokenizer") + 1] == "/models/m" for argv in measured.calls)
    assert found["memory"] == {"spark-1": [{"lowest_available_kib": 8 << 20, "lowest_free_kib": 4 << 20, "after_kib": 8 << 20}], "spark-2": []}
    assert found["published"] == PUBLISHED
    assert API_KEY not in json.dumps([found, measured.calls])


def test_figures_of_another_profile_are_left_out(measured: Bench) -> None:
    found, _error = measured.bench(published={"profile": "other", "figures": PUBLISHED})
    assert found["published"] == []


def test_a_soak_repeats_the_levels_until_the_memory_of_a_rank_is_low(measured: Bench) -> None:
    measured.lost = 0.5
    found, error = measured.bench("--seconds=3600", "--memory-floor=6", code=2)
    assert len(measured.calls) == len(found["rows"]) == 5
    assert found["ended"] == error.strip() == "pair1: spark-1: 5.5 GiB of memory are available, and the floor is 6 GiB (bench_memory_floor)."
    assert [each["lowest_available_kib"] / 2**20 for each in found["memory"]["spark-1"]] == [7.0, 6.0, 5.5]


@pytest.mark.parametrize(
    ("words", "answer", "ended"),
    [
        ((), (1, "", f"ValueError: Unauthorized for {API_KEY}\n"), "vllm bench serve in gb10-pair1-rank0: ValueError: Unauthorized for "),
        ((), (1, "", "a \x1b]0;b\a\n"), r"vllm bench serve in gb10-pair1-rank0: a \x1b]0;b\x07 (exit code 1)."),
        (("--depths=0,5000",), (0, json.dumps(RESULT), ""), "a request of the level has up to 5,016 tokens, and the context is 4,096: use a lower depth."),
    ],
)
def test_a_level_that_fails_keeps_the_figures_before_it(measured: Bench, words: tuple[str, ...], answer: tuple[int, str, str], ended: str) -> None:
    measured.answers.append(answer)
    found, error = measured.bench(*words, code=2)
    assert found["ended"].startswith(f"pair1: {ended}")
    assert [row["depth"] for row in found["rows"]] == [0]
    assert API_KEY not in json.dumps([found, error])


def test_a_group_that_does_not_serve_is_not_measured(measured: Bench) -> None:
    measured.patch.setattr(api_probe.Server, "call", lambda *_words, **_more: (0, "ConnectionRefusedError"))
    _found, error = measured.bench(code=1)
    assert error.startswith("spark-1 does not serve: http://10.0.0.11:8888/v1/models: ConnectionRefusedError. See playbooks/status.yml")
    assert not measured.calls
