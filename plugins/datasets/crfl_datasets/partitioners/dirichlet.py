"""Uneven mixtures of classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core import Data, OptionError, Partitioner, Streams


class Dirichlet(Partitioner):
    """Every class spread over the clients in Dirichlet(alpha) proportions (Hsu et al., 2019).

    Small `alpha` gives each client few classes, large `alpha` approaches equal mixtures.
    """

    alpha: float = Field(0.9, gt=0, description="concentration; smaller is more uneven")
    min_samples: int = Field(1, ge=1, description="every client gets at least so many samples")
    attempts: int = Field(100, ge=1, description="draws until everybody has enough samples")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Proportions per class, drawn again until no client has too few samples."""
        if self.clients * self.min_samples > len(data.x):
            raise OptionError("clients", f"{self.clients} clients cannot share {len(data.x)} training samples")
        generator = streams.generator("data/partition")
        by_class = [generator.permutation(np.flatnonzero(data.y == label)) for label in range(len(data.class_names))]
        for _ in range(self.attempts):
            pieces = [self._share(rows, generator) for rows in by_class]
            parts = tuple(np.concatenate(of_client) for of_client in zip(*pieces, strict=True))
            if min(map(len, parts)) >= self.min_samples:
                return parts
        raise OptionError(
            "alpha",
            f"some client got fewer than {self.min_samples} samples in each of {self.attempts} draws with alpha = "
            f"{self.alpha:g} and {self.clients} clients: raise alpha or use fewer clients",
        )

    def _share(self, rows: NDArray[np.int64], generator: np.random.Generator) -> list[NDArray[np.int64]]:
        proportions = generator.dirichlet(np.full(self.clients, self.alpha))
        cuts = np.round(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
        return np.split(rows, cuts)
