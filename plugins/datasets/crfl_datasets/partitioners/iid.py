"""Equal shares at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import Data, Streams
from crfl_datasets.partitioners.counted import Counted


class Iid(Counted):
    """Random shares of equal size, up to one sample (the paper's choice for images)."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """A random permutation, cut into equal pieces."""
        self.check_enough(len(data.y))
        order = streams.generator("data/partition").permutation(len(data.y))
        return tuple(np.array_split(order, self.clients))
