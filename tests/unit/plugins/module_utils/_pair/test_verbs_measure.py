"""gb10 check and gb10 bench on a head that answers from a script: requests, documents and text, and the sentence if nothing can be asked."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import pwd
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._bench import tools
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, cases
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
    assert cases.check_lines(found)[-1] == found["sentence"] == VERDICT
    assert (found["schema"], found["group"], found["release"], found["passed"]) == ("gb10.cluster/sanity/1", "pair1", "4f0c61d2a9be", True)
    assert [(each["concurrency"], each["aggregate_tok_s"]) for each in found["rows"]] == [(1, 8.0), (2, 16.0)]
    head.texts = ["Paris.", "It is\n Paris."]
    assert "2          0.50       4    8.0  It is Paris." in cases.check_lines(head.document("--streams", "--concurrency=2"))


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


def test_a_reply_that_differs_while_others_start_and_end_is_bad_only_if_the_engine_is_batch_invariant(head: Head) -> None:
    alone, changed, path = "The class keeps a time for each key.", "The class keeps nothing.", head.folder / "pair1/current/release.json"
    for again, exact, code in ((alone, True, 0), (changed, False, 0), (changed, True, 2)):
        path.write_text(json.dumps({**json.loads(path.read_text()), "criteria": {"batch_invariant": exact}}))
        head.texts = [alone, again, *["Paris."] * 18]
        lines, error = head.gb10("--cases=victim", code=code)
        assert any("This is a fault only with VLLM_BATCH_INVARIANT=1" in line for line in lines) == (again == changed and not exact)
    assert "at 7 at once, to 'Write a Python class for a cache whose entries expire, then explain each method.': next to other requests it is not" in error
    assert "it is not the reply that came alone, from character 17 on: 'nothing.', not 'a time for each key.'" in error
    assert [asked["concurrency"] for asked in head.asked] == [1, 7] * 3
    assert head.asked[0]["requests"][0] == head.asked[1]["requests"][0], "the same request"


def test_staggered_requests_and_a_cold_prompt_with_tools_are_asked_after_another(head: Head) -> None:
    head.texts = [*["Paris."] * 16, "Lisbon"]
    found = head.document("--cases=staggered,cold-tools", "--cold-tokens=9000")
    assert found["passed"]
    assert [request["after"] for request in head.asked[0]["requests"]] == pytest.approx([0.4 * place for place in range(16)])
    (cold,) = head.asked[1]["requests"]
    assert (cold["cold"], cold["prompt_tokens"], bool(cold["body"]["tools"])) == (True, 9000, True)


@pytest.mark.parametrize(
    ("words", "prompts", "sentence"),
    [
        (["--concurrency=zero"], None, "expected are whole numbers from 1 to 1024"),
        ([], [{"promt": "x"}], "Prompt 1 is "),
        ([], {"prompt": "x"}, "The prompts are not a list."),
        ([], [{"prompt": "x", "max_tokens": "many"}], "Prompt 1 is "),
        (["--prompts=/none"], None, "No such file"),
        (["--cases=prompts,viktim"], None, "The cases are prompts, viktim; expected are prompts, victim, staggered, cold-tools."),
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
PAGES = {"/v1/models": json.dumps({"data": [{"id": "m", "max_model_len": 8192}]}), "/metrics": 'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'}
RESULTS = Path(__file__).parents[3] / "fixtures/bench"
LEVEL = {"tool": "llama-benchy", "prompt": 64, "output": 16}
PUBLISHED = [{"tool": "llama-benchy", "prompt": 64, "output": 16, "figures": {"decode_tok_s": 200}}]
#: A tool that is run as the real one: it has its key, a tokenizer and a text, prints noise, and leaves a result that quotes the key.
FAKE = """
import json, os, sys
def main():
    print("Running test:", file=sys.stdout)
    given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    texts = [open(os.path.join(place, name)).read() for place, _folders, names in os.walk(os.environ["HOME"]) for name in names if name != "result.json"]
    result = json.load(open({result!r}))
    result["model"] = f"{{given['--api-key']}} {{sorted(texts)}} {{sorted(os.environ)}}"
    json.dump(result, open("result.json", "w"))
    sys.exit({code})
