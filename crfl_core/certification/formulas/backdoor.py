"""Largest trigger at test time that a vote of groups withstands, on top of malicious clients in training.

A backdoor attack acts twice: malicious clients change the models of the groups that they are in, and a trigger changes
the test input. Each of m samples has the vote of G group models, `votes` (m, G), and a lower bound on how far the
sample must move to change each of them, `distances` (m, G). A trigger of norm rho changes the votes with a distance of
at most rho for free, and R clients change R further votes. The class with most votes wins, ties going to the lowest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas._arrays import Array, floats

ROWS_AT_ONCE = 4096
"""Samples that are processed at a time, which bounds the memory."""


def trigger_radius(votes: ArrayLike, distances: ArrayLike, classes: int, clients: int) -> Array:
    """Return the largest trigger norm at which the winner stays, (m,).

    Besides the trigger, `clients` malicious clients may attack. NaN where the clients alone may change it; `inf` where
    no trigger can. Let T be the groups with a distance of at most rho, A the winner, n_c the votes for c, and v_gc what
    a changed vote of group g takes from the lead over c: 2 if it was for A, 0 if it was for c, else 1. The winner stays
    if, for every c other than A,

        n_A - n_c - [c < A] - sum_{g in T} v_gc  >=  the sum of the `clients` largest v_gc with g not in T.

    >>> trigger_radius([[1, 1, 1, 0]], [[0.5, 0.2, np.inf, 0.0]], classes=2, clients=0).round(3)
    array([0.2])
    >>> trigger_radius([[1, 1, 1, 0]], [[0.5, 0.2, np.inf, 0.0]], classes=2, clients=1)
    array([nan])
    """
    chosen = np.asarray(votes, np.int64)
    reach = floats(distances)[0]
    if chosen.ndim != 2 or classes < 2 or (chosen < 0).any() or (chosen >= classes).any():
        raise ValueError(f"votes must be classes below {classes}, (m, G), found the shape {chosen.shape}")
    if reach.shape != chosen.shape:
        raise ValueError(f"distances must be one for each vote, {chosen.shape}, found the shape {reach.shape}")
    if clients < 0 or not (reach >= 0).all():
        raise ValueError("clients and distances must be at least 0, and distances no NaN")
    found = np.empty(len(chosen))
    for first in range(0, len(chosen), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        found[rows] = _trigger_radius(chosen[rows], reach[rows], classes, clients)
    return found


def _trigger_radius(votes: NDArray[np.int64], distances: Array, classes: int, clients: int) -> Array:
    order = np.argsort(distances, axis=1, kind="stable")
    ballots = np.take_along_axis(votes, order, axis=1)[:, :, None] == np.arange(classes)  # (m, G, C)
    changed = np.concatenate([np.zeros_like(ballots[:, :1], np.int64), ballots.cumsum(axis=1)], axis=1)
    counts = changed[:, -1]  # (m, C)
    winner = counts.argmax(axis=1)
    groups = votes.shape[1]
    taken = np.arange(groups + 1)[None, :, None]  # how many votes the trigger changes
    for_winner = np.take_along_axis(changed, winner[:, None, None], axis=2)  # (m, G + 1, 1), of these
    lead = np.take_along_axis(counts, winner[:, None], axis=1) - counts - (np.arange(classes) < winner[:, None])
    by_trigger = for_winner + taken - changed
    left_for_winner = for_winner[:, -1:] - for_winner
    left_for_rival = changed[:, -1:] - changed
    left_for_others = groups - taken - left_for_winner - left_for_rival
    twice = np.minimum(clients, left_for_winner)
    by_clients = 2 * twice + np.minimum(clients - twice, left_for_others)
    stands = by_trigger + by_clients <= lead[:, None]
    np.put_along_axis(stands, np.broadcast_to(winner[:, None, None], (len(votes), groups + 1, 1)), True, axis=2)
    changes = stands.all(axis=2).cumprod(axis=1).sum(axis=1) - 1  # changed votes that leave the winner, -1: none
    ordered = np.concatenate([np.take_along_axis(distances, order, axis=1), np.full((len(votes), 1), np.inf)], axis=1)
    next_distance = np.take_along_axis(ordered, np.maximum(changes, 0)[:, None], axis=1)[:, 0]
    below = np.where(next_distance > 0, np.nextafter(next_distance, 0.0), np.nan)  # at 0 every trigger changes it
    return np.where(changes < 0, np.nan, np.where(np.isposinf(next_distance), np.inf, below))
