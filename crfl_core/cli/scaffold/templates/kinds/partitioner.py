"""A partitioner for crfl."""

from __future__ import annotations

import numpy as np
from crfl_core.extend import Data, OptionError, Partitioner, Streams
from numpy.typing import NDArray
from pydantic import Field


class MyPlugin(Partitioner):
    """Sorts the samples by label, cuts them into shards, and deals `shards` random ones to each client.

    With few shards a client knows few classes (McMahan et al., 2017).
    """

    clients: int = Field(20, ge=1, description="number of clients in the federation")
    shards: int = Field(2, ge=1, description="shards per client")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Return the rows of `data.x` of each client. Randomness comes from `streams`, so a seed repeats it."""
        pieces = self.clients * self.shards
        if pieces > len(data.y):
            raise OptionError("shards", f"found {self.shards}: {pieces} shards for only {len(data.y)} samples")
        shards = np.array_split(np.argsort(data.y, kind="stable"), pieces)
        dealt = streams.generator("data/partition").permutation(pieces).reshape(self.clients, self.shards)
        return tuple(np.concatenate([shards[shard] for shard in hand]) for hand in dealt)
