"""IDX files: what is read, what is cached, and what is said about bad ones."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crfl_datasets import idx as idx_format
from crfl_datasets.idx import read_images, read_labels
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.extend import DataError
from tests.datasets.idx_files import idx

IMAGES = np.arange(5 * 3 * 2, dtype=np.uint8).reshape(5, 3, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own for every test."""
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "idx"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(IMAGES), mtime=0))
    return path


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["packed", "unpacked"])
def test_images_and_labels_are_read_as_they_were_written(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(pack(idx(IMAGES)))
    (tmp_path / "labels").write_bytes(pack(idx(np.arange(5))))
    np.testing.assert_array_equal(read_images(tmp_path / "images"), IMAGES)
    np.testing.assert_array_equal(read_labels(tmp_path / "labels"), np.arange(5))


@settings(deadline=None, max_examples=20)
@given(shape=st.tuples(*[st.integers(1, 7)] * 3), turned=st.booleans())
def test_blocks_put_together_are_the_whole(shape: tuple[int, int, int], turned: bool) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idx_format, "BYTES_PER_READ", 20)
        path = Path(os.environ["CRFL_CACHE_DIR"]).parent / "any"
        path.write_bytes(idx(array))
        with idx_format.open_idx(path, 3, turned=turned) as file:
            whole = np.concatenate(list(file.blocks()))
    np.testing.assert_array_equal(whole, array.swapaxes(1, 2) if turned else array)
    assert file.shape == whole.shape


def test_the_second_time_images_are_mapped_from_the_cache(images: Path, cache: Path) -> None:
    read_images(images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idx_format, "open_idx", None)  # parsing again would fail
        again = read_images(images)
    np.testing.assert_array_equal(again, IMAGES)
    assert isinstance(again.base, np.memmap)
    again[:] = 0
    assert read_images(images).any()  # who writes changes a copy
    assert [path.suffix for path in cache.iterdir()] == [".npy"]


def test_turned_and_upright_images_are_cached_apart(images: Path, cache: Path) -> None:
    np.testing.assert_array_equal(read_images(images, turned=True), IMAGES.swapaxes(1, 2))
    np.testing.assert_array_equal(read_images(images), IMAGES)
    np.testing.assert_array_equal(read_images(images, turned=True), IMAGES.swapaxes(1, 2))
    assert len(list(cache.iterdir())) == 2


def test_a_changed_file_is_parsed_again_and_the_stale_copy_dropped(images: Path, cache: Path) -> None:
    read_images(images)
    images.write_bytes(gzip.compress(idx(255 - IMAGES), mtime=0))
    os.utime(images, ns=(0, 0))
    np.testing.assert_array_equal(read_images(images), 255 - IMAGES)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", [lambda old: old[:-1], lambda old: b"", lambda old: b"nonsense"])
def test_a_damaged_cache_is_rebuilt(damage: Callable[[bytes], bytes], images: Path, cache: Path) -> None:
    read_images(images)
    (cached,) = cache.iterdir()
    cached.write_bytes(damage(cached.read_bytes()))
    np.testing.assert_array_equal(read_images(images), IMAGES)
    assert cached.stat().st_size > IMAGES.size


def test_without_a_cache_images_are_read_into_memory(images: Path, cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    found = read_images(images)
    np.testing.assert_array_equal(found, IMAGES)
    assert not isinstance(found.base, np.memmap)


def test_a_bad_file_leaves_nothing_in_the_cache(images: Path, cache: Path) -> None:
    images.write_bytes(images.read_bytes()[:-12])
    with pytest.raises(DataError, match="truncated"):
        read_images(images)
    assert list(cache.iterdir()) == []


WHOLE = idx(IMAGES)
PACKED = gzip.compress(WHOLE, mtime=0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (PACKED[:40], r"damaged or truncated between items 0 and 5 of 5: Compressed file ended"),
        (PACKED[:-8] + bytes(8), r"damaged or truncated at the end: CRC check failed"),
        (PACKED + b"and more", r"damaged or truncated at the end: Not a gzipped file"),
        (WHOLE[:-4], r"truncated between items 0 and 5 of 5: 4 bytes are missing"),
        (WHOLE[:6], r"truncated in the header: 10 bytes are missing"),
        (b"", r"truncated in the header: 4 bytes are missing"),
        (WHOLE + b"x", r"there are more bytes than its header says, 5 items"),
        (b"\x89PNG" + WHOLE, r"byte 0: the magic number is 89504e47, not 00000803, so this is not an IDX file"),
        (idx(np.arange(4)), r"byte 0: the magic number is 00000801, not 00000803"),
        (WHOLE[:8] + b"\xff" * 8, r"damaged or truncated between items 0 and 1 of 5"),
        (gzip.compress(WHOLE[:8] + b"\xff" * 8, mtime=0), r"damaged or truncated between items 0 and 1 of 5"),
        (idx(IMAGES[:0]), r"byte 4: there is nothing in it, the header says \(0, 3, 2\)"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_place_and_remedy(
    content: bytes, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"bad-idx3-ubyte: {complaint}.*: check it with `crfl data verify`"):
        read_images(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: cannot be read: No such file"):
        read_images(tmp_path / "gone")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_labels(tmp_path)
