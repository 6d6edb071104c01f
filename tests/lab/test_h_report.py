"""report.yml on the served lab, and with one node of it. Other states are in tests/contract/test_report.py, from records of this lab."""

from __future__ import annotations

import re

from container_lab import Lab


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
