"""Rendering a rank: golden files, a table of flags for each profile, errors, and the name of a release."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import http_server
import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import health_check
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import EXAMPLES, LEAST, SHIPPED, arguments, place

ROOT = Path(__file__).resolve().parents[5]
FIXTURES = ROOT / "tests" / "unit" / "fixtures" / "profiles"
ALONE = {"rank": 0, "size": 1}
PAIR = ("192.168.200.1", "192.168.200.2")
FABRIC = {
    "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
    "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
    "TP_SOCKET_IFNAME": "enp1s0f0np0",
}


def profile(name: str) -> dict[str, Any]:
    return resolve(name, SHIPPED, EXAMPLES)


def render(name: str, number: int, **options: Any) -> dict[str, Any]:
    return compose.render_rank(profile(name), place(number, env=FABRIC), {"model_store": "/srv/models", "infiniband": True, **options})


def mini(**over: Any) -> dict[str, Any]:
    return resolve("mini", {"mini": {**LEAST, "model": {"id": "a/b", "path": "/m", "served_names": ["b"]}, **over}})


class Indented(yaml.SafeDumper):
    """Writes lists as yamllint wants them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


# --- every profile ---------------------------------------------------------------------------------------------------

ALL_OPTIONS = {
    "name": "vllm-pair1",
    "project": "vllm-pair1",
    "group": "pair1",
    "model_store": "/srv/models",
    "infiniband": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"],
    "secrets": {"VLLM_API_KEY": "not-in-any-file"},
    "env_file": "/opt/gb10/pair1/api_key",
}
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FIXTURES / "expected.yml").read_text())
#: What the collection adds to every profile, and nothing else: docs/reference/profiles.md has the same list.
ADDED = {
    "TRITON_CACHE_DIR": "{cache}/triton", "TORCHINDUCTOR_CACHE_DIR": "{cache}/inductor", "TILELANG_CACHE_DIR": "{cache}/tilelang",
    "FLASHINFER_WORKSPACE_BASE": "{cache}/flashinfer", "CUTE_DSL_CACHE_DIR": "{cache}/cute", "B12X_CUTE_COMPILE_CACHE_DIR": "{cache}/b12x",
    "DG_JIT_CACHE_DIR": "{cache}/deep_gemm", "CUDA_CACHE_PATH": "{cache}/cuda", "VLLM_CACHE_ROOT": "{cache}",
    "VLLM_ENGINE_READY_TIMEOUT_S": "5760", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "2400", "NCCL_DEBUG_FILE": "/dev/stderr",
}  # fmt: skip
NOT_WITH_RAY = ("NCCL_DEBUG_FILE",)
OF_A_PROFILE = ("image", "pull_policy", "entrypoint", "volumes", "shm_size", "mem_limit")


def golden(number: int) -> Path:
    return FIXTURES / f"dspark-nvfp4-1m-seed.rank{number}.compose.yml"


