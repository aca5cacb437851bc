"""Ensembles over random subsets of clients, against all sets of attackers in small federations."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from crfl_core.certification.formulas import ensemble_count

CLASSES = 3


def strictly_ahead(votes: NDArray[np.int64], reached: NDArray[np.bool_]) -> bool:
    """Whether the winner keeps more votes than any other class, whatever the reached subsets vote."""
    first = np.bincount(votes, minlength=CLASSES).argmax()
    kept = np.bincount(votes[~reached], minlength=CLASSES)
    return all(kept[first] > kept[other] + reached.sum() for other in range(CLASSES) if other != first)


def truth(votes: NDArray[np.int64], clients: int, subset: int) -> int:
    """How many attackers the ensemble stands, by trying all of their sets; -1 for a tie."""
    subsets = [set(chosen) for chosen in combinations(range(clients), subset)]
    for number in range(clients + 1):
        for attackers in combinations(range(clients), number):
            reached = np.array([not chosen.isdisjoint(attackers) for chosen in subsets])
            if not strictly_ahead(votes, reached):
                return number - 1
    return clients


def certified(votes: NDArray[np.int64], clients: int, subset: int) -> float:
    """The number for shares that are known, because all subsets were trained."""
    counts = np.sort(np.bincount(votes, minlength=CLASSES))
    return float(ensemble_count(counts[-1] / len(votes), counts[-2] / len(votes), clients, subset))


@pytest.mark.parametrize(("clients", "subset"), [(4, 1), (5, 1), (5, 2), (6, 2), (7, 3), (8, 1)])
def test_no_set_of_certified_clients_changes_the_vote_of_all_subsets(clients: int, subset: int) -> None:
    generator, numbers = np.random.default_rng(clients), []
    for _ in range(150):
        share = generator.uniform(0.4, 1.0)
        votes = generator.integers(CLASSES, size=math.comb(clients, subset))
        votes[generator.uniform(size=len(votes)) < share] = 1
        exact, found = truth(votes, clients, subset), certified(votes, clients, subset)
        assert (exact == -1 and np.isnan(found)) or 0 <= found <= exact
        numbers.append((found, exact))
    found, exact = np.array(numbers).T
    # A client alone in its subset is a group: then nothing is lost by knowing two shares only.
    assert np.nanmean(found == exact) > (0.7 if subset == 1 else 0.3)
    assert np.nanmax(found) >= 1


@pytest.mark.parametrize(("clients", "subset"), [(20, 4), (100, 10), (1000, 30), (400, 200)])
def test_the_number_is_the_largest_that_exact_arithmetic_finds(clients: int, subset: int) -> None:
    generator, subsets = np.random.default_rng(subset), math.comb(clients, subset)
    for _ in range(100):
        p_a = float(generator.uniform(0.4, 1.0))
        p_b = float(generator.uniform(0.0, min(p_a, 1.0 - p_a)))
        lead = Fraction(p_a) - Fraction(p_b)
        spared = [Fraction(math.comb(clients - m, subset), subsets) for m in range(clients + 1)]
        exact = max(m for m in range(clients + 1) if lead > 2 - 2 * spared[m])
        assert ensemble_count(p_a, p_b, clients, subset) == exact


def test_shares_are_not_rounded_to_whole_subsets_because_a_subset_may_vote_for_one_class_or_another() -> None:
    """Five subsets of one client, each trained with random numbers of its own: A gets .71 of the votes.

    One client turns its share of .2: .71 - .29 = .42 is enough for one client, and with .69 - .31 = .38 it is not. In
    whole subsets both would be rounded to .8 and .2.
    """
    assert ensemble_count(0.71, 0.29, clients=5, subset=1) == 1
    assert ensemble_count(0.69, 0.31, clients=5, subset=1) == 0


def test_a_lead_of_exactly_what_attackers_reach_is_not_enough() -> None:
    """Of 20 subsets of one client, 2 attackers can turn 2 votes: a lead of 4 is gone, one of 5 is not."""
    assert ensemble_count(12 / 20, 8 / 20, clients=20, subset=1) == 1
    assert ensemble_count(12 / 20, 7 / 20, clients=20, subset=1) == 2
    assert ensemble_count(0.95, 0.05, clients=20, subset=1) == 8


def test_nothing_is_certified_without_a_lead() -> None:
    found = ensemble_count([0.5, 0.4, 0.5], [0.5, 0.6, 0.4999], clients=1000, subset=100)
    assert np.isnan(found).tolist() == [True, True, False]
    assert found[2] == 0


@pytest.mark.parametrize("subset", [0, 21])
def test_a_subset_has_at_least_one_client_and_at_most_all(subset: int) -> None:
    with pytest.raises(ValueError, match="1 to 20 clients"):
        ensemble_count(0.9, 0.1, clients=20, subset=subset)
