"""Partitioners: which training samples each client holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import OptionError, PluginFailure
from crfl_core.plugin_api.base import Plugin
from crfl_core.records.inputs import Data, is_local
from crfl_core.records.random_streams import Streams


class Partitioner(Plugin):
    """Splits the training samples over the clients, every sample to exactly one.

    The partitioner decides the number of clients, by an option or from the data. `deals_pool` says that it deals out
    one pool, so that no sample was a client's before. Otherwise what is drawn from all samples, such as a reserve,
    follows from what every client brings, and refuses certificates that count groups.
    """

    deals_pool: ClassVar[bool] = False

    @abstractmethod
    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """Return the rows of `data.x` that each client holds.

        A client holds at least one row. Raises `OptionError`. `remote_rows` stands for the rows of a client whose
        samples are on another machine.
        """

    def client_names(self, data: Data, partition: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of the clients for figures.

        Empty if they are only numbered.
        """
        return ()


def check_partition(partition: tuple[NDArray[np.int64], ...], samples: int, plugin: Partitioner) -> None:
    """Raise an error if a partition has a gap or overlap.

    A local sample must belong to exactly one client, and no client may be empty.
    """
    for client, rows in enumerate(partition):
        if len(rows) == 0:
            empty = f"client {client} of {len(partition)} got no samples"
            if "clients" in type(plugin).model_fields:
                raise OptionError("clients", f"{empty}: use fewer clients")
            raise OptionError("type", f"{empty}: use another partitioner")
    here = [np.empty(0, np.int64), *filter(is_local, partition)]
    counts = np.bincount(np.concatenate(here), minlength=samples)
    if len(counts) != samples or (counts != 1).any():
        sample = int(np.flatnonzero(counts != (np.arange(len(counts)) < samples))[0])
        raise PluginFailure(
            f"partition: {plugin.full_name} must give every training sample to exactly one client, sample "
            f"{sample} has {counts[sample]}"
        )
