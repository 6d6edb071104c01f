"""Values beyond their type: ranges, patterns, words, environments."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import rules
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC, PLAYBOOK_SPEC
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import load_specs

SPECS: dict[str, Any] = {**CLUSTER_SPEC, **{name: spec for options in load_specs().values() for name, spec in options.items()}}
PROMPTS, VERSIONS = "vllm_tp2_sanity_prompts", "preflight_known_versions"
KNOWN = {"component": "driver", "severity": "error", "matters": "m", "remedy": "r"}

# Variable: (values that pass, values that do not). One for each kind of rule, and those with a pattern of their own.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "gb10_fabric_first": ([1, "11", 254, None], [0, -1, 300]),
    "gb10_model_store": (
        ["/srv/models", "/srv", "/srv/my models", "/dev/shm/models", "/home/me/models", "/library", "/usr/local/models", "/mnt"],
        ["models", "~/.cache/huggingface", "", "/", "/.", "/srv/models ", None, "/etc", "//etc/models", "/usr/", "/lib64/x", "/dev/shm", "/proc/1", "/home"],
    ),
    "vllm_tp2_context": ([4096, "4096"], ["\u0665", 0]),
    "docker_log_max_size": (["50m", "1g", "1G", "512kb", 1048576, "1.5g"], ["50 megabytes", "m", "-1", "0m", ""]),
    "docker_memlock": (["unlimited", "leave", "64m", "8388608", 8388608, -1, "64 MiB", "Unlimited"], ["none", 0, "-2", "64x", ""]),
    "image_port": ([0, 1, 65535], [-1, 65536]),
    "monitoring_retention": (["30d", "12h"], ["30", "a month", "30d --web.enable-lifecycle"]),
    "preflight_ignore": ([[], ["arch", "gb10"]], [["arhc"]]),
    "readahead_load_kb": ([0, 8, "512", 65536], [-1, 6, 65537, 65540]),
    "roce_addresses": ([["192.168.200.11/24", "10.0.0.1/31"]], [["192.168.200.11"], ["192.168.200.0/24"], ["x/24"], ["192.168.200.11/33"]]),
    "roce_confirm_seconds": ([15, 300], [14, 0, -120]),
    "roce_mtu": ([1280, 1500, 9000, 9978], [900, 90000]),
    "sysctl_dirty_ratio": (["5", 0, 100, "leave"], [101, -1, "auto", "half", "0.5"]),
    "sysctl_min_free_kbytes": (["auto", "leave", 3145728], [0, -1, "3 GiB"]),
    "vllm_tp2_gpu_memory_utilization": ([0.8, 1, "0.01", None], [0, 1.01, 80, -0.5, "nan"]),
    "vllm_tp2_healthcheck": (
        [{}, {"interval": "1m30s", "retries": 5, "disable": True, "test": ["CMD", "true"]}],
        [{"interval": 30}, {"retries": "three"}, {"timeout": "10 s"}, {"interva": "1s"}],
    ),
    "vllm_tp2_memlock": (["unlimited", 8388608, -1, "-1"], ["64m", 0, -2, "lots"]),
    "vllm_tp2_phase_seconds": ([{}, {"load": 1}], [{"load": 0}, {"laod": 1}]),
    "vllm_tp2_stack": ([67108864, -1], [0, -2]),
    "vllm_tp2_wait_available": ([0, 0.15, 1], [-0.1, 1.1, 70]),
    "weights_hf_endpoint": (["", "https://hub.example.org"], ["hub.example.org"]),
}


def test_every_rule_is_of_a_variable() -> None:
    assert {re.split(r"\[|\.", name)[0] for name in rules.RULES} <= {*SPECS, *PLAYBOOK_SPEC}


@pytest.mark.parametrize("name", VALUES)
def test_ranges_and_patterns(name: str) -> None:
    right, wrong = VALUES[name]
    assert [value for value in right if rules.faults(name, value, SPECS[name])] == []
    found = [rules.faults(name, value, SPECS[name]) for value in wrong]
    assert [len(each) for each in found] == [1] * len(wrong)
    assert all(", expected " in each[0][1] for each in found)


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("vllm_tp2_gpu_memory_utilization", "0,8", "expected a number: a share of the memory, above 0"),
        ("preflight_ignore", ["gb-10"], "expected the ID of a check of roles"),
        ("preflight_ignore", ["clock_skw"], "did you mean clock_skew?"),
        ("preflight_known_versions", [KNOWN], "entry 1 has no version, expected one with numbers in match or below"),
        ("vllm_tp2_extra_env", {"NODE_RANK": "1"}, "NODE_RANK is set for each rank by the collection"),
        ("vllm_tp2_secret_env", {"HF_TOKEN": "$HF_TOKEN"}, "HF_TOKEN is the name of a shell variable, which is not expanded here"),
        ("vllm_tp2_api_key", "${API_KEY}", "is the name of a shell variable"),
        ("vllm_tp2_sanity_prompts", ["What is 2+2?"], "entry 1 is a string, expected a mapping such as {prompt: ...}"),
    ],
)
def test_what_is_expected_is_complete_and_short(name: str, value: Any, part: str) -> None:
    ((_path, text),) = rules.faults(name, value, {**SPECS, **PLAYBOOK_SPEC}[name])
    assert part in text
    assert len(text) < 200


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (PROMPTS, [{"prompt": "a"}, {"prompt": "b", "expect": None, "chat": False, "max_tokens": "32", "body": {"seed": 1}}], []),
        (PROMPTS, [{"promt": "a"}], [(0, "promt"), (0,)]),
        (PROMPTS, [{"prompt": "a", "max_tokens": "many"}, {"prompt": "b", "body": "x"}], [(0, "max_tokens"), (1, "body")]),
        ("preflight_ignore", [None, "a"], [(0,), (1,)]),
        ("image_port", "x", [()]),
        (VERSIONS, [{**KNOWN, "match": "590", "unless": ["x"]}, {**KNOWN, "below": "7.0", "line": "7"}], []),
        (VERSIONS, [{**KNOWN, "match": "590"}, KNOWN, {**KNOWN, "below": "newest"}, "590"], [(1,), (2,), (3,)]),
        ("vllm_tp2_extra_env", {"A": "1", "_b": 2, "C": True, "D": None, "E": "", "F": "it's", "NCCL_IB_GID_INDEX": 0}, []),
        ("vllm_tp2_extra_env", {"NCCL_IB_GID_INDEX": None}, []),
        ("vllm_tp2_extra_env", {"NCCL_IB_GID_INDEX": ""}, [("NCCL_IB_GID_INDEX",)]),
        ("vllm_tp2_extra_env", {"A-B": 1, "A": [1], "B": {}}, [("A-B",), ("A",), ("B",)]),
        ("vllm_tp2_secret_env", {"hunter 2": ""}, [("hunter 2",)]),
        ("vllm_tp2_secret_env", {"NOTE": "x y$z", "OTHER": None}, []),
        ("vllm_tp2_secret_env", {"HF_TOKEN": "x y", "VLLM_API_KEY": "\u201csk\u201d"}, [("HF_TOKEN",), ("VLLM_API_KEY",)]),
        ("vllm_tp2_api_key", "   ", [()]),
        ("vllm_tp2_api_key", "$ANSIBLE_VAULT;1.1;AES256\n6133\n", [()]),
    ],
)
def test_entries_and_environments(name: str, value: Any, expected: list[tuple[Any, ...]]) -> None:
    found = rules.faults(name, value, SPECS[name])
    assert sorted(map(str, expected)) == sorted(str(path) for path, _text in found)
    assert "hunter" not in "".join(text for _path, text in found)


@pytest.mark.parametrize(("name", "place"), [("VLLM_API_KEY", "vllm_tp2_api_key"), ("HF_TOKEN", "vllm_tp2_secret_env")])
def test_a_secret_in_the_open_environment_names_its_variable(name: str, place: str) -> None:
    [(path, text)] = rules.faults("vllm_tp2_extra_env", {name: "hf_hunter2hunter2hunter2hunter2hunt"}, SPECS["vllm_tp2_extra_env"])
    assert path == (name,)
    assert text.endswith(f"set it in {place}")
