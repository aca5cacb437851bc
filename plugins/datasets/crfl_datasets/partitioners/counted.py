"""What partitioners have in common that are told the number of clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import OptionError, Partitioner


class Counted(Partitioner):
    """Splits over a given number of clients."""

    clients: int = Field(20, ge=1, description="number of clients in the federation")

    def check_enough(self, samples: int, each: int = 1) -> None:
        """Raise `OptionError` if there are too many clients for everybody to get `each` samples."""
        if self.clients * each > samples:
            need = f", and each needs {each}" if each > 1 else ""
            raise OptionError("clients", f"found {self.clients}, but there are only {samples} training samples{need}")


def dealt(rows: NDArray[np.int64], owner: NDArray[np.int64], clients: int) -> tuple[NDArray[np.int64], ...]:
    """The rows of each client, in the order given; `owner[i]` is the client that gets `rows[i]`.

    >>> dealt(np.array([7, 8, 9]), np.array([1, 0, 1]), 2)
    (array([8]), array([7, 9]))
    """
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return tuple(np.split(rows[np.argsort(owner, kind="stable")], ends[:-1]))
