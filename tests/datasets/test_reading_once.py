"""Runs of one process share what they read, as long as it is what was read."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest
from crfl_datasets.synthetic import Synthetic

from crfl_core import reading_once, run
from crfl_core.extend import Data
from crfl_core.training.data_loading import DATASET_CACHE, load_dataset


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Synthetic]:
    """The datasets that were really read."""
    found: list[Synthetic] = []
    read = Synthetic.read

    def counted(dataset: Synthetic) -> Data:
        found.append(dataset)
        return read(dataset)

    monkeypatch.setattr(Synthetic, "read", counted)
    return found


def small(**options: Any) -> Synthetic:
    return Synthetic(train_samples=40, test_samples=8, **options)


def test_every_run_reads_its_own_unless_asked(reads: list[Synthetic]) -> None:
    assert load_dataset(small()) is not load_dataset(small())
    assert len(reads) == 2
    assert DATASET_CACHE.get() is None


def test_a_dataset_with_the_same_options_is_read_once(reads: list[Synthetic]) -> None:
    with reading_once():
        assert load_dataset(small()) is load_dataset(small())
        assert load_dataset(small(seed=1)) is not load_dataset(small())
    assert [one.seed for one in reads] == [0, 1, 0]
    assert DATASET_CACHE.get() is None


@pytest.mark.parametrize("name", ["x", "y", "test_x"])
def test_data_that_were_changed_are_read_again(reads: list[Synthetic], name: str) -> None:
    with reading_once():
        first = load_dataset(small())
        before = getattr(first, name).copy()
        getattr(first, name)[3] += 1
        again = load_dataset(small())
    assert len(reads) == 2
    assert np.array_equal(getattr(again, name), before)


def test_bytes_are_looked_at_too() -> None:
    class Photos(Synthetic):
        def read(self) -> Data:
            data = super().read()
            return Data(
                x=np.zeros((40, 20), np.uint8),
                y=data.y,
                test_x=np.zeros((8, 20), np.uint8),
                test_y=data.test_y,
                domain=data.domain.__class__(0.0, 255.0),
                class_names=data.class_names,
            )

    with reading_once():
        photos = Photos(train_samples=40, test_samples=8, scaling="unit-range")
        first = load_dataset(photos)
        assert load_dataset(photos) is first
        vars(first)["x"].raw[7, 3] = 1
        assert load_dataset(photos) is not first


def test_a_dataset_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch, reads: list[Synthetic]) -> None:
    def fail(_: Synthetic) -> Data:
        raise OSError("the disk is gone")

    with reading_once():
        with monkeypatch.context() as broken:
            broken.setattr(Synthetic, "read", fail)
            with pytest.raises(OSError, match="the disk is gone"):
                load_dataset(small())
        load_dataset(small())
    assert len(reads) == 1


def test_threads_wait_for_the_first(reads: list[Synthetic]) -> None:
    found: list[Data] = []
    with reading_once():
        threads = [
            threading.Thread(target=copy_context().run, args=(lambda: found.append(load_dataset(small())),))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(reads) == 1
    assert all(one is found[0] for one in found)


def test_runs_that_share_have_the_bits_of_runs_that_do_not(reads: list[Synthetic], tmp_path: Any) -> None:
    config = {
        "dataset": {"type": "synthetic", "train_samples": 200, "test_samples": 20},
        "rounds": 2,
        "votes": {"models": 8},
        "storage": {"figures": []},
    }
    with reading_once():
        shared = [run(config | {"seed": seed}, out=tmp_path / f"shared-{seed}") for seed in (0, 1)]
    assert len(reads) == 1
    alone = run(config | {"seed": 1}, out=tmp_path / "alone")
    assert shared[1].directory.digests["model.safetensors"] == alone.directory.digests["model.safetensors"]
    assert shared[1].metrics == alone.metrics
