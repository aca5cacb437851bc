"""The median of local models, against all sets of clients that send something else."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from crfl_core.certification.formulas import Array, median_box, median_count


def replaced(generator: np.random.Generator, models: Array, chosen: list[int]) -> Array:
    """Other models for some clients: far away on one side of each weight, or within the others."""
    other = models.copy()
    other[chosen] = generator.choice([-1e6, -0.5, 0.5, 1e6], size=models[0].shape)
    return other


@pytest.mark.parametrize("clients", [1, 2, 5, 6, 9])
def test_the_median_stays_in_its_box_and_reaches_both_ends(clients: int) -> None:
    generator = np.random.default_rng(clients)
    models = generator.normal(size=(clients, 4))
    for attackers in range((clients + 1) // 2):
        lower, upper = median_box(models, attackers)
        ends = []
        for chosen in combinations(range(clients), attackers):
            for far in (-1e9, 1e9):
                other = models.copy()
                other[list(chosen)] = far
                median = np.median(other, axis=0)
                assert (lower <= median).all()
                assert (median <= upper).all()
                ends.append(median)
        assert np.min(ends, axis=0) == pytest.approx(lower)
        assert np.max(ends, axis=0) == pytest.approx(upper)


def test_half_of_the_clients_can_put_the_median_anywhere() -> None:
    for clients in (4, 5):
        lower, upper = median_box(np.zeros((clients, 2)), (clients + 1) // 2)
        assert lower.tolist() == [-np.inf, -np.inf]
        assert upper.tolist() == [np.inf, np.inf]


@pytest.mark.parametrize("clients", [5, 6])
def test_certified_predictions_stand_every_set_of_clients(clients: int) -> None:
    generator, flips, counts = np.random.default_rng(clients), 0, []
    for _ in range(20):
        models = generator.normal(size=(3, 4)) + 0.5 * generator.normal(size=(clients, 3, 4))
        x = generator.normal(size=(10, 4))
        first, certified = median_count(models, x)
        assert (first == (x @ np.median(models, axis=0).T).argmax(axis=1)).all()
        for attackers in range(1, (clients + 1) // 2):
            for chosen in combinations(range(clients), attackers):
                other = np.median(replaced(generator, models, list(chosen)), axis=0)
                changed = (x @ other.T).argmax(axis=1) != first
                assert not (changed & (certified >= attackers)).any()
                flips += changed.sum()
        counts += certified.tolist()
    assert flips > 0
    assert {0.0, 1.0} <= set(counts)


def test_the_number_is_exact_for_a_single_weight() -> None:
    """One input of one feature and two classes of which only the first has weights: the sign of a median decides."""
    weights = np.array([-1.0, 1.0, 2.0, 3.0, 4.0])
    models = np.stack([weights, np.zeros(5)], axis=1)[:, :, None]
    first, certified = median_count(models, [[1.0]])
    assert (first.tolist(), certified.tolist()) == ([0], [1.0])


def test_a_tie_is_not_certified_and_models_must_be_finite() -> None:
    assert np.isnan(median_count(np.zeros((5, 2, 3)), np.ones((1, 3)))[1]).all()
    with pytest.raises(ValueError, match="fixed public one"):
        median_count(np.full((5, 2, 3), np.nan), np.ones((1, 3)))
