"""The ball rule: reference values, the condition in 30 digits, and gradients and models that stay where it says."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from crfl_core.certification.formulas import (
    Array,
    ball_gradient_bound,
    ball_room,
    ball_smoothness,
    batch_factor,
    batch_spectrum,
    largest_rate,
    spectrum_gradient_bound,
    start_gradient,
)
from tests.certification.federation import Federation, adversarial_gap, gradient
from tests.certification.reference import every_round


def longest(kappa: float, start: float, limit: float, decay: float, bound: float, classes: int) -> Any:
    """`F + (L / B) I(B kappa / lambda)` in 30 digits, the integral by quadrature; mpmath has no types."""
    growth = mpmath.sqrt(mpmath.mpf(classes) / (classes - 1))

    def slope(a: Any) -> Any:
        return min(mpmath.mpf("0.5"), 1 / (1 + (classes - 1) * mpmath.exp(-growth * a)))

    end, kink = mpmath.mpf(bound) * kappa / decay, mpmath.log(classes - 1) / growth
    parts = [0, kink, end] if 0 < kink < end else [0, end]
    return start + mpmath.mpf(limit) / bound * mpmath.quad(slope, parts)


@pytest.mark.parametrize("case", every_round("ball_rule"))
def test_kappa_has_its_reference_values(case: dict[str, Any]) -> None:
    start, limit, decay, bound = (float(case[name]) for name in ("F", "L", "lambda", "B"))
    kappa = ball_gradient_bound(start, limit, decay, bound, case["classes"])
    assert kappa == pytest.approx(float(case["kappa"]), rel=1e-12)
    assert spectrum_gradient_bound(limit) == pytest.approx(float(case["sqrt_2L"]), rel=1e-12)
    assert (kappa < spectrum_gradient_bound(limit)) == case["below_sqrt_2L"]


def test_kappa_is_the_smallest_that_fulfils_the_condition_in_30_digits() -> None:
    generator, found = np.random.default_rng(0), 0
    with mpmath.workdps(30):
        for _ in range(40):
            classes, limit = int(generator.integers(2, 20)), float(10.0 ** generator.uniform(-2.0, 0.0))
            start = float(generator.uniform(0.05, 1.0) * math.sqrt(limit * (1.0 - 1.0 / classes)))
            decay, bound = float(limit * 10.0 ** generator.uniform(-1.0, 1.0)), float(generator.uniform(0.5, 3.0))
            kappa = float(ball_gradient_bound(start, limit, decay, bound, classes))
            smaller = np.linspace(0.0, 1.0 - 1e-9, 7)[1:] * kappa
            rest = (start, limit, decay, bound, classes)
            assert all(longest(float(one), *rest) > one for one in smaller)
            if kappa < math.sqrt(2.0 * limit):
                assert longest(kappa, *rest) <= kappa
                assert 0.0 <= ball_room(kappa, *rest) <= kappa - float(longest(kappa, *rest)) + 1e-15
                wider = float(ball_room(1.1 * kappa, *rest))
                assert wider <= 1.1 * kappa - longest(1.1 * kappa, *rest) <= wider + 1e-12
                found += 1
    assert 15 < found < 40


def test_settings_stand_along_axes_and_decay_that_is_too_weak_gains_nothing() -> None:
    kappas = ball_gradient_bound([[0.14], [0.16]], 0.0526, [0.0, 0.001, 0.1, 10.0], 1.0, classes=10)
    assert kappas.shape == (2, 4)
    assert (kappas[:, :2] == spectrum_gradient_bound(0.0526)).all()
    assert (np.diff(kappas[:, 1:], axis=1) < 0).all()
    assert kappas[:, 3] == pytest.approx([0.14, 0.16], rel=1e-2)


def scaled_batch(
    generator: np.random.Generator, limit: float, start: float, classes: int
) -> tuple[float, Array, Array]:
    x = generator.normal(size=(int(generator.integers(1, 6)), 2)) * [1.0, generator.uniform(0.01, 1.0)]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = generator.integers(classes, size=len(x))
    factor = batch_factor(limit, batch_spectrum(x), start, start_gradient(x, labels, classes))
    return float(factor), x, np.eye(classes)[labels]


def steepest(factor: float, x: Array, labels: Array, radius: float, generator: np.random.Generator) -> float:
    """The longest gradient found in a ball, climbing from random models by small steps to the sphere and along it."""
    model = generator.normal(size=(x.shape[1], labels.shape[1]))
    best = 0.0
    for _ in range(60):
        model *= radius / max(radius, float(np.linalg.norm(model)))
        found = factor * gradient(x, labels, model)
        best = max(best, float(np.linalg.norm(found)))
        ahead = factor * gradient(x, labels, model + 1e-6 * found) - found
        model = model + radius * ahead / max(float(np.linalg.norm(ahead)), 1e-300) * generator.uniform(0.0, 1.0)
    return best


@pytest.mark.parametrize(("classes", "decay"), [(2, 0.4), (3, 0.2), (10, 0.2), (10, 0.5)])
def test_no_gradient_in_the_ball_is_longer_than_kappa(classes: int, decay: float) -> None:
    generator, limit, start, largest = np.random.default_rng(classes), 0.2, 0.2, 0.0
    kappa = float(ball_gradient_bound(start, limit, decay, 1.0, classes))
    assert kappa < spectrum_gradient_bound(limit)
    for _ in range(150):
        batch = scaled_batch(generator, limit, start, classes)
        largest = max(largest, steepest(*batch, kappa / decay, generator))
    assert 0.75 * kappa < largest <= kappa * (1.0 + 1e-12)


def test_kappa_is_nearly_reached_under_strong_decay() -> None:
    """One input of two classes whose model is pushed against its label, along the largest curvature."""
    limit, decay, classes = 1.0, 20.0, 2
    start = math.sqrt(limit * (1.0 - 1.0 / classes))
    kappa = float(ball_gradient_bound(start, limit, decay, 1.0, classes))
    model = np.array([[-1.0, 1.0]]) / math.sqrt(2.0) * kappa / decay
    length = np.linalg.norm(gradient(np.ones((1, 1)), np.array([[1.0, 0.0]]), model))
    assert 0.999 * kappa < length <= kappa


def test_the_largest_start_gradient_never_scales_a_batch() -> None:
    generator = np.random.default_rng(3)
    for classes in (2, 5):
        start = math.sqrt(0.2 * (1.0 - 1.0 / classes))
        for _ in range(100):
            x, labels = generator.normal(size=(5, 3)), generator.integers(classes, size=5)
            scaled = batch_factor(0.2, batch_spectrum(x)) * start_gradient(x, labels, classes)
            assert scaled <= start * (1.0 + 1e-12)


@pytest.mark.parametrize("decay", [0.3, 0.6])
def test_capped_attackers_of_every_round_keep_models_in_the_ball_and_within_the_drift(decay: float) -> None:
    """250 federations each; honest clients check that no gradient and no residual is too long, in both worlds."""
    limit, start, closest = 0.25, 0.2, 0.0
    kappa = float(ball_gradient_bound(start, limit, decay, 1.0, classes=3))
    assert kappa < 0.8 * spectrum_gradient_bound(limit)
    for seed in range(250):
        federation = Federation(np.random.default_rng(seed), decay, limit, bound=kappa, start_limit=start)
        gap, models, drift = adversarial_gap(federation)
        assert (np.linalg.norm(models, axis=(1, 2)) <= kappa / decay * (1.0 + 1e-12)).all()
        attacking = federation.weights[: federation.attackers].sum()
        assert gap <= drift * (1.0 + 1e-12) <= 2.0 * kappa * attacking / decay * (1.0 + 1e-9)
        closest = max(closest, gap / drift)
    assert closest > 0.9


def test_losses_are_smoother_inside_the_ball_which_allows_larger_rates() -> None:
    kappa = ball_gradient_bound(0.14, 0.0526, 0.1, 1.0, classes=10)
    inside = ball_smoothness(0.0526, kappa, 0.1, 1.0, classes=10)
    assert inside < 0.0526 / 2.0
    assert largest_rate(inside, 0.1) > largest_rate(0.0526 / 2.0, 0.1)
    assert ball_smoothness(0.0526, 1e3, 0.1, 1.0, classes=10) == pytest.approx(0.0526 / 2.0)
    assert ball_smoothness(0.0526, 0.0, 0.1, 1.0, classes=10) == pytest.approx(0.00526)


def test_steps_at_the_larger_rate_contract_inside_the_ball() -> None:
    generator, limit, decay, classes, closest = np.random.default_rng(5), 0.2, 0.3, 4, 0.0
    kappa = float(ball_gradient_bound(0.15, limit, decay, 1.0, classes))
    rate = float(largest_rate(ball_smoothness(limit, kappa, decay, 1.0, classes), decay))
    for _ in range(400):
        factor, x, labels = scaled_batch(generator, limit, 0.15, classes)
        models = generator.normal(size=(2, 2, classes))
        models[1] = models[0] + 1e-3 * models[1]
        models *= kappa / decay * generator.uniform() / np.linalg.norm(models, axis=(1, 2), keepdims=True)
        after = [(1.0 - rate * decay) * w - rate * factor * gradient(x, labels, w) for w in models]
        shrunk = np.linalg.norm(after[0] - after[1]) / np.linalg.norm(models[0] - models[1])
        assert shrunk <= (1.0 - rate * decay) * (1.0 + 1e-9)
        closest = max(closest, float(shrunk) / (1.0 - rate * decay))
    assert closest > 0.9
