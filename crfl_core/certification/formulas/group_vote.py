"""How many clients a vote of separately trained groups stands: docs/certificates/every-round.md#group-vote.

Every client belongs to one of G groups, every group trains a model with its own members' messages and public data
alone, and the class with most votes wins, ties going to the lowest class. `votes` is (m, G): the class that each
group's model predicts for each of m samples. Every answer is a number of clients for each sample that may do anything,
in every round, without changing the winner; `inf` says that no number of them can. Nothing here is estimated or
rounded: all sums are of whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas._arrays import Array, floats

LARGEST_TOTAL = 2.0**51
"""Weights add up to no more, so that twice their sum is exact in floating point."""
VOTES_AT_ONCE = 1 << 20
"""Votes that are processed at a time, which bounds the memory."""


def vote_counts(votes: ArrayLike, classes: int, weights: ArrayLike = 1) -> NDArray[np.int64]:
    """Count the groups that vote for each class, (m, C).

    `argmax` is the winner. With `weights` (G,), add up the weights of the groups. Weights are whole numbers of at least
    0 that are fixed and public before training; sample counts that clients report are not.

    >>> vote_counts([[0, 2, 2], [1, 1, 1]], classes=3)
    array([[1, 0, 2],
           [0, 3, 0]])
    >>> vote_counts([[0, 2, 2]], classes=3, weights=[5, 1, 1])
    array([[5, 0, 2]])
    """
    chosen = _votes(votes, classes)
    samples, groups = chosen.shape
    places = (chosen + classes * np.arange(samples)[:, None]).ravel()
    shares = np.broadcast_to(_whole(weights, groups), chosen.shape).ravel()
    return np.bincount(places, shares, samples * classes).reshape(samples, classes).astype(np.int64)


def certified_groups(counts: ArrayLike) -> Array:
    """Return how many groups may be reached, one by each attacker.

    This is `R* = floor((n_A - max_{c != A} (n_c + [c < A])) / 2)`. `counts` is (..., C). A client reaches one group,
    and a vote that changes narrows a lead by at most 2; a class below the winner needs a tie only. Exact: one more
    reached group can be enough.

    >>> certified_groups([[0, 12, 3, 5], [7, 0, 8, 5]])
    array([3., 0.])
    """
    numbers = np.asarray(counts, np.int64)
    first = numbers.argmax(axis=-1)[..., None]
    classes = np.arange(numbers.shape[-1])
    lead = np.take_along_axis(numbers, first, axis=-1) - numbers - (classes < first)
    smallest = np.where(classes == first, np.iinfo(np.int64).max, lead).min(axis=-1)
    found: Array = np.floor_divide(smallest, 2).astype(np.float64)
    return found


def weighted_group_radius(votes: ArrayLike, classes: int, weights: ArrayLike, reachable: ArrayLike = True) -> Array:
    """Return how many clients a weighted vote tolerates, exactly.

    The `weights` (G,) are fixed and public. Attackers take the groups that move the lead over a class c most: `2 v_g`
    where g votes for the winner, `v_g` where it votes for a third class, nothing where it votes for c. `reachable` (G,)
    says which groups have a client that may attack, if the threat names candidates; `inf` if all of these together
    change nothing.

    >>> weighted_group_radius([[1, 1, 1, 0], [1, 0, 1, 0]], 2, [3, 3, 2, 1])
    array([1., 0.])
    >>> weighted_group_radius([[1, 1, 1, 0]], 2, [3, 3, 2, 1], reachable=[False, False, True, True])
    array([inf])
    """
    chosen = _votes(votes, classes)
    weight = _whole(weights, chosen.shape[1]) * np.broadcast_to(np.asarray(reachable, np.bool_), chosen.shape[1:])
    totals = vote_counts(chosen, classes, weights)
    found = np.full(len(chosen), np.inf)
    for rows in _blocks(chosen.shape):
        cast = chosen[rows]
        total = totals[rows]
        first = total.argmax(axis=1)
        best = np.take_along_axis(total, first[:, None], axis=1)[:, 0]
        for rival in range(classes):
            gains = weight * (1.0 * (cast == first[:, None]) + (cast != rival))
            losses = np.flip(np.sort(gains, axis=1), axis=1).cumsum(axis=1)
            room = best - total[:, rival] - (rival < first)
            stood = np.less_equal(losses, room[:, None]).sum(axis=1)
            certified = np.where((losses[:, -1] <= room) | (first == rival), np.inf, stood)
            found[rows] = np.minimum(found[rows], certified)
    return found


def group_costs(certified: ArrayLike, members: ArrayLike) -> Array:
    """Return how many clients it takes to change each group's vote.

    The costs are (m, G) or broadcast, `k_g = r_g + 1`. `certified` is how many attackers among its own members the
    group's prediction stands, r_g (NaN or 0: none), `members` how many clients of the group may attack: all of them, or
    the candidates that the threat names. Infinite where these are too few.

    >>> group_costs([2, 0, np.nan, 3, 0], [3, 3, 3, 3, 0])
    array([ 3.,  1.,  1., inf, inf])
    """
    stands, size = floats(certified, members)
    cost = np.floor(np.where(np.isnan(stands), 0.0, np.maximum(stands, 0.0))) + 1.0
    return np.where(cost > size, np.inf, cost)[()]


def group_radius(votes: ArrayLike, classes: int, costs: ArrayLike) -> Array:
    """Return how many clients may attack, given the groups' costs.

    A group's vote costs the attackers its entry of `costs`. `costs` are (m, G), or (G,) for all samples. For every
    class c other than the winner, the lead is gone after `D_c = n_A - n_c + 1 - [c < A]` votes. A group that votes for
    the winner and changes to c takes two of them, one that votes for a third class takes one. With the prefix sums PA
    and PO_c of both kinds' costs, in increasing order,

        cost_c = min_j  PA[j] + PO_c[max(0, D_c - 2 j)],      R* = min_c cost_c - 1.

    Exact. Taking the cheapest groups one by one, or looking at the second class only, would promise too much.
    With costs of 1 it is `certified_groups`; costs of 1 and `inf` answer for candidates, see `group_costs`.

    >>> group_radius([[2, 2, 3, 2, 2], [2, 1, 0, 0, 0]], 4, [[3, 5, 1, 1, np.inf], [3, 1, np.inf, 5, 2]])
    array([3., 2.])
    """
    chosen = _votes(votes, classes)
    prices = np.broadcast_to(floats(costs)[0], chosen.shape)
    if not (prices >= 1.0).all():
        raise ValueError("costs must be at least 1 client in every group, see group_costs")
    counts = vote_counts(chosen, classes)
    found = np.full(len(chosen), np.inf)
    for rows in _blocks(chosen.shape):
        cast = chosen[rows]
        price = prices[rows]
        count = counts[rows]
        first = count.argmax(axis=1)[:, None]
        best = np.take_along_axis(count, first, axis=1)
        own = _prefix_sums(price, cast == first)
        for rival in range(classes):
            others = _prefix_sums(price, (cast != first) & (cast != rival))
            lead = best - count[:, [rival]] + 1 - (rival < first)
            # Beyond all groups that there are, prefix sums are infinite.
            missing = np.clip(lead - 2 * np.arange(own.shape[1]), 0, own.shape[1] - 1)
            cheapest = (own + np.take_along_axis(others, missing, axis=1)).min(axis=1)
            found[rows] = np.minimum(found[rows], np.where(first[:, 0] == rival, np.inf, cheapest - 1.0))
    return found


def _prefix_sums(costs: Array, chosen: NDArray[np.bool_]) -> Array:
    """Return the prefix sums of the chosen groups' costs, in increasing order.

    They are the costs of the cheapest 0, 1, ..., G + 1 chosen groups, infinite beyond their number.
    """
    ordered = np.sort(np.where(chosen, costs, np.inf), axis=1)
    return np.pad(ordered, ((0, 0), (1, 1)), constant_values=((0.0, 0.0), (0.0, np.inf))).cumsum(axis=1)


def _votes(votes: ArrayLike, classes: int) -> NDArray[np.int64]:
    chosen = np.asarray(votes, np.int64)
    if chosen.ndim != 2 or chosen.shape[1] == 0:
        raise ValueError(f"votes must be (samples, groups), found the shape {chosen.shape}")
    if classes < 2 or (chosen < 0).any() or (chosen >= classes).any():
        raise ValueError(f"votes must be classes 0 to C - 1 of at least 2, found C = {classes}")
    return chosen


def _whole(weights: ArrayLike, groups: int) -> Array:
    weight = np.broadcast_to(floats(weights)[0], groups)
    if not ((weight >= 0.0) & (weight == np.floor(weight))).all() or weight.sum() > LARGEST_TOTAL:
        raise ValueError(f"weights of groups must be whole numbers of at least 0, found {weight.tolist()}")
    return weight


def _blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    rows = max(1, VOTES_AT_ONCE // shape[1])
    return (slice(first, first + rows) for first in range(0, shape[0], rows))


def membership_radius(votes: ArrayLike, classes: int, members: ArrayLike, weights: ArrayLike = 1) -> Array:
    """Return how many clients a vote tolerates in overlapping groups.

    A client may be in several groups. `members` is (G, N): whether each of the N clients that may attack is in each
    group, fixed before training. A client can reach all of its groups, and so lowers the lead over a class c by at most

        delta_c(i) = sum over the groups g of client i of  v_g ([g votes A] + [g does not vote c]),

    so R clients are certified if for every c the R largest of these add up to at most the lead, or to less if c < A. A
    group that two attackers share is counted twice, which is on the safe side. `inf` if all N clients change nothing.
    Equal to `weighted_group_radius` if every client is in one group and every group has one client.

    >>> membership_radius([[1, 1, 1, 1, 1, 0]], 2, np.eye(6))
    array([1.])
    >>> membership_radius([[1, 1, 1, 1, 1, 0]], 2, [[1, 0], [1, 0], [1, 0], [0, 1], [0, 0], [0, 1]])
    array([0.])
    """
    chosen = _votes(votes, classes)
    weight = _whole(weights, chosen.shape[1])
    inside = np.asarray(members, np.bool_).astype(np.float64)
    if inside.ndim != 2 or len(inside) != chosen.shape[1]:
        raise ValueError(f"members must be (groups, clients), found {inside.shape} for {chosen.shape[1]} groups")
    totals = vote_counts(chosen, classes, weights)
    found = np.full(len(chosen), np.inf)
    for rows in _blocks((len(chosen), max(inside.shape))):
        cast = chosen[rows]
        total = totals[rows]
        first = total.argmax(axis=1)
        best = np.take_along_axis(total, first[:, None], axis=1)[:, 0]
        for rival in range(classes):
            gains = weight * (1.0 * (cast == first[:, None]) + (cast != rival))
            losses = np.flip(np.sort(gains @ inside, axis=1), axis=1).cumsum(axis=1)  # whole numbers, so exact
            room = best - total[:, rival] - (rival < first)
            stood = np.less_equal(losses, room[:, None]).sum(axis=1)
            certified = np.where((stood == inside.shape[1]) | (first == rival), np.inf, stood)
            found[rows] = np.minimum(found[rows], certified)
    return found


def ensemble_count(p_a: ArrayLike, p_b: ArrayLike, clients: int, subset: int) -> Array:
    """Return how many clients cannot change the ensemble's prediction.

    The result is the largest such number m. `p_a` bounds from below the probability that the model of a random subset
    votes for the predicted class, `p_b` that of any other class from above, over the draw of the subset and of
    everything else that is random in its training; `subset` is k. Only a subset that holds one of the m clients can
    change its vote, so m is certified if

        p_A - p_B > 2 - 2 binom(n - m, k) / binom(n, k).

    NaN where `p_a <= p_b`. Rounded to the safe side. The bounds are not rounded to whole subsets: a subset that would
    be trained twice need not vote alike, since every model has random numbers of its own.

    >>> ensemble_count([0.99, 0.7, 0.5], [0.01, 0.2, 0.5], clients=1000, subset=10)
    array([64., 28., nan])
    """
    if not 1 <= subset <= clients:
        raise ValueError(f"a subset must have 1 to {clients} clients, found {subset}")
    first, second = floats(p_a, p_b)
    subsets = math.comb(clients, subset)
    reached = [2 * (subsets - math.comb(clients - number, subset)) / subsets for number in range(clients + 1)]
    limits = np.nextafter(reached, np.inf)
    limits[0] = 0.0
    lead = np.nextafter(first - second, -np.inf)
    number = np.searchsorted(limits, lead, side="left") - 1.0
    return np.where((number >= 0.0) & (first > second), number, np.nan)[()]
