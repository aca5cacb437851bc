"""No bound and no threshold is better than in 50-digit arithmetic: near ties, near 0 and 1, among denormal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import ndtri

from crfl_core.certification.formulas import (
    Array,
    clopper_pearson_lower,
    clopper_pearson_upper,
    exact_votes,
    gaussian_threshold,
    gaussian_threshold_of_logs,
    largest_attack,
    log_divergence,
    log_theta,
    margin_threshold,
)
from crfl_core.certification.formulas.hockey_stick import MARGIN
from crfl_core.certification.formulas.rounding import UNIT_ROUNDOFF
from crfl_core.records.input_rows import norms_of

Number = Any
"""A number of mpmath, which has no types."""


@pytest.fixture(autouse=True)
def fifty_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def number(value: float | Array) -> Number:
    return mpmath.mpf(float(value))


def tail(z: Number) -> Number:
    """`1 - Phi(z)`."""
    return mpmath.erfc(z / mpmath.sqrt(2)) / 2


def upper_quantile(log_tail: Number, guess: float) -> Number:
    """The z above which a normal variable lies with probability exp(log_tail), by Newton's method."""
    z = mpmath.mpf(guess)
    for _ in range(100):
        step = (mpmath.log(tail(z)) - log_tail) * tail(z) / mpmath.npdf(z)
        z += step
        if abs(step) <= mpmath.mpf(10) ** -40 * max(abs(z), mpmath.mpf(10) ** -40):
            break
    return z


def quantile(p: float) -> Number:
    log_tail = mpmath.log1p(-number(p)) if p > 0.5 else mpmath.log(number(p))
    sign = 1 if p > 0.5 else -1
    return sign * upper_quantile(log_tail, abs(float(ndtri(p))))


def close_pairs(generator: np.random.Generator, count: int) -> list[tuple[float, float]]:
    """Probabilities that are a few units in the last place apart, or some orders of magnitude more."""
    first = np.concatenate(
        [
            generator.uniform(size=count),
            10.0 ** generator.uniform(-300.0, -1.0, count),
            1.0 - 10.0 ** generator.uniform(-15.0, -1.0, count),
            0.5 + 10.0 ** generator.uniform(-15.0, -1.0, count),
        ]
    )
    apart = np.spacing(first) * np.rint(10.0 ** generator.uniform(0.0, 8.0, len(first)))
    return [(float(a), float(b)) for a, b in zip(first, first - apart, strict=True) if 0.0 < b < a < 1.0]


def test_the_gaussian_threshold_is_safe_near_ties_where_plain_arithmetic_is_not() -> None:
    unsafe = 0
    for p_a, p_b in close_pairs(np.random.default_rng(0), 40):
        first, second = quantile(p_a), quantile(p_b)
        exact = (first - second) / 2
        found = number(gaussian_threshold(p_a, p_b))
        assert found <= exact
        assert found >= exact - 20 * UNIT_ROUNDOFF * (abs(first) + abs(second))
        unsafe += number((ndtri(p_a) - ndtri(p_b)) / 2.0) > exact
    assert unsafe > 20


@pytest.mark.parametrize(
    ("p_a", "p_b"),
    [
        (0.7, 0.1),
        (1.0 - UNIT_ROUNDOFF, UNIT_ROUNDOFF),
        (0.5, 5e-324),
        (1.0 - UNIT_ROUNDOFF, 1e-310),
        (0.3, 2.2e-308),
        (1e-300, 5e-324),
    ],
)
def test_the_gaussian_threshold_is_safe_at_the_ends(p_a: float, p_b: float) -> None:
    first, second = quantile(p_a), quantile(p_b)
    found = number(gaussian_threshold(p_a, p_b))
    assert (first - second) / 2 - 20 * UNIT_ROUNDOFF * (abs(first) + abs(second)) <= found <= (first - second) / 2


def test_the_threshold_of_logarithms_is_safe_however_deep_they_are() -> None:
    """Two classes, the second less likely than all others together by a factor close to 1."""
    generator = np.random.default_rng(1)
    for log_rest in -(10.0 ** generator.uniform(-0.15, 9.0, 150)):
        log_p_a = float(np.log1p(-np.exp(log_rest)))
        log_p_b = log_rest * (1.0 + 10.0 ** generator.uniform(-15.0, 0.0))
        if log_p_a <= log_p_b:
            continue
        first = upper_quantile(number(log_rest), float(np.sqrt(2.0 * -log_rest)))
        second = upper_quantile(number(log_p_b), float(np.sqrt(2.0 * -log_p_b)))
        found = number(gaussian_threshold_of_logs(log_p_a, log_rest, log_p_b))
        assert (first + second) / 2 * (1 - 1e-13) - 1e-14 <= found <= (first + second) / 2


