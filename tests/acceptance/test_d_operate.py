"""What an owner does with a pair from day to day."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from acceptance import golden
from acceptance.commands import SERVING, settings, tags
from acceptance.owner import SERVES, Owner, wait_for

ONLY_SERVING = tags(SERVING)


@pytest.mark.quick
def test_status_and_doctor_of_a_served_pair(served: Owner) -> None:
    before = served.identity()
    status = served.run("status").passed().shows("SERVES", "lab-1", "lab-2")
    golden.compare("status", status.text)
    doctor = served.run("doctor").passed().shows("It serves")
    golden.compare("doctor", doctor.text)
    assert served.key() not in status.text + doctor.text
    assert served.identity() == before


@pytest.mark.quick
def test_stop_leaves_nothing_and_the_next_run_serves_the_same_release(served: Owner) -> None:
    release = served.releases()
    stop = served.run("stop").passed()
    assert served.gone()
    golden.compare("stop", stop.text)
    assert served.run("stop").passed().changes == set()
    served.run("status").passed().shows("STOPPED", "stopped on request")
    served.run("bring up", *ONLY_SERVING).passed()
    assert served.serves()
    assert served.releases() == release


@pytest.mark.quick
def test_the_head_stops_and_starts_the_pair_without_a_controller(served: Owner) -> None:
    served.on_node("stop").passed().shows("stopped")
    assert served.gone()
    served.on_node("status").passed().shows("stopped", "lab-1", "lab-2")
    served.on_node("start", "--wait").passed().shows("serves release")
    assert served.serves()
    served.on_node("status").passed().shows("serves", "running since")
    served.on_node("start", node=2).failed("lab-1")


def test_logs_of_both_ranks_come_by_time_and_can_be_searched(served: Owner) -> None:
    served.on_node("stop").passed()
    served.on_node("start", "--wait").passed()
    for screen in (served.run("logs", since="20m", grep="Using max model len").passed(), served.on_node("logs", "--since 20m", "--grep 'Using max model len'")):
        lines = [line for line in screen.text.splitlines() if "Using max model len" in line]
        assert {host for host in ("lab-1", "lab-2") if any(host in line for line in lines)} == {"lab-1", "lab-2"}, screen
        times = [found[0] for line in lines if (found := re.search(r"\d\d:\d\d:\d\d", line))]
        assert times == sorted(times), screen
    served.on_node("events", "-n", "20").passed().shows("starts release", "serves")


def test_a_report_is_one_file_without_a_secret(served: Owner) -> None:
    before = served.identity()
    served.run("report").passed()
    page = (served.folder / "receipts/pair1/report.html").read_text(encoding="utf-8")
    for words in ("pair1 serves", "rank 0 on lab-1", "rank 1 on lab-2", served.releases()[0]):
        assert words in page
    assert served.key() not in page
    assert "<script src" not in page
    assert "http://" not in re.sub(r"http://(?:172\.30\.|www\.w3\.org)", "", page), "the page loads nothing"
    assert served.identity() == before


def test_replies_are_measured_and_garbled_or_leaked_ones_named(served: Owner) -> None:
    served.run("smoke").passed().shows("none bad", "at once")
    served.run("sanity").passed()
    served.fault("0 garble")
    served.run("sanity").failed("bad", "Paris")
    served.fault("0 leak")
    served.run("sanity").failed("bad", "im_end|control|template|leak")


def test_evidence_of_two_times_is_compared_without_a_secret(served: Owner) -> None:
    served.run("evidence", label="before").passed()
    for node in served.nodes:
        served.on(node, f"docker exec {served.places.container(node - 1)} sh -c 'echo HF_TOKEN=net-secret-81f0c2 > /proc/1/fd/1'")
    second = served.run("evidence", label="after", compare="before").passed()
    assert "+HF_TOKEN=" in second.text
    texts = {path.name: path.read_text(encoding="utf-8") for path in (served.folder / "evidence/after").glob("pair1-rank*.txt")}
    ranks = [text for name, text in texts.items() if not name.endswith(".figures.txt")]
    assert len(ranks) == 2
    assert all("HF_TOKEN=" in text for text in ranks)
    assert not any("net-secret-81f0c2" in text for text in (*texts.values(), second.text))


@pytest.mark.quick
def test_a_rollback_goes_to_the_release_before_and_names_both(served: Owner) -> None:
    [old] = set(served.releases())
    served.run("bring up", *ONLY_SERVING, requests=2).passed()
    [new] = set(served.releases())
    assert new != old
    back = served.run("roll back", release=old).passed().shows(new, old, r"\d+ s without service")
    assert set(served.releases()) == {old}
    assert served.serves()
    before = served.identity()
    again = served.run("roll back", release=old).passed()
    assert again.changes == set(), back
    assert served.identity() == before
    assert served.run("bring up", *ONLY_SERVING).passed().changes == set(), "the inventory has this release"


def test_one_command_soaks_two_releases_and_continues_after_an_interruption(served: Owner) -> None:
    [old] = set(served.releases())
    served.on(1, "rm -rf /opt/gb10-cluster/vllm_tp2/pair1/soak")  # the page of an earlier test with this value would be fetched
    given: dict[str, Any] = {"soak_against": settings({"requests": 2}), "soak_hours": 0.002, "soak_interval": 1, "bench_folder": str(served.folder)}
    run = served.begin("soak", **given)
    assert wait_for(lambda: "It runs." in run.text, 120), run.text
    run.vanish()
    served.run("soak", **given).passed().shows(old, f"Release {old} serves again", "vllm_tp2_max_num_seqs")
    [page] = served.folder.glob("pair1-*.soak.json")
    both = json.loads(page.read_text(encoding="utf-8"))
    assert [each["state"] for each in both] == ["ended", "ended"]
    assert [each["release"] == old for each in both] == [True, False]
    assert both[1]["requests"] > 0, "the other release was loaded"
    before = served.identity()
    assert served.run("bring up", *ONLY_SERVING).passed().changes <= {"lab-1, lab-2: Remove what is not needed"}, "one release more was kept"
    assert (set(served.releases()), served.identity()) == ({old}, before)
    assert served.serves()


def test_kept_releases_are_listed_and_an_unknown_one_stops_nothing(served: Owner) -> None:
    before, release = served.identity(), served.releases()[0]
    for wanted in ("list", "000000000000"):
        run = served.run("roll back", release=wanted)
        assert (run.code == 0) == (wanted == "list"), run
        assert re.search(rf"^{release}  lab-stub .*passed", run.text, re.M), run
    assert served.identity() == before


def test_reports_for_programs_are_lines_of_json(served: Owner) -> None:
    for what in ("status", "doctor"):
        lines = [json.loads(line) for line in served.run(what, output="json").passed().text.splitlines() if line.startswith("{")]
        assert [line["group"] for line in lines] == ["pair1"]
        assert all(line["schema"].startswith("gb10.cluster/") for line in lines)


def test_an_upgrade_restarts_only_what_changes(served: Owner) -> None:
    before = served.identity()
    assert served.run("upgrade").passed().changes == set()
    assert served.identity() == before
    served.run("upgrade", requests=3).passed().shows(r"\d+ s without service")
    assert served.serves()
    assert {entry[0] for entry in before}.isdisjoint(entry[0] for entry in served.identity())


def test_a_reboot_that_is_not_due_changes_nothing(served: Owner) -> None:
    before = served.identity()
    assert served.run("reboot").passed().changes == set()
    assert served.identity() == before


@pytest.mark.quick
def test_a_start_goes_on_without_its_controller_and_the_next_run_prints_the_verdict(served: Owner) -> None:
    served.boot_takes(12)
    began = time.time()
    run = served.begin("bring up", *ONLY_SERVING, restart=True)
    assert served.boots(began, 180), run.text
    run.vanish()
    during = served.identity()
    assert served.comes_back(), served.on_node("events")
    assert served.identity() == during
    following = served.run("bring up", *ONLY_SERVING).passed().shows("pair1 serves", "to the verdict")
    assert following.changes == set()
    assert served.identity() == during


@pytest.mark.quick
def test_of_two_owners_at_once_one_is_refused_and_learns_of_the_other(served: Owner) -> None:
    served.boot_takes(8)
    runs = {value: served.begin("bring up", *ONLY_SERVING, requests=value) for value in (2, 3)}
    screens = {value: run.screen(400) for value, run in runs.items()}
    [(passed, _screen)] = [(value, screen) for value, screen in screens.items() if screen.code == 0]
    [refused] = [screen for screen in screens.values() if screen.code != 0]
    refused.failed("pair1 is being changed", "takeover")
    assert served.serves()
    state = served.container(1)
    assert state is not None
    assert f"--max-num-seqs {passed} " in " ".join(state["Config"]["Cmd"])
    assert len(set(served.releases())) == 1


def test_two_runs_of_one_configuration_share_one_start_and_ctrl_c_leaves_it_alone(served: Owner) -> None:
    served.boot_takes(10)
    began = time.time()
    first = served.begin("bring up", *ONLY_SERVING, requests=2)
    assert served.boots(began, 180), first.text
    second = served.begin("bring up", *ONLY_SERVING, requests=2)
    first.interrupt()
    assert first.screen(120).code != 0
    during = served.identity()
    second.screen(300).passed().shows("pair1 serves")
    assert served.identity() == during
    assert served.serves()


def test_sudo_with_a_password_works_and_is_asked_for(served: Owner) -> None:
    who = {"ansible_user": "owner"}
    with_password = [*ONLY_SERVING, "-e", json.dumps({**who, "ansible_become_password": "gb10-lab"})]
    assert served.run("bring up", *with_password).passed().changes == set()
    served.run("bring up", *ONLY_SERVING, "-e", json.dumps(who)).failed("password")


def test_containers_have_no_privileges_and_the_limits_that_the_kernel_shows(served: Owner) -> None:
    for node in served.nodes:
        state = served.container(node)
        assert state is not None
        host, config = state["HostConfig"], state["Config"]
        assert (host["Privileged"], host["RestartPolicy"]["Name"], host["IpcMode"]) == (False, "no", "private")
        assert config["StopTimeout"] == 1, "the profile's stop_grace_period"
        assert host["LogConfig"]["Config"] == {"max-size": "50m", "max-file": "3"}
        env = dict(entry.split("=", 1) for entry in config["Env"])
        assert (env["NODE_RANK"], env["HEADLESS"]) == (str(node - 1), "" if node == 1 else "1")
        assert env["VLLM_HOST_IP"].endswith(f".1{node}")
        limits = served.on(node, f"docker exec {served.places.container(node - 1)} cat /proc/1/limits")
        assert re.search(r"Max locked memory\s+8388608\s+8388608", limits), limits


def test_the_key_that_is_made_is_on_the_head_alone(served: Owner) -> None:
    key = served.key()
    assert len(key) == 43
    assert served.complete(key="")[0] == 401
    assert served.complete() == SERVES
    assert key not in json.dumps(served.container(2))
    places = [served.on(node, f"grep -rlF -e {key} /opt/gb10-cluster /etc /var/lib/gb10-cluster 2>/dev/null || true").split() for node in served.nodes]
    assert places == [[served.places.api_key], []]


def test_the_key_of_the_agent_opens_the_session_and_nothing_else(served: Owner) -> None:
    folder = Path("/var/lib/gb10-cluster/agent")
    address = served.on(2, "ip -o -4 addr show enp1s0f0np0 | awk '{print $4}' | cut -d/ -f1").strip()
    as_head = (
        f"ssh -F /dev/null -i {folder}/id_ed25519 -o BatchMode=yes -o IdentitiesOnly=yes -o HostKeyAlias=gb10-rank1"
        f" -o UserKnownHostsFile={folder}/known_hosts -o StrictHostKeyChecking=yes -o ConnectTimeout=30"
    )
    user = f"{served.places.agent_user}@{address}"
    shown = served.on(1, f"echo '{{}}' | {as_head} {user} id 2>&1 || true; {as_head} -W 127.0.0.1:22 {user} </dev/null 2>&1 || true")
    assert "uid=" not in shown
    assert "administratively prohibited" in shown, shown
    assert "SSH-2.0" not in shown


def test_an_unreachable_worker_is_named_and_the_head_is_left_alone(served: Owner) -> None:
    before = served.identity()
    served.on(2, "iptables -I INPUT -i enP7s7 -p tcp --dport 22 -j REJECT --reject-with tcp-reset")
    try:
        served.run("bring up", requests=2, timeout=300).failed("lab-2")
    finally:
        served.on(2, "iptables -D INPUT -i enP7s7 -p tcp --dport 22 -j REJECT --reject-with tcp-reset")
    assert wait_for(served.serves, 60)
    assert served.identity() == before
