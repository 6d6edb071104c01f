"""report.yml on the served lab, and with one node of it. Other states are in tests/contract/test_report.py, from records of this lab."""

from __future__ import annotations

import re
import time

from container_lab import Lab, api_key


def test_report_of_a_served_pair_has_boot_memory_and_pool_of_all_ranks_and_changes_nothing(served: Lab) -> None:
    deadline = time.monotonic() + 30  # of a lab that served a moment ago the agents may be new
    while len(re.findall(";", served.on(2, "gb10 call memory"))) < 1 and time.monotonic() < deadline:
        time.sleep(1)
    before = served.identity()
    run = served.play("playbooks/report.yml")
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()
    assert served.identity() == before
    page = (served.folder / "receipts/pair1/report.html").read_text(encoding="utf-8")
    for section, figures in (("boot", 1), ("boot-memory", 2), ("memory", 2), ("pool", 2)):
        part = re.search(rf'<section id="{section}">.*?</section>', page, re.DOTALL)
        assert part is not None
        assert part[0].count("<svg") >= figures, part[0][:2000]
    assert "pair1 serves: " in page
    assert all(f"rank {rank} on lab-{rank + 1}" in page for rank in (0, 1))
    key = served.on(1, f"cut -d= -f2 {api_key()}").strip()
    assert key
    assert key not in page + (served.folder / "receipts/pair1/report-nodes.json").read_text(encoding="utf-8")


def test_report_of_half_a_pair_tells_when_the_other_node_was_read(served: Lab) -> None:
    if not (served.folder / "receipts/pair1/report-nodes.json").exists():
        served.play("playbooks/report.yml")
    run = served.play("playbooks/report.yml", "--limit", "lab-1,localhost")
    assert run.rc == 0, run.stdout[-4000:]
    sentence = r"lab-2 was not read: it is not in this run\. What is shown of it was read at 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\."
    page = (served.folder / "receipts/pair1/report.html").read_text(encoding="utf-8")
    assert re.search(sentence, page)
    assert re.search(sentence, " ".join(run.stdout.split()))
    assert page.count("<svg") >= 7
