"""The progress of a server, from its metrics."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m {x}"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 3.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 4.0e+02
"""


def test_sums_the_engines_of_a_metrics_page() -> None:
    assert measures.sample(PAGE) == measures.Sample(403.0, 3, 7)
    assert measures.sample("<html>") is None
    assert measures.sample("vllm:num_requests_running 1.0\n") is None


LIMITS = measures.Limits(answer=10, wedge=20, total=120)


def readings(*rows: tuple[float, float, int] | tuple[float, None]) -> list[tuple[float, measures.Sample | None]]:
    return [(row[0], None if row[1] is None else measures.Sample(row[1], row[2], 0)) for row in rows]


@pytest.mark.parametrize(
    ("seen", "idle", "expected"),
    [
        (readings((0, 400, 4), (5, 480, 5)), None, ""),
        (readings((0, 400, 4), (10, 480, 5)), None, "busy"),
        # Only the check's own request runs on a slow server: the completion is about to come.
        (readings((0, 400, 0), (10, 404, 1)), None, ""),
        (readings((0, 400, 0), (119, 404, 1), (120, 405, 1)), None, "busy"),
        (readings((0, 400, 4), (10, 400, 4)), None, ""),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), None, "frozen"),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), True, "wedged"),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), False, "computing"),
        # A worker that was stopped while idle: the engine never reports the request.
        (readings((0, 400, 0), (20, 400, 0)), True, "wedged"),
        (readings((0, 400, 4), (10, 480, 5), (29, 480, 5)), True, "busy"),
        (readings((0, None), (10, None)), None, ""),
        (readings((0, None), (20, None)), True, "silent"),
    ],
)
def test_tells_busy_frozen_and_wedged(seen: list[tuple[float, measures.Sample | None]], idle: bool | None, expected: str) -> None:
    assert measures.decide(seen, LIMITS, idle) == expected
