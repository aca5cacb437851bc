"""Partitioners: which client holds which training samples."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.data import Data
from crfl_core.kinds.plugin import Plugin
from crfl_core.streams import Streams


class Partitioner(Plugin):
    """Splits the training samples over the clients, every sample to exactly one."""

    clients: int = Field(20, ge=1, description="number of clients in the federation")

    @abstractmethod
    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        """The rows of `data.x` that each client holds, none of them empty. Raises `OptionError`."""
