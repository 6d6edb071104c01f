"""The main job: two fresh nodes to a served completion, and all that must hold about it afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import playbook
import pytest
from compose_values import NUMBERS, VALUES, rendered
from container_lab import Lab, api_key

KEY = "lab-key-5f1c9e7d2b"
# Everything that the agent has on a node, next to its user.
AGENT = (
    "/usr/local/sbin/gb10 /etc/gb10-cluster/agent.json /etc/systemd/system/gb10-agent.service /run/gb10-agent /opt/gb10-cluster/agent"
    " /var/lib/gb10-cluster/agent /var/lib/gb10-agent"
)
NO_AGENT = (
    f"systemctl disable --now gb10-agent 2>/dev/null; pkill -KILL -u gb10-agent; userdel --force gb10-agent 2>/dev/null; rm -rf {AGENT};"
    " systemctl daemon-reload"
)


def test_check_mode_on_fresh_nodes_predicts_the_run_and_the_run_serves(lab: Lab) -> None:
    for node in (1, 2):
        lab.on(node, f"{NO_AGENT}; docker rm -f $(docker ps -aq) 2>/dev/null; rm -rf /opt/gb10-cluster")
    check = lab.play("site.yml", "--check", "--diff")
    assert check.rc == 0, check.stdout[-4000:]
    assert lab.gone(), "a check run must start nothing"
    assert "test -e" not in lab.on(1, "test -e /opt/gb10-cluster && echo test -e || true"), "a check run must write nothing"
    run = lab.play("site.yml", "--diff")
    assert run.rc == 0, run.stdout[-4000:]
    assert check.changed == run.changed
    assert lab.complete() == (200, " Paris.")


def test_the_worker_was_started_before_the_head(served: Lab) -> None:
    (_head_id, head), (_worker_id, worker) = served.identity()
    assert worker < head


def test_the_containers_are_what_was_promised(served: Lab) -> None:
    for node in (1, 2):
        state = served.inspect(node)
        assert state is not None
        host, config = state["HostConfig"], state["Config"]
        assert host["Privileged"] is False
        assert host["NetworkMode"] == "host"
        assert (host["IpcMode"], host["ShmSize"]) == ("private", 1 << 30)
        assert host["RestartPolicy"]["Name"] == "no"
        assert any("IPC_LOCK" in cap for cap in host["CapAdd"])
        assert config["StopTimeout"] == 3, "the profile's stop_grace_period"
        assert host["LogConfig"]["Config"] == {"max-size": "50m", "max-file": "3"}
        env = dict(entry.split("=", 1) for entry in config["Env"])
        assert env["NODE_RANK"] == str(node - 1)
        assert env["HEADLESS"] == ("" if node == 1 else "1")
        assert env["MASTER_ADDR"] == "192.168.200.11"
        assert env["VLLM_HOST_IP"] == f"192.168.200.1{node}"
        assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "enp1s0f0np0"
        # What the kernel gave the engine's first process, not what was asked for.
        limits = served.on(node, f"docker exec {served.container(node)} cat /proc/1/limits")
        assert re.search(r"Max locked memory\s+8388608\s+8388608", limits), limits


def test_a_second_run_changes_and_restarts_nothing_and_its_summary_and_curl_line_work(served: Lab) -> None:
    before = served.identity()
    run = served.play()
    assert run.rc == 0
    assert run.changed == set()
    assert served.identity() == before
    for part in ("pair1 serves", "http://172.30.70.11:8000/v1", "KV pool      4,194,304 tokens", "1,024.00 requests of 4,096 tokens at once"):
        assert part in run.stdout
    line = next(line for line in run.stdout.splitlines() if "try it" in line).split("try it", 1)[1].strip()
    assert json.loads(served.on(1, line))["choices"][0]["text"] == " Paris."


def test_the_receipt_lies_on_the_controller_and_on_the_nodes(served: Lab) -> None:
    good = json.loads((served.folder / "receipts/pair1/last-good.json").read_text(encoding="utf-8"))
    assert good["passed"]
    assert [rank["facts"]["version"] for rank in good["ranks"]] == ["0.32.0+cpu"] * 2 or all(r["facts"]["version"] for r in good["ranks"])
    assert good["completion"] == [" Paris."]
    # Before the first boot all ranks have tested the collectives, and no container of that is left.
    assert re.match(r"gloo over TCP, bus bandwidth \d+\.\d\d GB/s \(all_(?:reduce|gather) of \d+ MiB\)\.", good["collective"]["msg"]), good["collective"]
    for node in (1, 2):
        tested = json.loads(served.on(node, "cat /opt/gb10-cluster/vllm_tp2/pair1/collective.json"))
        assert [(row["op"], row["mib"]) for row in tested["result"]["rows"]] == [(op, mib) for mib in (1, 4, 16) for op in ("all_reduce", "all_gather")]
        assert served.on(node, "docker ps -aq --filter name=collective") == ""
        kept = json.loads(served.on(node, "cat /opt/gb10-cluster/vllm_tp2/pair1/current/receipt.json"))
        assert (kept["release"], kept["passed"]) == (good["release"], True)


def test_check_mode_on_served_nodes_changes_nothing(served: Lab) -> None:
    run = served.play("site.yml", "--check", "--diff")
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()


@pytest.mark.parametrize("tag", ["docker", "vllm_tp2"])
def test_a_tag_runs_its_role_alone(served: Lab, tag: str) -> None:
    run = served.play("site.yml", "--tags", tag)
    assert run.rc == 0, run.stdout[-4000:]
    assert run.roles == {f"gb10.cluster.{tag}"}


def test_status_reports_each_rank(served: Lab) -> None:
    run = served.play("playbooks/status.yml")
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()
    for part in ("SERVES  pair1 serves: ", "pair1 rank 0 on lab-1: KV pool: 4,194,304 tokens", "pair1: last verdict: passed"):
        assert part in run.stdout
    rows = re.findall(r"^pair1 +(\d)  (lab-\d)  running +20\S+Z  [0-9a-f]{12}  passed  [\d.]+ of [\d.]+ GiB +(\w+)", run.stdout, re.M)
    assert [row[:2] for row in rows] == [("0", "lab-1"), ("1", "lab-2")], run.stdout[-3000:]


def test_sudo_with_a_password(served: Lab) -> None:
    """The user owner must give a password: -K works, and become is used only where it is needed."""
    run = served.play("site.yml", "--tags", "vllm_tp2", variables={"ansible_user": "owner", "ansible_become_password": "gb10-lab"})
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()
    refused = served.play("site.yml", "--tags", "vllm_tp2", variables={"ansible_user": "owner"})
    assert refused.rc != 0
    assert "password" in refused.last_message.lower()


def places_of(lab: Lab, key: str) -> tuple[list[str], list[str]]:
    """Return the files of the group that contain a key, on the head and on the worker. No other file and no container of the worker does."""
    folder = "/opt/gb10-cluster/vllm_tp2/pair1/"
    assert key not in json.dumps(lab.inspect(2))
    found = [lab.on(node, f"grep -rlF -e {key} /opt/gb10-cluster /etc/gb10-cluster /var/lib/gb10-cluster || true").split() for node in (1, 2)]
    assert all(path.startswith(folder) for paths in found for path in paths), found
    return sorted(path.removeprefix(folder) for path in found[0]), found[1]


def test_the_generated_key_is_on_the_head_alone(served: Lab) -> None:
    key = served.on(1, f"cut -d= -f2 {api_key()}").strip()
    assert len(key) == 43
    assert places_of(served, key) == (["api_key"], [])


@pytest.mark.long  # of make test, the next test has a key that the engine checks, and tests/contract/test_serving.py a key that is missing
def test_another_key_is_made_and_used_when_the_file_is_removed(served: Lab) -> None:
    old = served.on(1, f"cut -d= -f2 {api_key()}").strip()
    served.on(1, f"rm {api_key()} && gb10 stop")
    refused = served.on(1, "gb10 start 2>&1 || true")
    assert api_key() in refused
    assert served.gone()
    run = served.play("site.yml", "--tags", "vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    assert f"the API needs the new key in {api_key()}" in " ".join(run.stdout.split())
    assert served.complete() == (200, " Paris.")
    assert served.complete(key=old)[0] == 401
    assert served.play("site.yml", "--tags", "vllm_tp2").changed == set()


def test_a_changed_variable_restarts_the_group_once_and_in_order_and_no_secret_shows(served: Lab) -> None:
    before = served.identity()
    check = served.play("site.yml", "--check", "--diff", variables={"vllm_tp2_api_key": KEY})
    assert check.rc == 0, check.stdout[-4000:]
    run = served.play("site.yml", "--diff", "-vvvv", variables={"vllm_tp2_api_key": KEY})
    assert run.rc == 0, run.stdout[-4000:]
    assert check.changed == run.changed
    after = served.identity()
    assert {entry[0] for entry in before}.isdisjoint(entry[0] for entry in after)
    assert after[1][1] < after[0][1], "worker first"
    assert KEY not in run.text()
    assert KEY not in check.text()
    assert served.complete()[0] == 401
    assert served.complete(key=KEY) == (200, " Paris.")
    folder = "/opt/gb10-cluster/vllm_tp2/pair1/current"
    assert served.on(1, f"stat -L -c '%a %U' {folder}/secrets.env").strip() == "600 root"
    for node in (1, 2):
        assert KEY not in served.on(node, f"cat {folder}/compose.yaml {folder}/release.json {folder}/receipt.json; ps axww -o args")
    assert places_of(served, KEY) == (["releases/" + served.on(1, f"basename $(readlink {folder})").strip() + "/secrets.env"], [])
    again = served.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_api_key": KEY})
    assert again.changed == set()
    assert served.identity() == after


def test_rollback_goes_to_the_release_before_and_a_second_run_changes_nothing(lab: Lab) -> None:
    """From the release with a key to the inventory's own. The tests above have left both."""
    folder = "/opt/gb10-cluster/vllm_tp2/pair1"
    second = json.loads(lab.on(1, f"cat {folder}/current/release.json"))["release"]
    kept = [name for name in lab.on(1, f"ls {folder}/releases").split() if name != second]
    [first] = [name for name in kept if '"passed": true' in lab.on(1, f"cat {folder}/releases/{name}/receipt.json", check=False)]
    back = lab.play("playbooks/rollback.yml", variables={"rollback_release": first})
    assert back.rc == 0, back.stdout[-4000:]
    assert lab.complete() == (200, " Paris.")
    (_head, head), (_worker, worker) = before = lab.identity()
    assert worker < head, "the worker starts first"
    for node in (1, 2):
        assert lab.on(node, f"readlink {folder}/current").strip() == f"releases/{first}"
        state = lab.inspect(node)
        assert state is not None
        assert state["Config"]["Labels"]["gb10.cluster.release"] == first
    output = " ".join(back.stdout.split())  # Ansible wraps long lines
    assert f"from release {second} to {first}" in output
    assert re.search(r"\d+ s without service", output)
    assert "To stay, set gb10_profile: lab-tiny" in output
    for again in ({"rollback_release": first}, {}):
        run = lab.play("playbooks/rollback.yml", variables=again)
        assert run.rc == 0, run.stdout[-4000:]
        assert run.changed == set()
        assert lab.identity() == before
    site = lab.play("site.yml", "--tags", "vllm_tp2")
    assert site.rc == 0
    assert site.changed == set(), "the inventory has the same release as the one that was restored"