def test_release_of_a_profile_is_that_of_the_golden_files() -> None:
    """Another id or another file restarts every group at its next upgrade. UPDATE_GOLDEN=1 writes the files; a person reads the diff."""
    release = compose.name_release([compose.render_rank(profile("dspark-nvfp4-1m-seed"), place(number, env=FABRIC), ALL_OPTIONS) for number in (0, 1)])
    for number, content in enumerate(release["compose"]):
        text = "---\n" + yaml.dump(content, Dumper=Indented, sort_keys=False, width=90)
        if os.environ.get("UPDATE_GOLDEN"):
            golden(number).write_text(text)
        assert golden(number).read_text() == text, f"{golden(number).name} differs: UPDATE_GOLDEN=1 rewrites it"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_renders_the_arguments_and_the_environment_of_the_profile(name: str, number: int) -> None:
    own = EXPECTED[name]
    base = EXPECTED[own["like"]] if "like" in own else own
    out = compose.render_rank(profile(name), place(number, env=FABRIC), ALL_OPTIONS)
    service = out["compose"]["services"]["vllm"]

    changed = dict(arguments(shlex.split(own["arguments"])))
    expected = [(flag, changed.get(flag, value)) for flag, value in arguments(shlex.split(base["arguments"]))]
    program = shlex.split(base["program"])
    assert out["argv"][: len(program)] == program
    assert set(changed) <= {flag for flag, _value in expected}
    if number and dict(expected).get("distributed-executor-backend") != ("ray",):
        expected = [(flag, ("1",) if flag == "node-rank" else value) for flag, value in expected] + [("headless", ())]
    assert arguments(out["argv"][len(program) :]) == expected

    own_env = dict(word.split("=", 1) for word in shlex.split(own.get("environment", base["environment"])))
    [cache] = [volume.split(":")[1] for volume in {**base, **own}["volumes"] if volume.startswith("/srv/models/vllm-cache:")]
    left_out = NOT_WITH_RAY if profile(name)["engine"]["executor"] == "ray" else ()
    added = {key: value.format(cache=cache) for key, value in ADDED.items() if key not in left_out}
    wiring = {"NODE_RANK": str(number), "HEADLESS": "1" if number else "", "VLLM_HOST_IP": PAIR[number]}
    assert out["env"] == {**added, **own_env, **FABRIC, **wiring}
    assert service["environment"] == {key: value.replace("$", "$$") for key, value in out["env"].items()}

    like = yaml.safe_load(golden(number).read_text())["services"]["vllm"]
    rest = {key: value for key, value in {**like, **base, **own}.items() if key in like or key in OF_A_PROFILE}
    rest.update(
        labels={key: name if key == "gb10.cluster.profile" else value for key, value in like["labels"].items() if key != "gb10.cluster.release"},
        command=[word.replace("$", "$$") for word in out["command"]],
        environment=service["environment"],
        healthcheck=health_check(profile(name)["engine"]["api"], number, {}),
    )
    [folder] = out["caches"]
    assert re.fullmatch(r"/srv/models/vllm-cache-[0-9a-f]{12}", folder)
    rest["volumes"] = [f"{folder}:{cache}" if volume.startswith("/srv/models/vllm-cache") else volume for volume in rest["volumes"]]
    assert service == rest
    assert out["command"][0] == "bash" or out["command"] == out["argv"]

    assert "not-in-any-file" not in json.dumps([out["compose"], out["env"], out["argv"]])
    assert out["secrets"] == {"VLLM_API_KEY": "not-in-any-file"}


def test_the_table_of_profiles_has_no_other_rows() -> None:
    assert sorted(EXPECTED) == sorted([*SHIPPED, *EXAMPLES])


def test_b12x_runs_through_a_login_shell() -> None:
    out = render("b12x-fp8-1m", 0)
    assert out["command"][:2] == ["bash", "-lc"]
    assert shlex.split(out["command"][2]) == ["exec", *out["argv"]]


# --- ranks, environment, secrets -------------------------------------------------------------------------------------


def test_four_ranks() -> None:
    args = dict(arguments(compose.render_rank(profile("dspark-nvfp4-1m-seed"), place(3, size=4), {"model_store": "/m"})["argv"]))
    assert args["tensor-parallel-size"] == args["nnodes"] == ("4",)
    assert (args["node-rank"], args["headless"]) == (("3",), ())


def test_one_rank_has_no_wiring() -> None:
    out = compose.render_rank(mini(), ALONE)
    assert out["argv"] == ["vllm", "serve", "/m", "--served-model-name", "b", "--host", "0.0.0.0", "--port", "8000", "--tensor-parallel-size", "1"]
    assert out["env"] == {key: value for key, value in ADDED.items() if key in values.TIME_LIMITS}, "no cache is mounted"


def test_tensor_times_pipeline_may_fill_the_group() -> None:
    out = compose.render_rank(mini(engine={"args": {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}}), place(3, size=4))
    assert ("tensor-parallel-size", ("2",)) in arguments(out["argv"])


@pytest.mark.parametrize("number", [0, 1])
def test_headless_placeholder_is_not_doubled(number: int) -> None:
    assert compose.build_argv(mini(engine={"args": {"headless": "{headless}", "seed": 1}}), place(number)).count("--headless") == number


