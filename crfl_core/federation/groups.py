"""Who trains which model: groups of clients, fixed before the first round and by nothing that anybody submits."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from crfl_core.config.schema import Groups
from crfl_interface.errors import ConfigError
from crfl_interface.streams import Streams

Members = tuple[NDArray[np.int64], ...]
"""The clients of each group, ascending."""


def members_of(settings: Groups | None, clients: int, owners: NDArray[np.int64] | None, streams: Streams) -> Members:
    """The groups of a federation; everybody in one if none are asked for.

    `owners` are the natural owners of each client's data, if every client has one. Raises `ConfigError`.
    """
    if settings is None:
        return (np.arange(clients),)
    if settings.by == "natural":
        return natural(owners, len(settings.weights) if settings.weights is not None else None)
    assert settings.count is not None
    if settings.by == "subsets":
        assert settings.size is not None
        return subsets(settings.count, settings.size, clients, streams)
    if settings.count > clients:
        raise ConfigError(
            f"found {settings.count}, but there are only {clients} clients, and no group may be empty",
            key="groups.count",
        )
    order = sorted(range(clients), key=lambda client: salted(settings.salt, client))
    return tuple(np.sort(np.asarray(order[group :: settings.count])) for group in range(settings.count))


def salted(salt: int, client: int) -> bytes:
    """The place of a client in the deal."""
    return hashlib.blake2b(f"{salt}|{client}".encode(), digest_size=16, person=b"crfl-groups").digest()


def natural(owners: NDArray[np.int64] | None, weights: int | None) -> Members:
    """One group for each natural owner."""
    if owners is None:
        raise ConfigError(
            "'natural' needs clients whose data have one natural owner each: use a dataset with natural owners and "
            "partition.type = 'natural', or by = 'deal'",
            key="groups.by",
        )
    groups = tuple(np.flatnonzero(owners == owner) for owner in np.unique(owners))
    if weights is not None and weights != len(groups):
        raise ConfigError(f"needs one for each of the {len(groups)} groups, found {weights}", key="groups.weights")
    return groups


def subsets(count: int, size: int, clients: int, streams: Streams) -> Members:
    """Random subsets of this size, drawn independently of each other."""
    if size > clients:
        raise ConfigError(f"found {size}, but there are only {clients} clients", key="groups.size")
    draws = (streams.generator("participation/subset", replica=group) for group in range(count))
    return tuple(np.sort(draw.choice(clients, size, replace=False)) for draw in draws)
