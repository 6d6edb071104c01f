"""What the container of a rank may do: privileges, device nodes, and the paths that are mounted into it (M9, Table 2c)."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.rules import faults
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import render_rank
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from shipped_profiles import SHIPPED

NODES = ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
PLACE = {"rank": 0, "size": 2, "master_addr": "192.168.200.1", "fabric_ip": "192.168.200.1"}


def service(name: str = "dspark-nvfp4-1m", **options: Any) -> dict[str, Any]:
    rendered = render_rank(resolve(name, SHIPPED), PLACE, {"model_store": "/srv/models", "infiniband": NODES, **options})
    found: dict[str, Any] = rendered["compose"]["services"]["vllm"]
    return found


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_rank_has_no_privileges_that_rdma_does_not_need(name: str) -> None:
    found = service(name)
    assert (found["security_opt"], found["cap_drop"], found["cap_add"]) == (["no-new-privileges:true"], ["ALL"], ["IPC_LOCK"])
    assert found["devices"] == [f"{path}:{path}" for path in NODES]
    assert "privileged" not in found


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_the_container_writes_into_caches_only(name: str) -> None:
    found = service(name)
    writable = {host: there for host, there, *mode in (volume.split(":") for volume in found["volumes"]) if mode != ["ro"]}
    assert list(writable) == ["/srv/models/vllm-cache"], "what a rank can write is a cache folder, and not the store"
    [cache] = writable.values()
    for variable in ("HF_MODULES_CACHE", "VLLM_CACHE_ROOT"):
        assert found["environment"].get(variable, "/root/.cache/vllm").startswith(cache), variable
    assert found["environment"]["HF_HUB_OFFLINE"] == "1", "the store cannot be written, so nothing is downloaded into it"


def test_each_restriction_has_an_option_that_relaxes_it() -> None:
    found = service(no_new_privileges=False, cap_add=["DAC_OVERRIDE"], infiniband=True)
    assert "security_opt" not in found
    assert found["cap_add"] == ["IPC_LOCK", "DAC_OVERRIDE"]
    assert found["devices"] == ["/dev/infiniband:/dev/infiniband"]


STORES = ("/srv/models/../../etc", "/srv/..", "/srv/mod:els", "/srv/models\nx", "/srv/models\n", "srv/models", "/", "//")


@pytest.mark.parametrize("value", STORES)
@pytest.mark.parametrize("name", ["gb10_model_store", "vllm_tp2_model_store", "weights_model_store", "image_model_store", "preflight_model_store"])
def test_refuses_a_store_that_mounts_another_folder(name: str, value: str) -> None:
    assert faults(name, value, {"type": "path"})


@pytest.mark.parametrize("value", ["/", "//", "/opt/../..", "/opt/a\nb"])
def test_refuses_a_folder_of_releases_that_is_not_below_the_root(value: str) -> None:
    assert faults("vllm_tp2_directory", value, {"type": "path"})


@pytest.mark.parametrize("value", ["/srv/models", "/srv/..models/a b"])
def test_accepts_a_store_with_an_ordinary_name(value: str) -> None:
    assert faults("gb10_model_store", value, {"type": "path"}) == []
