"""_fabric/rails.py: rows of ib_write_bw, classes with remedies."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import bandwidth
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.bandwidth import Thresholds, classify, result_of
from shared_samples import needs_shared, samples


@needs_shared
@pytest.mark.parametrize(("name", "rate"), [("ib_write_bw.healthy-92g.gb10.txt", 92.57), ("ib_write_bw.degraded-13g.txt", 13.23)])
def test_real_runs(name: str, rate: float) -> None:
    assert result_of((samples() / name).read_text(), 0)[0] == rate


HEAD = " #bytes     #iterations    BW peak[{0}]    BW average[{0}]   MsgRate[Mpps]\n"
ROWS: dict[str, tuple[str, float | None]] = {
    "MB/sec": (HEAD.format("MB/sec") + " 65536 1000 12000.00 11921.00 0.19\n", 100.001),
    "MiB/sec": (HEAD.format("MiB/sec") + " 65536 1000 12000.00 11921.00 0.19\n", 100.001),
    "unknown unit": (HEAD.format("furlongs") + " 65536 1000 1.0 1.0 0.1\n", None),
    "the last row counts": (HEAD.format("Gb/sec") + " 2 5 1.00 1.00 0.1\n 65536 5 9.00 8.00 0.1\n", 8.0),
    "row before the header": (" 65536 5 9.00 8.00 0.1\n" + HEAD.format("Gb/sec"), None),
    "nothing finished": (HEAD.format("Gb/sec") + " 65536 0 0.00 0.00 0.0\n", None),
    "empty": ("", None),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows(case: str) -> None:
    text, expected = ROWS[case]
    assert result_of(text, 0)[0] == expected


CLASSES: dict[str, tuple[list[float | None], str]] = {
    "both rails of NVIDIA's figure": ([94.9, 94.9], "healthy"),
    "one rail alone": ([92.57], "healthy"),
    "four rails": ([90.0, 91.0, 92.0, 93.0], "healthy"),
    "hot-plug fault": ([13.3, 13.2], "hotplug_13g"),
    "hot-plug fault on one rail only": ([13.3], "hotplug_13g"),
    "hot-plug fault and a dead rail": ([13.3, None], "hotplug_13g"),
    "the second rail is dead": ([95.0, None], "one_rail"),
    "the second rail is slow": ([95.0, 13.0], "one_rail"),
    "both share one path": ([47.0, 46.0], "one_rail"),
    "no result at all": ([None, None], "tcp_only"),
    "nothing measured": ([], "tcp_only"),
    "suspect": ([60.0, 60.0], "unknown"),
    "very slow": ([0.2, 0.2], "unknown"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_classes(case: str) -> None:
    rates, expected = CLASSES[case]
    verdict = classify(rates, Thresholds())
    assert verdict.name == expected
    assert verdict.name in bandwidth.CLASSES
    assert bool(verdict.remedy) is (expected != "healthy")
    for rate in rates:
        assert ("no result" if rate is None else f"{rate:g} Gb/s") in verdict.message


def test_thresholds_are_the_users() -> None:
    assert classify([0.23, 0.2], Thresholds(rail_gbps=0.05)).name == "healthy"
    assert classify([30.0, 30.0], Thresholds(hotplug_low_gbps=25, hotplug_high_gbps=35)).name == "hotplug_13g"


@pytest.mark.parametrize(
    ("text", "rc", "words"),
    [
        (HEAD.format("Gb/sec") + " 65536 0 0.00 0.00 0.0\n", 0, "finished no message"),
        (HEAD.format("Gb/sec"), 0, "no result row"),
        ("", 7, "rc 7"),
        ("local address\n Failed to modify QP 1 to RTR\n Unable to Connect the HCA's through the link\n", 1, "Unable to Connect"),
    ],
)
def test_the_reason_is_in_the_tools_own_words(text: str, rc: int, words: str) -> None:
    assert words in str(result_of(text, rc)[1])


# As a machine with an uneven cycle counter prints it, on standard error into the middle of a line or before the table.
UNEVEN = (
    HEAD.format("Gb/sec") + " 65536      50           0.000000            0.000000            0.000000Correlation coefficient r^2: 0.870992 < 0.9\n---\n",
    "Correlation coefficient r^2: 0.871755 < 0.9\n" + HEAD.format("Gb/sec") + " 65536 50 0.000000 0.000000 0.000000\n",
)


@pytest.mark.parametrize("text", UNEVEN)
def test_a_rate_that_could_not_be_measured_is_not_called_a_dead_rail(text: str) -> None:
    assert result_of(text, 0)[0] is None
    assert result_of(text, 0)[1] == bandwidth.NO_CLOCK
    verdict = classify([None, None], Thresholds(), [bandwidth.NO_CLOCK] * 2)
    assert verdict.name == "unknown"
    assert "messages arrive" in verdict.message
    assert "again" in verdict.remedy
    assert classify([None, None], Thresholds(), [bandwidth.NO_CLOCK, "it did not end in time"]).name == "tcp_only"
