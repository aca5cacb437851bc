"""The batch-spectrum rule: reference values, eigenvalues in 30 digits, and worlds that are trained side by side."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import softmax

from crfl_core.certification.formulas import (
    Array,
    batch_factor,
    batch_spectrum,
    factor_shift,
    largest_rate,
    later_products,
    margin_threshold,
    replacement_shift,
    residual_bound,
    retention,
    round_contraction,
    spectrum_change,
    spectrum_gradient_bound,
    start_gradient,
    update_bound,
)
from tests.certification.federation import Federation, adversarial_gap, gradient
from tests.certification.reference import every_round


def exact_spectrum(x: Array) -> Any:
    """The largest eigenvalue in 30 digits; mpmath has no types."""
    with mpmath.workdps(40):
        matrix = mpmath.matrix(x.tolist())
        return max(mpmath.eigsy(matrix.T * matrix, eigvals_only=True)) / len(x)


def exact_start(x: Array, labels: list[int], classes: int) -> Any:
    with mpmath.workdps(40):
        entries = [
            mpmath.fsum(
                (mpmath.mpf(1) / classes - (label == one)) * row[j] for row, label in zip(x, labels, strict=True)
            )
            for one in range(classes)
            for j in range(x.shape[1])
        ]
        return mpmath.sqrt(mpmath.fsum(entry**2 for entry in entries)) / len(x)


@pytest.mark.parametrize("case", every_round("spectrum"))
def test_batches_have_their_reference_values(case: dict[str, Any]) -> None:
    x, weights = np.array(case["x"]), np.array(case["weights"]).T
    found = batch_spectrum(x)
    assert found == pytest.approx(float(case["L_s"]), rel=1e-12)
    assert spectrum_gradient_bound(found) == pytest.approx(float(case["bound"]), rel=1e-12)
    length = np.linalg.norm(gradient(x, np.eye(weights.shape[1])[case["y"]], weights))
    assert length == pytest.approx(float(case["gradient_norm"]), rel=1e-12)
    assert length <= spectrum_gradient_bound(found)


@pytest.mark.parametrize(("samples", "features"), [(1, 5), (5, 1), (3, 8), (8, 3), (20, 20)])
def test_the_spectrum_is_that_of_30_digits_and_not_below_it(samples: int, features: int) -> None:
    generator = np.random.default_rng(samples)
    for _ in range(6):
        x = generator.normal(size=(samples, features)) * 10.0 ** generator.uniform(-6.0, 6.0)
        x[-1] = x[0]  # eigenvalues that meet, and others that are 0
        exact = exact_spectrum(x)
        found = mpmath.mpf(float(batch_spectrum(x)))
        assert exact <= found <= exact * (1 + 1e-11)
        limit = float(exact) * generator.uniform(0.1, 0.9)
        assert mpmath.mpf(float(batch_factor(limit, float(found)))) * exact <= limit


def test_the_gradient_at_zero_is_that_of_30_digits_and_not_below_it() -> None:
    generator = np.random.default_rng(0)
    for classes in (2, 3, 10):
        for _ in range(6):
            x, labels = generator.normal(size=(7, 4)), generator.integers(classes, size=7)
            x[1], labels[:2] = -x[0] * (1.0 + 1e-9), 0  # nearly cancel
            exact = exact_start(x, labels.tolist(), classes)
            found = mpmath.mpf(float(start_gradient(x, labels, classes)))
            assert exact <= found <= exact * (1 + 1e-12)
            onehot = np.eye(classes)[labels]
            assert float(found) == pytest.approx(np.linalg.norm(gradient(x, onehot, np.zeros((4, classes)))))


def test_batches_stand_along_leading_axes_and_may_be_filled_up_with_zeros() -> None:
    generator = np.random.default_rng(1)
    x, labels = generator.normal(size=(2, 3, 6, 4)), generator.integers(3, size=(2, 3, 6))
    x[..., 4:, :] = 0.0
    spectra, starts = batch_spectrum(x, np.full((2, 3), 4)), start_gradient(x, labels, 3, samples=4)
    assert spectra[1, 2] == pytest.approx(batch_spectrum(x[1, 2, :4]), rel=1e-12)
    assert starts[1, 2] == pytest.approx(start_gradient(x[1, 2, :4], labels[1, 2, :4], 3), rel=1e-12)
    with pytest.raises(ValueError, match="at least one of each"):
        batch_spectrum(np.zeros((0, 3)))


def test_a_constant_bias_of_one_makes_the_spectrum_at_least_one() -> None:
    x = np.random.default_rng(2).normal(size=(50, 30)) / math.sqrt(30.0)
    assert batch_spectrum(np.hstack([x, np.ones((50, 1))])) >= 1.0
    assert batch_spectrum(x) < 0.2


def test_scaled_batches_keep_the_bounds_of_the_limit_at_any_model() -> None:
    generator, lengths, curvatures = np.random.default_rng(3), [], []
    limit = 0.3
    for _ in range(300):
        samples, features, classes = (int(size) for size in generator.integers([1, 1, 2], [7, 5, 5]))
        x = generator.normal(size=(samples, features)) * 10.0 ** generator.uniform(-1.0, 1.0)
        labels = np.eye(classes)[generator.integers(classes, size=samples)]
        weights = generator.normal(size=(features, classes)) * 10.0 ** generator.uniform(-2.0, 3.0)
        factor = batch_factor(limit, batch_spectrum(x))
        lengths.append(factor * np.linalg.norm(gradient(x, labels, weights)) / spectrum_gradient_bound(limit))
        p = softmax(x @ weights, axis=1)
        spread = p[:, :, None] * (np.eye(classes) - p[:, None])
        hessian = np.einsum("bcd,bi,bj->cidj", spread, x, x).reshape(features * classes, -1) / samples
        curvatures.append(factor * np.linalg.eigvalsh(hessian)[-1] / (limit / 2.0))
    assert 0.9 < max(lengths) <= 1.0 + 1e-12
    assert 0.9 < max(curvatures) <= 1.0 + 1e-12


def test_the_step_rule_is_exact() -> None:
    """Two classes, one input: the loss has curvature L/2 at 0. Above the rate a gap shrinks less than decay says."""
    limit, decay = 0.2, 0.05
    x, labels = np.full((1, 1), math.sqrt(limit)), np.array([[1.0, 0.0]])
    for excess, contracts in ((1.0, True), (1.05, False)):
        rate = excess * float(largest_rate(limit / 2.0, decay))
        first, second = np.array([[1e-4, -1e-4]]), np.array([[-1e-4, 1e-4]])
        after = [(1.0 - rate * decay) * w - rate * gradient(x, labels, w) for w in (first, second)]
        gap = np.linalg.norm(after[0] - after[1]) / np.linalg.norm(first - second)
        assert (gap <= retention(rate, 1, decay) * (1.0 + 1e-9)) == contracts


def test_the_bound_of_residuals_is_that_of_updates_for_the_bound_of_inputs() -> None:
    assert residual_bound(math.sqrt(2.0) * 3.0, 0.1, 10, 0.01) == update_bound(0.1, 10, 3.0, 0.01)
    assert residual_bound(2.0, 0.1, 10) == pytest.approx(2.0)


@pytest.mark.parametrize("decay", [0.02, 0.3])
def test_capped_attackers_of_every_round_stay_within_the_drift_and_flip_no_certified_prediction(decay: float) -> None:
    """250 federations each: both worlds attacked in opposite directions, every round, with the whole cap."""
    closest, flips, certified = 0.0, 0, 0
    for seed in range(250):
        federation = Federation(np.random.default_rng(seed), decay, limit=0.25)
        gap, models, drift = adversarial_gap(federation)
        assert gap <= drift * (1.0 + 1e-12)
        closest = max(closest, gap / drift)
        probe = federation.generator.normal(size=(20, models.shape[1]))
        logits = [probe @ model for model in models]
        stands = margin_threshold(logits[0], np.linalg.norm(probe, axis=1)) > drift
        flips += (stands & (logits[0].argmax(axis=1) != logits[1].argmax(axis=1))).sum()
        certified += stands.sum()
    assert flips == 0
    assert certified > 500
    assert closest > 0.9


def test_the_drift_is_reached_where_honest_data_say_nothing() -> None:
    """Attackers push along an input that no other client has: only decay takes anything back."""
    federation = Federation(np.random.default_rng(0), 0.1, limit=0.25)
    federation.x[..., -1] = 0.0
    gap, _, drift = adversarial_gap(federation, towards=(-1, 0))
    assert 0.999 < gap / drift <= 1.0 + 1e-12


def test_the_drift_of_the_federation_is_that_of_its_weights_and_caps() -> None:
    federation = Federation(np.random.default_rng(1), 0.1, limit=0.25)
    attacking = federation.weights[: federation.attackers].sum()
    terms = np.full(federation.rounds, attacking * federation.cap)
    constant = round_contraction(federation.weights, np.full(len(federation.weights), federation.kept))
    fades = later_products(np.full(federation.rounds, constant))
    assert federation.drift == pytest.approx(2.0 * (terms * fades).sum())


@pytest.mark.parametrize("change", ["labels", "features", "replacement"])
def test_poisoned_samples_move_a_scaled_gradient_by_at_most_the_shift_and_the_factors_part(change: Any) -> None:
    generator, bound, limit, needed = np.random.default_rng(4), 1.0, 0.2, 0
    for _ in range(600):
        samples, classes = int(generator.integers(1, 6)), 3
        x = generator.normal(size=(samples, 2)) * [1.0, 10.0 ** generator.uniform(-2.0, 0.0)]
        x *= bound * generator.uniform(0.3, 1.0) / np.linalg.norm(x, axis=1, keepdims=True)
        labels = generator.integers(classes, size=samples)
        poisoned, other = x.copy(), labels.copy()
        hit = generator.permutation(samples)[: generator.integers(1, samples + 1)]
        delta = 0.0
        if change == "labels":
            other[hit] = generator.integers(classes, size=len(hit))
        elif change == "replacement":
            poisoned[hit] = generator.uniform(-0.7, 0.7, size=(len(hit), 2))
            other[hit] = generator.integers(classes, size=len(hit))
        else:
            poisoned[hit] *= generator.uniform(0.5, 1.0, size=(len(hit), 1))
            delta = float(np.linalg.norm(poisoned - x, axis=1).max())
        weights = generator.normal(size=(2, classes)) * 10.0 ** generator.uniform(-1.0, 2.0)
        spectra = batch_spectrum(np.stack([x, poisoned]))
        moved = spectrum_change(change, delta, input_bound=bound, domain_bound=bound)
        share = len(hit) / samples
        assert abs(spectra[0] - spectra[1]) <= share * moved * (1.0 + 1e-9) + 1e-12
        factors = batch_factor(limit, spectra)
        lengths = [gradient(a, np.eye(classes)[b], weights) for a, b in ((x, labels), (poisoned, other))]
        gap = np.linalg.norm(factors[0] * lengths[0] - factors[1] * lengths[1])
        plain = samples * np.linalg.norm(lengths[0] - lengths[1]) / len(hit)  # at most G of a single sample
        assert plain <= replacement_shift(bound, bound) * (1.0 + 1e-9)
        extra = factor_shift(moved, limit, spectra[0], share)
        assert gap <= share * (plain + extra) * (1.0 + 1e-9)
        assert extra > 0 or (factors == factors[0]).all()
        needed += gap > share * plain * (1.0 + 1e-9)
    assert (needed > 5) == (change != "labels")


def test_the_factor_stays_where_there_is_room_below_the_limit() -> None:
    assert factor_shift([0.02, 0.03], 0.08, spectrum=0.06).tolist() == [0.0, pytest.approx(0.15)]
    assert factor_shift(0.0, 0.08) == 0.0 * factor_shift(1.0, 0.08)
    assert spectrum_change("labels", 5.0, input_bound=1.0) == 0.0
    assert spectrum_change("replacement", 0.0, input_bound=1.0, domain_bound=3.0) == 9.0
    assert spectrum_change("features+labels", [0.0, np.inf], input_bound=1.0, domain_bound=3.0).tolist() == [0.0, 9.0]
    assert spectrum_change("features", [0.0, 1.0], input_bound=1.0).tolist() == [0.0, 3.0]
