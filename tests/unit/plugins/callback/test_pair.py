"""The callback in real runs of ansible-playbook. The report itself: tests/unit/plugins/plugin_utils/test_run_report.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest
from playbook import REPO

pytestmark = pytest.mark.slow

# Follows work as the collection's own actions do: lines of progress by Display.
WORK = """
import time
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import progress_text


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        host, count = task_vars["inventory_hostname"], int(self._task.args["count"])
        for number in range(count):
            if not self._task.args.get("silent"):
                Display().display(progress_text(host, "copy", 100 * number // count, f"{number} GiB", f"{count} GiB", 60.0))
            time.sleep(0.25)
        Display().display(f"a line of {host}")
        return {"changed": False}
"""


class Play:
    """A folder with a playbook and two hosts that are this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "action_plugins").mkdir()
        (folder / "action_plugins/work.py").write_text(WORK, encoding="utf-8")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_") and key not in ("COLUMNS", "LINES")}
        self.env |= {"ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "TERM": "xterm-256color"}
        self.argv = ["-i", "one,two,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", "play.yml"]
        self.command = str(Path(sys.executable).parent / "ansible-playbook")

    def write(self, tasks: str, head: str = "") -> Play:
        indented = "".join(f"    {line}\n" for line in tasks.strip("\n").splitlines())
        text = f"- name: A play\n  hosts: all\n  gather_facts: false\n{head}  tasks:\n{indented}"
        (self.folder / "play.yml").write_text(text, encoding="utf-8")
        return self

    def role(self, name: str, tasks: str) -> None:
        path = self.folder / "roles" / name / "tasks"
        path.mkdir(parents=True)
        (path / "main.yml").write_text(tasks, encoding="utf-8")

    def run(self, *arguments: str, rc: int = 0, **env: str) -> list[str]:
        """Return the lines of stdout."""
        done = subprocess.run(
            [self.command, *self.argv, *arguments], cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == rc, done.stdout + done.stderr
        self.stderr = done.stderr
        return done.stdout.splitlines()

    def terminal(self, *arguments: str, **env: str) -> pexpect.spawn[str]:
        more = {**self.env, **env}
        return pexpect.spawn(self.command, [*self.argv, *arguments], cwd=self.folder, env=more, dimensions=(30, 120), timeout=60, encoding="utf-8")


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def timeless(line: str) -> str:
    return re.sub(r"\b\d+ s\b", "N s", line)


SHOWN = """
- gb10.cluster.show: {lines: [first, "second\\tof {{ inventory_hostname }}"]}
- gb10.cluster.show: {lines: [the, same]}
- ansible.builtin.debug: {msg: text of your own}
"""


def test_a_role_has_one_line_each_change_one_line_and_the_run_one(play: Play) -> None:
    """What is ignored is not printed as a fault, and is not ok in the line of its role."""
    play.role("calm", '- ansible.builtin.command: "true"\n  changed_when: false\n- gb10.cluster.show: {lines: ["{{ inventory_hostname }}: nothing to do"]}\n')
    write = '- name: put | Write\n  ansible.builtin.command: "true"\n  changed_when: {}\n'
    play.role("busy", write.format("inventory_hostname == 'two'") + write.format("true"))
    play.role("refused", "- name: Refuse\n  ansible.builtin.fail: {msg: no sudo}\n  when: inventory_hostname == 'two'\n  ignore_errors: true\n")
    lose = "  ansible.builtin.ping:\n  vars: {ansible_connection: ssh, ansible_port: 1}\n  when: inventory_hostname == 'two'\n"
    play.role("away", f"- name: Lose\n{lose}  ignore_unreachable: true\n")
    play.write(SHOWN, "  roles: [calm, busy, refused, away]\n")
    lines = [timeless(line) for line in play.run()]
    assert len([line for line in lines if "text of your own" in line]) == 2, "as Ansible prints it"
    assert [line for line in lines if line.strip() and "text of your own" not in line and not line.startswith(("TASK", "ok: "))] == [
        "calm        one ok   two ok   N s   nothing to do",
        "  changed   two: Write",
        "  changed   one, two: Write",
        "busy        one changed   two changed   N s",
        "refused     one skipped   two failed   N s",
        "away        one skipped   two unreachable   N s",
        "one:", "  first", "  second\tof one", "two:", "  first", "  second\tof two", "the", "same",
        "Done in N s: 1 change on one, 2 changes on two.",
    ]  # fmt: skip


@pytest.mark.long  # a pipe that closes early is rare
def test_a_reader_that_ends_early_does_not_end_the_run(play: Play) -> None:
    play.write("- ansible.builtin.debug: {msg: '{{ range(9) | list }}'}\n- ansible.builtin.file: {path: '{{ playbook_dir }}/end', state: touch}")
    line = " ".join(shlex.quote(each) for each in [play.command, *play.argv])
    done = subprocess.run(["sh", "-c", f"{line} | head -n 1"], cwd=play.folder, env=play.env, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr
    for _second in range(20):
        if (play.folder / "end").exists():
            break
        time.sleep(1)
    assert (play.folder / "end").exists()


FAULTS = """
- name: Rescued
  block:
    - ansible.builtin.fail: {msg: a failure that is rescued}
  rescue:
    - ansible.builtin.set_fact: {a: 1}
- name: Ignored
  ansible.builtin.fail: {msg: a failure that is ignored}
  ignore_errors: true
- name: Rescued in vain
  when: inventory_hostname == 'one'
  block:
    - ansible.builtin.fail: {msg: the first cause.}
  rescue:
    - ansible.builtin.fail: {msg: "The pair is down. Evidence: evidence/pair1. Remedy: run `make pair` and then `site.yml`."}
- name: Count
  ansible.builtin.command: sh -c 'echo first >&2; echo last >&2; exit 4'
"""


def test_faults_are_final_short_and_have_the_remedy_as_a_command(play: Play) -> None:
    lines = play.write(FAULTS).run(rc=2)
    assert [timeless(line) for line in lines] == [
        "ERROR A play on one: The pair is down.",
        "Evidence: evidence/pair1.",
        "Remedy: run `make pair` and then `site.yml`.",
        "    make pair",
        "ERROR A play on two: Count: exit code 4",
        "    sh -c echo first >&2; echo last >&2; exit 4",
        "first",
        "last",
        "Failed after N s: A play on one, two.",
    ]
    assert play.stderr == ""


def test_a_module_that_crashes_and_a_host_that_is_unreachable(play: Play) -> None:
    (play.folder / "library").mkdir()
    (play.folder / "library/crash.py").write_text("from ansible.module_utils.basic import AnsibleModule\nraise RuntimeError('boom')\n", encoding="utf-8")
    crash = "- name: Crash\n  crash:\n  when: inventory_hostname == 'one'"
    play.write(f"{crash}\n- name: Lose\n  ansible.builtin.ping:\n  vars: {{ansible_connection: ssh, ansible_port: 1}}")
    lines = play.run(rc=4)
    text = "\n".join(lines)
    assert lines[0].startswith("ERROR A play on one: Crash: ")
    assert "boom" in text
    assert "Traceback" not in text
    assert "Origin" not in text
    assert "Run again with -vvv for the traceback." in lines
    assert any(line.startswith("UNREACHABLE A play on two: ") and "via ssh" not in line for line in lines), text


def test_show_of_many_lines_is_a_report_and_its_only_line_a_note(play: Play) -> None:
    play.role("quiet", "- gb10.cluster.show: {lines: ['{{ inventory_hostname }}: nothing to do']}\n")
    play.role("module", "- gb10.cluster.host_settings: {role: gpu}\n  environment: {PATH: /nowhere}\n")
    play.write("- gb10.cluster.show: {lines: [a table, of two lines]}\n  run_once: true", "  roles: [quiet, module]\n")
    assert [timeless(line) for line in play.run()] == [
        "quiet       one ok   two ok   N s   nothing to do",
        "module      one ok   two ok   N s   nvidia-smi is not installed on this node: neither persistence mode nor clocks were changed",
        "a table",
        "of two lines",
    ]
    assert [json.loads(line)["lines"] for line in play.run("-e", "output=json")][-1] == ["a table", "of two lines"]


def test_a_difference_is_shown_with_its_change(play: Play) -> None:
    (play.folder / "f").write_text("".join(f"{number}\n" for number in range(9)), encoding="utf-8")
    play.write(f'- name: Write\n  ansible.builtin.copy: {{dest: "{play.folder}/f", content: "0\\n\\e[2J\\n", mode: preserve}}\n  run_once: true')
    lines = play.run("--check", "--diff", ANSIBLE_FORCE_COLOR="1")
    assert lines[0] == "\x1b[0;33m  changed   one: Write\x1b[0m"
    assert "    @@ -1,9 +1,2 @@" in lines
    assert "\x1b[0;32m    +\\x1b[2J\x1b[0m" in lines
    assert timeless(lines[-1]) == "\x1b[0;33mCheck mode, N s: 1 change on one.\x1b[0m"


def test_verbose_output_is_that_of_ansible(play: Play) -> None:
    play.argv[1] = "one,"
    play.write(FAULTS)
    own = [timeless(line) for line in play.run("-v", rc=2)]
    default = [timeless(line) for line in play.run("-v", rc=2, ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default")]
    hidden = re.compile(r"(?i)stdout callback|start: |end: |delta: |\d\d:\d\d:\d\d|Skipping callback|jinja|Using /")
    assert [line for line in own if not hidden.search(line)] == [line for line in default if not hidden.search(line)]


def test_json_has_only_json_on_stdout_and_a_fault_is_an_object(play: Play) -> None:
    show = "- ansible.builtin.debug: {msg: text}\n- work: {count: 1}\n- ansible.builtin.fail: {msg: The pair is down.}"
    lines = play.write(show).run("-e", "output=json", rc=2)
    assert [json.loads(line) for line in lines] == [{"failed": "The pair is down.", "part": "A play", "hosts": ["one", "two"], "task": "ansible.builtin.fail"}]


def test_a_long_task_without_output_has_a_heartbeat(play: Play) -> None:
    play.write("- name: Copy | Wait long\n  ansible.builtin.pause: {seconds: 1}\n- work: {count: 4}\n- name: Last\n  work: {count: 6, silent: true}")
    lines = [timeless(line) for line in play.run(GB10_HEARTBEAT_SECONDS="0.4")]
    assert "A play      one: Wait long, N s" in lines
    assert "  one: copy  50 %  2 GiB of 4 GiB  N s left" in lines, "progress is printed as it is"
    assert any(line.startswith("A play ") and line.endswith(": Last, N s") for line in lines)


@pytest.mark.long  # a race that needs 64 forks
def test_heartbeat_does_not_block_forks(play: Play) -> None:
    """Each task forks a process for each host while the ticker prints as fast as it can."""
    play.argv[1] = ",".join(f"h{number}" for number in range(8)) + ","
    play.write("\n".join(f"- name: Task {number}\n  work: {{count: 1}}" for number in range(8)))
    begun = time.monotonic()
    lines = play.run("--forks", "8", GB10_HEARTBEAT_SECONDS="0.001")
    assert len([line for line in lines if line.startswith("a line of ")]) == 64
    assert time.monotonic() - begun < 60


def test_an_interrupted_run_prints_the_changes_that_were_not_printed_yet(play: Play) -> None:
    sleep = "- name: Sleep\n  ansible.builtin.command: sleep {{ 0 if inventory_hostname == 'one' else 60 }}"
    child = play.write(sleep).terminal(GB10_HEARTBEAT_SECONDS="0.4")
    child.expect("A play      two: Sleep, ")
    child.sendintr()
    child.expect("User interrupted execution")
    child.expect("  changed   one: Sleep")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 99


def test_prompts_have_no_heartbeat(play: Play) -> None:
    tasks = "- work: {count: 2}\n- name: Ask\n  ansible.builtin.pause: {prompt: go on}\n- ansible.builtin.debug: {msg: '{{ who }} went on'}"
    child = play.write(tasks, "  vars_prompt: [{name: who, prompt: your name, private: false}]\n").terminal(GB10_HEARTBEAT_SECONDS="1")
    child.expect("your name: ")
    child.sendline("Ada")
    child.expect("go on:")
    time.sleep(3)
    child.sendline("")
    child.expect("Ada went on")
    assert ": Ask, " not in (child.before or "")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
