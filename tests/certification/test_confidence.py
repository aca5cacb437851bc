"""Bounds from votes: reference values, and error probabilities by exact summation."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, xlogy
from scipy.stats import binom

from crfl_core.certification.formulas import (
    Array,
    clopper_pearson_lower,
    clopper_pearson_upper,
    gaussian_threshold,
    hoeffding,
    kl_budget,
    one_stage,
    one_stage_bonferroni,
    two_stage,
)
from tests.certification.reference import vectors


def row(first: int, second: int, models: int, classes: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """One sample's votes: two given counts, the rest spread over the other classes, none of them above the second."""
    rest = models - first - second
    others = [rest // (classes - 2) + (i < rest % (classes - 2)) for i in range(classes - 2)]
    assert max(others) <= max(second, 1)
    return np.array([[first, second, *others]])


@pytest.mark.parametrize(("inputs", "outputs"), vectors("counts_hoeffding"))
def test_the_papers_bounds_have_their_reference_values(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    counts = np.array([[inputs["nA"], inputs["nB"], inputs["M"] - inputs["nA"] - inputs["nB"]]])
    counts[0, 2:] = np.minimum(counts[0, 2:], inputs["nB"])
    counts = np.hstack([counts, np.zeros((1, 1), np.int64)])
    counts[0, 3] = inputs["M"] - counts.sum()
    bounds = hoeffding(counts, float(inputs["alpha"]))
    assert bounds.p_a[0] == pytest.approx(outputs["hoeffding_pA"], rel=1e-12)
    assert bounds.p_b[0] == pytest.approx(outputs["hoeffding_pB"], rel=1e-12)
    assert bounds.abstains[0] == outputs["abstain"]
    if not outputs["abstain"]:
        assert kl_budget(*bounds[1:])[0] == pytest.approx(outputs["eps"], rel=1e-12)
        assert gaussian_threshold(*bounds[1:])[0] == pytest.approx(outputs["mu_gdp"], rel=1e-12)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("counts_clopper_pearson"))
def test_the_sound_bounds_have_their_reference_values(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    counts, alpha = row(inputs["nA"], inputs["nB"], inputs["M"], inputs["C"]), float(inputs["alpha"])
    recipes = {
        "onestage_half": one_stage(counts, alpha),
        "bonferroni": one_stage_bonferroni(counts, alpha),
        "twostage": two_stage(counts, counts, alpha),
    }
    for name, bounds in recipes.items():
        assert bounds.p_a[0] == pytest.approx(outputs[f"{name}_pA"], rel=1e-12)
        assert bounds.p_b[0] == pytest.approx(outputs[f"{name}_pB"], rel=1e-12)
        assert gaussian_threshold(*bounds[1:])[0] == pytest.approx(outputs[f"{name}_mu"], rel=1e-12)


@pytest.mark.parametrize("trials", [1, 7, 60])
@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.3])
def test_clopper_pearson_fails_no_more_often_than_stated(trials: int, alpha: float) -> None:
    """The exact probability that a bound is on the wrong side, at every bound and just beyond it: the worst places."""
    counts = np.arange(trials + 1)
    lower, upper = clopper_pearson_lower(counts, trials, alpha), clopper_pearson_upper(counts, trials, alpha)
    for p in np.unique(np.clip(np.concatenate([lower * (1 - 1e-9), upper * (1 + 1e-9), np.linspace(0, 1, 101)]), 0, 1)):
        chances = binom.pmf(counts, trials, p)
        assert chances[lower > p].sum() <= alpha * (1 + 1e-6)
        assert chances[upper < p].sum() <= alpha * (1 + 1e-6)


def test_clopper_pearson_is_exact_at_the_ends() -> None:
    lower, upper = clopper_pearson_lower([0, 10], 10, 0.01), clopper_pearson_upper([0, 10], 10, 0.01)
    assert (lower[0], upper[1]) == (0.0, 1.0)
    assert lower[1] == pytest.approx(0.01**0.1, rel=1e-13)
    assert upper[0] == pytest.approx(1.0 - 0.01**0.1, rel=1e-13)


