"""What later rounds make of a drift, against simulated rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from crfl_core.certification.formulas import (
    Array,
    later_products,
    retention,
    round_contraction,
    round_expansion,
)

SHAPE = (4, 3)
RATE, STEPS, CLIENTS = 0.9, 5, 4


def local_update(weights: Array, client: int, decay: float) -> Array:
    """Some steps on a client's fixed batches of unit inputs."""
    generator = np.random.default_rng(client)
    moved = weights
    for _ in range(STEPS):
        x = generator.normal(size=(6, SHAPE[0]))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        residual = softmax(x @ moved, axis=1) - np.eye(SHAPE[1])[generator.integers(SHAPE[1], size=6)]
        moved = (1.0 - RATE * decay) * moved - RATE * x.T @ residual / 6
    return moved - weights


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(10))
def test_a_clean_round_does_not_widen_a_gap(seed: int, decay: float) -> None:
    generator = np.random.default_rng(seed)
    weights = generator.dirichlet(np.ones(CLIENTS))
    one, other = generator.normal(size=(2, *SHAPE)) * generator.choice([0.1, 3.0])

    def round_(model: Array) -> Array:
        return model + np.tensordot(weights, [local_update(model, i, decay) for i in range(CLIENTS)], axes=1)

    contraction = round_contraction(weights, retention(RATE, STEPS, np.full(CLIENTS, decay)))
    assert np.linalg.norm(round_(one) - round_(other)) <= contraction * np.linalg.norm(one - other) * (1 + 1e-12)
    assert contraction == pytest.approx((1.0 - RATE * decay) ** STEPS)


def test_weights_that_sum_to_more_than_one_expand() -> None:
    """A client that maps w to -w/2 has Lipschitz constant 1/2; with weight 1.5 the round maps w to -1.25 w."""
    assert round_contraction([1.5], [0.5]) == pytest.approx(abs(1.0 + 1.5 * (-0.5 - 1.0)))
    assert round_contraction([0.3, 0.2], [0.5, 1.0]) == pytest.approx(1.0 - 0.3 * 0.5)


@settings(max_examples=100, deadline=None)
@given(
    curvatures=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    scale=st.floats(1.0, 20.0),
    steps=st.integers(1, 20),
    rate=st.floats(0.01, 2.0),
)
def test_scaled_rounds_expand_no_more_than_stated(
    curvatures: list[float], scale: float, steps: int, rate: float
) -> None:
    """Quadratic losses of smoothness 1 on a line: the round multiplies a gap by a known factor."""
    weights, scales = np.array([0.3, 0.7]), np.array([scale, 1.0])
    local = (1.0 - rate * np.array(curvatures)) ** steps
    factor = abs(1.0 + float((weights * scales * (local - 1.0)).sum()))
    assert factor <= round_expansion(weights, scales, rate, 1.0, steps) * (1 + 1e-12)


def test_unscaled_rounds_do_not_expand() -> None:
    assert round_expansion([0.5, 0.5], 1.0, 2.0, 1.0, 1000) == 1.0


def test_too_large_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be at most 2, found 2\.2"):
        round_expansion([1.0], 1.0, 1.1, 2.0, 1)


rounds = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        *(
            st.lists(values, min_size=count, max_size=count)
            for values in (st.floats(0.0, 5.0), st.floats(0.0, 1.5), st.floats(0.0, 3.0))
        )
    )
)


def test_long_runs_and_rounds_that_forget_everything_are_safe() -> None:
    lipschitz = np.full(100_000, 0.9)
    assert 0.01 * later_products(lipschitz).sum() == pytest.approx(0.1)
    lipschitz[-1] = 0.0
    assert later_products(lipschitz)[-2:].tolist() == [0.0, 1.0]
    assert len(later_products([])) == 0