def test_docker_compose_reads_each_value_as_it_was_written(lab: Lab) -> None:
    values = {f"V{number}": value for number, value in enumerate([*VALUES, *NUMBERS])}
    words = ["docker", "exec", "-i", "gb10-lab-1", "docker", "compose", "--project-name", "values", "--file", "-", "config", "--format", "json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, input=rendered(values), timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]["vllm"]["environment"]
    assert {name: found[name].replace("$$", "$") for name in values} == values


def test_a_failed_release_is_rolled_back_to_the_last_good_one(lab: Lab) -> None:
    """From the served release to one with a key whose pool is too small for its gate; the old one serves again, gated, and the play reports both."""
    bounds = {"effective_tokens": {"min": 4200000}, "decode_tok_s": {"min": 100000}, "cold_prefill_tokens": 2048, "engine": {"eager": False}}
    run = lab.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_gate": bounds, "vllm_tp2_api_key": KEY, "vllm_tp2_max_num_seqs": 3})
    assert run.rc != 0
    assert "pool_below_floor" in run.last_message
    assert "wanted 4,200,000, found 4,194,304" in run.last_message
    assert re.search(r"the last good one, serves again, after [1-9]\d* s without service", run.last_message)
    assert lab.complete() == (200, " Paris.")
    receipt = json.loads(max((lab.folder / "receipts/pair1").glob("*-failed.json")).read_text(encoding="utf-8"))
    failed = {check["class"]: check["found"] for check in receipt["checks"] if check["ok"] is False}
    assert set(failed) == {"pool_below_floor", "decode_slow", "engine_differs"}
    assert 0 < failed["decode_slow"] < 100000
    assert receipt["measured"]["prefill_tokens"] == 2048
    evidence = list((lab.folder / "evidence").glob("pair1-*/rank*.txt"))
    assert {path.name for path in evidence} == {"rank0-lab-1.txt", "rank1-lab-2.txt"}
    for path in evidence:
        text = path.read_text(encoding="utf-8")
        assert KEY not in text
        assert "== container gb10-pair1-rank" in text
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_a_play_that_is_interrupted_half_way_converges_when_run_again(lab: Lab) -> None:
    before = lab.identity()
    command = [sys.executable, "-m", "ansible", "playbook", "site.yml", "-i", str(lab.inventory), "--tags", "vllm_tp2", "-e", "gb10_receipts=/tmp/gb10-r"]
    process = subprocess.Popen(command, cwd=playbook.REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = lab.inspect(2)
        if state is not None and state["Id"] != before[1][0]:
            break
        time.sleep(0.3)
    else:
        pytest.fail("the worker was not started again")
    process.send_signal(signal.SIGKILL)
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
    process.wait()
    run = lab.play("site.yml", "--tags", "vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    assert lab.complete() == (200, " Paris.")


def test_stop_leaves_nothing_and_site_starts_again_only_what_was_stopped(lab: Lab) -> None:
    run = lab.play("playbooks/stop.yml")
    assert run.rc == 0, run.stdout[-4000:]
    assert lab.gone()
    again = lab.play("playbooks/stop.yml")
    assert again.rc == 0
    assert again.changed == set()
    status = lab.play("playbooks/status.yml")
    assert status.rc == 0
    assert re.search(r"^STOPPED  pair1 is stopped on request", status.stdout, re.M)
    assert len(re.findall(r"^pair1 +\d  lab-\d  none ", status.stdout, re.M)) == 2
    cache = json.loads(lab.on(1, "cat /opt/gb10-cluster/vllm_tp2/pair1/current/release.json"))["caches"][0]
    kernels = [lab.on(node, f"cd {cache} && find . -type f -printf '%p %T@ %s\\n' | sort") for node in (1, 2)]
    assert "./modelinfos/" in kernels[0], "the engine has left what the next boot reads"
    lab.on(2, f"find {cache} -type f -delete")
    full = {"vllm_tp2_wait_available": 0.999, "vllm_tp2_wait_seconds": 1, "vllm_tp2_rollback": False}
    waited = lab.play("site.yml", "--tags", "vllm_tp2", variables=full)
    assert waited.rc != 0
    for words in ("lab-1: ", "lab-2: ", "GiB are wanted before a start, 1 s after the group was stopped", "playbooks/reboot.yml"):
        assert words in waited.last_message, waited.last_message
    assert lab.gone()
    assert lab.on(2, f"cd {cache} && find . -type f -printf '%p %T@ %s\\n' | sort") == kernels[0], "the rank without a cache got the other's"
    assert lab.on(2, "ls -d /srv/models/.gb10-incoming-* 2>/dev/null || true") == ""


def test_absent_takes_all_of_it_away(lab: Lab) -> None:
    run = lab.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_state": "absent"})
    assert run.rc == 0, run.stdout[-4000:]
    assert lab.gone()
    for node in (1, 2):
        assert "pair1" not in lab.on(node, "ls /opt/gb10-cluster/vllm_tp2 2>/dev/null || true")
        assert lab.on(node, "ls -d /srv/models/vllm-cache* /var/lib/gb10-cluster/caches.json 2>/dev/null || true") == ""
        assert not lab.on(node, f"ls -d {AGENT} 2>/dev/null; getent passwd gb10-agent; getent group gb10-agent; pgrep -f '[g]b10 agent'", check=False)
    again = lab.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_state": "absent"})
    assert again.changed == set()


@pytest.mark.long
def test_installed_from_its_tarball_it_runs_from_anywhere(lab: Lab, tmp_path: Path) -> None:
    """Built, installed into an empty path, and run from another folder by the name of its playbook."""
    galaxy = str(Path(sys.executable).parent / "ansible-galaxy")
    subprocess.run([galaxy, "collection", "build", "--output-path", str(tmp_path), str(playbook.REPO)], check=True, capture_output=True)
    [tarball] = tmp_path.glob("gb10-cluster-*.tar.gz")
    target = tmp_path / "installed"
    # From a folder without an ansible.cfg: the checkout would count as installed already.
    subprocess.run([galaxy, "collection", "install", str(tarball), "-p", str(target), "--no-deps"], check=True, capture_output=True, cwd=tmp_path)
    assert (target / "ansible_collections/gb10/cluster/MANIFEST.json").exists()
    state = os.environ.get("GB10_LAB_DIR") or str(playbook.REPO / ".lab")
    run = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "gb10.cluster.site", "-i", str(playbook.REPO / "inventories/lab")],
        cwd=tmp_path, env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(target), "GB10_LAB_DIR": state, "PWD": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:]
    assert "pair1 serves" in run.stdout
    assert lab.complete() == (200, " Paris.")
