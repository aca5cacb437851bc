"""Rounds and updates to try aggregators on, and a small instance of every rule and stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from crfl_aggregators.baffle import Baffle
from crfl_aggregators.bulyan import Bulyan
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.dnc import Dnc
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.filters import CosineFilter, NormFilter
from crfl_aggregators.flame import Flame
from crfl_aggregators.fltrust import FLTrust
from crfl_aggregators.foolsgold import FoolsGold
from crfl_aggregators.krum import Krum, MultiKrum
from crfl_aggregators.median_of_means import MedianOfMeans
from crfl_aggregators.mixing import Bucketing, NearestNeighbourMixing
from crfl_aggregators.norm_caps import NormBound, UpdateCap
from crfl_aggregators.per_layer import PerLayer
from crfl_aggregators.residual_reweighting import ResidualReweighting
from crfl_aggregators.rfa import Rfa
from crfl_aggregators.sign_majority import SignMajority
from crfl_aggregators.trimmed_mean import Median, TrimmedMean
from crfl_aggregators.weak_noise import WeakNoise
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.extend import Aggregator, Clients, ClientUpdates, Layout, Round, RuleResult, Stage, Streams
from crfl_core.plugin_api.aggregator import AggregationStep
from crfl_core.testing.sample_rounds import server_of
from crfl_core.training.aggregation_chain import run_chain

Array = NDArray[np.float64]

RULES: dict[str, Aggregator] = {
    "fedavg": FedAvg(),
    "rfa": Rfa(tolerance=0.0),  # always the same number of iterations, so that runs can be compared
    "krum": Krum(f=1),
    "multi-krum": MultiKrum(f=1, keep=3),
    "bulyan": Bulyan(f=1),
    "median": Median(),
    "trimmed-mean": TrimmedMean(trim=2),
    "median-of-means": MedianOfMeans(groups=3, tolerance=0.0),
    "flame": Flame(noise=0.0),
    "fltrust": FLTrust(),
    "dnc": Dnc(f=1, dimensions=3),
    "sign-majority": SignMajority(step=0.1),
    "per-layer": PerLayer(rule=Krum(f=1).with_name("krum")),
    "foolsgold": FoolsGold(),
    "residual-reweighting": ResidualReweighting(),
    "centered-clipping": CenteredClipping(radius=2.0, iterations=2),
}

STAGES: dict[str, Stage] = {
    "norm-bound": NormBound(bound=2.0),
    "weak-noise": WeakNoise(std=0.1),
    "update-cap": UpdateCap(),
    "nearest-neighbour-mixing": NearestNeighbourMixing(f=2),
    "bucketing": Bucketing(size=2),
    "norm-filter": NormFilter(f=2),
    "cosine-filter": CosineFilter(threshold=0.1),
    "baffle": Baffle(),
}


def participants(count: int, **columns: Any) -> Clients:
    """Return clients of 10, 11, ... samples, whose honest updates have at most the norm 2, without weight decay."""
    ones = np.ones(count, np.int64)
    facts = {
        "ids": np.arange(count),
        "samples": np.arange(10, 10 + count),
        "learning_rate": np.full(count, 0.1),
        "steps": ones,
        "batch_size": ones,
        "last_batch": ones,
        "weight_decay": np.zeros(count),
        "retention": np.ones(count),
        "update_bound": np.full(count, 2.0),
        "group": np.zeros(count, np.int64),
    }
    return Clients(**(facts | columns))


def updates_of(
    values: Tensor | Array, *, number: int = 1, start: Tensor | None = None, **columns: Any
) -> ClientUpdates:
    """These updates as those of a round."""
    values = torch.as_tensor(values)
    clients, size = values.shape
    begin = torch.ones(size, dtype=values.dtype) if start is None else start
    layout, facts, streams = Layout((("w", (size,)),)), participants(clients, **columns), Streams(3)
    server = server_of(size, participants(clients), streams)
    return ClientUpdates(values, Round(number, 9, facts, layout, streams, begin, server))


def gaussian(clients: int, size: int, seed: int = 0) -> Array:
    """Independent standard normal updates."""
    return np.random.default_rng(seed).standard_normal((clients, size))


def permuted(updates: ClientUpdates, order: NDArray[np.int64]) -> ClientUpdates:
    """Return the same clients with the same updates, in another order."""
    clients = updates.round.clients.take(order)
    return ClientUpdates(updates.values[torch.from_numpy(order)], replace(updates.round, clients=clients))


def rebuilt(aggregate: RuleResult, values: Tensor) -> Tensor:
    """Return `sum_i p_i u_i + offset`, with a weight per coordinate where the rule has them."""
    weights = aggregate.weights[:, None] if aggregate.full_weights is None else aggregate.full_weights()
    total = (weights.to(values) * values).sum(0)
    return total if aggregate.offset is None else total + aggregate.offset


def aggregate_of(steps: Sequence[AggregationStep], updates: ClientUpdates) -> RuleResult:
    """Run a chain on the updates of a first round; return its answer in terms of what clients submitted."""
    reported = run_chain(steps, updates, {}).reported
    assert reported is not None
    return reported


@st.composite
def all_kinds_of_updates(draw: Callable[..., Any], most: int = 9) -> ClientUpdates:
    """Updates with and without ties, duplicates, zeros and outliers. Small integers, so that ties are exact."""
    clients, size = draw(st.integers(1, most)), draw(st.integers(1, 6))
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    kind = draw(st.sampled_from(["gaussian", "integers", "signs", "duplicates", "outlier", "zeros"]))
    values = generator.standard_normal((clients, size))
    match kind:
        case "integers":
            values = generator.integers(-3, 4, (clients, size)).astype(np.float64)
        case "signs":
            values = generator.choice([-1.0, 0.0, 1.0], (clients, size))
        case "duplicates":
            values = generator.integers(-3, 4, (2, size))[generator.integers(0, 2, clients)].astype(np.float64)
        case "outlier":
            values[generator.integers(clients)] *= 1e6
        case "zeros":
            values[generator.random(clients) < 0.5] = 0.0
    return updates_of(values)
