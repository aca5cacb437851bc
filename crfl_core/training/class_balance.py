"""Weights of samples under class balance: every class that a client holds has the same total weight in its loss.

A sample weighs `n / (C n_c)` if its class has n_c of the client's n samples and the client holds C classes; that is 1
on average. The weights follow from all samples of the client, not from those of a batch, so the gradient of a random
batch is on average that of the balanced loss, and that of a batch of all samples is exactly it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crfl_core.records.inputs import FederatedData


class ClassBalance:
    """Weights of the samples of all clients; those of a client are computed when it trains for the first time."""

    def __init__(self, data: FederatedData) -> None:
        self._data = data
        self._known: dict[int, Tensor] = {}

    def of(self, client: int) -> Tensor:
        """Return the weight of a client's samples by class, (C,).

        It is 0 for classes that the client does not hold.
        """
        if client not in self._known:
            own = self._data.y[torch.from_numpy(self._data.partition[client]).to(self._data.y.device)]
            counts = torch.bincount(own, minlength=self._data.facts.classes)
            self._known[client] = class_weights(counts[None])[0]
        return self._known[client]

    def sample_weights(self, clients: NDArray[np.int64], labels: Tensor, sizes: Tensor, poisoned: int) -> Tensor:
        """Return the weight of every sample of a round.

        The weights are (clients, steps, batch), in double precision. `labels` are those that clients train on, and
        `sizes`, (clients, steps), the sizes of their batches. The last `poisoned` clients are attackers with data of
        their own: theirs are weighed as the labels of this round are.
        """
        honest = len(clients) - poisoned
        tables = [self.of(client) for client in clients[:honest].tolist()]
        tables += poisoned_tables(labels[honest:], sizes[honest:], self._data.facts.classes)
        return torch.stack(tables).gather(1, labels.flatten(1)).view(labels.shape)


def poisoned_tables(labels: Tensor, sizes: Tensor, classes: int) -> Sequence[Tensor]:
    """Return the attackers' weights by class, (C,), in a round.

    They follow from the labels on which the attackers train. Padding is left out.
    """
    if not len(labels):
        return ()
    real = (torch.arange(labels.shape[2], device=sizes.device) < sizes[..., None]).flatten(1).long()
    counts = labels.new_zeros(len(labels), classes).scatter_add_(1, labels.flatten(1), real)
    return class_weights(counts).unbind(0)


def class_weights(counts: Tensor) -> Tensor:
    """Return the weight `n / (C n_c)` of every client's classes.

    `counts`, (n, C), are the clients' numbers of samples. The weight is 0 where a client has none.

    >>> class_weights(torch.tensor([[6, 2, 0]]))[0].tolist()
    [0.6666666666666666, 2.0, 0.0]
    """
    held = (counts > 0).sum(1, keepdim=True)
    shares = counts.sum(1, keepdim=True) / (held * counts).double()
    return torch.where(counts > 0, shares, 0.0)