@settings(max_examples=100, deadline=None)
@given(trials=st.integers(1, 10**6), share=st.floats(0.0, 1.0), alpha=st.floats(1e-12, 0.5))
def test_clopper_pearson_encloses_the_frequency_and_mirrors(trials: int, share: float, alpha: float) -> None:
    count = round(share * trials)
    lower, upper = clopper_pearson_lower(count, trials, alpha), clopper_pearson_upper(count, trials, alpha)
    assert 0.0 <= lower <= count / trials <= upper <= 1.0
    assert 1.0 - clopper_pearson_upper(trials - count, trials, alpha) == pytest.approx(float(lower), abs=1e-11)


@settings(max_examples=50, deadline=None)
@given(trials=st.integers(1, 2000), alpha=st.floats(1e-9, 0.4))
def test_more_votes_raise_both_bounds(trials: int, alpha: float) -> None:
    counts = np.arange(trials + 1)
    for exact in (clopper_pearson_lower, clopper_pearson_upper):
        assert (np.diff(exact(counts, trials, alpha)) > 0).all()


def outcomes(models: int, classes: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """All ways in which the models can vote."""
    found = [votes for votes in product(range(models + 1), repeat=classes - 1) if sum(votes) <= models]
    counts = np.array(found)
    return np.hstack([counts, models - counts.sum(axis=1, keepdims=True)])


def chances(counts: np.ndarray[tuple[int, int], np.dtype[np.int64]], p: Array) -> Array:
    """Multinomial probabilities."""
    log = gammaln(counts.sum(axis=1) + 1) - gammaln(counts + 1).sum(axis=1) + xlogy(counts, p).sum(axis=1)
    result: Array = np.exp(log)
    return result


def worst_error(recipe: str, alpha: float) -> float:
    """The largest exact probability, over laws of three classes, that a vote is certified by a false bound."""
    counts, worst = outcomes(24, 3), 0.0
    bounds = {"one_stage": one_stage, "bonferroni": one_stage_bonferroni}[recipe](counts, alpha)
    edges = np.unique(np.concatenate([np.linspace(0.0, 1.0, 21), bounds.p_a - 1e-9, bounds.p_b + 1e-9]).clip(0, 1))
    for a in edges:
        for b in np.unique(np.append(np.linspace(0.0, 1.0 - a, 9), 1.0 - a)):
            p = np.array([a, b, max(0.0, 1.0 - a - b)])
            rivals = np.where(np.arange(3) == bounds.first[:, None], -1.0, p).max(axis=1)
            false = ((p[bounds.first] < bounds.p_a) | (rivals > bounds.p_b)) & ~bounds.abstains
            worst = max(worst, float(chances(counts, p)[false].sum()))
    return worst


@pytest.mark.parametrize("recipe", ["one_stage", "bonferroni"])
def test_one_stage_recipes_fail_no_more_often_than_stated(recipe: str) -> None:
    assert 0.01 < worst_error(recipe, 0.1) <= 0.1


def test_two_stages_fail_no_more_often_than_stated() -> None:
    """Whatever class was selected, since the second stage is independent of the first."""
    counts, alpha = outcomes(20, 3), 0.1
    for selected in range(3):
        selection = np.tile(np.eye(3, dtype=np.int64)[selected], (len(counts), 1))
        bounds = two_stage(selection, counts, alpha)
        assert (bounds.first == selected).all()
        for p in np.random.default_rng(0).dirichlet([0.7, 0.7, 0.7], size=300):
            rivals = np.delete(p, selected).max()
            false = (p[selected] < bounds.p_a) | (rivals > bounds.p_b)
            assert chances(counts, p)[false].sum() <= alpha


def test_the_second_stage_may_contradict_the_first() -> None:
    bounds = two_stage(np.array([[1, 9]]), np.array([[900, 100]]), 0.001)
    assert bounds.first.tolist() == [1]
    assert bounds.abstains.all()


@settings(max_examples=100, deadline=None)
@given(votes=st.lists(st.integers(0, 300), min_size=2, max_size=6).filter(any), alpha=st.floats(1e-6, 0.2))
def test_bounds_are_probabilities_of_exclusive_events(votes: list[int], alpha: float) -> None:
    counts = np.array([votes])
    frequencies = counts / counts.sum()
    for bounds in (
        one_stage(counts, alpha),
        one_stage_bonferroni(counts, alpha),
        two_stage(counts, counts, alpha),
    ):
        assert 0.0 <= bounds.p_a[0] <= frequencies.max() * (1 + 1e-12)
        assert 0.0 <= bounds.p_b[0] <= 1.0
        assert bounds.p_a[0] + bounds.p_b[0] <= 1.0 + 1e-15
