"""From two nodes to an endpoint, and what holds about it afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acceptance import golden
from acceptance.commands import SERVING, tags
from acceptance.owner import ANSWER, SERVES, Owner

ONLY_SERVING = tags(SERVING)


@pytest.mark.quick
def test_check_mode_predicts_the_first_run_and_writes_nothing(owner: Owner) -> None:
    """The first run follows, so that both are of the same two nodes; its screen is the golden one."""
    owner.fresh()
    owner.fault()
    owner.boot_takes(2)
    check = owner.run("bring up", "--check", "--diff").passed()
    assert owner.gone()
    for node in owner.nodes:
        assert owner.on(node, f"ls -d {owner.places.all} 2>/dev/null || true") == ""
    run = owner.run("bring up").passed()
    assert owner.serves()
    assert check.changes == run.changes
    golden.compare("site-first", run.text)


@pytest.mark.quick
def test_the_receipt_of_a_boot_is_on_the_controller_and_on_both_nodes(served: Owner) -> None:
    release = served.releases()[0]
    assert release
    kept = json.loads((served.folder / "receipts/pair1/last-good.json").read_text(encoding="utf-8"))
    for receipt in (kept, *(json.loads(served.on(node, f"cat {served.places.receipt}")) for node in served.nodes)):
        assert (receipt["release"], receipt["passed"], receipt["completion"]) == (release, True, [ANSWER])
        assert [rank["rank"] for rank in receipt["ranks"]] == [0, 1]


@pytest.mark.quick
def test_a_second_run_changes_and_restarts_nothing(served: Owner) -> None:
    before = served.identity()
    run = served.run("bring up").passed().shows("pair1 serves")
    assert run.changes == set()
    assert served.identity() == before
    golden.compare("site-no-change", run.text)
    line = next(line for line in run.text.splitlines() if "try it" in line).split("try it", 1)[1].strip()
    answer = next(each for each in served.shell(["sh", "-c", line]).screen().passed().text.splitlines() if each.startswith("{"))
    assert json.loads(answer)["choices"][0]["text"] == ANSWER


def test_check_mode_on_a_served_pair_changes_nothing(served: Owner) -> None:
    before = served.identity()
    assert served.run("bring up", "--check", "--diff").passed().changes == set()
    assert served.identity() == before


@pytest.mark.quick
def test_a_changed_setting_restarts_once_in_order_and_the_key_is_shown_nowhere(served: Owner) -> None:
    key, token, before = "net-key-5f1c9e7d2b", "net-token-90be41c7", served.identity()
    secrets: dict[str, Any] = {"api_key": key, "secret_environment": {"NET_TOKEN": token}}
    check = served.run("bring up", "--check", "--diff", *ONLY_SERVING, **secrets).passed()
    assert served.identity() == before
    run = served.run("bring up", "--diff", "-vvvv", *ONLY_SERVING, **secrets)
    assert run.code == 0, run
    for secret in (key, token):
        assert secret not in check.text + run.text
    (_head_id, head), (_worker_id, worker) = after = served.identity()
    assert worker < head, "the worker starts first"
    assert {entry[0] for entry in before}.isdisjoint(entry[0] for entry in after)
    assert (served.complete()[0], served.complete(key=key)) == (401, SERVES)
    for node in served.nodes:
        readable = f"grep -rlF -e {key} -e {token} /opt/gb10-cluster /etc /var/lib/gb10-cluster /var/log /tmp 2>/dev/null | xargs -r stat -c '%a %U'"
        assert set(served.on(node, readable, check=False).splitlines()) <= {"600 root"}
        shown = served.on(node, f"cat {served.places.compose} {served.places.release} {served.places.receipt}; ps axww -o args")
        assert not {secret for secret in (key, token) if secret in shown}
    again = served.run("bring up", *ONLY_SERVING, **secrets).passed()
    assert again.changes == set()
    assert served.identity() == after
