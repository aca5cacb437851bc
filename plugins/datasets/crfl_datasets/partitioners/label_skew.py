"""A fixed number of classes each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, OptionError, Streams
from crfl_datasets.partitioners.counted import Counted, dealt


class LabelSkew(Counted):
    """Every client holds k classes; those who hold a class share it equally (Li et al., 2022, "#C = k").

    Every class has somebody who holds it. Sizes differ, because more clients hold one class than another.
    """

    classes: int = Field(2, ge=1, description="classes of each client, k")

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Who holds which class, then each class dealt out in turn."""
        known, label = np.unique(data.y, return_inverse=True)
        if self.classes > len(known):
            raise OptionError("classes", f"found {self.classes}, but the training samples have only {len(known)}")
        if self.clients * self.classes < len(known):
            message = f"{self.clients} clients with {self.classes} classes each cannot hold all {len(known)} classes"
            raise OptionError("classes", f"{message}: use more classes or more clients")
        generator = streams.generator("data/partition")
        holds = self._holders(len(known), generator)
        order = generator.permutation(len(label))
        owner = np.empty_like(label)
        for number, name in enumerate(known):
            holders = generator.permutation(np.flatnonzero(holds[:, number]))
            rows = order[label[order] == number]
            if len(rows) < len(holders):
                message = f"class {data.class_names[name]!r} has {len(rows)} samples for the {len(holders)} clients"
                raise OptionError("clients", f"{message} that hold it: use fewer clients or fewer classes")
            owner[rows] = holders[np.arange(len(rows)) % len(holders)]
        return dealt(order, owner[order], self.clients)

    def _holders(self, known: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Whether a client holds a class, (clients, classes): first each class goes round, the others are random."""
        turn = np.arange(max(self.clients, known))
        rank = generator.random((self.clients, known))
        rank[turn % self.clients, generator.permutation(known)[turn % known]] = -1.0
        holds = np.zeros(rank.shape, np.bool_)
        np.put_along_axis(holds, np.argsort(rank, axis=1)[:, : self.classes], True, axis=1)
        return holds
