"""Datasets that several runs of a process use: each is read once, and shared as long as nobody has changed it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.plugin_loading.mutation_guard import fingerprint, leaves

if TYPE_CHECKING:
    from crfl_core.plugin_api.dataset import Dataset
    from crfl_core.records.inputs import Data


class Shelf:
    """The dataset that was read last. Another one takes its place, so no more than one is kept for runs to come."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._kept: tuple[object, Data, list[bytes]] | None = None

    def take(self, dataset: Dataset) -> Data:
        """The data of a dataset: what is kept of one with the same options, if it is still what was read."""
        asked = type(dataset), dataset.model_dump_json()
        with self._asking:
            if self._kept is not None and self._kept[0] == asked and self._kept[2] == marks(self._kept[1]):
                return self._kept[1]
            self._kept = None
            data = dataset.load()
            self._kept = asked, data, marks(data)
            return data


SHELF: ContextVar[Shelf | None] = ContextVar("SHELF", default=None)
"""Where runs of this thread look for data before they read them; None: every run reads its own."""


@contextmanager
def reading_once() -> Iterator[None]:
    """Runs within this block that use one dataset with the same options share it instead of reading it again.

    Threads share it too, if they are started with a copy of the context.
    """
    before = SHELF.set(Shelf())
    try:
        yield
    finally:
        SHELF.reset(before)


def data_of(dataset: Dataset) -> Data:
    """The data of a dataset, read here or found on the shelf."""
    shelf = SHELF.get()
    return dataset.load() if shelf is None else shelf.take(dataset)


def marks(data: Data) -> list[bytes]:
    """A mark of every array that could be written to."""
    import torch

    arrays = (leaf for leaf in leaves(data) if isinstance(leaf, np.ndarray))
    return [fingerprint(torch.from_numpy(array)).tobytes() for array in arrays if array.flags.writeable and array.size]