def test_fabric_replaces_every_fabric_variable_of_the_profile() -> None:
    """A GID index that the fabric omits on purpose must not come from the seed."""
    fabric = {"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_ADDR_FAMILY": "AF_INET", "NCCL_IB_GID_INDEX": None, "NCCL_IB_ROCE_VERSION_NUM": 2}
    env = compose.render_rank(profile("b12x-fp8-1m"), place(0, env=fabric), {"model_store": "/m"})["env"]
    assert (env["NCCL_IB_HCA"], env["NCCL_IB_ROCE_VERSION_NUM"]) == ("mlx5_0", "2")
    assert not {"NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME"} & set(env)
    assert env["NCCL_CROSS_NIC"] == "1", "not a fabric variable"


def test_extra_environment_wins() -> None:
    extra = {"NCCL_IB_GID_INDEX": 5, "VLLM_HOST_IP": "10.0.0.9", "NCCL_DEBUG": None, "A": True}
    env = compose.render_rank(profile("b12x-fp8-1m"), place(1, env=FABRIC), {"model_store": "/m", "extra_env": extra})["env"]
    assert (env["NCCL_IB_GID_INDEX"], env["VLLM_HOST_IP"], env["A"]) == ("5", "10.0.0.9", "true")
    assert "NCCL_DEBUG" not in env


def test_head_and_worker_environment() -> None:
    one = mini(env={"A": "all"}, head_env={"A": "head"}, worker_env={"B": "worker"})
    assert compose.render_rank(one, place(0))["env"]["A"] == "head"
    worker = compose.render_rank(one, place(1))["env"]
    assert (worker["A"], worker["B"]) == ("all", "worker")


def test_secret_that_is_also_in_the_environment_is_in_the_env_file_only() -> None:
    out = compose.render_rank(mini(), place(0), {"extra_env": {"HF_TOKEN": "hf_x", "MTP_NUM_TOKENS": "5"}, "secrets": {"HF_TOKEN": "hf_y"}})
    assert out["secrets"] == {"HF_TOKEN": "hf_y"}
    assert out["env"]["MTP_NUM_TOKENS"] == "5"
    assert "hf_" not in json.dumps([out["compose"], out["argv"], out["env"]])
    assert out["compose"]["services"]["vllm"]["env_file"] == ["secrets.env"]


def test_empty_secret_is_not_a_secret() -> None:
    out = compose.render_rank(mini(), place(0), {"secrets": {"VLLM_API_KEY": ""}})
    assert (out["secrets"], out["fingerprint"]) == ({}, "")
    assert "env_file" not in out["compose"]["services"]["vllm"]


def test_the_file_of_the_key_is_named_and_has_the_last_word() -> None:
    options = {"env_file": "/opt/pair1/api_key"}
    assert compose.render_rank(mini(), place(0), options)["compose"]["services"]["vllm"]["env_file"] == ["/opt/pair1/api_key"]
    out = compose.render_rank(mini(), place(0), {**options, "secrets": {"HF_TOKEN": "x"}})
    assert out["compose"]["services"]["vllm"]["env_file"] == ["secrets.env", "/opt/pair1/api_key"]


def test_dollar_signs_reach_the_container_unchanged() -> None:
    out = compose.render_rank(mini(env={"A": "$HOME and ${B}"}, engine={"args": {"x": "$y"}}), place(0))
    service = out["compose"]["services"]["vllm"]
    assert service["environment"]["A"] == "$$HOME and $${B}"
    assert "$$y" in service["command"]
    assert out["env"]["A"] == "$HOME and ${B}"


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("f", True, ["--f"]),
        ("f", False, []),
        ("f", None, []),
        ("f", 1, ["--f", "1"]),
        ("f", ["a", 2], ["--f", "a", "2"]),
        ("f", {"a": [1, {"b": None}], "c": "<é>"}, ["--f", '{"a":[1,{"b":null}],"c":"<é>"}']),
        ("f", "", ["--f", ""]),
        ("a.b", True, ["--a.b=true"]),
        ("a.b", False, ["--a.b=false"]),
        ("a.b", [1], ["--a.b=[1]"]),
    ],
)
def test_argument_forms(flag: str, value: Any, words: list[str]) -> None:
    argv = compose.build_argv(mini(engine={"args": {"z": True, flag: value}}), ALONE)
    assert argv[argv.index("--z") + 1 : argv.index("--tensor-parallel-size")] == words


