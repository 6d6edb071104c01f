"""rules: what values may be beyond their type; special values stay allowed."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action.inventory_check import load_specs
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import cluster, rules
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.types import is_computed, type_faults

SPECS: dict[str, Any] = {**cluster.CLUSTER_SPEC, **{name: spec for options in load_specs().values() for name, spec in options.items()}}

# Variable: (values that pass, values that do not).
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "gb10_fabric_first": ([1, "11", 254, None], [0, -1, 300]),
    "gb10_model_store": (["/srv/models", "/", None], ["models", "~/.cache/huggingface", ""]),
    "gb10_rank": ([0, "1", None], [-1]),
    "docker_compose_minimum": (["2.18", "5", 2.18], ["new", "v2.18"]),
    "docker_log_max_file": ([1, "5"], [0, -1]),
    "docker_log_max_size": (["50m", "1g", "1G", "512kb", 1048576, "1.5g"], ["50 megabytes", "m", "-1", "0m", ""]),
    "docker_memlock": (["unlimited", "leave", "64m", "8388608", 8388608, -1, "64 MiB", "Unlimited"], ["none", 0, "-2", "64x", ""]),
    "docker_stack": (["67108864", "64m", "leave", -1], ["big", 0]),
    "docker_start_timeout": ([1], [0]),
    "image_caches": ([[], ["/srv/models/cache"]], [["cache"]]),
    "image_digest": (["", "sha256:" + "a1" * 32], ["sha256:12", "a1" * 32, "sha256:" + "A1" * 32]),
    "image_keep": ([0, 2], [-1]),
    "image_model_store": (["/srv"], ["srv"]),
    "image_port": ([0, 1, 65535], [-1, 65536]),
    "image_timeout": ([1], [0]),
    "preflight_clock_skew_seconds": ([0, 0.5], [-1]),
    "preflight_free_gib": ([0, 5], [-1]),
    "preflight_ignore": ([[], ["arch", "gb10"]], [["arhc"]]),
    "preflight_image_gib": ([0], [-1]),
    "preflight_model_gib": ([0], [-1]),
    "preflight_model_store": (["/srv"], ["srv"]),
    "readahead_classes": ([["nvme", "dm"], []], [["nvm"]]),
    "readahead_guard_floor_gib": ([0.5], [0, -1]),
    "readahead_guard_interval": ([0.1], [0]),
    "readahead_load_kb": ([0, 8, 65536], [-1, 65537]),
    "readahead_mounts": ([["/srv"], []], [["srv"]]),
    "readahead_restore_after": ([60], [59]),
    "readahead_steady_kb": ([0, 128], [-8]),
    "roce_addresses": ([["192.168.200.11/24", "10.0.0.1/31"]], [["192.168.200.11"], ["192.168.200.0/24"], ["x/24"], ["192.168.200.11/33"]]),
    "roce_bandwidth_hotplug_high_gbps": ([15.5], [-1]),
    "roce_bandwidth_hotplug_low_gbps": ([0], [-1]),
    "roce_bandwidth_iterations": ([0, 50], [-1]),
    "roce_bandwidth_port": ([18600], [0, 65536]),
    "roce_bandwidth_rail_gbps": ([0.005], [-1]),
    "roce_bandwidth_seconds": ([1], [0]),
    "roce_confirm_seconds": ([15, 300], [14, 0, -120]),
    "roce_min_speed_mbps": ([0], [-1]),
    "roce_mtu": ([1280, 1500, 9000, 9978], [900, 90000]),
    "roce_ping_seconds": ([1], [0]),
    "sysctl_dirty_background_ratio": (["2", 2, "leave"], ["101", "-1"]),
    "sysctl_dirty_ratio": (["5", 0, 100, "leave"], [101, -1, "auto", "half", "0.5"]),
    "sysctl_lru_gen_min_ttl_ms": (["0", 100, "leave"], ["-1", "0.5"]),
    "sysctl_min_free_kbytes": (["auto", "leave", 3145728], [0, -1, "3 GiB"]),
    "sysctl_min_free_kbytes_119": ([1], [0]),
    "sysctl_min_free_kbytes_121": ([1], [0]),
    "sysctl_min_free_percent_other": ([2.5, 6, 10], [0, 11]),
    "sysctl_overcommit_memory": (["0", 1, "2", "leave"], ["3"]),
    "sysctl_swappiness": (["auto", "leave", 0, "200"], ["201", "-1"]),
    "sysctl_vfs_cache_pressure": (["200", "leave"], ["-1"]),
    "sysctl_watermark_boost_factor": (["0", 15000, "leave"], ["-1", "auto"]),
    "sysctl_watermark_scale_factor": (["leave", 10, 3000], [0, 3001]),
    "vllm_tp2_completion_timeout": ([1], [0]),
    "vllm_tp2_context": ([1, "4096", None], [0, -4096]),
    "vllm_tp2_directory": (["/opt/x"], ["opt/x", ""]),
    "vllm_tp2_gpu_memory_utilization": ([0.8, 1, "0.01", None], [0, 1.01, 80, -0.5, "nan"]),
    "vllm_tp2_keep_releases": ([1], [0]),
    "vllm_tp2_log_max_file": ([1], [0]),
    "vllm_tp2_log_max_size": (["50m"], ["50x"]),
    "vllm_tp2_max_num_seqs": ([1, None], [0]),
    "vllm_tp2_memlock": (["unlimited", 8388608, -1, "-1"], ["64m", 0, -2, "lots"]),
    "vllm_tp2_model_store": (["/srv"], ["srv"]),
    "vllm_tp2_phase_seconds": ([{}, {"load": 1}], [{"load": 0}]),
    "vllm_tp2_stack": ([67108864, -1], [0, -2]),
    "vllm_tp2_timeout": ([1], [0, -1]),
    "vllm_tp2_wait_available": ([0, 0.15, 1], [-0.1, 1.1, 70]),
    "vllm_tp2_wait_seconds": ([0], [-1]),
    "weights_download_timeout": ([1], [0]),
    "weights_hf_endpoint": (["", "https://hub.example.org"], ["hub.example.org"]),
    "weights_model_store": (["/srv"], ["srv"]),
    "weights_owner": ([-1, 0, 1000], [-2]),
    "weights_owner_group": ([-1, 1000], [-2]),
    "weights_path": (["/srv/models/x"], ["x", ""]),
    "weights_port": ([0, 18700], [65536]),
    "weights_reserve_gib": ([0, 2], [-1]),
    "weights_streams": ([1], [0]),
    "weights_timeout": ([1], [0]),
}


def test_every_rule_has_values_here_and_is_of_a_variable() -> None:
    """A misspelt name in the table would judge nothing."""
    assert set(rules.RULES) == set(VALUES)
    assert set(rules.RULES) | set(rules.SOURCES) <= set(SPECS)


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    """What the role takes passes, what it cannot use does not, and the sentence says what to write."""
    right, wrong = VALUES[name]
    assert [value for value in right if rules.value_faults(name, value, SPECS[name])] == []
    for value in wrong:
        ((_path, text),) = rules.value_faults(name, value, SPECS[name])
        assert f", expected {rules.RULES[name].says}" in text


@pytest.mark.parametrize("name", rules.RULES)
def test_defaults_pass(name: str) -> None:
    """A default that is written out is no fault."""
    default = SPECS[name].get("default")
    if not is_computed(default):
        assert type_faults(name, default, SPECS[name]) == []
        assert rules.value_faults(name, default, SPECS[name]) == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("sysctl_swappiness", "300", [((), "is '300', expected auto, leave or a whole number from 0 to 200")]),
        ("sysctl_dirty_ratio", "laeve", [((), "is 'laeve', expected leave or a whole number from 0 to 100; did you mean leave?")]),
        ("readahead_classes", ["nvme", "vritio"], [((1,), "entry 2 is 'vritio', expected one of nvme, sd, virtio, md, dm; did you mean virtio?")]),
        ("vllm_tp2_phase_seconds", {"load": 5, "init": -1}, [(("init",), "init is -1, expected a whole number from 1 on")]),
        (
            "vllm_tp2_phase_seconds",
            {"total": 5, "loads": 5},
            [
                (
                    ("loads",),
                    "has the key 'loads', expected one of none, args, config, rendezvous, load, kv, graphs, init, listen, total; did you mean load?",
                )
            ],
        ),
        ("vllm_tp2_api_key", "", []),
        ("vllm_tp2_api_key", "k'1", [((), "holds a single quote, which the environment file of the secrets cannot carry; choose another value")]),
        # What `ansible-vault encrypt_string` makes of a key and the return key.
        ("vllm_tp2_api_key", "k1\n", [((), "holds a line end, which an environment file cannot carry; write it on one line, and not with | or >")]),
        ("docker_users", -1, []),
    ],
)
def test_sentences(name: str, value: Any, expected: Any) -> None:
    """One for each entry that is wrong, with its place; what has no rule is not judged."""
    assert rules.value_faults(name, value) == expected


PROMPTS = "vllm_tp2_sanity_prompts"
VERSIONS = "preflight_known_versions"
KNOWN = {"component": "driver", "severity": "error", "matters": "m", "remedy": "r"}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (PROMPTS, [{"prompt": "a"}, {"prompt": "b", "expect": "c", "chat": False, "max_tokens": "32", "body": {"seed": 1}}], []),
        (PROMPTS, [{"prompt": "a", "expect": None}], []),
        (PROMPTS, [{"promt": "a"}], [((0, "promt"), "entry 1 promt is no key of it; did you mean prompt?"), ((0,), "entry 1 prompt is missing")]),
        (
            PROMPTS,
            [{"prompt": "a", "max_tokens": "many"}, {"prompt": "b", "body": "x"}],
            [((0, "max_tokens"), "entry 1 max_tokens is 'many', expected a whole number"), ((1, "body"), "entry 2 body is a text, expected a mapping")],
        ),
        (
            PROMPTS,
            [{"prompt": " "}, {"prompt": "a", "max_tokens": 0}, {"prompt": 17}, {"prompt": None}],
            [
                ((0, "prompt"), "entry 1 prompt is ' ', expected what to ask, as a text"),
                ((1, "max_tokens"), "entry 2 max_tokens is 0, expected a whole number from 1 on"),
                ((2, "prompt"), "entry 3 prompt is 17, expected what to ask, as a text"),
                ((3, "prompt"), "entry 4 prompt is empty, expected what to ask, as a text"),
            ],
        ),
        (
            PROMPTS,
            [{"max_tokens": 0}, {"prompt": "a", "max_tokens": 0}],
            [((0,), "entry 1 prompt is missing"), ((1, "max_tokens"), "entry 2 max_tokens is 0, expected a whole number from 1 on")],
        ),
        (
            "image_caches",
            [None, "a"],
            [((0,), "entry 1 is empty, expected a path"), ((1,), f"entry 2 is 'a', expected {rules.RULES['image_caches'].says}")],
        ),
        ("image_port", "x", [((), "is 'x', expected a whole number")]),
        (VERSIONS, [{**KNOWN, "match": "590", "unless": ["x"]}, {**KNOWN, "below": "7.0", "line": "7"}], []),
        (VERSIONS, [KNOWN], [((0,), "entry 1 has neither match nor below, expected one of them")]),
        (
            VERSIONS,
            [{**KNOWN, "match": "1", "severity": "fatal"}],
            [((0, "severity"), "entry 1 severity is 'fatal', expected one of error, warning, info")],
        ),
    ],
)
def test_keys_of_entries(name: str, value: Any, expected: Any) -> None:
    """A key that the play would stumble over, and what the keys hold."""
    spec = rules.with_entries(name, SPECS[name])
    assert rules.faults(name, value, spec) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("vllm_tp2_extra_env", {"A": "1", "_b": 2, "C": True, "D": None, "E": "", "NCCL_IB_GID_INDEX": 0}, []),
        ("vllm_tp2_extra_env", {"NCCL_IB_GID_INDEX": None, "F": "it's"}, []),
        (
            "vllm_tp2_extra_env",
            {"NCCL_IB_GID_INDEX": ""},
            [
                (
                    ("NCCL_IB_GID_INDEX",),
                    "NCCL_IB_GID_INDEX is empty: NCCL reads an empty text as index 0 and hangs; write the index, such as 3, or null for none",
                )
            ],
        ),
        ("vllm_tp2_extra_env", {"A-B": 1}, [(("A-B",), "has the key 'A-B', expected the name of an environment variable (letters, digits, _)")]),
        (
            "vllm_tp2_extra_env",
            {"A": [1], "B": {}},
            [(("A",), "A is a list, expected a text or a number"), (("B",), "B is a mapping, expected a text or a number")],
        ),
        (
            "vllm_tp2_secret_env",
            {"HF_TOKEN": "hunter2\n"},
            [(("HF_TOKEN",), "HF_TOKEN holds a line end, which an environment file cannot carry; write it on one line, and not with | or >")],
        ),
        (
            "vllm_tp2_secret_env",
            {"HF_TOKEN": "hunter'2"},
            [(("HF_TOKEN",), "HF_TOKEN holds a single quote, which the environment file of the secrets cannot carry; choose another value")],
        ),
        ("vllm_tp2_secret_env", {"hunter 2": ""}, [(("hunter 2",), "has a key, expected the name of an environment variable (letters, digits, _)")]),
        ("vllm_tp2_secret_env", {"HF_TOKEN": "x y$z", "OTHER": None}, []),
    ],
)
def test_environments(name: str, value: Any, expected: Any) -> None:
    """Names, scalars on one line, and no secret in a sentence."""
    found = rules.value_faults(name, value, SPECS[name])
    assert found == expected
    assert "hunter" not in "".join(text for _path, text in found)


def test_a_source_is_a_host_of_the_group() -> None:
    """A host of another group has the wrong cable."""
    assert rules.source_fault("image_source", "auto", ["spark-1", "spark-2"]) == ""
    assert rules.source_fault("weights_source", "spark-2", ["spark-1", "spark-2"]) == ""
    assert rules.source_fault("weights_source", "sprak-2", ["spark-1", "spark-2"]) == (
        "is 'sprak-2', expected auto or a host of the serving group: spark-1, spark-2; did you mean spark-2?"
    )
