"""The rules against ByzFL and Flower, where their definitions agree, and in which way they differ where they do not.

Neither is a dependency: ByzFL needs torchvision, which has no build that fits the pinned PyTorch, and Flower brings a
whole server. Each part is skipped if its library is missing: `pip install --no-deps byzfl==0.0.11`, `pip install
flwr==1.41`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.bulyan import Bulyan
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.krum import Krum, MultiKrum
from crfl_aggregators.median import Median
from crfl_aggregators.nearest_neighbour_mixing import NearestNeighbourMixing
from crfl_aggregators.norm_bound import NormBound
from crfl_aggregators.rfa import Rfa
from crfl_aggregators.trimmed_mean import TrimmedMean

from crfl_core import Aggregator
from tests.aggregators.support import Array, gaussian, updates_of

CLIENTS, MALICIOUS = 13, 2

seeds = pytest.mark.parametrize("seed", range(3))


def values_of(seed: int) -> Array:
    """Updates of unlike clients."""
    return np.asarray(gaussian(CLIENTS, 60, seed) * np.linspace(0.5, 2.0, CLIENTS)[:, None])


def ours(rule: Aggregator, values: Array) -> Array:
    """Our result for clients with equally many samples."""
    updates = updates_of(values, samples=np.full(len(values), 10))
    return rule.aggregate(updates, {}).update.numpy()


@pytest.fixture(scope="module")
def byzfl() -> Any:
    """ByzFL's kernels. The package itself would import torchvision for its datasets."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("byzfl is not installed")
    if "byzfl" not in sys.modules:
        package = ModuleType("byzfl")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators")


class TestByzFL:
    """Version 0.0.11."""

    @seeds
    def test_average_median_and_trimmed_mean_agree(self, byzfl: Any, seed: int) -> None:
        values = values_of(seed)
        np.testing.assert_allclose(ours(FedAvg(), values), byzfl.Average()(values), atol=1e-12)
        np.testing.assert_allclose(ours(Median(), values), byzfl.Median()(values), atol=1e-12)
        trimmed = byzfl.TrMean(f=MALICIOUS)(values)
        np.testing.assert_allclose(ours(TrimmedMean(trim=MALICIOUS), values), trimmed, atol=1e-12)

    @seeds
    def test_krum_counts_one_neighbour_more_there(self, byzfl: Any, seed: int) -> None:
        """Its code takes n - f - 1 neighbours, so its f is our f - 1; the paper and we take n - f - 2."""
        values = values_of(seed)
        np.testing.assert_allclose(ours(Krum(f=MALICIOUS), values), byzfl.Krum(f=MALICIOUS + 1)(values), atol=1e-12)
        keep = CLIENTS - MALICIOUS - 1
        multi = ours(MultiKrum(f=MALICIOUS, keep=keep), values)
        np.testing.assert_allclose(multi, byzfl.MultiKrum(f=MALICIOUS + 1)(values), atol=1e-12)

    @seeds
    def test_geometric_medians_agree_on_large_updates(self, byzfl: Any, seed: int) -> None:
        values = 1000 * values_of(seed)
        theirs = byzfl.GeometricMedian(nu=1e-6, T=500)(values)
        np.testing.assert_allclose(ours(Rfa(tolerance=1e-10, iterations=500), values), theirs, atol=1e-3)

    def test_its_geometric_median_of_small_updates_is_their_mean(self, byzfl: Any) -> None:
        """Its smoothing is 0.1 in absolute units; ours is relative."""
        values = 0.001 * values_of(0)
        values[0] *= 20
        theirs = byzfl.GeometricMedian(T=500)(values)
        np.testing.assert_allclose(theirs, values.mean(0), atol=1e-12)
        rest = values[1:].mean(0)
        assert np.linalg.norm(ours(Rfa(), values) - rest) < 0.5 * np.linalg.norm(theirs - rest)

    @seeds
    def test_centered_clipping_agrees_over_rounds(self, byzfl: Any, seed: int) -> None:
        theirs, mine = byzfl.CenteredClipping(L=2, tau=5.0), CenteredClipping(iterations=2, radius=5.0)
        state: dict[str, torch.Tensor] = {}
        for number in range(3):
            values = values_of(seed + 10 * number)
            found = mine.aggregate(updates_of(values), state)
            state = dict(found.state)
            np.testing.assert_allclose(found.update, theirs(values), atol=1e-12)

    @seeds
    def test_mixing_and_clipping_agree(self, byzfl: Any, seed: int) -> None:
        values = values_of(seed)
        mixed = NearestNeighbourMixing(f=MALICIOUS).transform(updates_of(values), {}).values
        np.testing.assert_allclose(mixed, byzfl.NNM(f=MALICIOUS)(values), atol=1e-12)
        clipped = NormBound(bound=9.0).transform(updates_of(values), {}).values
        np.testing.assert_allclose(clipped, byzfl.Clipping(c=9.0)(values.copy()), atol=1e-12)

    def test_its_clipping_changes_what_it_was_given(self, byzfl: Any) -> None:
        theirs, mine = values_of(0), values_of(0)
        byzfl.Clipping(c=1.0)(theirs)
        NormBound(bound=1.0).transform(updates_of(mine), {})
        assert not np.array_equal(theirs, values_of(0))
        assert np.array_equal(mine, values_of(0))

    def test_one_bad_client_is_enough_to_spoil_its_average(self, byzfl: Any) -> None:
        """Here a non-finite update never reaches a rule."""
        values = torch.from_numpy(values_of(0)).float()
        values[0, 0] = torch.nan
        assert not torch.isfinite(byzfl.Average()(values)).all()


