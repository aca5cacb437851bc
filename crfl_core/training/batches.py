"""Which samples each client sees in each local step of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_core.records.random_streams import Streams
from crfl_core.records.round import Clients


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
    most_steps = int(steps.max())
    most_rows = int(clients.batch_size.max())
    rows = np.zeros((len(clients), most_steps, most_rows), np.int64)
    size = clients.batch_size[:, None]
    last = clients.last_batch[:, None]
    per_epoch = (clients.samples[:, None] - last) // size + 1
    step = np.arange(most_steps)
    sizes = np.where(step < steps[:, None], np.where(step % per_epoch == per_epoch - 1, last, size), 0)
    ids = clients.ids.tolist()
    held = clients.samples.tolist()
    # The usual case: each of its samples once. Those are put there for all such clients together.
    once = (steps == per_epoch[:, 0]) & (clients.batch_size == most_rows) & (clients.samples <= steps * most_rows)
    orders = rows.reshape(len(ids), -1)
    if once.any():
        owned = np.concatenate([partition[ids[place]] for place in np.flatnonzero(once)])
        orders[np.arange(orders.shape[1]) < np.where(once, clients.samples, 0)[:, None]] = owned
    drawn = streams.generators("batches", ids, round_number=number)
    for place, (whole, samples, generator) in enumerate(zip(once.tolist(), held, drawn, strict=True)):
        if whole:
            generator.shuffle(orders[place, :samples])
            continue
        own = partition[ids[place]]
        width = int(clients.batch_size[place])
        count = int(steps[place])
        parts = int(per_epoch[place, 0])
        order = np.zeros((-(-count // parts), parts * width), np.int64)
        for epoch in order:
            epoch[: len(own)] = generator.permutation(own)[: len(epoch)]
        rows[place, :count, :width] = order.reshape(-1, width)[:count]
    return BatchRows(rows, sizes)
