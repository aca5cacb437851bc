"""How far poison moves a sample's gradient: no instance of softmax regression exceeds the bounds, some reach them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from crfl_core.certification.formulas import (
    Array,
    feature_shift,
    gradient_shift,
    gradient_shift_rate,
    input_bound_under_poison,
    label_shift,
    local_weight_norm,
    replacement_shift,
    saturating_shift,
)
from tests.certification.reference import vectors

Labels = NDArray[np.int64]
SQRT2 = np.sqrt(2.0)
positive = st.floats(1e-3, 1e3)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("F_lip"))
def test_the_rate_has_its_reference_value(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    assert gradient_shift_rate(float(inputs["c"])) == pytest.approx(outputs["F"], rel=1e-12)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("shift_feature_saturating"))
def test_the_saturating_bound_has_its_reference_value(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    found = saturating_shift(float(inputs["delta"]), float(inputs["B"]), float(inputs["rho"]))
    assert found == pytest.approx(outputs["shift"], rel=1e-12)


def sensitivity(p: Array, u: Array, c: float) -> Array:
    """`||P - e_0 + c S(P) u||` for rows of probabilities and directions."""
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    rows = p + c * (p * u - p * (p * u).sum(axis=1, keepdims=True))
    rows[:, 0] -= 1.0
    norms: Array = np.linalg.norm(rows, axis=1)
    return norms


@pytest.mark.parametrize("c", [0.1, 0.6, 0.75, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_search_exceeds_the_rate(c: float, classes: int) -> None:
    """Random starts, then hill climbing in logits and direction: it ends just below F(c)."""
    generator = np.random.default_rng(classes)
    logits = generator.normal(size=(400, classes)) * generator.exponential(4.0, (400, 1))
    u = generator.normal(size=(400, classes))
    best = sensitivity(softmax(logits, axis=1), u, c)
    for step in np.geomspace(1.0, 1e-3, 150):
        new_logits = logits + step * 4.0 * generator.normal(size=logits.shape)
        new_u = u / np.linalg.norm(u, axis=1, keepdims=True) + step * generator.normal(size=u.shape)
        value = sensitivity(softmax(new_logits, axis=1), new_u, c)
        better = value > best
        logits[better], u[better], best[better] = new_logits[better], new_u[better], value[better]
    assert best.max() <= gradient_shift_rate(c) * (1 + 1e-12)
    assert best.max() >= 0.97 * gradient_shift_rate(c)


@settings(max_examples=100, deadline=None)
@given(c=st.floats(0.0, 1e6))
def test_two_classes_attain_the_rate(c: float) -> None:
    share = 0.5 + 0.5 / max(1.0, SQRT2 * c)
    p, u = np.array([[1.0 - share, share]]), np.array([[-1.0, 1.0]])
    assert sensitivity(p, u, c)[0] == pytest.approx(float(gradient_shift_rate(c)), rel=1e-9)


def gradients(weights: Array, bias: Array, x: Array, labels: Labels) -> Array:
    """Gradients of the cross-entropy in weights and bias, one (d + 1, C) matrix per row."""
    residual = softmax(x @ weights + bias, axis=1) - np.eye(len(bias))[labels]
    inputs = np.hstack([x, np.ones((len(x), 1))])
    each: Array = inputs[:, :, None] * residual[:, None, :]
    return each


def shifts(weights: Array, bias: Array, x: Array, moved: Array, labels: Labels, new_labels: Labels) -> Array:
    difference = gradients(weights, bias, x, labels) - gradients(weights, bias, moved, new_labels)
    norms: Array = np.linalg.norm(difference, axis=(1, 2))
    return norms


@pytest.mark.parametrize("delta", [0.01, 0.3, 2.0, 20.0])
@pytest.mark.parametrize("norm", [0.3, 3.0, 30.0])
def test_no_poisoned_sample_exceeds_the_bounds(norm: float, delta: float) -> None:
    """Hill climbing over inputs and perturbations, for random weights and biases, with and without flipped labels."""
    generator = np.random.default_rng(int(10 * norm))
    rows, features, classes = 300, 4, 3
    for _ in range(3):
        weights = generator.normal(size=(features, classes)) @ np.diag(generator.exponential(1.0, classes))
        weights *= norm / np.linalg.norm(weights, 2)
        bias = generator.normal(size=classes) * norm
        labels = generator.integers(classes, size=rows)
        others = (labels + 1) % classes
        x, direction = generator.normal(size=(2, rows, features))
        largest = 2.0

        def place(x: Array, direction: Array, largest: float = largest) -> tuple[Array, Array]:
            x = x * np.minimum(1.0, largest / np.linalg.norm(x, axis=1, keepdims=True))
            return x, x + delta * direction / np.linalg.norm(direction, axis=1, keepdims=True)

        best = np.zeros(rows)
        for step in np.geomspace(1.0, 0.01, 40):
            new_x = x + step * generator.normal(size=x.shape)
            new_direction = direction + step * generator.normal(size=x.shape)
            value = shifts(weights, bias, *place(new_x, new_direction), labels, labels)
            better = value > best
            x[better], direction[better], best[better] = new_x[better], new_direction[better], value[better]
        bounds = {"input_bound": np.hypot(largest, 1.0), "start_norm": norm, "path": 0.0}
        clean, moved = place(x, direction)
        assert best.max() <= gradient_shift("features", delta, **bounds) * (1 + 1e-12)
        flipped = shifts(weights, bias, clean, moved, labels, others)
        assert flipped.max() <= gradient_shift("features+labels", delta, **bounds) * (1 + 1e-12)
        domain = np.hypot(np.linalg.norm(moved, axis=1), 1.0).max()
        assert flipped.max() <= replacement_shift(bounds["input_bound"], domain) * (1 + 1e-12)


def test_the_rate_is_nearly_attained_by_an_input() -> None:
    """A bias puts a large input between two classes: ||x|| = 9.2, ||W|| = 3, far beyond the paper's constant 4.12."""
    largest, norm, delta = 9.2, 3.0, 1e-5
    reach = np.hypot(largest, 1.0) * norm
    share = 0.5 + 0.5 / (SQRT2 * reach)
    weights = np.array([[-norm, norm]]) / SQRT2
    bias = np.array([0.0, np.log(share / (1.0 - share)) - SQRT2 * norm * largest])
    label = np.array([0])
    found = shifts(weights, bias, np.array([[largest]]), np.array([[largest + delta]]), label, label) / delta
    assert 0.99 * gradient_shift_rate(reach) < found[0] <= gradient_shift_rate(reach)
    assert found[0] > 14.4