@pytest.fixture(scope="module")
def flower() -> Any:
    """Flower's aggregation functions."""
    return pytest.importorskip("flwr.server.strategy.aggregate", reason="flwr is not installed")


class TestFlower:
    """Version 1.41."""

    @staticmethod
    def results(values: Array) -> list[tuple[list[Array], int]]:
        """Updates as it wants them: layers and a number of samples for each client."""
        return [([row[:20].reshape(4, 5), row[20:]], 10) for row in values]

    @staticmethod
    def flat(layers: list[Array]) -> Array:
        """And back."""
        return np.concatenate([np.ravel(layer) for layer in layers])

    @seeds
    def test_average_median_and_trimmed_mean_agree(self, flower: Any, seed: int) -> None:
        values = values_of(seed)
        results = self.results(values)
        np.testing.assert_allclose(ours(FedAvg(), values), self.flat(flower.aggregate(results)), atol=1e-12)
        np.testing.assert_allclose(ours(Median(), values), self.flat(flower.aggregate_median(results)), atol=1e-12)
        share = MALICIOUS / CLIENTS + 1e-9
        trimmed = self.flat(flower.aggregate_trimmed_avg(results, share))
        np.testing.assert_allclose(ours(TrimmedMean(trim=MALICIOUS), values), trimmed, atol=1e-12)

    @seeds
    def test_krum_and_multi_krum_agree(self, flower: Any, seed: int) -> None:
        values = values_of(seed)
        results = self.results(values)
        one = self.flat(flower.aggregate_krum(results, MALICIOUS, 0))
        np.testing.assert_allclose(ours(Krum(f=MALICIOUS), values), one, atol=1e-12)
        several = self.flat(flower.aggregate_krum(results, MALICIOUS, 4))
        np.testing.assert_allclose(ours(MultiKrum(f=MALICIOUS, keep=4), values), several, atol=1e-12)

    @seeds
    def test_bulyan_agrees(self, flower: Any, seed: int) -> None:
        values = values_of(seed)
        theirs = self.flat(flower.aggregate_bulyan(self.results(values), MALICIOUS, flower.aggregate_krum, to_keep=0))
        np.testing.assert_allclose(ours(Bulyan(f=MALICIOUS), values), theirs, atol=1e-12)
