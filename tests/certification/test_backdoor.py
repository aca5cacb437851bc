"""Triggers on top of malicious clients: against every attack on small votes, and against group votes at no trigger."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas

Votes = NDArray[np.int64]


def winner(votes: Votes, classes: int) -> int:
    return int(np.bincount(votes, minlength=classes).argmax())


def can_be_changed(votes: Votes, distances: NDArray[np.float64], classes: int, clients: int, norm: float) -> bool:
    """Try every attack: the trigger changes all groups that it reaches, clients change any others."""
    reached = [group for group in range(len(votes)) if distances[group] <= norm]
    others = [group for group in range(len(votes)) if distances[group] > norm]
    before = winner(votes, classes)
    for malicious in combinations(others, min(clients, len(others))):
        changed = [*reached, *malicious]
        for answers in product(range(classes), repeat=len(changed)):
            after = votes.copy()
            after[changed] = answers
            if winner(after, classes) != before:
                return True
    return False


@st.composite
def elections(draw: st.DrawFn) -> tuple[Votes, NDArray[np.float64], int, int]:
    groups = draw(st.integers(1, 5))
    classes = draw(st.integers(2, 3))
    votes = draw(st.lists(st.integers(0, classes - 1), min_size=groups, max_size=groups))
    distances = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, np.inf]), min_size=groups, max_size=groups))
    return np.array(votes), np.array(distances), classes, draw(st.integers(0, 3))


@given(elections())
def test_no_attack_changes_the_winner_up_to_the_radius_and_one_does_beyond(
    election: tuple[Votes, NDArray[np.float64], int, int],
) -> None:
    votes, distances, classes, clients = election
    radius = float(formulas.trigger_radius(votes[None], distances[None], classes, clients)[0])
    if np.isnan(radius):
        assert can_be_changed(votes, distances, classes, clients, 0.0)
        return
    assert not can_be_changed(votes, distances, classes, clients, min(radius, 1e9))
    if np.isfinite(radius):
        assert can_be_changed(votes, distances, classes, clients, float(np.nextafter(radius, np.inf)))


def test_without_a_trigger_it_is_the_radius_of_the_group_vote() -> None:
    generator = np.random.default_rng(1)
    votes = generator.choice(4, (5000, 9), p=[0.6, 0.2, 0.1, 0.1])
    distances = generator.exponential(1.0, votes.shape) + 1e-9
    tolerated = formulas.certified_groups(formulas.vote_counts(votes, 4))
    for clients in range(6):
        radius = formulas.trigger_radius(votes, distances, 4, clients)
        np.testing.assert_array_equal(~np.isnan(radius), tolerated >= clients)


def test_more_clients_and_nearer_boundaries_never_allow_a_larger_trigger() -> None:
    generator = np.random.default_rng(2)
    votes = generator.choice(3, (500, 7), p=[0.7, 0.2, 0.1])
    distances = generator.exponential(1.0, votes.shape)
    before = np.full(len(votes), np.inf)
    for clients in range(4):
        radius = np.nan_to_num(formulas.trigger_radius(votes, distances, 3, clients), nan=-1.0)
        nearer = np.nan_to_num(formulas.trigger_radius(votes, distances / 2, 3, clients), nan=-1.0)
        assert (radius <= before).all()
        assert (nearer <= radius).all()
        before = radius


@pytest.mark.parametrize(
    ("votes", "distances", "classes", "clients"),
    [
        ([[0, 2]], [[1.0, 1.0]], 2, 1),
        ([[0, 1]], [[1.0, np.nan]], 2, 1),
        ([[0, 1]], [[1.0]], 2, 1),
        ([[0, 1]], [[1.0, -1.0]], 2, 1),
        ([[0, 1]], [[1.0, 1.0]], 2, -1),
    ],
    ids=["class", "nan", "shape", "negative", "clients"],
)
def test_input_outside_the_domain_is_refused(
    votes: list[list[int]], distances: list[list[float]], classes: int, clients: int
) -> None:
    with pytest.raises(ValueError, match=r"must be|no NaN"):
        formulas.trigger_radius(votes, distances, classes, clients)