def test_the_threshold_of_logarithms_is_safe_near_ties() -> None:
    for p_a, p_b in close_pairs(np.random.default_rng(2), 30):
        if p_a > 0.5 or p_a < 1e-290:
            continue
        log_p_a, log_p_b = float(np.log(p_a)), float(np.log(p_b))
        if log_p_a <= log_p_b:
            continue
        first, second = (-upper_quantile(number(log), -float(ndtri(p_a))) for log in (log_p_a, log_p_b))
        assert number(gaussian_threshold_of_logs(log_p_a, np.log1p(-p_a), log_p_b)) <= (first - second) / 2


def test_computed_margins_promise_no_more_than_exact_ones_where_plain_arithmetic_does() -> None:
    """Models of norm 1e6 whose two best classes nearly tie: the margin is mostly rounding."""
    generator, promises = np.random.default_rng(3), []
    for _ in range(200):
        x = generator.normal(size=20)
        weights = 1e6 * generator.normal(size=(20, 3))
        weights[:, 1] = weights[:, 0] + 10.0 ** generator.uniform(-10.0, -4.0) * generator.normal(size=20)
        weights[:, 2] = weights[:, 0] - x
        logits, norm = x @ weights, np.linalg.norm(x)
        first = int(logits.argmax())
        exact = [
            sum((Fraction(a) * Fraction(b) for a, b in zip(x, column, strict=True)), Fraction(0))
            for column in weights.T
        ]
        rival = max(exact[:first] + exact[first + 1 :])
        length = mpmath.sqrt(sum((number(value) ** 2 for value in x), mpmath.mpf(0)))
        margin = mpmath.mpf((exact[first] - rival).numerator) / (exact[first] - rival).denominator
        limit = margin / (mpmath.sqrt(2) * length)
        found = margin_threshold(logits, norm, features=20, model_norm=np.linalg.norm(weights))
        assert number(found) <= max(limit, 0)
        promises.append((bool(found > 0), bool(number(margin_threshold(logits, norm)) > limit)))
    certified, unsafe = np.sum(promises, axis=0)
    assert certified > 20
    assert unsafe > 20


@pytest.mark.parametrize("exponent", [*range(-320, -255, 5), -200, -160, -100, 0, 100, 160, 200, 290, 300])
def test_margins_of_inputs_of_any_size_promise_no_more_than_exact_ones(exponent: int) -> None:
    """Products and squares that underflow or overflow lose all digits; nothing may be certified from what is left."""
    generator, certified = np.random.default_rng(exponent + 400), 0
    for _ in range(20):
        x = generator.normal(size=20) * 10.0 ** (exponent / 2) * 10.0 ** (exponent / 2)
        weights = generator.normal(size=(20, 3)) * 10.0 ** generator.uniform(-8.0, 8.0)
        with np.errstate(all="ignore"):
            logits = x @ weights
        norm = float(norms_of(torch.from_numpy(x)[None])[0])
        exact = [
            sum((Fraction(a) * Fraction(b) for a, b in zip(x, column, strict=True)), Fraction(0))
            for column in weights.T
        ]
        first = exact.index(max(exact))
        margin = number_of(exact[first] - max(exact[:first] + exact[first + 1 :]))
        limit = margin / (mpmath.sqrt(2) * mpmath.sqrt(sum((number(value) ** 2 for value in x), mpmath.mpf(0))))
        found = float(margin_threshold(logits, norm, features=20, model_norm=np.linalg.norm(weights)))
        assert np.isfinite(found)
        assert number(found) <= limit
        certified += found > 0
    assert certified == (20 if -265 <= exponent <= 290 else 0 if exponent < -271 else certified)


@pytest.mark.parametrize(
    "logits", [[1e308, -1e308, -1.5e308], [np.inf, 0.0, 1.0], [np.inf, np.inf, 0.0], [np.nan, 1.0, 0.0]]
)
def test_logits_that_overflow_certify_nothing(logits: list[float]) -> None:
    assert margin_threshold(logits, 1.0) == 0.0


def number_of(fraction: Fraction) -> Number:
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def chance_of_at_least(successes: int, trials: int, p: Number) -> Number:
    """By adding up terms until they no longer count."""
    log_first = mpmath.log(mpmath.binomial(trials, successes))
    term = mpmath.exp(log_first + successes * mpmath.log(p) + (trials - successes) * mpmath.log1p(-p))
    total, odds = term, p / (1 - p)
    for count in range(successes, trials):
        term *= mpmath.mpf(trials - count) / (count + 1) * odds
        total += term
        if term < total * mpmath.mpf(10) ** -30:
            break
    return total


