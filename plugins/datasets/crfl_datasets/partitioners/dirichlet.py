"""Uneven mixtures of classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, OptionError, Streams
from crfl_datasets.partitioners.counted import Counted, dealt


class Dirichlet(Counted):
    """Every class spread over the clients in Dirichlet(alpha) proportions (Yurochkin et al., 2019; Li et al., 2022).

    Small `alpha` gives each client few classes and makes sizes uneven, large `alpha` approaches equal mixtures. With
    `equal_sizes` the draw is that of Hsu et al. (2019): a client's mixture of classes comes from Dirichlet(alpha p),
    where p are the shares of the classes in all data. Samples are then drawn client by client without replacement, from
    other classes once one is used up, so the last clients get what the others left.
    """

    alpha: float = Field(0.9, gt=0, allow_inf_nan=False, description="concentration; smaller is more uneven")
    equal_sizes: bool = Field(False, description="mixtures of classes differ, sizes do not, up to one sample")
    min_samples: int = Field(1, ge=1, description="fewest samples that a client may get")
    attempts: int = Field(100, ge=1, description="draws until everybody has enough samples")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """The rows of each class in random order, dealt out by a table of counts."""
        self.check_enough(len(data.y), self.min_samples)
        generator = streams.generator("data/partition")
        by_class = [generator.permutation(np.flatnonzero(data.y == label)) for label in range(len(data.class_names))]
        available = np.array([len(rows) for rows in by_class])
        draw = self._equally if self.equal_sizes else self._freely
        counts = draw(available, generator)
        owner = np.repeat(np.tile(np.arange(self.clients), len(counts)), counts.ravel())
        return dealt(np.concatenate(by_class), owner, self.clients)

    def _freely(self, available: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """Samples of each class for each client, drawn again until no client has too few."""
        concentration = np.full(self.clients, self.alpha)
        for _ in range(self.attempts):
            shares = np.cumsum(generator.dirichlet(concentration, len(available)), axis=1)
            shares[:, -1] = 1.0
            cuts = np.round(shares * available[:, None]).astype(np.int64)
            counts = np.diff(cuts, axis=1, prepend=0)
            if counts.sum(axis=0).min() >= self.min_samples:
                return counts
        raise OptionError(
            "alpha",
            f"some client got fewer than {self.min_samples} samples in each of {self.attempts} draws with alpha = "
            f"{self.alpha:g} and {self.clients} clients: raise alpha, use fewer clients or equal_sizes",
        )

    def _equally(self, available: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """The same with equal sizes. A draw of a class that is used up is repeated among the classes that are left."""
        left = available.copy()
        counts = np.zeros((len(available), self.clients), np.int64)
        known = available > 0
        mixtures = np.zeros((self.clients, len(available)))
        mixtures[:, known] = generator.dirichlet(self.alpha * available[known] / available.sum(), self.clients)
        sizes = np.diff(np.linspace(0, available.sum(), self.clients + 1).astype(np.int64))
        for client, (mixture, missing) in enumerate(zip(mixtures, sizes, strict=True)):
            while missing > 0:
                wanted = np.where(left > 0, mixture, 0.0)
                if wanted.sum() == 0:  # nothing is left of the classes that this client was to have
                    wanted = left.astype(np.float64)
                drawn = np.minimum(generator.multinomial(missing, wanted / wanted.sum()), left)
                counts[:, client] += drawn
                left -= drawn
                missing -= drawn.sum()
        return counts
