"""Partitioner `remote`: clients whose samples the server never sees."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, OptionError, Partitioner, Streams, remote_rows

Count = Annotated[int, Field(ge=1)]


class Remote(Partitioner):
    """Clients whose samples are somewhere else, as in a real federation: the server counts them and sees none.

    The numbers of samples are registered before the first round and do not change any more. Of the dataset the server
    uses the test samples, and the training samples only for what it reserves.
    """

    clients: int = Field(4, ge=1, description="how many clients there are")
    samples: tuple[Count, ...] | None = Field(
        None,
        description="the number of samples of each client; unset: what nodes register with `crfl federation serve`",
    )
    max_samples: int = Field(
        100_000, ge=1, description="no client counts for more samples than this, nor trains on more: the first ones"
    )
    client: int | None = Field(
        None, ge=0, description="for the node of a client: which one it is, whose samples are those of the dataset"
    )

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:  # noqa: ARG002
        """Return the rows of this process's client.

        For every other client the result states only its number of samples.
        """
        if self.samples is None:
            raise OptionError(
                "samples", "is missing: start with `crfl federation serve`, where nodes register theirs, or set it"
            )
        if len(self.samples) != self.clients:
            raise OptionError("samples", f"found {len(self.samples)} numbers for {self.clients} clients")
        if self.client is not None and self.client >= self.clients:
            raise OptionError("client", f"found {self.client}, but clients are 0..{self.clients - 1}")
        counted = [min(samples, self.max_samples) for samples in self.samples]
        if self.client is not None and len(data.x) != counted[self.client]:
            raise OptionError(
                "samples", f"client {self.client} registered {counted[self.client]} samples, and {len(data.x)} are here"
            )
        return tuple(
            np.arange(samples) if client == self.client else remote_rows(samples)
            for client, samples in enumerate(counted)
        )