def test_model_as_a_flag_with_revision() -> None:
    one = mini(engine={"positional_model": False}, model={"id": "a/b", "path": "a/b", "revision": "abc"})
    assert compose.build_argv(one, ALONE)[:8] == ["vllm", "serve", "--model", "a/b", "--revision", "abc", "--served-model-name", "a/b"]


def test_ray_ranks() -> None:
    head, worker = render("pr41834-ray-200k", 0), render("pr41834-ray-200k", 1)
    assert head["command"][:2] == worker["command"][:2] == ["bash", "-c"]
    script = head["command"][2]
    assert "ray start --head --node-ip-address=192.168.200.1 --port=6379" in script
    assert shlex.split(script)[-len(head["argv"]) :] == head["argv"]
    assert '["NCCL_IB_GID_INDEX"' in script
    assert "VLLM_API_KEY" in json.loads(script.partition("printf %s ")[2].partition(" >")[0].strip("'")), "Ray does not hand the key to the workers"
    assert "--nnodes" not in head["argv"]
    assert "exec ray start --address=192.168.200.1:6379 --node-ip-address=192.168.200.2" in worker["command"][2]
    assert "--block" in worker["command"][2]
    assert "vllm serve" not in worker["command"][2]


def test_options_of_the_service() -> None:
    options = {"memlock": "unlimited", "stack": None, "image": "sha256:1", "content": "cafe", "log_max_size": "9m", "log_max_file": 1, "infiniband": False}
    service = render("dspark-nvfp4-1m-seed", 0, **options)["compose"]["services"]["vllm"]
    assert service["ulimits"] == {"memlock": {"soft": -1, "hard": -1}}
    assert (service["image"], service["pull_policy"], service["labels"]["gb10.cluster.image"]) == ("sha256:1", "never", "cafe")
    assert service["logging"]["options"] == {"max-size": "9m", "max-file": "1"}
    assert "devices" not in service


def test_health_check_follows_rank_and_options() -> None:
    head, worker = (render("dspark-nvfp4-1m-seed", number)["compose"]["services"]["vllm"]["healthcheck"] for number in (0, 1))
    assert head["test"][-2:] == ["/proc", "127.0.0.1:8888"]
    assert worker["test"] == head["test"][:-1]
    changed = render("dspark-nvfp4-1m-seed", 1, healthcheck={"interval": "30s", "test": ["CMD-SHELL", "test $A"]})["compose"]["services"]["vllm"]["healthcheck"]
    assert changed == {**worker, "interval": "30s", "test": ["CMD-SHELL", "test $$A"]}
    assert render("dspark-nvfp4-1m-seed", 0, healthcheck={"disable": True})["compose"]["services"]["vllm"]["healthcheck"] == {"disable": True}
    assert "healthcheck" not in render("dspark-nvfp4-1m-seed", 0, healthcheck=None)["compose"]["services"]["vllm"]


def test_container_options_of_the_profile() -> None:
    digest = "sha256:" + "a" * 64
    one = mini(image={"reference": "r/n:t", "digest": digest}, container={"memory": "100G", "gpus": "none"})
    service = compose.render_rank(one, place(0))["compose"]["services"]["vllm"]
    assert (service["image"], service["mem_limit"], service["pull_policy"]) == (f"r/n:t@{digest}", "100G", "missing")
    assert "deploy" not in service


@pytest.mark.parametrize(
    ("where", "options", "text"),
    [
        ({"rank": 0, "size": 1}, {}, "made for 2 or more ranks, but the serving group has 1: add hosts to the group or choose"),
        (None, {"model_store": None}, "set gb10_model_store"),
        (None, {"memlock": "8M"}, "memlock is '8M', expected a number of bytes, -1 or unlimited"),
        (None, {"extra_env": {"HF_TOKEN": "k"}}, "set it in vllm_tp2_secret_env"),
    ],
)
def test_render_error_has_the_remedy(where: dict[str, Any] | None, options: dict[str, Any], text: str) -> None:
    with pytest.raises(compose.ServingError, match=re.escape(text)):
        compose.render_rank(profile("dspark-nvfp4-1m-seed"), where or place(0), {"model_store": "/m", **options})


def test_a_group_that_is_too_large_is_made_smaller() -> None:
    with pytest.raises(compose.ServingError, match="made for 1 rank, but the serving group has 2: remove hosts from the group or choose another profile"):
        compose.render_rank(mini(ranks={"min": 1, "max": 1}), place(0), {"model_store": "/m"})


