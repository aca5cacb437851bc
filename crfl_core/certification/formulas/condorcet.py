"""How many clients a vote of groups by pairs stands: docs/certificates/every-round.md#the-condorcet-vote.

Every group ranks the classes by the scores of its own model, ties going to the lower class. `ranks` is (m, G, C): the
place of every class in the ranking of each group, 0 for the first. With the groups' votes v_g let

    M(a, b) = sum of the v_g that rank a before b  -  sum of the v_g that rank b before a.

Class a *beats* b if `M(a, b) >= [b < a]`: of two classes exactly one beats the other. The class that beats all others
wins, the Condorcet winner. If there is none, the class with most first places wins, and nothing is certified. Nothing
here is estimated or rounded: all sums are of whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.collective import Leads, _sorted_leads
from crfl_core.certification.formulas.group_vote import _blocks, _prefix_sums, _whole

Ranks = NDArray[np.uint16]


class CondorcetVote(NamedTuple):
    """Winners of votes by pairs, (m,), and whether each of them beats all other classes."""

    winner: NDArray[np.int64]
    decided: NDArray[np.bool_]


class Duels(NamedTuple):
    """The winner of some votes against one other class: who prefers it, (b, G), and what its lead can spare, (b,)."""

    rival: int
    prefers: NDArray[np.bool_]
    room: Array


def class_ranks(scores: ArrayLike) -> Ranks:
    """Rank the classes by their scores, (..., C).

    The highest score has rank 0. Of equal scores the lower class comes first. A score that is not a number counts as
    infinite.

    >>> class_ranks([[0.1, 0.7, 0.1], [2.0, float("nan"), 3.0]])
    array([[1, 0, 2],
           [2, 0, 1]], dtype=uint16)
    """
    values = floats(scores)[0]
    order = np.argsort(-np.where(np.isnan(values), np.inf, values), axis=-1, kind="stable")
    ranks = np.empty(order.shape, np.uint16)
    np.put_along_axis(ranks, order, np.arange(order.shape[-1], dtype=np.uint16), axis=-1)
    return ranks


def condorcet_vote(ranks: ArrayLike, weights: ArrayLike = 1) -> CondorcetVote:
    """Return the class that beats all others in pairs.

    Where no class does, the class with most first places wins. `weights` (G,) are whole numbers, fixed and public
    before training. One pass over the classes leaves the only candidate: it goes from the lowest class to the next one
    that beats it, and a class that beats all others is never passed over.

    >>> condorcet_vote([[[0, 1, 2], [0, 1, 2], [1, 0, 2], [2, 0, 1], [2, 1, 0]]])
    CondorcetVote(winner=array([1]), decided=array([ True]))
    >>> condorcet_vote([[[0, 1, 2], [2, 0, 1], [1, 2, 0]]])
    CondorcetVote(winner=array([0]), decided=array([False]))
    """
    places = _ranks(ranks)
    samples, groups, classes = places.shape
    weight = _whole(weights, groups)
    winner = np.zeros(samples, np.int64)
    decided = np.ones(samples, np.bool_)
    for rows in _blocks((samples, groups * classes)):
        part = places[rows]
        candidate = np.zeros(len(part), np.int64)
        place = part[:, :, 0]
        for rival in range(1, classes):
            beaten = 2.0 * ((place < part[:, :, rival]) @ weight) < weight.sum()
            candidate[beaten] = rival
            place = np.where(beaten[:, None], part[:, :, rival], place)
        unbeaten = np.all([duel.room >= 0 for duel in _duels(part, candidate, weight)], axis=0)
        first_places = np.stack([np.equal(part[:, :, label], 0) @ weight for label in range(classes)], axis=1)
        winner[rows] = np.where(unbeaten, candidate, first_places.argmax(axis=1))
        decided[rows] = unbeaten
    return CondorcetVote(winner, decided)


def condorcet_shares(ranks: ArrayLike, weights: ArrayLike = 1) -> Array:
    """Return the winner's smallest share in a duel, (m,).

    The share is that of the votes that rank the winner before a rival. The rival is the class that comes closest to
    beating it.

    >>> condorcet_shares([[[0, 1, 2], [0, 1, 2], [1, 0, 2], [2, 0, 1], [2, 1, 0]]])
    array([0.6])
    """
    places = _ranks(ranks)
    weight = _whole(weights, places.shape[1])
    winner = condorcet_vote(places, weight).winner
    found = np.ones(len(places))
    for rows in _blocks((len(places), places.shape[1] * places.shape[2])):
        for duel in _duels(places[rows], winner[rows], weight):
            share = (duel.prefers @ weight) / weight.sum()
            found[rows] = np.where(winner[rows] == duel.rival, found[rows], np.minimum(found[rows], share))
    return found


def condorcet_radius(ranks: ArrayLike, members: ArrayLike, weights: ArrayLike = 1) -> Array:
    """Return how many clients a vote by pairs tolerates, (m,).

    `members` is (G, N): whether each of the N clients that may attack is in each group, fixed before training. A group
    that changes its ranking lowers `M(A, c)` by at most `2 v_g [A before c]`, and a client reaches all of its groups.
    So the winner A keeps beating c if the R largest of

        2 * sum over the groups g of client i of  v_g [g ranks A before c]

    add up to at most `M(A, c) - [c < A]`. With one client and one vote in every group, that is

        R* = min over c of  floor( (M(A, c) - [c < A]) / 2 ).

    0 where no class beats all others, `inf` if all N clients change nothing. On the safe side: a group that two
    attackers share is counted twice, and a class that no longer beats all others may still have most first places.

    >>> ranks = [[[0, 1, 2]] * 5 + [[1, 0, 2]] * 2 + [[2, 0, 1]]]
    >>> condorcet_radius(ranks, np.eye(8)), condorcet_radius(ranks, np.eye(8)[:, :1])
    (array([1.]), array([inf]))
    """
    places = _ranks(ranks)
    samples, groups, classes = places.shape
    weight = _whole(weights, groups)
    inside = _members(members, groups)
    vote = condorcet_vote(places, weight)
    found = np.full(samples, np.inf)
    for rows in _blocks((samples, max(groups * classes, inside.shape[1]))):
        first = vote.winner[rows]
        for duel in _duels(places[rows], first, weight):
            losses = np.flip(np.sort((2.0 * weight * duel.prefers) @ inside, axis=1), axis=1).cumsum(axis=1)
            stood = np.less_equal(losses, duel.room[:, None]).sum(axis=1)
            certified = np.where((stood == inside.shape[1]) | (first == duel.rival), np.inf, stood)
            found[rows] = np.minimum(found[rows], certified)
    return np.where(vote.decided, found, 0.0)


def condorcet_cost_radius(ranks: ArrayLike, costs: ArrayLike) -> Array:
    """Return how many clients a vote by pairs tolerates, given costs.

    A group's preference costs the clients `costs`, (m, G) or (G,). `costs` bounds from below how many clients it takes
    until a group that ranks the winner A before another class does so no longer. A stops beating c when
    `h_c = floor((M(A, c) - [c < A]) / 2) + 1` of these groups change, so with the prefix sums P_c of their costs in
    increasing order

        R* = min over c of  P_c[h_c]  -  1.

    With costs of 1 it is `condorcet_radius` of groups of one client. 0 where no class beats all others.

    >>> condorcet_cost_radius([[[0, 1, 2]] * 5 + [[1, 0, 2]] * 2 + [[2, 0, 1]]], [3, 3, 1, 3, 3, 1, 1, 1])
    array([3.])
    """
    places = _ranks(ranks)
    samples, groups, classes = places.shape
    prices = np.broadcast_to(floats(costs)[0], (samples, groups))
    if not (prices >= 1.0).all():
        raise ValueError("costs must be at least 1 client in every group, see group_costs")
    weight = np.ones(groups)
    vote = condorcet_vote(places)
    found = np.full(samples, np.inf)
    for rows in _blocks((samples, groups * classes)):
        first = vote.winner[rows]
        for duel in _duels(places[rows], first, weight):
            needed = np.floor(np.clip(duel.room, -2.0, groups) / 2.0).astype(np.int64) + 1
            paid = np.take_along_axis(_prefix_sums(prices[rows], duel.prefers), needed[:, None], axis=1)[:, 0]
            found[rows] = np.minimum(found[rows], np.where(first == duel.rival, np.inf, paid - 1.0))
    return np.where(vote.decided, found, 0.0)


def condorcet_leads(ranks: ArrayLike, labels: ArrayLike, members: ArrayLike, weights: ArrayLike = 1) -> Leads:
    """Return the leads of a vote by pairs.

    From these `collective_count` bounds the right samples from below. `labels` (m,) are the true classes and `members`
    (G, U) says which groups each unit reaches. A unit takes `2 sum_g v_g [g ranks A before c]` of the lead over c,
    which can spare `M(A, c) - [c < A]`. Right samples without a class that beats all others are lost to one attacker.
    """
    places = _ranks(ranks)
    groups, classes = places.shape[1:]
    weight = _whole(weights, groups)
    inside = _members(members, groups)
    vote = condorcet_vote(places, weight)
    right = vote.winner == np.asarray(labels)
    first, samples = _distinct_votes(places, vote.winner, np.flatnonzero(right & vote.decided))
    parts = []
    for rows in _blocks((len(first), max(groups * classes, inside.shape[1]))):
        winner = vote.winner[first[rows]]
        unanimous = np.zeros(len(winner), np.bool_)
        for duel in _duels(places[first[rows]], winner, weight):
            # Of the classes that all groups rank behind the winner, the lowest is overtaken first.
            behind = duel.prefers.all(axis=1)
            losses = (2.0 * weight * duel.prefers) @ inside
            reachable = (losses.sum(axis=1) > duel.room) & (winner != duel.rival) & ~(unanimous & behind)
            unanimous |= behind
            parts.append((rows.start + np.flatnonzero(reachable), duel.room[reachable], losses[reachable]))
    return _sorted_leads(parts, inside.shape[1], samples, int(right.sum()), int((right & ~vote.decided).sum()))


def _distinct_votes(
    places: Ranks, winner: NDArray[np.int64], chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return one chosen sample for every distinct set of duels.

    The duels are the winner's. Return also how many samples are like it. The set tells which class the winner is: the
    only one that no group ranks behind it.
    """
    groups, classes = places.shape[1:]
    keys = np.empty((len(chosen), -(-groups * classes // 8)), np.uint8)
    for rows in _blocks((len(chosen), groups * classes)):
        some = chosen[rows]
        own = np.take_along_axis(places[some], winner[some, None, None], axis=2)
        keys[rows] = np.packbits((own < places[some]).reshape(len(some), -1), axis=1)
    _, first, samples = np.unique(keys, axis=0, return_index=True, return_counts=True)
    return chosen[first], samples


def _duels(places: Ranks, winner: NDArray[np.int64], weight: Array) -> Iterator[Duels]:
    """Yield the duels of the winner with every class.

    In the duel with itself no group prefers it, and its room is infinite.
    """
    own = np.take_along_axis(places, winner[:, None, None], axis=2)[:, :, 0]
    for rival in range(places.shape[2]):
        prefers = own < places[:, :, rival]
        room = 2.0 * (prefers @ weight) - weight.sum() - (rival < winner)
        yield Duels(rival, prefers, np.where(winner == rival, np.inf, room))


def _ranks(ranks: ArrayLike) -> Ranks:
    places = np.asarray(ranks)
    if places.ndim != 3 or places.shape[1] == 0 or places.shape[2] < 2 or places.dtype.kind not in "iu":
        raise ValueError(f"ranks must be whole numbers, (samples, groups, classes), found the shape {places.shape}")
    if (np.sort(places, axis=2) != np.arange(places.shape[2])).any():
        raise ValueError(f"ranks must be the places 0 to {places.shape[2] - 1} of all classes, each once")
    return places.astype(np.uint16, copy=False)


def _members(members: ArrayLike, groups: int) -> Array:
    inside = np.asarray(members, np.bool_).astype(np.float64)
    if inside.ndim != 2 or len(inside) != groups:
        raise ValueError(f"members must be (groups, clients), found {inside.shape} for {groups} groups")
    return inside
