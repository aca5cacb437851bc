"""Outputs of a slow encoder in the user's cache, input by input: an image that was encoded once is not encoded again.

So sweeps over seeds, partitions and reserves share what they encode, and an interrupted run continues where it stopped.
This needs an encoder whose output has the same bits in every batch (`FeatureMap.batch_independent`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.files.feature_cache import cache_path, is_intact, write_cache_file
from crfl_core.plugin_api.feature_map import BoundMap
from crfl_core.records.array_bytes import array_blocks

DIGEST_BYTES = 16
ROWS_PER_FILE = 512
ROWS_CHECKED = 4
"""Stored rows that are encoded again before any is used."""

Location = tuple[int, int]
"""Place of a block among the loaded ones, and of a row in it."""


class StoredRows:
    """Rows that an encoder has computed: kept in files, and found by a digest of the input."""

    def __init__(self, key: str, outputs: int, dtype: np.dtype[np.generic]) -> None:
        self._key = key
        self._outputs = outputs
        self._layout = np.dtype([("digest", np.uint8, DIGEST_BYTES), ("row", dtype, (outputs,))])
        self._blocks: list[NDArray[np.void]] = []
        self._places: dict[bytes, Location] = {}
        self._checked = False
        folder = cache_path("")
        for path in sorted(folder.glob(f"{key}-*.npy")) if folder.is_dir() else []:
            if is_intact(path):
                with suppress(OSError, ValueError):  # removed meanwhile, or another layout
                    raw = np.load(path, mmap_mode="r", allow_pickle=False)
                    self._add_block(np.asarray(raw).view(self._layout)[:, 0])

    def encode(self, encoder: BoundMap, x: Tensor, on_progress: Callable[[int], object] | None = None) -> Tensor:
        """Return the encoder's outputs for inputs (n, inputs).

        `on_progress` is told how many inputs are done.
        """
        digests = [hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest() for row in x.cpu().numpy()]
        self._check_stored(encoder, x, digests)
        missing = {digest: row for row, digest in enumerate(digests) if digest not in self._places}
        done = len(x) - len(missing)
        for first in range(0, len(missing), ROWS_PER_FILE):
            some = dict(list(missing.items())[first : first + ROWS_PER_FILE])
            self._store(list(some), encoder(x[list(some.values())]))
            done += len(some)
            if on_progress is not None:
                on_progress(done)
        return self._gather(digests, x)

    def _check_stored(self, encoder: BoundMap, x: Tensor, digests: Sequence[bytes]) -> None:
        """Encode some stored inputs again, once in a process.

        If a bit differs, all that is stored is forgotten.
        """
        known = [row for row, digest in enumerate(digests) if digest in self._places][:ROWS_CHECKED]
        if self._checked or not known:
            return
        stored = self._gather([digests[row] for row in known], x)
        if not torch.equal(stored, encoder(x[known])):
            self._blocks = []
            self._places = {}
        self._checked = True

    def _store(self, digests: Sequence[bytes], outputs: Tensor) -> None:
        block: NDArray[np.void] = np.empty(len(digests), self._layout)
        block["digest"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
        block["row"] = outputs.cpu().numpy()
        self._add_block(block)
        name = hashlib.blake2b(b"".join(digests), digest_size=DIGEST_BYTES).hexdigest()
        with suppress(OSError):  # the disk is full or read-only: the next run encodes them again
            raw = block.view(np.uint8).reshape(len(block), -1)
            write_cache_file(cache_path(f"{self._key}-{name}.npy"), array_blocks(raw.shape, [raw]))

    def _add_block(self, block: NDArray[np.void]) -> None:
        self._blocks.append(block)
        for row, digest in enumerate(block["digest"]):
            self._places.setdefault(digest.tobytes(), (len(self._blocks) - 1, row))

    def _gather(self, digests: Sequence[bytes], like: Tensor) -> Tensor:
        places = np.array([self._places[digest] for digest in digests]).reshape(-1, 2)
        gathered = torch.empty(len(digests), self._outputs, dtype=like.dtype)
        for number in np.unique(places[:, 0]):
            wanted = np.flatnonzero(places[:, 0] == number)
            gathered[wanted] = torch.from_numpy(self._blocks[number]["row"][places[wanted, 1]])
        return gathered.to(like.device)


@lru_cache(maxsize=4)
def stored_rows(key: str, outputs: int, dtype: np.dtype[np.generic]) -> StoredRows:
    """Return the rows stored under a key.

    A process reads the files once.
    """
    return StoredRows(key, outputs, dtype)