def test_parallel_sizes_must_match_the_group() -> None:
    with pytest.raises(compose.ServingError, match="tensor-parallel-size 4 x pipeline-parallel-size 1 is 4, but the serving group has 2"):
        compose.render_rank(mini(engine={"args": {"tensor-parallel-size": 4}}), place(0))


# --- release ---------------------------------------------------------------------------------------------------------


def ranks_of(name: str, images: tuple[str, str] = ("sha256:1", "sha256:2"), **options: Any) -> list[dict[str, Any]]:
    return [render(name, number, image=images[number], **{"content": "cafe", "group": "pair1", **options}) for number in (0, 1)]


def test_release_id_depends_on_the_content_of_the_image_and_on_secrets() -> None:
    base = compose.name_release(ranks_of("dspark-nvfp4-1m-seed"))
    other_ids = compose.name_release(ranks_of("dspark-nvfp4-1m-seed", ("sha256:3", "sha256:4")))
    assert other_ids["id"] == base["id"]
    assert [each["services"]["vllm"]["image"] for each in other_ids["compose"]] == ["sha256:3", "sha256:4"]
    changed = [compose.name_release(ranks_of("dspark-nvfp4-1m-seed", **more))["id"] for more in ({"content": "beef"}, {"secrets": {"A_TOKEN": "x"}})]
    assert len({base["id"], *changed}) == 3


def test_release_id_is_on_the_label_of_each_rank() -> None:
    out = compose.name_release(ranks_of("dspark-nvfp4-1m-seed"))
    labels = [each["services"]["vllm"]["labels"] for each in out["compose"]]
    assert [each["gb10.cluster.release"] for each in labels] == [out["id"]] * 2
    assert list(labels[0])[-2:] == ["gb10.cluster.release", "gb10.cluster.image"]


# --- env file, paths -------------------------------------------------------------------------------------------------


def test_env_file_text() -> None:
    assert compose.env_file_text({"B": "$x #y", "A": "1"}) == "A='1'\nB='$x #y'\n"


@pytest.mark.parametrize("value", ["a'b", "a\nb", "a\x00b"])
def test_env_file_refuses_a_quote_or_a_line_break(value: str) -> None:
    with pytest.raises(compose.ServingError, match="the secret A contains"):
        compose.env_file_text({"A": value})


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("dspark-nvfp4-1m-seed", "/srv/models/fraserprice/DeepSeek-V4-Flash-DSpark"),
        ("fp8-1m", "/srv/models/hub/models--deepseek-ai--DeepSeek-V4-Flash"),
    ],
)
def test_host_paths(name: str, model: str) -> None:
    paths = compose.host_paths(profile(name), "/srv/models/")
    assert (paths["model"], paths["caches"]) == (model, ["/srv/models/vllm-cache"])


@pytest.mark.parametrize(
    ("engine", "ssh", "key", "text"),
    [
        ({"api": {"port": 22}}, 22, "engine.api.port", "port 22 is used by SSH (ansible_port) and by the API (engine.api.port)"),
        ({"master_port": 8000}, 22, "engine.master_port", "the API (engine.api.port) and by the ranks' rendezvous"),
        ({"executor": "ray", "ray": {"port": 25000}}, 22, "engine.ray.port", "by Ray"),
        ({"ray": {"port": 25000}}, 22, "", ""),
        ({}, "2222", "", ""),
    ],
)
def test_a_port_that_two_use_is_named_with_both(engine: dict[str, Any], ssh: Any, key: str, text: str) -> None:
    found = values.port_fault(mini(engine=engine), ssh)
    assert found[0] == key
    assert text in found[1]


# --- The health check that runs inside a rank's container.

Row = tuple[int, int, str, str, str]  # pid, parent, state, comm, command line

SERVE = (1, 0, "S", "vllm", "/usr/bin/python3 /opt/env/bin/vllm serve /m --headless")
WORKER = (40, 1, "R", "VLLM::Worker_TP1", "VLLM::Worker_TP1")
TRACKER = (30, 1, "S", "python3", "python3 -c from multiprocessing.resource_tracker import main;main(31)")
EXEC = (90, 0, "T", "vllm", "vllm bench serve")  # `docker exec`: not the engine's


