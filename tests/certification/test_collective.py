"""Collective certified accuracy against exhaustive search: what one set of attackers can do to a whole test set."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core.certification import formulas
from crfl_core.certification.formulas import collective

Votes = NDArray[np.int64]


@st.composite
def elections(draw: st.DrawFn) -> tuple[Votes, Votes, int, NDArray[np.int64]]:
    """Votes of up to five groups that mostly agree, labels, the number of classes, and weights."""
    groups, classes, samples = draw(st.integers(2, 5)), draw(st.integers(2, 4)), draw(st.integers(1, 8))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    labels = random.integers(0, classes, samples)
    agrees = random.random((samples, groups)) < draw(st.sampled_from([0.5, 0.75]))
    votes = np.where(agrees, labels[:, None], random.integers(0, classes, (samples, groups)))
    weights = random.integers(0, 4, groups) if draw(st.booleans()) else np.ones(groups, np.int64)
    return votes, labels, classes, weights


def right_after(votes: Votes, labels: Votes, classes: int, weights: NDArray[np.int64], reached: list[int]) -> int:
    """How many samples stay right, whatever the reached groups vote on each of them."""
    kept = 0
    for cast, label in zip(votes, labels, strict=True):
        changed = np.tile(cast, (classes ** len(reached), 1))
        changed[:, reached] = list(product(range(classes), repeat=len(reached)))
        kept += all(np.bincount(one, weights, classes).argmax() == label for one in changed)
    return kept


@settings(max_examples=250, deadline=None)
@given(election=elections(), attackers=st.integers(0, 5))
def test_it_is_the_least_over_all_sets_of_groups(
    election: tuple[Votes, Votes, int, NDArray[np.int64]], attackers: int
) -> None:
    votes, labels, classes, weights = election
    groups = votes.shape[1]
    sets = combinations(range(groups), min(attackers, groups))
    expected = min(right_after(votes, labels, classes, weights, list(reached)) for reached in sets)
    leads = formulas.plurality_leads(votes, labels, classes, np.eye(groups), weights)
    assert formulas.collective_count(leads, attackers) == (expected, True)


@settings(max_examples=150, deadline=None)
@given(election=elections(), attackers=st.integers(1, 5))
def test_the_bound_of_the_linear_programme_never_promises_more(
    election: tuple[Votes, Votes, int, NDArray[np.int64]], attackers: int
) -> None:
    votes, labels, classes, weights = election
    groups = votes.shape[1]
    leads = formulas.plurality_leads(votes, labels, classes, np.eye(groups), weights)
    exact = formulas.collective_count(leads, attackers).right
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective, "MOST_SETS", 0)
        bound = formulas.collective_count(leads, attackers)
    assert exact is not None
    assert bound.right is not None
    assert bound.right <= exact
    alone = formulas.weighted_group_radius(votes, classes, weights) >= attackers
    right = formulas.vote_counts(votes, classes, weights).argmax(1) == labels
    assert exact >= int((alone & right).sum())


@settings(max_examples=150, deadline=None)
@given(election=elections(), seed=st.integers(0, 10**6), attackers=st.integers(1, 3))
def test_any_multipliers_give_a_bound(
    election: tuple[Votes, Votes, int, NDArray[np.int64]], seed: int, attackers: int
) -> None:
    """A solver is not trusted: whatever it answers, no more samples are promised than stay right."""
    votes, labels, classes, weights = election
    groups = votes.shape[1]
    leads = formulas.plurality_leads(votes, labels, classes, np.eye(groups), weights)
    exact = formulas.collective_count(leads, attackers).right
    random = np.random.default_rng(seed)

    def answer(shares: NDArray[np.float64], *_: object) -> NDArray[np.float64]:
        return random.normal(0.5, 1.0, len(shares))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective, "MOST_SETS", 0)
        patch.setattr(collective, "_dual_multipliers", answer)
        bound = formulas.collective_count(leads, attackers).right
    assert exact is not None
    assert bound is not None
    assert bound <= exact


@settings(max_examples=150, deadline=None)
@given(election=elections(), seed=st.integers(0, 10**6), attackers=st.integers(1, 3))
def test_clients_in_several_groups_reach_all_of_them(
    election: tuple[Votes, Votes, int, NDArray[np.int64]], seed: int, attackers: int
) -> None:
    votes, labels, classes, weights = election
    groups = votes.shape[1]
    members = np.random.default_rng(seed).random((groups, 5)) < 0.3
    reached = [
        np.flatnonzero(members[:, list(clients)].any(axis=1)).tolist() for clients in combinations(range(5), attackers)
    ]
    worst = min(right_after(votes, labels, classes, weights, one) for one in reached)
    leads = formulas.plurality_leads(votes, labels, classes, members, weights)
    found = formulas.collective_count(leads, attackers).right
    assert found is not None
    assert found <= worst


def test_it_is_more_than_what_holds_of_single_predictions() -> None:
    """Groups that err on different samples: no two of them are in the way of all close votes."""
    votes = np.ones((20, 10), np.int64)
    for sample in range(20):
        votes[sample, [sample % 10, (sample + 1) % 10, (sample + 2) % 10]] = 0
    labels = np.ones(20, np.int64)
    assert (formulas.certified_groups(formulas.vote_counts(votes, 2)) == 1).all()
    leads = formulas.plurality_leads(votes, labels, 2, np.eye(10))
    assert formulas.collective_count(leads, 1) == (20, True)
    assert formulas.collective_count(leads, 2) == (8, True)  # 2 adjacent groups: 6 of 10


def test_a_programme_that_is_too_large_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    votes = np.random.default_rng(0).integers(0, 3, (50, 9))
    leads = formulas.plurality_leads(votes, votes[:, 0], 3, np.eye(9))
    monkeypatch.setattr(collective, "MOST_SETS", 0)
    monkeypatch.setattr(collective, "MOST_COEFFICIENTS", 0)
    assert formulas.collective_count(leads, 3) == (None, False)
    monkeypatch.setattr(collective, "MOST_COEFFICIENTS", 10**6)
    monkeypatch.setattr(collective, "SOLVER_SECONDS", 0.0)
    assert formulas.collective_count(leads, 3) == (None, False)
