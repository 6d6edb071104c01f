"""Speed: `bench.yml` next to `vllm bench serve` by hand, and a drafter."""

import json
import re

from gpu.pair import ONLY_SERVING, Logs, Pair, Row

#: As a user types it on the head.
BY_HAND = (
    "docker exec gb10-pair1-rank0 sh -c 'OPENAI_API_KEY=$VLLM_API_KEY vllm bench serve --base-url http://127.0.0.1:8000 --model {0} --tokenizer /models/{0}"
    " --dataset-name random --random-input-len 16 --random-output-len 128 --num-prompts {1} --max-concurrency {2} --ignore-eos --disable-tqdm' 2>&1"
)
STREAMS = (1, 4)


def test_bench_next_to_one_by_hand(served: Pair, row: Row) -> None:
    figures = served.folder / "bench"
    run = served.run("bench", bench_depths=[0], bench_concurrency=list(STREAMS), bench_tokens=128, bench_folder=str(figures)).passed()
    rows = json.loads(next(figures.glob("*.json")).read_text(encoding="utf-8"))["rows"]
    row.facts |= {"seconds": round(run.seconds, 1), "bench": [each["tok_s"] for each in rows], "ttft": [each["ttft_ms"] for each in rows]}
    screens = [served.on(1, BY_HAND.format(served.model, 2 * streams, streams), timeout=180) for streams in STREAMS]
    row.facts["by hand"] = [float(found) for screen in screens for found in re.findall(r"Output token throughput \(tok/s\): +([\d.]+)", screen)]
    for one, other in zip(row.facts["bench"], row.facts["by hand"], strict=True):
        assert 0.5 < one / other < 2, screens


def test_a_drafter_that_fits(served: Pair, row: Row) -> None:
    """The model drafts for itself: what it proposes is accepted at both positions, and the answer stays."""
    inside, none = f"/models/drafts/{served.model}", {"min": None, "max": None}
    for node in served.nodes:
        served.on(node, f"mkdir -p /srv/models/drafts && cp -r /srv/models/{served.model} /srv/models/drafts/")
    given = served.changed(
        drafter={"id": "gb10-lab/draft", "path": inside, "revision": "ab" * 20, "size_gib": 2},
        engine={"args": {"speculative-config": {"model": inside, "num_speculative_tokens": 2, "method": "draft_model"}}},
        gate={"effective_tokens": none, "concurrency": none, "acceptance": {"positions_active": 2}},
    )
    logs = Logs(served)
    run = served.run("bring up", *ONLY_SERVING, **{**given, "rollback": False, "attempts": 1})
    logs.keep(row)
    receipt = served.read(served.places.receipt)
    row.facts |= {"seconds": round(run.seconds, 1), "boot": receipt["seconds"], "speculation": receipt["measured"].get("speculation")}
    run.passed()
    assert served.serves()
