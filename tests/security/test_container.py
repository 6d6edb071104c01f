"""What the container of a rank may do: privileges, device nodes, and mounted paths (M9, Table 2c); and its variables, as they went in (L5, Table 2a and 2b)."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import ServingError, render_rank
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import CACHE_VARIABLES
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from compose_values import NUMBERS, VALUES, rendered
from shipped_profiles import SHIPPED

NODES = ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
# As the recipe has it; all others have the collection's default.
SHM_SIZES = {"b12x-fp8-1m": "64gb", "dsv41-flash-exl3-1m": "32g", "glm53-flash-dflash2-262k": "32g", "mimo26-flash-300k": "32g", "gpt-oss-120b-131k": "16g"}
PLACE = {"rank": 0, "size": 2, "master_addr": "192.168.200.1", "fabric_ip": "192.168.200.1"}


def service(name: str = "dspark-nvfp4-1m-seed", **options: Any) -> dict[str, Any]:
    rendered = render_rank(resolve(name, SHIPPED), PLACE, {"model_store": "/srv/models", "infiniband": NODES, **options})
    found: dict[str, Any] = rendered["compose"]["services"]["vllm"]
    return found


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_rank_has_no_privileges_that_rdma_does_not_need(name: str) -> None:
    found = service(name)
    assert (found["security_opt"], found["cap_drop"], found["cap_add"]) == (["no-new-privileges:true"], ["ALL"], ["IPC_LOCK"])
    assert found["devices"] == [f"{path}:{path}" for path in NODES]
    assert (found.get("ipc"), found["shm_size"]) == (None, SHM_SIZES.get(name, "16g")), "Docker's default is private, and 64 MiB"
    assert "privileged" not in found


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_the_container_writes_into_caches_only(name: str) -> None:
    found = service(name)
    writable = {host: there for host, there, *mode in (volume.split(":") for volume in found["volumes"]) if mode != ["ro"]}
    [(folder, cache)] = writable.items()
    assert re.fullmatch("/srv/models/vllm-cache-[0-9a-f]{12}", folder), "a cache folder of this image and shape, not the store, and not the other caches"
    for variable in ("HF_MODULES_CACHE", *CACHE_VARIABLES):
        assert found["environment"].get(variable, "/root/.cache/vllm").startswith(cache), variable
    assert found["environment"]["HF_HUB_OFFLINE"] == "1", "the store cannot be written, so nothing is downloaded into it"


def test_each_restriction_has_an_option_that_relaxes_it() -> None:
    found = service(no_new_privileges=False, cap_add=["DAC_OVERRIDE"], infiniband=True, ipc="host")
    assert "security_opt" not in found
    assert found["cap_add"] == ["IPC_LOCK", "DAC_OVERRIDE"]
    assert found["devices"] == ["/dev/infiniband:/dev/infiniband"]
    assert (found["ipc"], "shm_size" in found) == ("host", False)


@pytest.mark.parametrize(("given", "rendered"), [("host", "host"), ("private", None), (None, None)])
def test_a_profile_of_the_owner_chooses_its_ipc_namespace(given: str | None, rendered: str | None) -> None:
    assert rendered_with({"ipc": given, "shm_size": "2g"}).get("ipc") == rendered


# --- weights ---------------------------------------------------------------------------------------------------------

FOLDER = {"id": "o/m", "path": "/models/o/m"}
HUB = {"id": "o/m", "path": "o/m"}
WRITABLE = [
    pytest.param(FOLDER, ["{model_store}:/models"], 0, id="store"),
    pytest.param(FOLDER, ["{model_store}:/models:rw"], 0, id="rw"),
    pytest.param(FOLDER, ["{model_store}:/models:rw,z"], 0, id="rw and a label"),
    pytest.param(FOLDER, ["{model_store}:/models:z"], 0, id="a label only"),
    pytest.param(FOLDER, ["{model_store}:/models:RO"], 0, id="a mode that Compose ignores"),
    pytest.param(FOLDER, ["{model_store}:/models:ro,rw"], 0, id="a contradiction"),
    pytest.param(FOLDER, ["{model_store}/:/models"], 0, id="slash"),
    pytest.param(FOLDER, ["{model_store}/.:/models"], 0, id="dot"),
    pytest.param(FOLDER, ["{model_store}/x/..:/models"], 0, id="dots"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "{model_store}/..:/all"], 1, id="parent by dots"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "/srv:/all"], 1, id="parent"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "/:/all"], 1, id="root"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "//srv//models/:/all"], 1, id="the path of the store"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "{model_store}/o:/write"], 1, id="a folder with the model"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "{model_store}/o/m:/write"], 1, id="the model"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "{model_store}/o/m/part:/write"], 1, id="a part of the model"),
    pytest.param(FOLDER, ["{model_store}/sub:/models"], 0, id="a folder of the store that the profile does not name"),
    pytest.param(FOLDER, ["/data/link:/models"], 0, id="a path that may be a link to the store"),
    pytest.param(FOLDER, ["/data:/", "{model_store}:/models:ro"], None, id="another folder"),
    pytest.param(HUB, ["{model_store}:/root/.cache/huggingface"], 0, id="store of a hub"),
    pytest.param(HUB, ["{model_store}/hub:/root/.cache/huggingface/hub"], 0, id="hub"),
    pytest.param(HUB, ["{model_store}/hub/models--o--m/blobs:/b"], 0, id="blobs"),
    pytest.param(HUB, ["{model_store}:/cache:ro", "{model_store}/vllm-cache:/cache/vllm-cache"], None, id="a cache apart"),
    pytest.param(FOLDER, ["{model_store}:/models:ro,z", "{model_store}/cache:/models/cache:rw"], None, id="ro and a label"),
    pytest.param(FOLDER, ["{model_store}:/models:ro", "{model_store}/om:/x", "/srv/models2:/y", "{model_store}-2:/z"], None, id="names that begin alike"),
    pytest.param({"id": "m", "path": "/models"}, ["{model_store}:/models:ro", "{model_store}/cache:/c"], None, id="the store is the model"),
]


def rendered_with(container: dict[str, Any], model: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    own = {"summary": "s", "image": {"reference": "e:1"}, "model": model or HUB, "container": container}
    rendered = render_rank(resolve("mine", {}, {"mine": own}), PLACE, {"model_store": "/srv/models/", **options})
    found: dict[str, Any] = rendered["compose"]["services"]["vllm"]
    return found


@pytest.mark.parametrize(("model", "volumes", "wrong"), WRITABLE)
def test_a_volume_that_lets_the_engine_change_the_weights_is_refused(model: dict[str, Any], volumes: list[str], wrong: int | None) -> None:
    container = {"volumes": volumes, "cache_dirs": ["{model_store}/cache"]}
    if wrong is None:
        assert len(rendered_with(container, model)["volumes"]) == len(volumes)
        return
    with pytest.raises(ServingError) as error:
        rendered_with(container, model)
    text = str(error.value)
    assert text.startswith(f"profile mine: container.volumes[{wrong}] is {volumes[wrong]!r}")
    assert text.count("container.volumes[") == 1
    assert f"Write '{':'.join(volumes[wrong].split(':')[:2])}:ro'" in text
    assert "/vllm-cache'" in text
    assert "vllm_tp2_weights_writable: true" in text
    assert len(rendered_with(container, model, weights_writable=True)["volumes"]) == len(volumes)


# --- values of environment variables -----------------------------------------------------------------------------------


def test_a_value_is_one_text_of_the_file() -> None:
    values = {f"V{number}": value for number, value in enumerate(VALUES)}
    service = yaml.safe_load(rendered(values))["services"]["vllm"]
    assert {name: service["environment"][name].replace("$$", "$") for name in values} == values
    assert "privileged" not in service


@pytest.mark.parametrize("value", NUMBERS)
def test_a_text_that_compose_reads_as_a_number_has_quotes(value: str) -> None:
    root = yaml.compose(compose_yaml({"a": value, "b": [value]}), Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    (_a, one), (_b, many) = root.value
    assert [node.style for node in (one, *many.value)] == ["'", "'"]


def test_numbers_stay_numbers() -> None:
    assert compose_yaml({"a": 5, "b": 0.5, "c": True, "d": None, "e": 1e20}) == "a: 5\nb: 0.5\nc: true\nd: null\ne: 1.0e+20\n"