"""


class Bench(Head):
    """A head with both tools, which answer with recorded results, and whose memory shrinks with each level."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        (self.folder / "pair1/api_key").write_text(f"VLLM_API_KEY={API_KEY}\n", encoding="utf-8")
        (self.folder / "pair1/current/release.json").write_text(json.dumps({**RELEASE, "model": str(self.folder)}), encoding="utf-8")
        (self.folder / "tokenizer.json").write_text("a tokenizer", encoding="utf-8")
        (self.folder / "book.txt.gz").write_bytes(gzip.compress(b"a book"))
        self.answers = [(0, (RESULTS / "llama-benchy.json").read_text(encoding="utf-8"), "")]
        self.calls, self.available, self.lost = list[list[str]](), 8.0, 0.0
        self.patch.setattr(api_probe.Server, "call", lambda _server, _method, path, **_more: (200, PAGES[path]))
        self.patch.setattr(verbs_measure, "run_command", self.command)
        self.patch.setattr(verbs_measure, "looks", self.looks)
        self.patch.setattr(verbs_measure, "SCRATCH", str(self.folder))
        self.patch.setattr(tools, "FOLDER", str(self.folder))
        self.patch.setattr(tools, "PYTHON", sys.executable)
        self.patch.setattr(tools, "BOOK", str(self.folder / "book.txt.gz"))
        self.patch.setattr(os, "geteuid", lambda: 1000)  # a user of a test can be root, whose rights a tool gives up

    def command(self, argv: list[str], *_more: object, **_most: object) -> tuple[int, str, str]:
        self.calls.append(argv)
        self.available -= self.lost
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def looks(self, _group: object) -> list[tuple[int, str, dict[str, Any] | None, str]]:
        memory = {"total_kib": 9 << 20, "available_kib": int(self.available * 2**20), "free_kib": 4 << 20}
        return [(0, "spark-1", {"memory": memory}, ""), (1, "spark-2", None, "no reply")]

    def bench(self, *words: str, code: int = 0, levels: object = (LEVEL, {**LEVEL, "depth": 64}), profile: str = "mine") -> tuple[dict[str, Any], str]:
        given = {"group": "pair1", "rank": 0, "hosts": ["spark-1", "spark-2"], "directory": str(self.folder)}
        self.patch.setattr(sys, "stdin", io.StringIO(json.dumps({"levels": levels, "profile": profile, "published": PUBLISHED})))
        assert commands.run(["bench", "--json", "--given=-", *words], path=str(self.folder / "none"), given=given) == code
        printed = self.capsys.readouterr()
        return json.loads(printed.out or "{}"), printed.err

    def install(self, module: str, code: int = 0) -> None:
        """Install a tool in an environment of its own, and run commands from now on."""
        venv.create(self.folder / "venv", symlinks=True)
        (packages,) = (self.folder / "venv/lib").glob("python*/site-packages")
        place = packages / f"{module.replace('.', '/')}.py"
        place.parent.mkdir(parents=True)
        place.write_text(FAKE.format(result=str(RESULTS / "llama-benchy.json"), code=code), encoding="utf-8")
        self.patch.setattr(tools, "PYTHON", str(self.folder / "venv/bin/python"))
        self.patch.setattr(verbs_measure, "run_command", bounded.run_command)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    return Bench(monkeypatch, capsys, tmp_path)


