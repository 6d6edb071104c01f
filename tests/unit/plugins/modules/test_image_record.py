"""What is wiped, and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils.image_proof import ImageError
from ansible_collections.gb10.cluster.plugins.modules import image_record


def test_a_cache_is_emptied_and_stays(tmp_path: Path) -> None:
    cache = tmp_path / "store" / "vllm-cache"
    (cache / "deep").mkdir(parents=True)
    (cache / "deep" / "k.so").write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    (cache / "link").symlink_to(outside)
    store = str(tmp_path / "store")
    assert image_record.wipe([str(cache)], store, check=True) == [str(cache)]
    assert (cache / "deep" / "k.so").exists()
    assert image_record.wipe([str(cache)], store, check=False) == [str(cache)]
    assert list(cache.iterdir()) == []
    assert (outside / "keep").exists(), "a link is removed, not followed"
    assert image_record.wipe([str(cache), str(tmp_path / "store" / "none")], store, check=False) == []


@pytest.mark.parametrize("where", ["store", "outside", "store/link", "store/../outside"])
def test_nothing_outside_of_the_store_is_wiped(tmp_path: Path, where: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "keep").write_text("x")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ImageError, match="outside the model store"):
        image_record.wipe([str(tmp_path / where)], str(tmp_path / "store"), check=False)
    assert (tmp_path / "outside" / "keep").exists()


def test_a_store_that_is_the_whole_disk_is_refused() -> None:
    with pytest.raises(ImageError, match="outside the model store"):
        image_record.check_cache("/srv/x", "/")
