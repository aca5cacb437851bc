"""Votes of groups: reference values, and brute force over all small tables of votes."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core.certification.formulas import (
    Array,
    certified_groups,
    group_costs,
    group_radius,
    membership_radius,
    vote_counts,
    weighted_group_radius,
)
from crfl_core.certification.formulas import group_vote as module
from tests.certification.reference import every_round

SIZES = [(1, 3), (2, 4), (3, 3), (4, 3), (5, 2), (5, 3), (4, 4), (7, 2)]
"""Groups and classes of federations whose tables of votes are all tried."""
NEVER = 1e6
"""In place of an infinite cost, which cannot be multiplied by 0."""


def tables(groups: int, classes: int) -> NDArray[np.int64]:
    return np.array(list(product(range(classes), repeat=groups)))


def winners(votes: NDArray[np.int64], classes: int, weights: Array) -> NDArray[np.int64]:
    """By counting one class after the other; the first one with most votes wins."""
    totals = np.stack([(weights * (votes == one)).sum(axis=1) for one in range(classes)], axis=1)
    return np.array([list(row).index(max(row)) for row in totals])


def cheapest(votes: NDArray[np.int64], classes: int, weights: Array, costs: Array) -> Array:
    """What attackers pay at least for another winner, for every table: over all other tables there are."""
    first = winners(votes, classes, weights)
    paid = np.where(votes[:, None] != votes, np.where(np.isinf(costs), NEVER, costs)[:, None], 0.0).sum(axis=2)
    best = np.where(first[:, None] == first, NEVER, paid).min(axis=1)
    return np.where(best >= NEVER, np.inf, best)


@pytest.mark.parametrize("case", every_round("group_vote_small"))
def test_small_votes_have_their_reference_values(case: dict[str, Any]) -> None:
    votes, classes = [case["votes"]], case["classes"]
    counts = vote_counts(votes, classes)
    costs = [np.inf if cost is None else cost for cost in case["costs"]]
    expected = case["certified_with_costs"]
    assert counts.argmax(axis=1).tolist() == [case["winner"]]
    assert certified_groups(counts).tolist() == [case["certified"]]
    assert group_radius(votes, classes, costs).tolist() == [np.inf if expected is None else expected]


@pytest.mark.parametrize("case", every_round("group_vote_counts"))
def test_large_votes_have_their_reference_values(case: dict[str, Any]) -> None:
    counts = np.array(case["counts"])
    votes = np.repeat(np.arange(len(counts)), counts)[None]
    assert vote_counts(votes, len(counts)).tolist() == [case["counts"]]
    assert counts.argmax() == case["winner"]
    assert certified_groups(counts) == case["certified"]
    assert group_radius(votes, len(counts), 1.0) == case["certified"]
    assert weighted_group_radius(votes, len(counts), 7) == case["certified"]


@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_the_number_of_groups_is_exact_for_all_tables_of_votes(groups: int, classes: int) -> None:
    votes, ones = tables(groups, classes), np.ones(groups)
    exact = cheapest(votes, classes, ones, np.ones(votes.shape)) - 1.0
    counts = vote_counts(votes, classes)
    assert (counts.argmax(axis=1) == winners(votes, classes, ones)).all()
    assert (certified_groups(counts) == exact).all()
    assert (group_radius(votes, classes, 1.0) == exact).all()
    assert (weighted_group_radius(votes, classes, 1) == exact).all()


@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_the_number_of_clients_is_exact_for_all_tables_of_votes_and_costs(groups: int, classes: int) -> None:
    generator, votes = np.random.default_rng(groups + 10 * classes), tables(groups, classes)
    for _ in range(60):
        costs = generator.choice([1.0, 2.0, 3.0, 5.0, np.inf], size=votes.shape)
        exact = cheapest(votes, classes, np.ones(groups), costs) - 1.0
        assert (group_radius(votes, classes, costs) == exact).all()


def test_the_number_of_clients_is_exact_for_all_votes_of_four_groups_and_all_costs_up_to_three() -> None:
    votes = tables(4, 3)
    for costs in product([1.0, 2.0, 3.0, np.inf], repeat=4):
        exact = cheapest(votes, 3, np.ones(4), np.broadcast_to(costs, votes.shape)) - 1.0
        assert (group_radius(votes, 3, costs) == exact).all()


def most_clients(votes: NDArray[np.int64], classes: int, weights: Array, reachable: NDArray[np.bool_]) -> float:
    """How many groups attackers may have without another winner, by trying all sets and all votes of theirs."""
    (first,), groups = winners(votes[None], classes, weights), np.flatnonzero(reachable)
    for number in range(1, len(groups) + 1):
        for reached in combinations(groups, number):
            others = np.repeat(votes[None], classes**number, axis=0)
            others[:, list(reached)] = tables(number, classes)
            if (winners(others, classes, weights) != first).any():
                return number - 1.0
    return np.inf


@pytest.mark.parametrize(("groups", "classes"), [(3, 3), (4, 3), (5, 2)])
def test_weights_and_candidates_are_exact_by_trying_every_set_of_groups(groups: int, classes: int) -> None:
    generator, limited = np.random.default_rng(groups), 0
    for _ in range(60):
        weights = generator.integers(0, 5, size=groups).astype(float)
        reachable = generator.uniform(size=groups) < 0.7
        votes = generator.integers(classes, size=(3, groups))
        exact = np.array([most_clients(row, classes, weights, reachable) for row in votes])
        assert (weighted_group_radius(votes, classes, weights, reachable) == exact).all()
        limited += np.isfinite(exact).sum()
        ones = np.array([most_clients(row, classes, np.ones(groups), reachable) for row in votes])
        assert (group_radius(votes, classes, group_costs(0.0, reachable)) == ones).all()
    assert limited > 20


def fewest_clients(votes: NDArray[np.int64], classes: int, weights: Array, members: NDArray[np.bool_]) -> float:
    """How many clients the vote stands, by trying all sets of clients and all votes of the groups that they reach."""
    (first,), clients = winners(votes[None], classes, weights), members.shape[1]
    for number in range(1, clients + 1):
        for attackers in combinations(range(clients), number):
            reached = np.flatnonzero(members[:, list(attackers)].any(axis=1))
            others = np.repeat(votes[None], classes ** len(reached), axis=0)
            others[:, reached] = tables(len(reached), classes)
            if (winners(others, classes, weights) != first).any():
                return number - 1.0
    return np.inf


@pytest.mark.parametrize(("groups", "classes"), [(3, 3), (4, 2), (5, 2), (6, 2)])
def test_no_set_of_certified_clients_in_several_groups_changes_the_winner(groups: int, classes: int) -> None:
    generator = np.random.default_rng(groups)
    found, exact = [], []
    for number in range(120):
        members = generator.uniform(size=(groups, 4)) < generator.uniform(0.2, 0.8)
        weights = generator.integers(0, 4, size=groups).astype(float) if number % 2 else np.ones(groups)
        votes = np.where(generator.uniform(size=groups) < 0.8, 1, generator.integers(classes, size=groups))
        found.append(float(membership_radius(votes[None], classes, members, weights)[0]))
        exact.append(fewest_clients(votes, classes, weights, members))
    assert (np.array(found) <= np.array(exact)).all()
    assert (np.array(found) == np.array(exact)).mean() > 0.6
    assert max(found) >= 1


@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_disjoint_groups_of_one_client_are_the_special_case(groups: int, classes: int) -> None:
    votes = tables(groups, classes)
    assert (membership_radius(votes, classes, np.eye(groups)) == weighted_group_radius(votes, classes, 1)).all()


def test_members_must_be_those_of_all_groups() -> None:
    with pytest.raises(ValueError, match="must be \\(groups, clients\\), found \\(3, 3\\) for 2 groups"):
        membership_radius([[0, 1]], 2, np.eye(3))


def test_cheapest_first_and_second_class_only_would_promise_too_much() -> None:
    """Where choosing greedily finds 5 clients, 4 are enough; looking at the runner-up finds 5, and 3 are enough."""
    votes, costs = [[2, 2, 3, 2, 2], [2, 1, 0, 0, 0]], [[3, 5, 1, 1, np.inf], [3, 1, np.inf, 5, 2]]
    assert group_radius(votes, 4, costs).tolist() == [3.0, 2.0]


def test_groups_that_certify_themselves_are_never_worth_less_than_groups_that_do_not() -> None:
    generator = np.random.default_rng(0)
    votes = generator.integers(4, size=(300, 12)) * (generator.uniform(size=(300, 12)) < 0.5)
    costs = group_costs(generator.integers(0, 4, size=(300, 12)), np.full(12, 3))
    with_costs, without = group_radius(votes, 4, costs), certified_groups(vote_counts(votes, 4))
    assert (with_costs >= without).all()
    assert (with_costs > without).mean() > 0.5
    assert np.isinf(with_costs).any()


def test_a_group_is_out_of_reach_when_it_stands_all_who_may_attack() -> None:
    assert group_costs([[0, 1, 4]], [5, 1, 5]).tolist() == [[1.0, np.inf, 5.0]]
    assert group_costs([np.nan, -1.0, 2.7], 5).tolist() == [1.0, 1.0, 3.0]
    assert group_costs(np.nan, 0) == np.inf


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=6))
def test_permuting_the_groups_changes_nothing_and_one_vote_more_for_the_winner_never_hurts(counts: list[int]) -> None:
    votes = np.repeat(np.arange(len(counts)), counts)[None]
    if votes.size == 0:
        return
    shuffled = np.random.default_rng(0).permutation(votes, axis=1)
    certified = group_radius(shuffled, len(counts), 1.0)
    assert certified == certified_groups(counts)
    more = np.array(counts)
    more[more.argmax()] += 1
    assert certified_groups(more) >= certified


def test_many_samples_are_answered_in_blocks_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    votes = generator.integers(3, size=(50, 9))
    costs = generator.integers(1, 4, size=(50, 9)).astype(float)
    weights = generator.integers(1, 4, size=9)
    members = generator.uniform(size=(9, 5)) < 0.4
    whole = group_radius(votes, 3, costs), weighted_group_radius(votes, 3, weights)
    overlapping = membership_radius(votes, 3, members, weights)
    monkeypatch.setattr(module, "VOTES_AT_ONCE", 20)
    assert (group_radius(votes, 3, costs) == whole[0]).all()
    assert (weighted_group_radius(votes, 3, weights) == whole[1]).all()
    assert (membership_radius(votes, 3, members, weights) == overlapping).all()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (([0, 1], 2, 1), "must be \\(samples, groups\\), found the shape \\(2,\\)"),
        (([[0, 2]], 2, 1), "classes 0 to C - 1"),
        (([[0, -1]], 2, 1), "classes 0 to C - 1"),
        (([[0, 1]], 2, [0.5, 1]), "whole numbers of at least 0, found \\[0.5, 1.0\\]"),
        (([[0, 1]], 2, [1, -1]), "whole numbers"),
        (([[0, 1]], 2, [1, np.nan]), "whole numbers"),
    ],
)
def test_bad_votes_and_weights_are_named(arguments: tuple[Any, int, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        vote_counts(*arguments)


def test_a_cost_below_one_client_is_no_cost() -> None:
    with pytest.raises(ValueError, match="at least 1 client"):
        group_radius([[0, 1]], 2, [0.0, 1.0])
    with pytest.raises(ValueError, match="at least 1 client"):
        group_radius([[0, 1]], 2, [np.nan, 1.0])
