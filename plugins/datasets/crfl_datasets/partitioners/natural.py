"""Partitioner `natural`: the clients that the data come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, OptionError, Partitioner, Streams
from crfl_datasets.partitioners.random_splits import deal


class Natural(Partitioner):
    """One client for every group of the dataset: the states of `loan`, the writers of a handwriting set.

    The number of clients is the number of groups that the training samples come from. Nothing is random.
    """

    min_samples: int = Field(1, ge=1, description="a group with fewer samples is small")
    small_groups: Literal["refuse", "merge"] = Field(
        "refuse", description="small groups are an error, or together one client, the last"
    )

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:  # noqa: ARG002
        """Return the rows of each group, in the groups' order.

        The order is that of their numbers.
        """
        if data.groups is None:
            raise OptionError(
                "type",
                "natural needs a dataset that says where each sample comes from: loan and synthetic do, arrays and "
                "huggingface with the option `group`; or use another partitioner, such as dirichlet",
            )
        known, owner, sizes = np.unique(data.groups, return_inverse=True, return_counts=True)
        small = sizes < self.min_samples
        if small.any() and self.small_groups == "refuse":
            smallest = int(np.argmin(sizes))
            raise OptionError(
                "min_samples",
                f"{small.sum()} of {len(known)} groups have fewer than {self.min_samples} samples, "
                f"{group_name(data, known[smallest])!r} has {sizes[smallest]}: lower it, or set small_groups = 'merge'",
            )
        together = int(sizes[small].sum())
        if small.any() and together < self.min_samples:
            raise OptionError(
                "min_samples",
                f"the {small.sum()} groups with fewer than {self.min_samples} samples have only {together} together: "
                "lower it",
            )
        clients = np.where(small, (~small).sum(), np.cumsum(~small) - 1)
        return deal(np.arange(len(owner)), clients[owner], int(clients.max()) + 1)

    def client_names(self, data: Data, partition: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:
        """Return the names of the groups, if the dataset has any.

        Merged groups are "others".
        """
        if data.groups is None or not data.group_names:
            return ()
        groups = [np.unique(data.groups[rows]) for rows in partition]
        return tuple(group_name(data, held[0]) if len(held) == 1 else f"{len(held)} others" for held in groups)


def group_name(data: Data, group: int) -> str:
    """Return the name of a group."""
    return data.group_names[group] if data.group_names else f"group {group}"
