"""A minority of huge but finite updates: what they can do is what a direction can do, whatever their length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators import geometry
from crfl_aggregators.bulyan import Bulyan
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.filters import CosineFilter, NormFilter
from crfl_aggregators.flame import Flame
from crfl_aggregators.fltrust import FLTrust
from crfl_aggregators.foolsgold import FoolsGold
from crfl_aggregators.krum import Krum, MultiKrum
from crfl_aggregators.median_of_means import MedianOfMeans
from crfl_aggregators.mixing import NearestNeighbourMixing
from crfl_aggregators.residual_reweighting import ResidualReweighting
from crfl_aggregators.rfa import Rfa
from crfl_aggregators.trimmed_mean import Median, TrimmedMean
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crfl_core.extend import Aggregator, Stage, State
from crfl_core.training.aggregation_chain import apply_stage
from tests.aggregators import oracles
from tests.aggregators.support import Array, gaussian, participants, rebuilt, updates_of

CLIENTS, PARAMETERS, HUGE = 15, 6, 3

SIZES = [
    *((size, torch.float64) for size in (1e9, 1e15, 1e18, 1e30, 1e150, 1e200, 5e307)),
    *((size, torch.float32) for size in (1e9, 3e18, 1e30, 3e38)),
]
sizes = pytest.mark.parametrize(("size", "dtype"), SIZES, ids=[f"{size:g} {str(kind)[6:]}" for size, kind in SIZES])

RULES: dict[str, Aggregator] = {
    "rfa": Rfa(weighting="uniform"),
    "median-of-means": MedianOfMeans(groups=7),
    "krum": Krum(f=HUGE),
    "multi-krum": MultiKrum(f=HUGE),
    "bulyan": Bulyan(f=HUGE),
    "median": Median(),
    "trimmed-mean": TrimmedMean(trim=HUGE),
    "residual-reweighting": ResidualReweighting(),
    "centered-clipping": CenteredClipping(radius=2.0, iterations=3),
    "flame": Flame(noise=0.0),
    "fltrust": FLTrust(),
}
STAGES: dict[str, Stage] = {
    "nearest-neighbour-mixing": NearestNeighbourMixing(f=HUGE),
    "cosine-filter": CosineFilter(),
    "norm-filter": NormFilter(f=HUGE),
}


def attacked(size: float, dtype: torch.dtype, *, where: str = "everywhere", colluding: bool = False) -> Tensor:
    """Honest updates of norm about 1, the first few replaced by numbers of this size."""
    values = torch.from_numpy(0.1 * gaussian(CLIENTS, PARAMETERS) + 0.4).to(dtype)
    signs = np.sign(gaussian(HUGE, PARAMETERS, seed=3))
    columns = slice(0, 1) if where == "in one coordinate" else slice(None)
    values[:HUGE, columns] = torch.from_numpy(size * signs).to(dtype)[:, columns]
    if colluding:
        values[1:HUGE] = values[0]
    return values


@sizes
@pytest.mark.parametrize("where", ["everywhere", "in one coordinate"])
@pytest.mark.parametrize("colluding", [False, True])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_beyond_some_size_the_size_no_longer_matters(
    rule: Aggregator, size: float, dtype: torch.dtype, where: str, colluding: bool
) -> None:
    """What the rule makes of updates 1e6 times as long as the honest ones is what it makes of all longer ones."""
    large, huge = (
        rule.aggregate(updates_of(attacked(length, dtype, where=where, colluding=colluding)), {})
        for length in (1e6, size)
    )
    torch.testing.assert_close(huge.update, large.update, rtol=0, atol=1e-4)


@sizes
@pytest.mark.parametrize("where", ["everywhere", "in one coordinate"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_reported_weights_give_the_aggregate_without_huge_terms_that_cancel(
    rule: Aggregator, size: float, dtype: torch.dtype, where: str
) -> None:
    values = attacked(size, dtype, where=where)
    found = rule.aggregate(updates_of(values), {})
    weights = found.weights[:, None] if found.full_weights is None else found.full_weights()
    terms = (weights.double() * values.double()).abs().sum(0) + (0 if found.offset is None else found.offset.abs())
    assert float(terms.max()) < 2.0
    assert ((rebuilt(found, values) - found.update).abs() <= 4 * CLIENTS * torch.finfo(dtype).eps * terms).all()


@sizes
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_stages_hand_on_the_same_honest_updates(stage: Stage, size: float, dtype: torch.dtype) -> None:
    large, huge = (apply_stage(stage, updates_of(attacked(length, dtype)), {}) for length in (1e6, size))
    rows = slice(HUGE if len(huge.values) == CLIENTS else 0, None)
    assert torch.equal(huge.mixing[rows], large.mixing[rows])
    assert float(geometry.norms(huge.values[rows]).max()) < 2.0


@sizes
def test_distances_and_angles_of_honest_updates_stay_what_they_are(size: float, dtype: torch.dtype) -> None:
    values = attacked(size, dtype)
    plain = values[HUGE:].double().numpy()
    found = geometry.distances_from_products(geometry.central_products(values))
    expected = np.square(plain[:, None] - plain).sum(-1)
    np.testing.assert_allclose(found[HUGE:, HUGE:], expected, atol=1e-12)
    assert np.isfinite(found).all()
    assert (found[:HUGE, HUGE:] > 1e3 * expected.max()).all()
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(geometry.cosines(values)[HUGE:, HUGE:], unit @ unit.T, atol=1e-12)
    signs = np.sign(values[:HUGE].double().numpy()) / np.sqrt(PARAMETERS)
    np.testing.assert_allclose(geometry.cosines(values)[:HUGE, :HUGE], signs @ signs.T, atol=1e-6)


@sizes
def test_norms_are_finite_as_long_as_they_can_be(size: float, dtype: torch.dtype) -> None:
    values = torch.ones(2, 4, dtype=dtype)
    values[0] = size
    longest = 2.0 * float(values[0, 0])
    assert geometry.norms(values).tolist() == pytest.approx([longest, 2.0])
    shifted = geometry.norms(values, torch.ones(4, dtype=dtype), torch.tensor([0.0, 1.0]))
    assert shifted.tolist() == pytest.approx([longest, 4.0])


def test_an_update_whose_norm_is_no_finite_number_still_counts_by_its_direction() -> None:
    values = attacked(1.7e308, torch.float64)
    assert geometry.norms(values)[:HUGE].tolist() == [np.inf] * HUGE
    large, huge = (Rfa().aggregate(updates_of(some), {}).update for some in (attacked(1e9, torch.float64), values))
    torch.testing.assert_close(huge, large, rtol=0, atol=1e-5)
    assert float(Krum(f=HUGE).aggregate(updates_of(values), {}).update.norm()) < 2.0


def test_foolsgold_survives_a_history_that_overflows() -> None:
    state: State = {}
    for _ in range(3):
        values = attacked(1.7e308, torch.float64)
        found = FoolsGold().aggregate(updates_of(values), state)
        state = found.state
    assert not torch.isfinite(state["history"]).all()
    assert torch.isfinite(found.weights).all()


MEDIANS = [
    *((size, torch.float64) for size in (1e15, 1e30)),
    *((size, torch.float32) for size in (1e15, 3e18)),
]


@pytest.mark.parametrize(("size", "dtype"), MEDIANS)
@pytest.mark.parametrize("colluding", [False, True])
def test_rfa_is_the_geometric_median_of_the_updates_as_they_were_submitted(
    size: float, dtype: torch.dtype, colluding: bool
) -> None:
    """Against a hundred digits: the point, and what the ledger says was missed of the minimum."""
    values = attacked(size, dtype, colluding=colluding)
    exact, shares = values.double().numpy(), np.full(CLIENTS, 1 / CLIENTS)
    best = oracles.decimal_median(exact, shares)
    found = Rfa(weighting="uniform", smoothing=1e-9, tolerance=1e-9).aggregate(updates_of(values), {})
    point = found.weights.numpy() @ exact
    np.testing.assert_allclose(point, np.asarray(best, np.float64), atol=1e-6)
    rough = Rfa(weighting="uniform", iterations=3).aggregate(updates_of(values), {})
    for answer in (found, rough):
        missed = oracles.decimal_excess(exact, shares, answer.weights.numpy() @ exact, best)
        assert missed <= answer.notes["optimality_gap"] + 1e-8
    assert found.notes["optimality_gap"] < 1e-6 < rough.notes["optimality_gap"] < 1.0


def test_median_of_means_is_the_geometric_median_with_a_spoilt_group() -> None:
    values = attacked(1e15, torch.float64).numpy()
    groups = [values[group : group + 3].mean(0) for group in range(0, CLIENTS, 3)]
    best = oracles.decimal_median(np.asarray(groups), np.full(5, 1 / 5))
    found = MedianOfMeans(groups=5, smoothing=1e-9, tolerance=1e-9).aggregate(updates_of(values), {}).update
    np.testing.assert_allclose(found, np.asarray(best, np.float64), atol=1e-6)


@settings(deadline=None, max_examples=200)
@given(
    rule=st.sampled_from([Rfa(weighting="uniform"), Rfa(weighting="uniform", iterations=1), Krum(f=2), Krum(f=4)]),
    clients=st.integers(11, 15),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    exponents=st.lists(st.floats(-5.0, 300.0), min_size=1, max_size=4),
    spread=st.sampled_from([1e-9, 1e-3, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_a_minority_stays_within_the_breakdown_whatever_it_submits(
    rule: Aggregator, clients: int, dtype: torch.dtype, exponents: list[float], spread: float, seed: int
) -> None:
    """And the breakdown itself stays what honest updates make it: no length of an update makes it large."""
    generator, attackers = np.random.default_rng(seed), len(exponents)
    honest = spread * generator.normal(size=(clients, 8)) + generator.normal(size=8)
    honest /= np.maximum(1.0, np.linalg.norm(honest, axis=1, keepdims=True)) * (1 + 1e-6)
    submitted = honest.copy()
    directions = generator.normal(size=(attackers, 8)) * generator.choice([1.0, 0.0]) + generator.normal(size=8)
    lengths = 10.0 ** np.minimum(exponents, 38.0 if dtype == torch.float32 else 300.0)
    submitted[:attackers] = lengths[:, None] * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    clean, poisoned = (rule.aggregate(updates_of(torch.tensor(v, dtype=dtype)), {}) for v in (honest, submitted))
    drifts = rule.breakdown(participants(clients), poisoned, 1.0)
    assert drifts is not None
    if attackers < len(drifts):
        moved = float(torch.linalg.vector_norm(poisoned.update.double() - clean.update.double()))
        assert moved <= drifts[attackers] * (1 + 1e-6)
        assert drifts[attackers] <= (1e4 if rule == Rfa(weighting="uniform", iterations=1) else 8.0)


def test_the_distance_of_the_nearest_half_is_never_understated() -> None:
    """Not even if the point from which updates are seen is an attacker's, opposite to all others."""
    for seed in range(200):
        generator = np.random.default_rng(seed)
        clients, spread = int(generator.integers(3, 20)), 10.0 ** generator.uniform(-9, 0)
        honest = gaussian(1, 8, seed) + spread * gaussian(clients, 8, seed + 1)
        dtype = [torch.float32, torch.float64][seed % 2]
        honest[: (clients - 1) // 2] = [-honest[-1], 1e15 * honest[-1]][seed // 2 % 2]
        values = torch.from_numpy(honest).to(dtype)
        found = Rfa(weighting="uniform", iterations=1 + seed % 5).aggregate(updates_of(values), {})
        exact = values.numpy().astype(np.longdouble)
        away: Array = np.linalg.norm(exact - found.weights.numpy().astype(np.longdouble) @ exact, axis=1)
        assert np.sort(away)[(clients - 1) // 2] <= found.notes["nearest_half"]


def test_a_breakdown_counts_the_clients_that_the_rule_saw() -> None:
    """Of nine clients four sent nothing usable: the five that are left outvote two attackers, not four."""
    seen = updates_of(gaussian(5, 4))
    for rule in (Rfa(), Krum(f=1)):
        aggregate = rule.aggregate(seen, {})
        assert (
            rule.breakdown(participants(9), aggregate, 1.0).tolist()
            == rule.breakdown(participants(5), aggregate, 1.0).tolist()
        )
