"""The rules against the papers: values worked out by hand, and independent float64 implementations of the formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from crfl_aggregators.bulyan import Bulyan
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.dnc import Dnc
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.filters import CosineFilter, NormFilter
from crfl_aggregators.foolsgold import FoolsGold
from crfl_aggregators.krum import Krum, MultiKrum
from crfl_aggregators.median_of_means import MedianOfMeans
from crfl_aggregators.mixing import NearestNeighbourMixing
from crfl_aggregators.residual_reweighting import ResidualReweighting
from crfl_aggregators.rfa import Rfa
from crfl_aggregators.sign_majority import SignMajority
from crfl_aggregators.trimmed_mean import Median, TrimmedMean

from crfl_core.extend import Aggregator, Streams
from tests.aggregators import oracles
from tests.aggregators.support import Array, gaussian, updates_of

Oracle = Callable[[Array], Array]


def shares(values: Array) -> Array:
    """Those of the sample counts that the support gives to clients."""
    counts = np.arange(10.0, 10 + len(values))
    return np.asarray(counts / counts.sum())


def dnc_subsets(size: int, count: int, passes: int) -> list[list[int]]:
    """The coordinates of every pass of round 1, from the stream that documents say they come from."""
    generator = Streams(3).generator("aggregation/dnc", round_number=1)
    return [sorted(generator.choice(size, count, replace=False).tolist()) for _ in range(passes)]


CASES: dict[str, tuple[Aggregator, Oracle, float]] = {
    "fedavg": (FedAvg(), lambda values: oracles.fedavg(values, range(10, 10 + len(values))), 1e-6),
    "rfa": (Rfa(iterations=1000), lambda values: oracles.geometric_median(values, shares(values)), 2e-5),
    "krum": (Krum(f=3), lambda values: oracles.krum(values, 3), 1e-6),
    "krum-f-0": (Krum(f=0), lambda values: oracles.krum(values, 0), 1e-6),
    "multi-krum": (MultiKrum(f=3, keep=4), lambda values: oracles.multi_krum(values, 3, 4), 1e-6),
    "multi-krum-default": (MultiKrum(f=3), lambda values: oracles.multi_krum(values, 3, len(values) - 3), 1e-6),
    "bulyan": (Bulyan(f=2), lambda values: oracles.bulyan(values, 2), 1e-6),
    "median": (Median(), oracles.median, 1e-6),
    "trimmed-mean": (TrimmedMean(trim=4), lambda values: oracles.trimmed_mean(values, 4), 1e-6),
    "median-of-means": (
        MedianOfMeans(groups=5, iterations=1000),
        lambda values: oracles.median_of_means(values, 5),
        2e-5,
    ),
    "dnc": (Dnc(f=3), lambda values: oracles.dnc(values, 3, 1.0, [range(values.shape[1])]), 1e-6),
    "dnc-subsets": (
        Dnc(f=2, filtering=1.5, iterations=3, dimensions=25),
        lambda values: oracles.dnc(values, 2, 1.5, dnc_subsets(values.shape[1], 25, 3)),
        1e-6,
    ),
    "sign-majority": (SignMajority(step=0.02), lambda values: oracles.sign_majority(values, 0.02), 1e-6),
    "foolsgold": (FoolsGold(), lambda values: oracles.foolsgold_trust(values) @ values / len(values), 1e-6),
    "centered-clipping": (
        CenteredClipping(radius=0.02, iterations=3),
        lambda values: oracles.centered_clipping(values, np.zeros(values.shape[1]), 0.02, 3),
        1e-6,
    ),
    "residual-reweighting": (
        ResidualReweighting(),
        lambda values: oracles.residual_reweighting(values, 2.0, 0.1, 2.0),
        1e-5,
    ),
}

every_case = pytest.mark.parametrize(("rule", "oracle", "tolerance"), CASES.values(), ids=CASES)


@every_case
@pytest.mark.parametrize("clients", [13, 16])
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_the_formula_in_double_precision(
    rule: Aggregator, oracle: Oracle, tolerance: float, clients: int, seed: int
) -> None:
    values = gaussian(clients, 40, seed) + gaussian(1, 40, 100 + seed)
    np.testing.assert_allclose(rule.aggregate(updates_of(values), {}).update, oracle(values), atol=tolerance, rtol=0)


@every_case
@pytest.mark.parametrize("seed", range(3))
def test_single_precision_agrees_on_long_updates_that_hardly_differ(
    rule: Aggregator, oracle: Oracle, tolerance: float, seed: int
) -> None:
    """Norm 15 with a spread of 0.01, as weights have: what matters is in the last three digits."""
    shared, spread = gaussian(1, 300, 100 + seed), gaussian(13, 300, seed)
    values = 15 * shared / np.linalg.norm(shared) + 0.01 * spread / np.linalg.norm(spread, axis=1, keepdims=True)
    single = torch.from_numpy(values).float()
    found = rule.aggregate(updates_of(single), {}).update
    expected = oracle(single.double().numpy())
    assert np.linalg.norm(found.double().numpy() - expected) <= 15 * 1e-6 * (1 + tolerance)


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "rfa", "bulyan", "median-of-means"])
@pytest.mark.parametrize("seed", range(3))
def test_a_huge_update_does_not_blind_single_precision_to_small_distances(rule: str, seed: int) -> None:
    """Around the mean, which it moves, the honest updates would all look alike."""
    values = gaussian(1, 300, 100 + seed) + 0.001 * gaussian(13, 300, seed)
    values[5] = 1e8 * gaussian(1, 300, 200 + seed)
    single = torch.from_numpy(values).float()
    chosen, expected = (CASES[rule][0].aggregate(updates_of(x), {}).weights for x in (single, single.double()))
    torch.testing.assert_close(chosen, expected, rtol=0, atol=1e-8)
    assert float(chosen[5]) < 1e-6


def aggregate(rule: Aggregator, *rows: list[float]) -> list[float]:
    """The result for a few short updates."""
    return rule.aggregate(updates_of(np.asarray(rows, np.float64)), {}).update.tolist()


def test_krum_counts_n_minus_f_minus_2_neighbours() -> None:
    """Five clients on a line, f = 1: two neighbours count, and 1 (scores 1 + 1) wins over 5 (0 + 16).

    With n - f - 1 = 3 neighbours 1 would score 1 + 1 + 16 = 18 and 2 would win with 1 + 4 + 9 = 14.
    """
    line = [0.0], [1.0], [2.0], [5.0], [5.0]
    assert aggregate(Krum(f=1), *line) == [1.0]
    scores = [1 + 4, 1 + 1, 1 + 4, 0 + 9, 0 + 9]
    assert scores.index(min(scores)) == 1


def test_multi_krum_averages_the_best() -> None:
    line = [0.0], [1.0], [2.0], [5.0], [5.0]
    assert aggregate(MultiKrum(f=1, keep=3), *line) == [1.0]
    assert aggregate(MultiKrum(f=1, keep=1), *line) == aggregate(Krum(f=1), *line)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert aggregate(Median(), [1.0, 9.0], [2.0, 8.0], [4.0, 7.0], [100.0, -50.0]) == [3.0, 7.5]
    assert aggregate(Median(), [1.0, 9.0], [2.0, 8.0], [100.0, -50.0]) == [2.0, 8.0]


def test_the_trimmed_mean_drops_both_ends_of_every_coordinate() -> None:
    assert aggregate(TrimmedMean(trim=1), [1.0, 9.0], [2.0, 8.0], [4.0, 7.0], [100.0, -50.0]) == [3.0, 7.5]


def test_clients_that_tie_at_the_end_of_a_trimmed_mean_share_its_place() -> None:
    values = np.asarray([[1.0], [1.0], [2.0], [3.0], [3.0], [3.0]])
    found = TrimmedMean(trim=1).aggregate(updates_of(values), {})
    assert found.full_weights is not None
    np.testing.assert_allclose(found.full_weights()[:, 0], np.asarray([1 / 2, 1 / 2, 1, 2 / 3, 2 / 3, 2 / 3]) / 4)
    assert found.update.tolist() == [2.25]


def test_bulyan_of_seven_on_a_line() -> None:
    """f = 1 selects five of seven and averages the three that are nearest to their median."""
    line = [0.0], [1.0], [2.0], [3.0], [4.0], [50.0], [60.0]
    assert aggregate(Bulyan(f=1), *line) == [2.0]


def test_values_at_the_same_distance_from_an_even_median_share_bulyans_places_whatever_the_rounding() -> None:
    """Of six values two are kept. The median lies between the 3rd and the 4th, and the 5th equals the 4th."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        low, high = np.sort(generator.standard_normal(2))
        values = np.asarray([[low - 9], [low - 8], [low], [high], [high], [high + 9]])
        found = Bulyan(f=2).choose(torch.from_numpy(values))
        assert found.update.tolist() == pytest.approx([(low + 2 * high) / 3])


