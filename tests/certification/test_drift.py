"""The drift of one round: bounds against real local training, tables against brute force."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from crfl_core.certification.formulas import (
    Array,
    attack_strength,
    byzantine_terms,
    effective_steps,
    gradient_shift,
    retention,
    scale_terms,
    update_bound,
    worst_poisoned_share,
    worst_totals,
)

CLASSES, FEATURES = 3, 4


def gradient(weights: Array, x: Array, labels: NDArray[np.int64]) -> Array:
    residual = softmax(x @ weights, axis=1) - np.eye(CLASSES)[labels]
    mean: Array = x.T @ residual / len(x)
    return mean


def train(weights: Array, batches: list[tuple[Array, NDArray[np.int64]]], rate: float, decay: float) -> Array:
    for x, labels in batches:
        weights = (1.0 - rate * decay) * weights - rate * gradient(weights, x, labels)
    return weights


def clean_batches(generator: np.random.Generator, sizes: list[int]) -> list[tuple[Array, NDArray[np.int64]]]:
    """Inputs on the unit sphere."""
    batches = []
    for size in sizes:
        x = generator.normal(size=(size, FEATURES))
        batches.append((x / np.linalg.norm(x, axis=1, keepdims=True), generator.integers(CLASSES, size=size)))
    return batches


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(20))
def test_poisoned_local_training_stays_within_the_drift(seed: int, decay: float) -> None:
    """Features, labels and both, at the largest learning rate that the theory allows."""
    generator = np.random.default_rng(seed)
    smoothness = 0.5 + decay
    rate = 2.0 / (smoothness + decay)
    sizes, poisoned, delta = [4, 4, 2, 4, 4, 2], 3, generator.choice([0.1, 1.0, 5.0])
    batches = clean_batches(generator, sizes)
    start = generator.normal(size=(FEATURES, CLASSES)) * generator.choice([0.1, 1.0, 10.0])
    changed = [(x.copy(), labels.copy()) for x, labels in batches]
    for epoch in (0, 3):
        places = [(step, row) for step in range(epoch, epoch + 3) for row in range(sizes[step])]
        for step, row in generator.permutation(places)[:poisoned]:
            direction = generator.normal(size=FEATURES)
            changed[step][0][row] += delta * direction / np.linalg.norm(direction)
            changed[step][1][row] = (changed[step][1][row] + 1) % CLASSES
    gap = np.linalg.norm(train(start, batches, rate, decay) - train(start, changed, rate, decay))
    share = worst_poisoned_share(poisoned, sizes, steps_per_epoch=3, step_retention=1.0 - rate * decay)
    shift = gradient_shift(
        "features+labels", delta, input_bound=1.0, start_norm=np.linalg.norm(start, 2), path=rate * len(sizes)
    )
    assert gap <= attack_strength(1.0, 1.0, rate, share) * shift


def test_a_linear_loss_reaches_the_drift() -> None:
    """For `l(w; z) = z w` the worlds part by eta k_s / n_s times the change of z in every step: the constant is 1."""
    rate, sizes, poisoned = 0.1, np.array([4, 4, 4]), np.array([2, 0, 4])
    moved = sum(rate * k / n * 1.0 for k, n in zip(poisoned, sizes, strict=True))
    assert moved == pytest.approx(float(attack_strength(1.0, 1.0, rate, worst_poisoned_share(6, sizes, 3))))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    poisoned=st.integers(0, 8),
    keep=st.sampled_from([1.0, 0.7]),
)
def test_the_worst_share_is_that_of_the_worst_allocation(sizes: list[int], poisoned: int, keep: float) -> None:
    weights = keep ** np.arange(len(sizes) - 1, -1, -1.0)
    allocations = product(*(range(size + 1) for size in sizes))
    shares = [
        sum(w * k / n for w, k, n in zip(weights, allocation, sizes, strict=True))
        for allocation in allocations
        if sum(allocation) <= poisoned
    ]
    assert worst_poisoned_share(poisoned, sizes, len(sizes), keep) == pytest.approx(max(shares))


def test_every_epoch_shows_the_poison_again() -> None:
    assert worst_poisoned_share(3, [4, 4, 2] * 2, steps_per_epoch=3) == pytest.approx(2 * 1.25)
    assert worst_poisoned_share(3, [4, 4, 2, 4], steps_per_epoch=3) == pytest.approx(1.25 + 0.75)


def test_equal_batches_of_whole_epochs_give_the_simple_ratio() -> None:
    counts = np.arange(601)
    found = worst_poisoned_share(counts, [60] * 30, steps_per_epoch=10)
    np.testing.assert_allclose(found, 30 * counts / 600, rtol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 1e-12, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_no_clean_update_exceeds_its_bound(seed: int, decay: float) -> None:
    generator = np.random.default_rng(seed)
    rate, steps = 0.8, 25
    start = generator.normal(size=(FEATURES, CLASSES)) * 10.0 ** generator.integers(-1, 3)
    update = train(start, clean_batches(generator, [5] * steps), rate, decay) - start
    residual = update + (1.0 - retention(rate, steps, decay)) * start
    assert np.linalg.norm(residual) <= update_bound(rate, steps, 1.0, decay)
    norm = float(np.linalg.norm(start))
    assert np.linalg.norm(update) <= update_bound(rate, steps, 1.0, decay, start_norm=norm) * (1 + 1e-12)


def test_a_steady_gradient_reaches_the_bound_of_an_update() -> None:
    """Weights that stay hopelessly wrong on one input: the gradient keeps its largest norm, sqrt 2 ||x||."""
    start = np.zeros((FEATURES, CLASSES))
    start[0] = [0.0, 1e4, 0.0]
    x = np.zeros((1, FEATURES))
    x[0, 0] = 1.0
    update = train(start, [(x, np.array([0]))] * 10, 0.1, 0.0) - start
    assert np.linalg.norm(update) == pytest.approx(float(update_bound(0.1, 10, 1.0)), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(rate=st.floats(1e-6, 1.0), steps=st.integers(0, 10**6), decay=st.floats(0.0, 1.0))
def test_retention_and_effective_steps_agree(rate: float, steps: int, decay: float) -> None:
    kept, effective = retention(rate, steps, decay), effective_steps(rate, steps, decay)
    assert 0.0 <= kept <= 1.0
    assert 0.0 <= effective <= steps * (1 + 1e-15)
    assert kept + rate * decay * effective == pytest.approx(1.0)


def test_weight_decay_that_vanishes_changes_nothing() -> None:
    assert effective_steps(0.1, 30, 1e-300) == pytest.approx(30.0, rel=1e-12)
    assert update_bound(0.1, 30, 1.0, 1e-14) == pytest.approx(float(update_bound(0.1, 30, 1.0)), rel=1e-12)


def test_weight_decay_may_forget_everything_in_one_step() -> None:
    assert retention(1.0, [0, 1, 5], 1.0).tolist() == [1.0, 0.0, 0.0]
    assert effective_steps(1.0, [0, 1, 5], 1.0).tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("decay", [-0.1, 3.0, np.nan])
def test_weight_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        retention(0.5, 10, decay)


def aggregate_gap(generator: np.random.Generator, scale: float, honest: bool) -> tuple[float, dict[str, Any]]:
    """Three of six clients attack with poisoned data and scaled updates; returns how far the aggregate moved."""
    rate, steps, delta = 0.5, 4, 0.7
    weights = generator.dirichlet(np.ones(6))
    start = generator.normal(size=(FEATURES, CLASSES))
    clean, dirty = [], []
    for client in range(6):
        batches = clean_batches(generator, [4] * steps)
        update = train(start, batches, rate, 0.0) - start
        poisoned = [(x + delta / 2.0, labels) for x, labels in batches] if client < 3 else batches
        attack = train(start, poisoned, rate, 0.0) - start
        clean.append(update if honest or client >= 3 else scale * update)
        dirty.append(attack if client >= 3 else scale * attack)
    gap = np.linalg.norm(np.tensordot(weights, np.array(clean) - np.array(dirty), axes=1))
    facts = {
        "strength": attack_strength(weights[:3], scale, rate, effective_steps(rate, steps, 0.0)),
        "shift": gradient_shift(
            "features", delta, input_bound=1.0, start_norm=np.linalg.norm(start, 2), path=rate * steps
        ),
        "weights": weights[:3],
        "bound": update_bound(rate, steps, 1.0),
        "submitted": [np.linalg.norm(update) for update in dirty[:3]],
    }
    return float(gap), facts


@pytest.mark.parametrize("seed", range(10))
def test_the_aggregate_moves_by_at_most_the_sum_of_the_terms(seed: int) -> None:
    generator = np.random.default_rng(seed)
    gap, facts = aggregate_gap(generator, scale=5.0, honest=False)
    data = facts["strength"] * facts["shift"]
    assert gap <= data.sum()
    gap, facts = aggregate_gap(generator, scale=5.0, honest=True)
    data = facts["strength"] * facts["shift"]
    assert gap <= (data + scale_terms(facts["weights"], 5.0, facts["bound"])).sum()
    assert gap <= byzantine_terms(facts["weights"], facts["submitted"], facts["bound"]).sum()


def test_scaling_alone_costs_nothing_only_against_the_scaled_clean_world() -> None:
    assert scale_terms(0.05, 1.0, 3.0) == 0.0
    assert scale_terms(0.05, 10.0, 3.0) == pytest.approx(1.35)


def test_clients_without_weight_or_scale_cost_nothing_even_if_nothing_bounds_them() -> None:
    assert scale_terms([0.0, 0.5, 0.5], [10.0, 1.0, 2.0], np.inf).tolist() == [0.0, 0.0, np.inf]
    assert byzantine_terms([0.0, 0.5], np.inf, 1.0).tolist() == [0.0, np.inf]


@settings(max_examples=100, deadline=None)
@given(terms=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8), attackers=st.integers(0, 9))
def test_unknown_attackers_are_the_worst_ones(terms: list[float], attackers: int) -> None:
    expected = sum(sorted(terms, reverse=True)[:attackers])
    assert worst_totals(terms)[min(attackers, len(terms))] == pytest.approx(expected)
    assert worst_totals(terms, clip_norm=0.5).max() <= 1.0


def test_terms_may_have_leading_axes() -> None:
    terms = np.array([[1.0, 2.0, 4.0], [8.0, 0.0, 1.0]])
    assert worst_totals(terms).tolist() == [[0.0, 4.0, 6.0, 7.0], [0.0, 8.0, 9.0, 9.0]]
    assert worst_totals(terms, clip_norm=[1.0, 4.25]).max(axis=1).tolist() == [2.0, 8.5]


@settings(max_examples=50, deadline=None)
@given(factor=st.floats(1.0, 10.0))
def test_an_attacker_gains_from_weight_scale_rate_and_share(factor: float) -> None:
    base = {"weight": 0.05, "scale": 10.0, "learning_rate": 0.001, "share": 1.5}
    for name in base:
        assert attack_strength(**(base | {name: base[name] * factor})) >= attack_strength(**base)
