"""Partitioners: which client holds which training samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import OptionError, PluginFailure
from crfl_core.plugin_api.base import Plugin
from crfl_core.records.inputs import Data, is_local
from crfl_core.records.random_streams import Streams


class Partitioner(Plugin):
    """Splits the training samples over the clients, every sample to exactly one.

    How many clients there are is the partitioner's own affair: an option, or given by the data.
    """

    @abstractmethod
    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """The rows of `data.x` that each client holds, none of them empty. Raises `OptionError`.

        `remote_rows` stands for the rows of a client whose samples are not here.
        """

    def client_names(self, data: Data, partition: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:  # noqa: ARG002
        """What the clients of a split are called in figures; nothing if they are only numbered."""
        return ()


def check_partition(partition: tuple[NDArray[np.int64], ...], samples: int, plugin: Partitioner) -> None:
    """Every sample that is here belongs to exactly one client, and no client is empty."""
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
