"""The Condorcet vote: textbook elections, and brute force over all rankings that attackers may submit."""

from __future__ import annotations

from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core.certification import formulas
from crfl_core.certification.formulas import collective, group_vote

Places = NDArray[np.int64]
NEVER = 1e6
"""In place of an infinite cost, which cannot be multiplied by 0."""
SIZES = [(1, 2), (4, 2), (7, 2), (3, 3), (4, 3), (2, 4)]
"""Groups and classes of federations whose tables of rankings are all tried."""
LARGER = [(5, 3), (6, 3), (3, 4)]
"""Those of which some tables are compared with all others."""


def tables(groups: int, classes: int) -> Places:
    """All tables of rankings, (k, G, C)."""
    every = np.array(list(permutations(range(classes))))
    return every[np.array(list(product(range(len(every)), repeat=groups)), np.int64)]


def elected(ranks: Places, weights: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """By the definition: the matrix of all duels, else the first of the classes with most first places."""
    classes = ranks.shape[2]
    before = (weights[:, None, None] * (ranks[:, :, :, None] < ranks[:, :, None, :])).sum(axis=1)
    lower = np.tri(classes, k=-1)  # [b < a] at (a, b)
    beats = (before - before.swapaxes(1, 2) >= lower) | np.eye(classes, dtype=bool)
    found = beats.all(axis=2)
    assert (found.sum(axis=1) <= 1).all()
    firsts = (weights[:, None] * (ranks == 0)).sum(axis=1)
    return np.where(found.any(axis=1), found.argmax(axis=1), firsts.argmax(axis=1)), found.any(axis=1)


def cheapest(ranks: Places, every: Places, costs: NDArray[np.float64], *, winner_only: bool) -> NDArray[np.float64]:
    """What attackers pay at least to change the prediction, or to stop its class from beating all others."""
    first, _ = elected(ranks, np.ones(ranks.shape[1]))
    others, decided = elected(every, np.ones(ranks.shape[1]))
    found = []
    for one, price, label in zip(ranks, np.where(np.isinf(costs), NEVER, costs), first, strict=True):
        changed = (one != every).any(axis=2)
        target = (others != label) | (~decided if winner_only else False)
        found.append((changed @ price)[target].min(initial=NEVER))
    return np.where(np.array(found) >= NEVER, np.inf, found)


def drawn(random: np.random.Generator, samples: int, groups: int, classes: int, signal: float) -> tuple[Any, Any]:
    """Rankings by noisy scores, and the classes that the scores favour."""
    labels = random.integers(0, classes, samples)
    scores = random.normal(size=(samples, groups, classes))
    scores[np.arange(samples), :, labels] += signal
    return formulas.class_ranks(scores).astype(np.int64), labels


def test_the_capital_of_tennessee_is_nashville() -> None:
    """Memphis, Nashville, Chattanooga, Knoxville: 42, 26, 15 and 17 of 100 vote for the nearest (Wikipedia)."""
    shares = {(0, 1, 2, 3): 42, (3, 0, 1, 2): 26, (3, 2, 0, 1): 15, (3, 2, 1, 0): 17}
    ranks = np.repeat(list(shares), list(shares.values()), axis=0)[None]
    vote = formulas.condorcet_vote(ranks)
    assert (vote.winner.tolist(), vote.decided.tolist()) == ([1], [True])
    assert formulas.condorcet_shares(ranks) == [0.58]
    assert formulas.condorcet_radius(ranks, np.eye(100)) == [7.0]  # 58 to 42 before Memphis, which wins ties
    votes = ranks.argmin(axis=2)
    assert formulas.certified_groups(formulas.vote_counts(votes, 4)) == [8.0]  # plurality elects Memphis


def test_a_cycle_has_no_winner_and_the_most_first_places_decide() -> None:
    ranks = [[[0, 1, 2], [2, 0, 1], [1, 2, 0]], [[0, 1, 2], [2, 0, 1], [1, 2, 0]]]
    vote = formulas.condorcet_vote(ranks, [1, 1, 3])
    assert (vote.winner.tolist(), vote.decided.tolist()) == ([2, 2], [True, True])
    vote = formulas.condorcet_vote(ranks, [3, 4, 2])
    assert (vote.winner.tolist(), vote.decided.tolist()) == ([1, 1], [False, False])
    assert formulas.condorcet_radius(ranks, np.eye(3), [3, 4, 2]).tolist() == [0.0, 0.0]
    assert formulas.condorcet_cost_radius(ranks, [9, 9, 9]).tolist() == [0.0, 0.0]


def test_equal_scores_rank_the_lower_class_first_and_what_is_no_number_counts_as_infinite() -> None:
    nan, inf = np.nan, np.inf
    scores = np.array([[0.0, -0.0, 0.0], [nan, inf, nan], [-inf, -inf, 1.0], [1.0, nan, 1.0]], np.float32)
    assert formulas.class_ranks(scores).tolist() == [[0, 1, 2], [0, 1, 2], [1, 2, 0], [1, 0, 2]]


@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_no_attack_on_any_table_changes_a_certified_winner(groups: int, classes: int) -> None:
    ranks = tables(groups, classes)
    ones = np.ones(ranks.shape[:2])
    vote = formulas.condorcet_vote(ranks)
    first, decided = elected(ranks, np.ones(groups))
    assert (vote.winner == first).all()
    assert (vote.decided == decided).all()
    radius = formulas.condorcet_radius(ranks, np.eye(groups))
    assert (radius <= cheapest(ranks, ranks, ones, winner_only=False) - 1).all()
    # Exact for the class that beats all others: one more group makes it lose a duel.
    assert (radius[decided] == cheapest(ranks, ranks, ones, winner_only=True)[decided] - 1).all()
    assert (formulas.condorcet_cost_radius(ranks, 1.0) == radius).all()


@pytest.mark.parametrize(("groups", "classes"), LARGER)
def test_no_attack_with_any_rankings_changes_a_certified_winner(groups: int, classes: int) -> None:
    every = tables(groups, classes)
    random = np.random.default_rng(groups + 10 * classes)
    ranks = np.concatenate([drawn(random, 150, groups, classes, signal)[0] for signal in (0.7, 2.0)])
    _, decided = elected(ranks, np.ones(groups))
    radius = formulas.condorcet_radius(ranks, np.eye(groups))
    exact = cheapest(ranks, every, np.ones(ranks.shape[:2]), winner_only=False) - 1
    assert (radius <= exact).all()
    assert (radius == exact)[decided].mean() > 0.9
    assert (radius[decided] == cheapest(ranks, every, np.ones(ranks.shape[:2]), winner_only=True)[decided] - 1).all()
    assert (radius >= 1).mean() > 0.3


@pytest.mark.parametrize(("groups", "classes"), [(4, 3), (5, 3), (3, 4)])
def test_no_attack_that_the_costs_certify_changes_the_winner(groups: int, classes: int) -> None:
    every = tables(groups, classes)
    random = np.random.default_rng(groups)
    ranks = np.concatenate([drawn(random, 100, groups, classes, signal)[0] for signal in (0.7, 2.0)])
    costs = random.choice([1.0, 2.0, 3.0, 5.0, np.inf], size=ranks.shape[:2])
    radius = formulas.condorcet_cost_radius(ranks, costs)
    assert (radius <= cheapest(ranks, every, costs, winner_only=False) - 1).all()
    _, decided = elected(ranks, np.ones(groups))
    assert (radius == cheapest(ranks, every, costs, winner_only=True) - 1)[decided].all()
    assert (radius > formulas.condorcet_radius(ranks, np.eye(groups))).mean() > 0.4


def fewest_clients(ranks: Places, weights: NDArray[np.float64], members: NDArray[np.bool_]) -> float:
    """How many clients the prediction stands, by trying all sets of clients and all rankings of their groups."""
    (first,), _ = elected(ranks[None], weights)
    for number in range(1, members.shape[1] + 1):
        for attackers in combinations(range(members.shape[1]), number):
            reached = np.flatnonzero(members[:, list(attackers)].any(axis=1))
            changes = tables(len(reached), ranks.shape[1])
            others = np.repeat(ranks[None], len(changes), axis=0)
            others[:, reached] = changes
            if (elected(others, weights)[0] != first).any():
                return number - 1.0
    return np.inf


@pytest.mark.parametrize(("groups", "classes"), [(3, 3), (4, 3), (5, 2), (6, 2)])
def test_no_set_of_certified_clients_in_several_groups_with_weights_changes_the_winner(
    groups: int, classes: int
) -> None:
    random = np.random.default_rng(groups)
    found, exact = [], []
    for number in range(150):
        overlapping = random.uniform(size=(groups, 4)) < random.uniform(0.2, 0.8)
        members = overlapping if number % 3 else np.eye(groups, dtype=bool)[:, random.uniform(size=groups) < 0.8]
        weights = random.integers(0, 4, size=groups).astype(float) if number % 2 else np.ones(groups)
        weights[0] += 1.0 if not weights.any() else 0.0
        ranks, _ = drawn(random, 1, groups, classes, 2.0)
        found.append(float(formulas.condorcet_radius(ranks, members, weights)[0]))
        exact.append(fewest_clients(ranks[0], weights, members))
    assert (np.array(found) <= np.array(exact)).all()
    assert (np.array(found) == np.array(exact)).mean() > 0.6
    assert max(one for one in found if np.isfinite(one)) >= 1
    assert np.isinf(found).any()


def right_after(ranks: Places, labels: NDArray[np.int64], weights: NDArray[np.float64], reached: list[int]) -> int:
    """How many samples stay right, whatever the reached groups rank on each of them."""
    changes = tables(len(reached), ranks.shape[2])
    kept = 0
    for one, label in zip(ranks, labels, strict=True):
        others = np.repeat(one[None], len(changes), axis=0)
        others[:, reached] = changes
        kept += bool((elected(others, weights)[0] == label).all())
    return kept


@st.composite
def elections(draw: st.DrawFn) -> tuple[Places, NDArray[np.int64], NDArray[np.float64]]:
    """Rankings of up to five groups that mostly agree, labels, and weights."""
    groups, classes = draw(st.sampled_from([(2, 3), (3, 3), (4, 3), (5, 3), (3, 4), (6, 2)]))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    signal = draw(st.sampled_from([0.3, 1.0, 2.0]))
    ranks, labels = drawn(random, draw(st.integers(1, 8)), groups, classes, signal)
    weights = random.integers(1, 4, groups).astype(float) if draw(st.booleans()) else np.ones(groups)
    return ranks, labels, weights


@settings(max_examples=300, deadline=None)
@given(election=elections(), attackers=st.integers(0, 2), enumerates=st.booleans())
def test_no_set_of_groups_leaves_fewer_right_samples(
    election: tuple[Places, NDArray[np.int64], NDArray[np.float64]], attackers: int, enumerates: bool
) -> None:
    ranks, labels, weights = election
    groups = ranks.shape[1]
    sets = combinations(range(groups), min(attackers, groups))
    least = min(right_after(ranks, labels, weights, list(reached)) for reached in sets)
    leads = formulas.condorcet_leads(ranks, labels, np.eye(groups), weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective, "MOST_SETS", collective.MOST_SETS if enumerates else 0)
        found = formulas.collective_count(leads, attackers).right
    assert found is not None
    assert found <= least
    right = formulas.condorcet_vote(ranks, weights).winner == labels
    if attackers == 0:
        assert found == least == right.sum()
    elif enumerates:
        alone = formulas.condorcet_radius(ranks, np.eye(groups), weights) >= attackers
        assert found >= (alone & right).sum()


@settings(max_examples=150, deadline=None)
@given(election=elections(), seed=st.integers(0, 10**6), attackers=st.integers(1, 2))
def test_no_clients_of_several_groups_leave_fewer_right_samples(
    election: tuple[Places, NDArray[np.int64], NDArray[np.float64]], seed: int, attackers: int
) -> None:
    ranks, labels, weights = election
    members = np.random.default_rng(seed).random((ranks.shape[1], 4)) < 0.3
    reached = (np.flatnonzero(members[:, list(one)].any(axis=1)) for one in combinations(range(4), attackers))
    worst = min(right_after(ranks, labels, weights, one.tolist()) for one in reached)
    leads = formulas.condorcet_leads(ranks, labels, members, weights)
    found = formulas.collective_count(leads, attackers).right
    assert found is not None
    assert found <= worst


def test_many_groups_that_disagree_certify_more_by_pairs() -> None:
    """Rankings hold what first places do not: a group that errs still ranks the true class before most others."""
    random = np.random.default_rng(0)
    ranks, labels = drawn(random, 400, 60, 10, 1.5)
    by_pairs = formulas.condorcet_radius(ranks, np.eye(60))
    plurality = formulas.certified_groups(formulas.vote_counts(ranks.argmin(axis=2), 10))
    assert (formulas.condorcet_vote(ranks).winner == labels).mean() > 0.99
    assert (by_pairs > plurality).mean() > 0.8
    assert (by_pairs < plurality).mean() < 0.05


def test_of_two_classes_it_is_the_plurality_vote() -> None:
    ranks = tables(7, 2)
    votes = ranks.argmin(axis=2)
    weights = np.array([1, 2, 3, 1, 1, 0, 2])
    counts = formulas.vote_counts(votes, 2, weights)
    vote = formulas.condorcet_vote(ranks, weights)
    assert vote.decided.all()
    assert (vote.winner == counts.argmax(axis=1)).all()
    expected = formulas.weighted_group_radius(votes, 2, weights)
    assert (formulas.condorcet_radius(ranks, np.eye(7), weights) == expected).all()
    labels = np.arange(len(votes)) % 2
    for attackers in (1, 2, 3):
        leads = formulas.condorcet_leads(ranks, labels, np.eye(7), weights)
        other = formulas.plurality_leads(votes, labels, 2, np.eye(7), weights)
        assert formulas.collective_count(leads, attackers).right == formulas.collective_count(other, attackers).right


def test_the_class_numbers_matter_for_ties_only() -> None:
    """With an odd number of groups there are no ties: renaming the classes renames the winner."""
    random = np.random.default_rng(3)
    ranks, _ = drawn(random, 300, 9, 5, 0.7)
    names = random.permutation(5)
    vote = formulas.condorcet_vote(ranks)
    renamed = formulas.condorcet_vote(ranks[:, :, names])
    assert (vote.decided == renamed.decided).all()
    assert (vote.winner == names[renamed.winner])[vote.decided].all()
    radius = formulas.condorcet_radius(ranks, np.eye(9))
    assert (radius == formulas.condorcet_radius(ranks[:, :, names], np.eye(9))).all()


def test_many_samples_are_answered_in_blocks_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    ranks, labels = drawn(random, 50, 9, 4, 0.8)
    costs = random.integers(1, 4, size=(50, 9)).astype(float)
    weights = random.integers(1, 4, size=9)
    members = random.uniform(size=(9, 5)) < 0.4

    def answers() -> list[Any]:
        leads = formulas.condorcet_leads(ranks, labels, members, weights)
        return [
            *formulas.condorcet_vote(ranks, weights),
            formulas.condorcet_shares(ranks, weights),
            formulas.condorcet_radius(ranks, members, weights),
            formulas.condorcet_cost_radius(ranks, costs),
            *leads,
        ]

    whole = answers()
    monkeypatch.setattr(group_vote, "VOTES_AT_ONCE", 80)
    assert all(np.array_equal(one, other) for one, other in zip(whole, answers(), strict=True))


@pytest.mark.parametrize(
    ("ranks", "complaint"),
    [
        ([[0, 1]], "\\(samples, groups, classes\\), found the shape \\(1, 2\\)"),
        ([[[0.0, 1.0]]], "whole numbers"),
        ([[[0]]], "found the shape \\(1, 1, 1\\)"),
        ([[[0, 0, 1]]], "places 0 to 2 of all classes, each once"),
        ([[[1, 2, 3]]], "places 0 to 2 of all classes, each once"),
        ([[[-1, 0]]], "places 0 to 1"),
    ],
)
def test_bad_ranks_are_named(ranks: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        formulas.condorcet_vote(ranks)


def test_bad_members_costs_and_weights_are_named() -> None:
    ranks = [[[0, 1], [1, 0]]]
    with pytest.raises(ValueError, match="must be \\(groups, clients\\), found \\(3, 3\\) for 2 groups"):
        formulas.condorcet_radius(ranks, np.eye(3))
    with pytest.raises(ValueError, match="at least 1 client"):
        formulas.condorcet_cost_radius(ranks, [1.0, 0.0])
    with pytest.raises(ValueError, match="whole numbers of at least 0"):
        formulas.condorcet_vote(ranks, [0.5, 1])