@pytest.mark.parametrize(
    ("successes", "trials", "alpha"),
    [
        (1, 1, 0.01),
        (990, 1000, 0.0005),
        (1000, 1000, 0.0005),
        (6, 1000, 0.0005 / 9),
        (1645, 8755, 1e-10),
        (45_406, 1_108_175, 0.00036889181389169714),
        (231_240, 1_917_916, 1.006849383418402e-10),
    ],
)
def test_clopper_pearson_bounds_are_rounded_outward(successes: int, trials: int, alpha: float) -> None:
    lower = number(clopper_pearson_lower(successes, trials, alpha))
    assert chance_of_at_least(successes, trials, lower) <= number(alpha)
    if successes < trials:
        failures = 1 - number(clopper_pearson_upper(successes, trials, alpha))
        assert chance_of_at_least(trials - successes, trials, failures) <= number(alpha)
        hardly = chance_of_at_least(successes, trials, lower * (1 + 1e-10))
        assert hardly > number(alpha)


@pytest.mark.parametrize(("successes", "trials", "alpha"), [(7, 8_186_973, 0.00428277117593591), (0, 1000, 0.0005)])
def test_rare_votes_are_rounded_up(successes: int, trials: int, alpha: float) -> None:
    """Here the inverse of the incomplete beta function loses ten digits."""
    upper = number(clopper_pearson_upper(successes, trials, alpha))
    at_most = sum(
        mpmath.binomial(trials, k) * upper**k * mpmath.exp((trials - k) * mpmath.log1p(-upper))
        for k in range(successes + 1)
    )
    assert at_most <= number(alpha)


def exact_logs(gaps: list[float]) -> tuple[Number, Number, Number]:
    """The logarithms that `exact_votes` bounds, by a sum over a fine grid whose error is far below 1e-30."""
    with mpmath.workdps(40):
        step, rest, p_b = mpmath.mpf(1) / 10, mpmath.mpf(0), mpmath.mpf(0)
        for place in range(int(-5 * gaps[0]) - 140, 140):
            v = place * step
            above = [tail(v + number(gap)) for gap in gaps]
            none_above = mpmath.fprod(1 - one for one in above[1:])
            any_above = mpmath.mpf(0)
            for one in above:
                any_above += (1 - any_above) * one
            rest += mpmath.npdf(v) * any_above
            p_b += mpmath.npdf(v + number(gaps[0])) * tail(-v) * none_above
        return mpmath.log1p(-step * rest), mpmath.log(step * rest), mpmath.log(step * p_b)


@pytest.mark.parametrize("gaps", [[0.0], [1e-9, 1e-8], [3.0, 3.5, 20.0], [12.0, 12.05], [39.99, 40.5]])
@pytest.mark.parametrize("error", [1e-13, 1e-12])
def test_exact_votes_are_rounded_to_the_safe_side(gaps: list[float], error: float) -> None:
    log_p_a, log_rest, log_p_b = exact_logs(gaps)
    votes = exact_votes([[0.0, *(-np.array(gaps))]], [1.0], relative_error=error)
    assert number(votes.log_p_a[0]) <= log_p_a
    assert number(votes.log_rest[0]) >= log_rest
    assert number(votes.log_p_b[0]) >= log_p_b


def exact_theta(log_gamma: Number, distance: Number) -> Number:
    offset = log_gamma / distance
    return tail(offset - distance / 2) - mpmath.exp(log_gamma) * tail(offset + distance / 2)


def test_hockey_stick_divergences_are_rounded_up() -> None:
    generator = np.random.default_rng(4)
    levels = np.append(10.0 ** generator.uniform(-4.0, 1.6, 150), 0.0)
    distances = 10.0 ** generator.uniform(-2.0, 1.25, 151)
    for level, distance in zip(levels, distances, strict=True):
        with mpmath.workdps(400):  # the difference of two tails cancels nearly all digits
            exact = mpmath.log(exact_theta(number(level), number(distance)))
        assert number(log_theta(level, distance)) >= exact * (1 + 1e-15) - 1e-16


@pytest.mark.parametrize("diameter", [1.0, 6.0, 15.0])
def test_divergences_of_many_rounds_are_never_too_small_by_half_the_margin_of_the_rule(diameter: float) -> None:
    for level in (0.0, 1e-4, 0.5, 4.0):
        for budget in (0.1, 1.0, 5.0):
            with mpmath.workdps(100):
                d = exact_theta(number(level), number(budget))
                for _ in range(200):
                    if d < mpmath.mpf(10) ** -40:
                        break
                    d *= exact_theta(mpmath.log1p((mpmath.exp(number(level)) - 1) / d), number(diameter))
            found = mpmath.exp(number(log_divergence(level, budget, np.full(200, diameter))))
            assert -MARGIN / 2 < found - d < 1e-10


def test_certified_sizes_stay_below_their_thresholds_whatever_is_added_up() -> None:
    """What a size is compared with is a sum of a thousand terms, each of them rounded."""
    generator = np.random.default_rng(5)
    for _ in range(200):
        terms: Array = generator.exponential(size=1000)
        computed = float(terms.cumsum()[-1])
        exact = sum(Fraction(term) for term in terms)
        threshold = computed * (1.0 + generator.integers(-3, 1500) * 2.0 * UNIT_ROUNDOFF)
        if largest_attack(threshold, terms=len(terms)) >= computed:
            assert exact < Fraction(threshold)
