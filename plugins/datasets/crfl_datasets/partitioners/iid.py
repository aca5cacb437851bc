"""Equal shares at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crfl_core import Data, OptionError, Partitioner, Streams


class Iid(Partitioner):
    """Random shares of equal size, up to one sample (the paper's choice for images)."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """A random permutation, cut into equal pieces."""
        if self.clients > len(data.x):
            raise OptionError("clients", f"found {self.clients}, but there are only {len(data.x)} training samples")
        order = streams.generator("data/partition").permutation(len(data.x))
        return tuple(np.array_split(order, self.clients))