def folder(tmp_path: Path, rows: list[Row]) -> str:
    """Write /proc of a container."""
    for pid, parent, state, comm, command in rows:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({comm}) {state} {parent} 1 1 0 -1 4194304")
        (tmp_path / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\xff\0")
    (tmp_path / "self").mkdir()
    (tmp_path / "77").mkdir()  # a process that has just ended
    return str(tmp_path)


def run(root: str, *places: str) -> tuple[int, str]:
    """Run the check as Docker does, on another /proc and other APIs."""
    _cmd, _python, *words = health_check({"port": 8000}, 1, {})["test"]  # type: ignore[index]
    assert words[-1] == "/proc"
    done = subprocess.run([sys.executable, *words[:-1], root, *places], capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([SERVE, WORKER, TRACKER], ""),
        ([SERVE, WORKER, EXEC], ""),
        ([SERVE, (12, 1, "S", "python3", "/usr/bin/python3 -c from multiprocessing.spawn import spawn_main")], ""),
        ([SERVE, (12, 1, "S", "sh", "sh"), (*WORKER[:1], 12, *WORKER[2:])], ""),
        ([SERVE, WORKER, (41, 1, "T", "sleep", "sleep 1")], ""),
        # A program without engine processes of its own: Ray, or the stub of the VM lab.
        ([(1, 0, "S", "ray", "/usr/bin/python3 /usr/bin/ray start --block")], ""),
        ([SERVE, TRACKER], "the engine process does not run"),
        ([SERVE, EXEC], "the engine process does not run"),
        ([(*SERVE[:2], "T", *SERVE[3:]), WORKER], "the engine process is stopped (PID 1, vllm)"),
        ([(1, 0, "T", "ray", "ray start")], "the engine process is stopped (PID 1, ray)"),
        ([SERVE, (*WORKER[:2], "T", *WORKER[3:])], "the engine process is stopped (PID 40, VLLM::Worker_TP1)"),
        ([SERVE, (*WORKER[:2], "t", *WORKER[3:])], "the engine process is stopped (PID 40, VLLM::Worker_TP1)"),
        ([SERVE, (*WORKER[:2], "Z", WORKER[3], "")], "the engine process is dead (PID 40, VLLM::Worker_TP1)"),
    ],
)
def test_the_processes_decide_as_they_do_on_the_node(tmp_path: Path, rows: list[Row], text: str) -> None:
    code, message = run(folder(tmp_path, rows))
    assert (code, message) == (1 if text else 0, text)
    tree = node.process_tree([node.Process(*row) for row in rows], 1)
    assert bool(node.engine_fault(tree, judged=True)) == bool(text)


def test_a_table_without_the_main_process_is_a_failure(tmp_path: Path) -> None:
    assert run(folder(tmp_path, [WORKER]))[0] == 1


class Health(http_server.Handler):
    status = 200

    def get(self) -> None:
        self.answer(self.status if self.path == "/health" else 404)


@pytest.fixture(name="api")
def api_() -> Iterator[tuple[type[Health], str]]:
    with http_server.answering(Health) as (kind, url):
        yield kind, url.removeprefix("http://")


def test_the_head_also_needs_its_api(tmp_path: Path, api: tuple[type[Health], str], monkeypatch: pytest.MonkeyPatch) -> None:
    kind, place = api
    root = folder(tmp_path, [SERVE, WORKER])
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # of the container; not for its own API
    assert run(root, place) == (0, "")
    kind.status = 503
    assert run(root, place) == (1, "/health: HTTP 503")
    code, message = run(root, "127.0.0.1:9")
    assert (code, message.splitlines()[-1]) == (1, "ConnectionRefusedError: [Errno 111] Connection refused")


@pytest.mark.parametrize(("host", "place"), [("0.0.0.0", "127.0.0.1:8000"), ("10.0.0.1", "10.0.0.1:8000"), ("fd00::1", "[fd00::1]:8000")])
def test_the_head_is_asked_at_the_address_that_its_api_binds(host: str, place: str) -> None:
    assert (health_check({"host": host, "port": 8000}, 0, {}) or {})["test"][-1] == place