@settings(max_examples=100, deadline=None)
@given(norm=positive, scale=st.floats(0.0, 100.0))
def test_a_flipped_label_moves_the_gradient_by_exactly_the_bound(norm: float, scale: float) -> None:
    x = np.array([[norm, 0.0]])
    weights, bias = scale * np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]), np.zeros(3)
    found = shifts(weights, bias, x, x, np.array([0]), np.array([2]))
    assert found[0] == pytest.approx(float(label_shift(np.hypot(norm, 1.0))), rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    delta=st.floats(1e-12, 1e6),
    bound=positive,
    norm=st.floats(0.0, 1e6),
    path=st.floats(0.0, 10.0),
    domain=st.none() | positive,
    factor=st.floats(1.0, 100.0),
)
def test_the_shift_grows_with_everything_that_helps_the_attacker(
    delta: float, bound: float, norm: float, path: float, domain: float | None, factor: float
) -> None:
    common: dict[str, Any] = {"domain_bound": np.inf if domain is None else bound + domain}
    base = {"delta": delta, "input_bound": bound, "start_norm": norm, "path": path}
    shift = float(feature_shift(**base, **common))
    assert 0 < shift <= SQRT2 * (2 * bound + delta) * (1 + 1e-12)
    for name in base:
        assert feature_shift(**(base | {name: base[name] * factor}), **common) >= shift * (1 - 1e-12)


def test_the_shift_is_the_smallest_of_its_four_bounds() -> None:
    unknown_weights = feature_shift(0.5, input_bound=1.0, start_norm=np.inf, path=0.0)
    assert unknown_weights == pytest.approx(SQRT2 * 1.5)
    in_domain = feature_shift(50.0, input_bound=1.0, start_norm=np.inf, path=0.0, domain_bound=2.0)
    assert in_domain == pytest.approx(SQRT2 * 3.0)
    small = feature_shift(1e-6, input_bound=1.0, start_norm=3.0, path=0.0, domain_bound=1.0)
    assert small == pytest.approx(1e-6 * float(gradient_shift_rate(3.0)))
    medium = feature_shift(2.0, input_bound=10.0, start_norm=1.0, path=0.0)
    assert medium == saturating_shift(2.0, 10.0, 1.0)


def test_the_ends_are_exact() -> None:
    bounds: dict[str, Any] = {"input_bound": 1.0, "start_norm": np.inf, "path": 0.1}
    assert feature_shift(0.0, **bounds) == 0.0
    assert feature_shift(np.inf, **bounds) == np.inf
    assert feature_shift(np.inf, **bounds, domain_bound=3.0) == pytest.approx(SQRT2 * 4.0)
    assert gradient_shift("features+labels", 0.0, **bounds) == label_shift(1.0)
    assert gradient_shift("features+labels", np.inf, **bounds, domain_bound=3.0) == replacement_shift(1.0, 3.0)
    assert gradient_shift("replacement", [0.0, 9.0], **bounds).tolist() == [np.inf, np.inf]
    assert gradient_shift("labels", [0.0, 9.0], **bounds).tolist() == [SQRT2, SQRT2]
    assert feature_shift(0.0, input_bound=0.0, start_norm=np.inf, path=0.0) == 0.0


def test_attackers_and_perturbations_broadcast() -> None:
    deltas = np.array([0.0, 0.1, 1.0, np.inf])
    bounds, norms = np.array([[0.5], [1.0], [2.0]]), np.array([[1.0], [10.0], [np.inf]])
    together = gradient_shift("features+labels", deltas, input_bound=bounds, start_norm=norms, path=0.1)
    assert together.shape == (3, 4)
    alone = gradient_shift("features+labels", deltas[1], input_bound=1.0, start_norm=10.0, path=0.1)
    assert together[1, 1] == alone


def test_local_training_stays_within_the_weight_norm() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 6))
    x *= 2.0 / np.linalg.norm(x, axis=1, keepdims=True)
    weights, bias = generator.normal(size=(6, 4)), np.zeros(4)
    start, labels = np.linalg.norm(weights, 2), generator.integers(4, size=50)
    for _ in range(20):
        step = gradients(weights, bias, x, labels).mean(axis=0)
        weights, bias = weights - 0.3 * step[:-1], bias - 0.3 * step[-1]
        assert np.linalg.norm(weights, 2) <= local_weight_norm(start, np.hypot(2.0, 1.0), 20 * 0.3)


def test_poisoned_inputs_stay_in_the_domain() -> None:
    assert input_bound_under_poison([0.1, 10.0], 1.0, 2.0).tolist() == [1.1, 2.0]
    assert input_bound_under_poison(10.0, 1.0) == 11.0
