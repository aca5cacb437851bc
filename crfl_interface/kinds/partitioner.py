"""Partitioners: which client holds which training samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crfl_interface.data import Data
from crfl_interface.kinds.plugin import Plugin
from crfl_interface.streams import Streams


class Partitioner(Plugin):
    """Splits the training samples over the clients, every sample to exactly one.

    How many clients there are is the partitioner's own affair: an option, or given by the data.
    """

    @abstractmethod
    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """The rows of `data.x` that each client holds, none of them empty. Raises `OptionError`."""

    def client_names(self, data: Data, partition: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:  # noqa: ARG002
        """What the clients of a split are called in figures; nothing if they are only numbered."""
        return ()
