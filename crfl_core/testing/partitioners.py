"""Checks of partitioners: every sample has one owner, and no client is empty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import OptionError
from crfl_core.plugin_api.partitioner import Partitioner
from crfl_core.records.random_streams import Streams
from crfl_core.testing.sample_run import Spots
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, usage_of

if TYPE_CHECKING:
    from crfl_core.records.inputs import Data


def examples() -> dict[str, Data]:
    """Return data of different sizes and shapes, by name."""
    data = Spots(samples=600).load()
    return {
        "600 samples of 10 classes from 10 owners": data,
        "600 samples of unknown owners": replace(data, groups=None, group_names=()),
        "600 samples of uneven classes": replace(data, y=np.minimum(data.y, np.arange(600) % 7)),
        "12 samples": replace(data, x=data.x[:12], y=data.y[:12], groups=np.arange(12) % 10),
    }


@usage_of(Partitioner)
def splits(partitioner: Partitioner, _: Case[Partitioner]) -> dict[str, object]:
    """Split all examples that the options fit."""
    return {name: partition for name, _, partition in find_valid_splits(Case(partitioner))}


@check_for(Partitioner)
def check_every_sample_has_one_owner(case: Case[Partitioner]) -> None:
    """Every training sample belongs to exactly one client."""
    for name, data, partition in find_valid_splits(case):
        rows = np.concatenate([np.asarray(rows) for rows in partition])
        if rows.dtype.kind not in "iu" or (len(rows) and (rows.min() < 0 or rows.max() >= len(data.x))):
            raise CheckFailed(
                f"row numbers 0..{len(data.x) - 1} of {name}", f"{rows.dtype}, {rows}", "return integer rows"
            )
        counts = np.bincount(rows, minlength=len(data.x))
        if (counts != 1).any():
            sample = int(np.flatnonzero(counts != 1)[0])
            raise CheckFailed(
                f"one owner for each of {name}",
                f"{counts[sample]} for sample {sample}",
                "deal out a permutation of all rows",
            )


@check_for(Partitioner)
def check_no_client_is_empty(case: Case[Partitioner]) -> None:
    """Every client holds something; options that leave a client empty are an `OptionError`."""
    for name, _, partition in find_valid_splits(case):
        empty = [client for client, rows in enumerate(partition) if len(rows) == 0]
        if empty or not partition:
            raise CheckFailed(
                f"samples for every client among {name}",
                f"none for client {empty[0] if empty else 0}",
                "raise OptionError('clients', ...) if there are too many of them",
            )


@check_for(Partitioner)
def check_makes_that_many_clients(case: Case[Partitioner]) -> None:
    """If there is an option `clients`, it is the number of clients."""
    wanted = getattr(case.plugin, "clients", None)
    if not isinstance(wanted, int):
        raise Skipped("it has no option `clients`")
    for name, _, partition in find_valid_splits(case):
        if len(partition) != wanted:
            raise CheckFailed(f"{wanted} clients for {name}", f"{len(partition)}", "return one array for each client")


@check_for(Partitioner)
def check_keeps_data(case: Case[Partitioner]) -> None:
    """Inputs, labels and groups are as they were before."""
    before = examples()
    for name, data, _ in find_valid_splits(case):
        for what in ("x", "y", "groups"):
            old = getattr(before[name], what)
            new = getattr(data, what)
            if old is not None and not np.array_equal(old, new):
                raise CheckFailed(f"unchanged {what}", "changed in place", "work on a copy")


@check_for(Partitioner)
def check_every_client_has_a_name_or_none_has(case: Case[Partitioner]) -> None:
    """`client_names` names all clients of a split, or none."""
    for name, data, partition in find_valid_splits(case):
        names = case.plugin.client_names(data, partition)
        if names and len(names) != len(partition):
            raise CheckFailed(f"{len(partition)} names or none for {name}", f"{len(names)}", "name every client")


def find_valid_splits(case: Case[Partitioner]) -> list[tuple[str, Data, tuple[NDArray[np.int64], ...]]]:
    """Return every example that the options fit, with its split."""
    found = case.once(all_splits)
    if not found:
        raise Skipped(f"its options fit none of {'; '.join(examples())}")
    return found


def all_splits(case: Case[Partitioner]) -> list[tuple[str, Data, tuple[NDArray[np.int64], ...]]]:
    """Split the examples; an `OptionError` for some of them is fine."""
    result = []
    for name, data in examples().items():
        try:
            result.append((name, data, case.plugin.split(data, Streams(5))))
        except OptionError:
            continue
    return result
