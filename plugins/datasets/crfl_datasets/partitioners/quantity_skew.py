"""Uneven sizes, equal mixtures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, Streams
from crfl_datasets.partitioners.counted import Counted


class QuantitySkew(Counted):
    """Random samples, sizes in Dirichlet(alpha) proportions (Li et al., 2022).

    Everybody gets `min_samples` first, so that no draw leaves a client empty; the proportions are of the rest.
    """

    alpha: float = Field(0.5, gt=0, allow_inf_nan=False, description="concentration; smaller is more uneven")
    min_samples: int = Field(1, ge=1, description="fewest samples that a client may get")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """A random permutation, cut into uneven pieces."""
        self.check_enough(len(data.y), self.min_samples)
        generator = streams.generator("data/partition")
        order = generator.permutation(len(data.y))
        shares = np.cumsum(generator.dirichlet(np.full(self.clients, self.alpha)))[:-1]
        rest = len(order) - self.clients * self.min_samples
        cuts = np.round(shares * rest).astype(np.int64) + self.min_samples * np.arange(1, self.clients)
        return tuple(np.split(order, cuts))