def test_a_tool_measures_with_tokenizer_text_and_key_and_leaves_nothing(measured: Bench) -> None:
    measured.install("llama_benchy.__main__")
    found, _error = measured.bench(levels=[LEVEL])
    decode = next(row for row in found["rows"] if row["quantity"] == "decode_tok_s")
    assert (decode["depth"], len(decode["runs"])) == (0, 3)
    assert found["results"][0]["name"] == "1.llama-benchy.json"
    assert "['a book', 'a tokenizer'] ['HF_DATASETS_OFFLINE', " in found["results"][0]["result"]["model"]
    assert API_KEY not in json.dumps(found)
    assert list(measured.folder.glob("gb10-bench-*")) == []
    assert any(line.startswith("pp64 tg16 c1  prefill ") for line in found["lines"])


def test_a_tool_cannot_fill_the_disk_with_a_file(measured: Bench) -> None:
    measured.install("llama_benchy.__main__")
    measured.patch.setattr(tools, "FILE_BYTES", 100)
    assert measured.bench(code=2, levels=[LEVEL])[1].endswith("(char 100).\n"), "its result is cut there"


def test_folders_of_measurements_that_were_killed_are_removed_and_no_other(measured: Bench) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    killed, used, kept = (measured.folder / name for name in (f"gb10-bench-{ended.pid}-x", f"gb10-bench-{os.getpid()}-y", "kept"))
    for folder in (killed, used, kept):
        folder.mkdir()
        (folder / "data").write_text("x", encoding="utf-8")
    for link in (killed / "link", measured.folder / f"gb10-bench-{ended.pid}-z"):
        link.symlink_to(kept)
    verbs_measure._clear((os.getuid() + 1,))
    assert killed.exists(), "it is of another user"
    measured.patch.setattr(os, "geteuid", os.getuid)
    measured.patch.setattr(pwd, "getpwnam", lambda _name: SimpleNamespace(pw_uid=4242))
    measured.bench("--plan")
    assert not killed.exists()
    assert all((folder / "data").exists() for folder in (used, kept))


def test_a_tokenizer_of_the_cache_of_the_hub_is_read_and_one_outside_the_model_is_not(measured: Bench) -> None:
    snapshot, blobs = measured.folder / "snapshots/abc", measured.folder / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (measured.folder / "tokenizer.json").rename(blobs / "1")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/1")
    measured.install("llama_benchy.__main__")
    found, _error = measured.bench(levels=[LEVEL])
    assert "'a tokenizer'" in found["results"][0]["result"]["model"]
    for place in (snapshot, measured.folder):
        (place / "tokenizer.json").unlink(missing_ok=True)
        (place / "tokenizer.json").symlink_to("/etc/passwd")
    assert measured.bench(code=2, levels=[LEVEL])[1].startswith("pair1: pp64 tg16 c1 needs ")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([], "it is [], and a mapping is expected."),
        ({"levels": LEVEL}, "levels is "),
        ({"levels": [LEVEL, {**LEVEL, "depth": "4k"}]}, "levels[1].depth is '4k', and a whole number is expected."),
        ({"levels": [{"tool": "gb10", "arrivals": 3}]}, "levels[0].arrivals is 3, and a text is expected."),
        ({"profile": "mine", "published": [{"tool": "gb10"}]}, "published[0] has no figures."),
    ],
    ids=str,
)
def test_what_is_not_a_level_or_a_figure_is_named(measured: Bench, given: object, fault: str) -> None:
    path = measured.folder / "given.json"
    path.write_text(json.dumps(given), encoding="utf-8")
    assert measured.bench(f"--given={path}", code=1)[1].startswith(f"What is measured is not valid: {fault}")


def test_what_would_be_measured_is_reported_without_a_measurement(measured: Bench) -> None:
    found, _error = measured.bench("--plan", levels=[LEVEL, {**LEVEL, "depth": 9000}])
    assert found["lines"] == ["pair1: about 5 s for pp64 tg16 c1."]
    assert not measured.calls


