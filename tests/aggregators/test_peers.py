"""The rules against ByzFL 0.0.11 and Flower 1.41, where definitions agree, and in which way they differ where not.

What the two libraries answer is kept in `peer_values.json`, so our side is always tested. Theirs is tested if they are
installed, as `make peers` does. They are not among the development dependencies: ByzFL asks for torchvision, whose
released builds do not load beside a PyTorch for CPUs, and Flower for a whole server.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.bulyan import Bulyan
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.krum import Krum, MultiKrum
from crfl_aggregators.mixing import NearestNeighbourMixing
from crfl_aggregators.norm_caps import NormBound
from crfl_aggregators.rfa import Rfa
from crfl_aggregators.trimmed_mean import Median, TrimmedMean

from crfl_core.extend import Aggregator, Stage
from crfl_core.training.aggregation_chain import apply_stage
from tests.aggregators.support import Array, updates_of

CLIENTS, SIZE, F = 13, 30, 2
PINNED: dict[str, dict[str, list[float]]] = json.loads(
    (Path(__file__).parent / "peer_values.json").read_text(encoding="utf-8")
)


def updates() -> Array:
    """Updates of unlike clients, without a random generator that another version might change."""
    waves = np.sin(np.arange(1.0, 1 + CLIENTS * SIZE) ** 1.7).reshape(CLIENTS, SIZE)
    return np.asarray(waves * np.linspace(0.5, 2.0, CLIENTS)[:, None])


def ours(step: Aggregator | Stage) -> Array:
    """Our answer for clients with equally many samples; of a stage, all its updates in a row."""
    submitted = updates_of(updates(), samples=np.full(CLIENTS, 10))
    if isinstance(step, Stage):
        return apply_stage(step, submitted, {}).values.flatten().numpy()
    return step.aggregate(submitted, {}).update.numpy()


def byzfl() -> Any:
    """ByzFL's kernels, or a skipped test. The package itself would import torchvision for its datasets."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        pytest.skip("byzfl is not installed")
    if "byzfl" not in sys.modules:
        sys.modules["byzfl"] = importlib.util.module_from_spec(spec)  # without running its __init__
    return importlib.import_module("byzfl.aggregators")


def flower() -> Any:
    """Flower's aggregation functions, or a skipped test."""
    return pytest.importorskip("flwr.server.strategy.aggregate", reason="flwr is not installed")


def layers() -> list[tuple[list[Array], int]]:
    """The updates as Flower wants them: arrays and a number of samples for each client."""
    return [([row[:20].reshape(4, 5), row[20:]], 10) for row in updates()]


Theirs = Callable[[Any], Any]

BYZFL: dict[str, tuple[Aggregator | Stage, Theirs]] = {
    "average": (FedAvg(), lambda kernels: kernels.Average()(updates())),
    "median": (Median(), lambda kernels: kernels.Median()(updates())),
    "trimmed-mean": (TrimmedMean(trim=F), lambda kernels: kernels.TrMean(f=F)(updates())),
    # Its code takes n - f - 1 neighbours: its f is our f + 1. The paper and we take n - f - 2.
    "krum": (Krum(f=F), lambda kernels: kernels.Krum(f=F + 1)(updates())),
    "multi-krum": (MultiKrum(f=F, keep=CLIENTS - F - 1), lambda kernels: kernels.MultiKrum(f=F + 1)(updates())),
    # Its smoothing is absolute, so it must be made small; it starts from zero, so it needs many iterations.
    "geometric-median": (
        Rfa(tolerance=1e-12, iterations=1000),
        lambda kernels: kernels.GeometricMedian(nu=1e-9, T=1000)(updates()),
    ),
    "centered-clipping": (
        CenteredClipping(iterations=3, radius=2.0),
        lambda kernels: kernels.CenteredClipping(L=3, tau=2.0)(updates()),
    ),
    "nearest-neighbour-mixing": (NearestNeighbourMixing(f=F), lambda kernels: kernels.NNM(f=F)(updates())),
    "clipping": (NormBound(bound=4.0), lambda kernels: kernels.Clipping(c=4.0)(updates())),
}

FLOWER: dict[str, tuple[Aggregator | Stage, Theirs]] = {
    "average": (FedAvg(), lambda functions: functions.aggregate(layers())),
    "median": (Median(), lambda functions: functions.aggregate_median(layers())),
    # It wants a share, and rounds the number of clients down.
    "trimmed-mean": (
        TrimmedMean(trim=F),
        lambda functions: functions.aggregate_trimmed_avg(layers(), F / CLIENTS + 1e-9),
    ),
    "krum": (Krum(f=F), lambda functions: functions.aggregate_krum(layers(), F, 0)),
    "multi-krum": (MultiKrum(f=F, keep=4), lambda functions: functions.aggregate_krum(layers(), F, 4)),
    "bulyan": (
        Bulyan(f=F),
        lambda functions: functions.aggregate_bulyan(layers(), F, functions.aggregate_krum, to_keep=0),
    ),
}

CASES = [("byzfl", name, *case) for name, case in BYZFL.items()] + [
    ("flower", name, *case) for name, case in FLOWER.items()
]
every_case = pytest.mark.parametrize(
    ("library", "name", "step", "theirs"), CASES, ids=[f"{library}-{name}" for library, name, *_ in CASES]
)


@every_case
def test_we_agree(library: str, name: str, step: Aggregator | Stage, theirs: Theirs) -> None:
    np.testing.assert_allclose(ours(step), PINNED[library][name], rtol=0, atol=1e-6)


@every_case
def test_this_is_what_the_library_answers(library: str, name: str, step: Aggregator | Stage, theirs: Theirs) -> None:
    answer = theirs(byzfl() if library == "byzfl" else flower())
    flat = np.concatenate([np.ravel(part) for part in answer]) if isinstance(answer, list) else np.ravel(answer)
    np.testing.assert_allclose(flat, PINNED[library][name], rtol=0, atol=1e-6)


def test_byzfls_geometric_median_of_small_updates_is_their_mean() -> None:
    """Its smoothing is 0.1 in absolute units, so an outlier among small updates counts in full. Ours is relative."""
    values = 0.001 * updates()
    values[0] *= 20
    theirs = byzfl().GeometricMedian(T=500)(values)
    np.testing.assert_allclose(theirs, values.mean(0), atol=1e-12)
    rest = values[1:].mean(0)
    mine = Rfa(weighting="uniform").aggregate(updates_of(values), {}).update.numpy()
    assert np.linalg.norm(mine - rest) < 0.5 * np.linalg.norm(theirs - rest)


def test_byzfls_clipping_changes_what_it_was_given() -> None:
    theirs = updates()
    byzfl().Clipping(c=1.0)(theirs)
    assert not np.array_equal(theirs, updates())


def test_one_bad_client_spoils_byzfls_average() -> None:
    """Here a non-finite update never reaches a rule."""
    values = torch.from_numpy(updates()).float()
    values[0, 0] = torch.nan
    assert not torch.isfinite(byzfl().Average()(values)).all()
