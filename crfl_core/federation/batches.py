"""Which samples each client sees in each local step of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_interface.streams import Streams
from crfl_interface.updates import Clients


class BatchRows(NamedTuple):
    """Rows of the training data for every step: `rows` is (clients, steps, batch), `sizes` (clients, steps).

    Batches are padded with row 0 to a common size; clients that make fewer steps have batches of size 0.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]


def draw(
    partition: Sequence[NDArray[np.int64]], clients: Clients, steps: NDArray[np.int64], number: int, streams: Streams
) -> BatchRows:
    """The batches of some clients in a round, in which each of them makes `steps[i]` steps.

    Every epoch is a fresh permutation of a client's samples, cut into batches of which the last may be short, or left
    out if `last_batch` is no shorter than the others; a client makes its steps through as many epochs as it needs. A
    client's draw depends on the round and its id alone.
    """
    most_steps, most_rows = int(steps.max()), int(clients.batch_size.max())
    rows = np.zeros((len(clients), most_steps, most_rows), np.int64)
    sizes = np.zeros((len(clients), most_steps), np.int64)
    settings = zip(clients.ids, clients.batch_size, clients.last_batch, steps, strict=True)
    for position, (client, size, last, count) in enumerate(settings):
        own = partition[client]
        per_epoch = (len(own) - last) // size + 1
        epochs = -(-count // per_epoch)
        generator = streams.generator("batches", round_number=number, client=int(client))
        order = np.zeros((epochs, per_epoch * size), np.int64)
        for epoch in order:
            epoch[: len(own)] = generator.permutation(own)[: len(epoch)]
        rows[position, :count, :size] = order.reshape(-1, size)[:count]
        epoch_sizes = np.full(per_epoch, size)
        epoch_sizes[-1] = last
        sizes[position, :count] = np.tile(epoch_sizes, epochs)[:count]
    return BatchRows(rows, sizes)