def test_a_level_that_no_tool_sends_is_sent_four_times_and_a_server_that_is_gone_is_named(measured: Bench) -> None:
    reply = {"ok": True, "completion_tokens": 16, "seconds": 0.5, "error": ""}
    asked, level = list[list[str]](), {"tool": "gb10", "case": "code", "output": 16}

    def ask(_url: str, _files: object, requests: list[dict[str, Any]], *_more: object) -> dict[str, Any]:
        asked.append([each["prompt"] for each in requests])
        return {"models": ["m"] * (len(asked) <= 8), "error": "it is gone", "replies": [reply for _each in requests]}

    measured.patch.setattr(api_probe, "ask", ask)
    found, _error = measured.bench(levels=[level])
    assert [(row["quantity"], row["runs"]) for row in found["rows"][:1]] == [("aggregate_tok_s", [32.0] * 3)]
    assert len({prompt for prompts in asked for prompt in prompts}) == 8, "a warm-up and three runs, each after a reply of one token"
    assert measured.bench(code=2, levels=[level])[1] == "pair1: it is gone.\n"


def test_a_key_that_cannot_be_read_any_more_does_not_take_what_was_measured(measured: Bench) -> None:
    measured.patch.setattr(api_probe, "ask", lambda *_words: os.stat("/none/api_key"))
    found, error = measured.bench(code=2, levels=[LEVEL, {"tool": "gb10", "case": "code", "output": 16}])
    assert (len(found["results"]), "/none/api_key" in error) == (1, True)


def test_published_and_last_figures_of_a_level_stand_next_to_its_own(measured: Bench) -> None:
    measured.bench(levels=[LEVEL])
    found, _error = measured.bench()
    mean = next(row["mean"] for row in found["rows"] if row["quantity"] == "decode_tok_s")
    decode = {row["depth"]: (row["published"], row["mark"], row["last"]) for row in found["compared"] if row["quantity"] == "decode_tok_s"}
    assert decode == {0: (200, "worse", mean), 64: (None, "", None)}
    found, _error = measured.bench(profile="other")
    assert {row["published"] for row in found["compared"]} == {None}, "they are of another profile"
    (measured.folder / "pair1/current/release.json").write_text(json.dumps({**RELEASE, "profile": "other", "model": str(measured.folder)}), encoding="utf-8")
    found, _error = measured.bench()
    assert {row["last"] for row in found["compared"]} == {None}, "another profile serves now"


