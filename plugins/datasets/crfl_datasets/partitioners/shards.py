"""Few classes each, from sorted data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, Streams
from crfl_datasets.partitioners.counted import Counted, dealt


class Shards(Counted):
    """Samples sorted by class and cut into equal shards, of which each client gets a few (McMahan et al., 2017).

    Sizes are equal, up to one sample of every shard. A shard seldom holds more than two classes.
    """

    shards: int = Field(2, ge=1, description="shards of each client")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Shards in random order, each of samples in random order within their class."""
        self.check_enough(len(data.y), self.shards)
        generator = streams.generator("data/partition")
        order = generator.permutation(len(data.y))
        order = order[np.argsort(data.y[order], kind="stable")]
        owners = generator.permutation(np.repeat(np.arange(self.clients), self.shards))
        shard = np.arange(len(order)) * len(owners) // len(order)
        return dealt(order, owners[shard], self.clients)