def test_the_geometric_median_of_a_right_angle_is_fermats_point() -> None:
    """For (0, 0), (1, 0), (0, 1): on the diagonal at (3 - sqrt 3) / 6, where all sides are seen under 120 degrees."""
    found = aggregate(Rfa(weighting="uniform", iterations=1000), [0.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    assert found == pytest.approx([(3 - 3**0.5) / 6] * 2, abs=1e-5)


def test_the_geometric_median_stays_at_a_client_that_outweighs_the_others() -> None:
    found = aggregate(Rfa(weighting="uniform"), [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [5.0, 1.0], [1.0, 9.0])
    assert found == pytest.approx([1.0, 1.0], abs=1e-5)


def test_the_median_of_means_groups_clients_by_id() -> None:
    values = np.asarray([[0.0], [2.0], [10.0], [12.0], [4.0], [6.0]])
    found = MedianOfMeans(groups=3, iterations=1000).aggregate(updates_of(values), {})
    assert found.update.tolist() == pytest.approx([5.0], abs=1e-4)  # of the means 1, 11 and 5


def test_centered_clipping_moves_on_from_the_last_aggregate() -> None:
    """Around 0 the updates 1 and 10 are clipped to 1 and 2: the centre becomes 1.5. From there to 1 and 3.5: 2.25."""
    rule = CenteredClipping(radius=2.0)
    updates = updates_of(np.asarray([[1.0], [10.0]]))
    first = rule.aggregate(updates, {})
    second = rule.aggregate(updates, first.state)
    assert (first.update.tolist(), second.update.tolist()) == ([1.5], [2.25])
    assert second.weights.tolist() == pytest.approx([0.5, 1 / 8.5])
    assert CenteredClipping(radius=2.0, memory=False).aggregate(updates, first.state).update.tolist() == [1.5]


def test_mixing_averages_the_nearest_neighbours() -> None:
    values = gaussian(9, 20)
    staged = NearestNeighbourMixing(f=3).transform(updates_of(values), {})
    np.testing.assert_allclose(staged.values, oracles.nearest_neighbour_mixing(values, 3), atol=1e-12)


def test_the_norm_filter_leaves_out_the_longest() -> None:
    staged = NormFilter(f=2).transform(updates_of(np.asarray([[3.0], [-1.0], [2.0], [-9.0]])), {})
    assert staged.values.tolist() == [[-1.0], [2.0]]
    assert staged.mixing.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_the_cosine_filter_leaves_out_who_points_elsewhere() -> None:
    values = np.asarray([[1.0, 0.1], [1.0, -0.1], [5.0, 0.3], [-1.0, 0.0], [0.0, 0.0]])
    assert len(CosineFilter(threshold=0.5).transform(updates_of(values[:4]), {}).values) == 3
    kept = CosineFilter(threshold=0.0).transform(updates_of(values), {}).mixing.sum(0)
    assert kept.tolist() == [1, 1, 1, 0, 1]  # a zero update points nowhere: its cosines count as 0


def test_the_cosine_filter_never_leaves_out_all_clients() -> None:
    opposed = updates_of(np.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    assert len(CosineFilter(threshold=0.9).transform(opposed, {}).values) == 4