def test_a_full_disk_does_not_take_what_was_measured(measured: Bench) -> None:
    def full(*_words: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    measured.patch.setattr(verbs_measure, "write_atomically", full)
    assert measured.bench()[0]["rows"]


def test_each_level_has_its_share_of_the_cache_and_the_ranks_their_lowest_memory(measured: Bench) -> None:
    measured.lost = 0.5
    found, _error = measured.bench()
    assert [row["mean"] for row in found["rows"] if row["quantity"] == "kv_usage_percent"] == [25.0, 25.0]
    assert found["memory"] == {"spark-1": {"lowest_available_kib": 7 << 20, "lowest_free_kib": 4 << 20, "after_kib": 7 << 20}, "spark-2": {}}
    assert API_KEY not in json.dumps(measured.calls)


def test_requests_of_other_clients_are_noted(measured: Bench) -> None:
    page = "vllm:generation_tokens_total 9\nvllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"
    measured.patch.setitem(PAGES, "/metrics", page)
    assert measured.bench(levels=[LEVEL])[0]["notes"] == [
        "pair1: pp64 tg16 c1 was measured next to 3 requests of other clients, which change its figures."
    ]


def test_a_scratch_folder_without_space_is_named(measured: Bench) -> None:
    def full(*_words: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    measured.patch.setattr(os, "makedirs", full)
    assert measured.bench(code=2)[1] == f"pair1: pp64 tg16 c1 needs {measured.folder}: No space left on device. See the README of the role bench.\n"


def test_a_level_that_does_not_fit_is_left_out_with_the_reason(measured: Bench) -> None:
    found, _error = measured.bench(levels=[LEVEL, {**LEVEL, "depth": 9000}])
    assert len(measured.calls) == 1
    assert found["notes"] == ["pair1: pp64 tg16 @ d9000 c1 was not measured: it needs 9,080 tokens, and the context is 8,192."]


@pytest.mark.parametrize(
    ("words", "answer", "ended"),
    [
        (["--memory-floor=7.8"], None, "spark-1: 7.5 GiB of memory are available, and the floor is 7.8 GiB (bench_memory_floor)."),
        ([], (1, "", f"[Error] Stopping: HTTP 401: Unauthorized for {API_KEY}\n"), "llama-benchy: [Error] Stopping: HTTP 401: Unauthorized for "),
        ([], (1, "", f"Error: {'x' * 288}{API_KEY}\n"), f"llama-benchy: Error: {'x' * 288}*****"),  # it is masked before it is cut
        ([], (1, "", "a \x1b]0;b\a\n"), r"llama-benchy: a \x1b]0;b\x07 (exit code 1)."),
        ([], (0, "[]", ""), "the result of llama-benchy is not valid: it is [], and a mapping is expected."),
    ],
)
def test_a_level_that_fails_keeps_the_figures_before_it(measured: Bench, words: list[str], answer: tuple[int, str, str] | None, ended: str) -> None:
    measured.lost = 0.5
    measured.answers += [answer] if answer else []
    found, error = measured.bench(*words, code=2)
    assert found["ended"].startswith(f"pair1: {ended}")
    assert len(found["results"]) == 1
    assert API_KEY not in json.dumps([found, error])


@pytest.mark.parametrize(
    ("gone", "levels", "sentence"),
    [
        ("tokenizer.json", [LEVEL], "pp64 tg16 c1 needs {}/tokenizer.json: No such file or directory. See the README of the role bench."),
        ("", [{"tool": "tool-eval-bench", "case": "ifeval"}], "tool-eval-bench ifeval needs /opt/gb10-bench/ifeval.jsonl: No such file or directory. See the"),
    ],
)
def test_a_file_that_a_tool_needs_is_named(measured: Bench, gone: str, levels: object, sentence: str) -> None:
    (measured.folder / (gone or "none")).unlink(missing_ok=True)
    assert measured.bench(code=2, levels=levels)[1].startswith("pair1: " + sentence.format(measured.folder))


def test_a_head_without_the_tools_is_not_measured(measured: Bench) -> None:
    measured.patch.setattr(tools, "PYTHON", "/none")
    assert measured.bench(code=1)[1].startswith("spark-1 lacks /none, or its user gb10-bench. ")
    measured.patch.setattr(tools, "PYTHON", sys.executable)
    measured.patch.setattr(os, "geteuid", lambda: 0)
    measured.patch.setattr(tools, "USER", "gb10-no-such-user")
    assert ", or its user gb10-no-such-user. Run playbooks/bench.yml, which installs both." in measured.bench(code=1)[1]


def test_a_group_that_does_not_serve_is_not_measured(measured: Bench) -> None:
    measured.patch.setattr(api_probe.Server, "call", lambda *_words, **_more: (0, "ConnectionRefusedError"))
    _found, error = measured.bench(code=1)
    assert error.startswith("spark-1 does not serve: http://10.0.0.11:8888/v1/models: ConnectionRefusedError. See playbooks/status.yml")
    assert not measured.calls


@pytest.mark.parametrize("name", ["m\0", "m\ud800", "--save-result=/x", ""])
def test_a_model_whose_name_cannot_be_a_word_of_a_command_is_not_measured(measured: Bench, name: str) -> None:
    measured.patch.setitem(PAGES, "/v1/models", json.dumps({"data": [{"id": name, "max_model_len": 8192}]}))
    assert "/v1/models: its list of models is not valid. See playbooks/status.yml" in measured.bench(code=1)[1]
    assert not measured.calls
