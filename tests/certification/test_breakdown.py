"""Bounds for aggregators that look at the updates, against the aggregators and attacks of all kinds."""

from __future__ import annotations

import numpy as np
import pytest

from crfl_core.certification.formulas import Array, krum_drift

DIMENSION = 3


def honest_updates(generator: np.random.Generator, count: int) -> Array:
    """In the unit ball, spread or in a cluster."""
    updates = generator.normal(size=(count, DIMENSION)) * generator.choice([0.05, 1.0])
    updates += generator.choice([0.0, 1.0]) * generator.normal(size=DIMENSION)
    inside: Array = updates / np.maximum(1.0, np.linalg.norm(updates, axis=1, keepdims=True))
    return inside


def attacks(generator: np.random.Generator, count: int) -> Array:
    """Anything: far away together, far away apart, or just outside the honest ones."""
    direction = generator.normal(size=(1 if generator.uniform() < 0.7 else count, DIMENSION))
    direction = direction / np.linalg.norm(direction, axis=1, keepdims=True)
    return np.broadcast_to(direction * 10.0 ** generator.uniform(-1.0, 3.0), (count, DIMENSION))


def krum(updates: Array, attackers: int) -> Array:
    squares = np.square(updates[:, None] - updates).sum(axis=2)
    nearest = np.sort(squares, axis=1)[:, 1 : len(updates) - attackers - 1]
    chosen: Array = updates[nearest.sum(axis=1).argmin()]
    return chosen


@pytest.mark.parametrize(("clients", "attackers"), [(5, 1), (9, 3), (20, 3), (20, 8)])
def test_krum_moves_by_at_most_its_bound(clients: int, attackers: int) -> None:
    generator, largest = np.random.default_rng(clients), 0.0
    for _ in range(400):
        clean = honest_updates(generator, clients)
        dirty = np.concatenate([attacks(generator, attackers), clean[attackers:]])
        gap = np.linalg.norm(krum(clean, attackers) - krum(dirty, attackers))
        largest = max(largest, float(gap))
    assert 0.5 < largest <= krum_drift(1.0, clients, attackers)


def test_too_many_attackers_have_no_bound() -> None:
    assert np.isfinite(krum_drift(1.0, 9, 3))
    assert krum_drift([1.0, 2.0], 8, 3).tolist() == [np.inf, np.inf]
