"""The rows of lab/gpu. A row whose result is there is skipped, and none begins late: a part goes on where it, or another machine, has ended."""

import time
from collections.abc import Iterator

import pytest
from gpu.pair import ONLY_SERVING, ROOT, SHARED, Pair, Row, row_of

# Without the lab on two GPUs no row can run: `python -m lab.gpu part NAME` runs a file of this folder there.
collect_ignore_glob = [] if ROOT.is_dir() else ["test_?_*.py"]
BEGIN, LATEST = time.monotonic(), 390  # seconds after which no row of a part begins
FAILURES: dict[str, str] = {}
SKIPPED: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a row has failed with, and which were skipped."""
    SKIPPED.update({report.nodeid} if report.skipped else ())
    FAILURES.update({report.nodeid: str(report.longrepr)} if report.failed else {})


@pytest.fixture
def row(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Row]:
    """The result of this row; it is written in the end."""
    node, begin = request.node, time.monotonic()
    found = Row(row_of(node), node.path.stem.removeprefix("test_"))
    if found.path.exists():
        pytest.skip(f"{found.path} is there")
    yield found
    if node.nodeid in SKIPPED:
        return
    found.facts |= {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "took": round(time.monotonic() - begin, 1)}
    found.facts["machine"] = [f"one for both nodes: {each}" if SHARED else each for each in pair.smi("name,driver_version")]
    found.write(FAILURES.get(node.nodeid, ""))
    if time.monotonic() - BEGIN > LATEST and node is not request.session.items[-1]:
        request.session.shouldstop = "the time of this part is over: run it again for the rest"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """An owner with two GPUs."""
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def known(row: Row, pair: Pair) -> Pair:
    """The pair has served the release of the inventory once: a row starts it again."""
    assert pair.read(pair.places.receipt) or pair.run("bring up").passed()
    return pair


@pytest.fixture
def served(known: Pair) -> Pair:
    """The pair serves the release of the inventory. Its watch forgets a crash soon, since the rows are not a crash loop."""
    if not known.own or not known.serves() or not known.settled() or set(known.releases()) != {known.own}:
        known.run("bring up", *ONLY_SERVING, watch={"stable_seconds": 3}).passed()
        [known.own] = set(known.releases())
    return known
