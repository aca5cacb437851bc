"""Collective accuracy of a test set under one set of attackers: docs/certificates/every-round.md#collective-accuracy.

The radius of a prediction lets attackers be other clients for every input. In reality they are one set for all inputs,
and cannot overturn all close votes at once. A vote is given by what every *unit*, a group or a client, can take of its
leads: input i is lost under a set S of units iff for some class c the losses of S add up to more than the lead over c
can spare. A corrupted unit may vote anything on every input, so all these inputs may be lost at once, and for units
that are disjoint groups the minimum over S is the exact answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas._arrays import Array
from crfl_core.certification.formulas.group_vote import _votes, _whole, vote_counts

MOST_SETS = 200_000
"""Sets of attackers that are enumerated at most."""
MOST_COEFFICIENTS = 4_000_000
"""Coefficients of the linear programme at most; it takes about a minute then."""
SOLVER_SECONDS = 120.0
NUMBERS_AT_ONCE = 1 << 24
PART = 3
FEW_UNITS = 30
"""The losses of sets of `PART` units are tabulated for up to this number of units."""
EXACT_IN_SINGLE = 1 << 24
"""Whole numbers up to this one are exact in single precision."""
VOTES_AT_ONCE = 256
SETS_AT_ONCE = 2048
UNIT = 1 << 20
"""Multipliers of the linear programme are verified as whole multiples of 1 / UNIT."""


class CollectiveCount(NamedTuple):
    """Samples that stay right at least, whichever units attack; `right` is None if that was not computed."""

    right: int | None
    exact: bool


class Leads(NamedTuple):
    """Leads that attackers may overturn: pairs of a vote and a class, sorted by vote.

    `vote` (K,) numbers the vote of a pair, `room` (K,) is what its lead can spare, `losses` (K, U) what each unit takes
    of it at most. `samples` counts the right samples with each vote, `right` all right samples, and `lost_at_once`
    those among them that one attacker is assumed to overturn.
    """

    vote: NDArray[np.int64]
    room: Array
    losses: Array
    samples: NDArray[np.int64]
    right: int
    lost_at_once: int = 0


def plurality_leads(
    votes: ArrayLike, labels: ArrayLike, classes: int, members: ArrayLike, weights: ArrayLike = 1
) -> Leads:
    """Return the leads of a plurality vote, ties to the lowest class.

    `votes` are (m, G), `labels` (m,) the true classes, and `members` (G, U) says which groups each unit reaches. A unit
    takes `sum_g v_g ([g votes A] + [g does not vote c])` of a lead over c, which can spare `n_A - n_c - [c < A]`.
    """
    chosen = _votes(votes, classes)
    weight = _whole(weights, chosen.shape[1])
    inside = np.asarray(members, np.float64)
    totals = vote_counts(chosen, classes, weight)
    right = totals.argmax(axis=1) == np.asarray(labels)
    cast, samples = np.unique(chosen[right], axis=0, return_counts=True)
    parts = []
    for first in range(0, len(cast), max(1, NUMBERS_AT_ONCE // max(inside.shape))):
        rows = cast[first : first + max(1, NUMBERS_AT_ONCE // max(inside.shape))]
        total = vote_counts(rows, classes, weight)
        winner = total.argmax(axis=1)
        best = total.max(axis=1)
        without_votes = np.zeros(len(rows), np.bool_)
        for rival in range(classes):  # of the classes without votes, the lowest is overtaken by first
            losses = (weight * (1.0 * (rows == winner[:, None]) + (rows != rival))) @ inside
            room = best - total[:, rival] - (rival < winner)
            reachable = (losses.sum(axis=1) > room) & (winner != rival) & ~(without_votes & (total[:, rival] == 0))
            without_votes |= (total[:, rival] == 0) & (winner != rival)
            parts.append((first + np.flatnonzero(reachable), room[reachable], losses[reachable]))
    return _sorted_leads(parts, inside.shape[1], samples, int(right.sum()), 0)


def _sorted_leads(
    parts: list[tuple[NDArray[np.int64], Any, Array]],
    units: int,
    samples: NDArray[np.int64],
    right: int,
    lost_at_once: int,
) -> Leads:
    """Join parts of leads, sorted by vote."""
    vote = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    room = np.concatenate([np.empty(0), *(part[1] for part in parts)])
    losses = np.concatenate([np.empty((0, units)), *(part[2] for part in parts)])
    order = np.argsort(vote, kind="stable")
    return Leads(vote[order], room[order], losses[order], samples, right, lost_at_once)


def collective_count(leads: Leads, attackers: int) -> CollectiveCount:
    """Return how many samples stay right if `attackers` units are corrupted.

    At least so many stay right, whichever units these are. It enumerates the sets of units if there are at most
    `MOST_SETS` of them, else it bounds their effect by a verified solution of a linear programme.

    >>> leads = plurality_leads([[0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]], [0, 1, 0], 2, np.eye(4))
    >>> collective_count(leads, 0), collective_count(leads, 1)
    (CollectiveCount(right=3, exact=True), CollectiveCount(right=2, exact=True))
    """
    units = leads.losses.shape[1]
    if attackers <= 0:
        return CollectiveCount(leads.right, exact=True)
    number = min(attackers, units)
    largest = np.sort(leads.losses, axis=1)[:, units - number :].sum(axis=1)
    close = np.flatnonzero(largest > leads.room)
    left = leads.right - leads.lost_at_once
    if not len(close):
        return CollectiveCount(left, exact=leads.lost_at_once == 0)
    vote, compact = np.unique(leads.vote[close], return_inverse=True)
    some = Leads(compact, leads.room[close], leads.losses[close], leads.samples[vote], leads.right)
    if math.comb(units, number) <= MOST_SETS:
        return CollectiveCount(left - _most_lost(some, number), exact=leads.lost_at_once == 0)
    lost = _bound_lost(some, number)
    return CollectiveCount(None if lost is None else left - lost, exact=False)


def _most_lost(leads: Leads, number: int) -> int:
    """Return the most samples that any set of units overturns.

    It tries all sets. Losses of sets are added up from tables of the losses of up to `PART` units, a block of votes at
    a time.
    """
    units = leads.losses.shape[1]
    total = math.comb(units, number)
    part = PART if units <= FEW_UNITS else 1
    sizes = [min(part, number - first) for first in range(0, number, part)]
    sets = np.fromiter(chain.from_iterable(combinations(range(units), number)), np.int64, total * number)
    ends = np.cumsum(sizes)
    places = [_set_places(some, units) for some in np.split(sets.reshape(total, number), ends[:-1], axis=1)]
    largest = max(float(leads.losses.sum(axis=1).max()), float(leads.room.max()))
    kind = next((one for one in (np.uint8, np.uint16, np.uint32) if largest <= np.iinfo(one).max), np.int64)
    lost = np.zeros(total, np.int64)
    for votes in _blocks_of_votes(leads):
        tables = {size: _set_losses(votes, size).astype(kind) for size in set(sizes)}
        lost += _lost_by_set([tables[size] for size in sizes], places, votes)
    return int(lost.max())


def _set_places(sets: NDArray[np.int64], units: int) -> NDArray[np.int64]:
    """Return each set's place among all sets of its size.

    Sets are (k, size), ascending. All sets of that size are in lexicographic order.
    """
    size = sets.shape[1]
    every = np.array(list(combinations(range(units), size)), np.int64)
    powers = units ** np.arange(size - 1, -1, -1)
    found: NDArray[np.int64] = np.searchsorted(every @ powers, sets @ powers)
    return found


def _set_losses(leads: Leads, size: int) -> Array:
    """Return the losses of all sets of a size together, (sets, K)."""
    every = np.array(list(combinations(range(leads.losses.shape[1]), size)), np.int64)
    losses = leads.losses.T[every[:, 0]]
    for place in range(1, size):
        losses += leads.losses.T[every[:, place]]
    return losses


def _blocks_of_votes(leads: Leads) -> Iterator[Leads]:
    """Yield the leads of some votes at a time.

    Their tables fit into a cache.
    """
    for first in range(0, len(leads.samples), VOTES_AT_ONCE):
        rows = slice(*np.searchsorted(leads.vote, [first, first + VOTES_AT_ONCE]))
        samples = leads.samples[first : first + VOTES_AT_ONCE]
        yield Leads(leads.vote[rows] - first, leads.room[rows], leads.losses[rows], samples, leads.right)


def _lost_by_set(tables: list[NDArray[Any]], places: list[NDArray[np.int64]], leads: Leads) -> NDArray[np.int64]:
    """Return how many samples each set of units overturns.

    A set is the union of parts at places in the tables.
    """
    lost = np.zeros(len(places[0]), np.int64)
    room = leads.room.astype(tables[0].dtype)
    # Votes with most pairs come first; so the second, third, ... pairs are those of the first votes.
    order = np.argsort(-np.bincount(leads.vote), kind="stable")
    place = np.argsort(order)[leads.vote]
    rank = np.arange(len(leads.vote)) - np.searchsorted(leads.vote, leads.vote)
    ranks = []
    for number in range(int(rank.max()) + 1):
        pairs = np.flatnonzero(rank == number)
        pairs = pairs[np.argsort(place[pairs])]
        ranks.append((room[pairs], [np.ascontiguousarray(table[:, pairs]) for table in tables]))
    samples = leads.samples[order].astype(np.float32 if leads.samples.sum() < EXACT_IN_SINGLE else np.float64)
    for first in range(0, len(lost), SETS_AT_ONCE):
        here = slice(first, first + SETS_AT_ONCE)
        beaten = np.zeros((len(lost[here]), len(samples)), np.bool_)
        for spare, parts in ranks:
            losses = parts[0][places[0][here]]
            for table, found in zip(parts[1:], places[1:], strict=True):
                losses += table[found[here]]
            beaten[:, : len(spare)] |= losses > spare
        lost[here] = beaten.astype(samples.dtype) @ samples  # sums of whole numbers, so exact
    return lost


def _bound_lost(leads: Leads, number: int) -> int | None:
    """Bound the number of samples that any set of units overturns.

    None if the linear programme is too large. For every pair k of a vote with w samples let `y_k >= 0` and
    `a_kg = min(loss_kg, room_k + 1) / (room_k + 1)`. If S overturns a vote, then at some pair k of it
    `sum_S a_kg >= 1`, so w is at most `(w - y_k)^+ + y_k sum_S a_kg`, and

        lost(S)  <=  sum over votes of max_k (w - y_k)^+  +  the largest `number` of  b_g = sum_k a_kg y_k.

    That holds for any y. The programme's dual solution is a good one; it is rounded to `y_k = (room_k + 1) n_k / UNIT`
    with whole n_k, for which all of this is computed in whole numbers.
    """
    if leads.losses.size > MOST_COEFFICIENTS:
        return None
    needed = leads.room + 1.0
    capped = np.minimum(leads.losses, needed[:, None])
    multipliers = _dual_multipliers(capped / needed[:, None], leads, number)
    if multipliers is None:
        return None
    weights = leads.samples[leads.vote]
    whole = np.rint(np.clip(multipliers, 0.0, weights) / needed * UNIT).astype(np.int64)
    spared = np.maximum(0, weights * UNIT - needed.astype(np.int64) * whole)
    firsts = np.flatnonzero(np.diff(leads.vote, prepend=-1))
    taken = np.sort(capped.astype(np.int64).T @ whole)[::-1][:number]
    bound = int(np.maximum.reduceat(spared, firsts).sum()) + int(taken.sum())
    return min(bound // UNIT, int(leads.samples.sum()))


def _dual_multipliers(shares: Array, leads: Leads, number: int) -> Array | None:
    """Solve the linear programme that lets units attack in parts.

    Return the multipliers of its pairs.
    """
    from scipy.optimize import linprog  # slow to import
    from scipy.sparse import bmat, csr_matrix, identity

    pairs, units = shares.shape
    votes = len(leads.samples)
    lost_once = csr_matrix((np.ones(pairs), (leads.vote, np.arange(pairs))), (votes, pairs))
    blocks: Any = [[csr_matrix(-shares), identity(pairs)], [None, lost_once], [csr_matrix(np.ones((1, units))), None]]
    rows: Any = bmat(blocks).tocsr()
    limits = np.concatenate([np.zeros(pairs), np.ones(votes), [number]])
    costs = np.concatenate([np.zeros(units), -leads.samples[leads.vote].astype(np.float64)])
    seconds: Any = {"time_limit": SOLVER_SECONDS}
    found: Any = linprog(costs, A_ub=rows, b_ub=limits, bounds=(0, 1), method="highs", options=seconds)
    if found.status != 0:
        return None
    return -np.asarray(found.ineqlin.marginals[:pairs])
