"""Every aggregation rule on 100 clients x 1,000,000 parameters in float32, one thread, against ByzFL in the same run.

Times are CPU times, so that other work on the machine counts as little as possible. ByzFL is not a dependency: `make
peers` adds it, and without it only our own times are printed. Its nearest-neighbour mixing gathers a copy of the
updates for each client, 36 GB at this size, so that one is compared on a tenth of the parameters. Residual-reweighting
compares all pairs in every coordinate: it is measured beside krum, which multiplies them, on 1,000 clients x 100,000
parameters, and takes a minute. Peak memory is measured in a process of its own on as many clients that the products of
all pairs weigh.

No rule can be faster than memory is read. What that takes is measured as the sum of all numbers, and printed beside
fedavg, which does nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

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
from torch import Tensor

from benchmarks.peaks import Steps, measure_peaks, step_function
from benchmarks.timing import best_times, report
from crfl_core.extend import Aggregator, Clients, ClientUpdates, Layout, Round, Streams
from crfl_core.plugin_api.aggregator import AggregationStep
from crfl_core.testing.sample_rounds import server_of

MALICIOUS = 10
RADIUS = 900.0  # nine tenths of the norm of a standard normal update: some are clipped

STEPS: dict[str, AggregationStep] = {
    "fedavg": FedAvg(weighting="uniform"),
    "rfa": Rfa(weighting="uniform", iterations=10, tolerance=0.0),
    "krum": Krum(f=MALICIOUS),
    "multi-krum": MultiKrum(f=MALICIOUS),
    "bulyan": Bulyan(f=MALICIOUS),
    "median": Median(),
    "trimmed-mean": TrimmedMean(trim=MALICIOUS),
    "median-of-means": MedianOfMeans(groups=25),
    "foolsgold": FoolsGold(memory=False),
    "centered-clipping": CenteredClipping(radius=RADIUS, memory=False),
    "norm-bound": NormBound(bound=RADIUS),
    "weak-noise": WeakNoise(),
    "update-cap": UpdateCap(bound=RADIUS),
    "nearest-neighbour-mixing": NearestNeighbourMixing(f=MALICIOUS),
    "bucketing": Bucketing(size=2),
    "norm-filter": NormFilter(f=MALICIOUS),
    "cosine-filter": CosineFilter(threshold=-1.0),
    "dnc": Dnc(f=MALICIOUS),
    "flame": Flame(),
    "fltrust": FLTrust(),
    "sign-majority": SignMajority(),
    "per-layer": PerLayer(rule=Krum(f=MALICIOUS).with_name("krum")),
    "baffle": Baffle(),
}

SLOW: dict[str, AggregationStep] = {"residual-reweighting": ResidualReweighting()}
MANY = 1000, 100_000
WEIGHTY = 1000, 30_000
"""Clients and parameters for which the products of all pairs are 7 % of the updates."""
FEWER = 300, 100_000
"""As many numbers, for rules that take n^2 P."""
CHAIN = [NormBound(bound=RADIUS), WeakNoise(), NormBound(bound=RADIUS), Krum(f=MALICIOUS)]
"""Three stages that have one buffer between them."""


def byzfl() -> dict[str, Callable[[Tensor], object]]:
    """Return ByzFL's version of our steps; empty if it is not installed."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        return {}
    # The package itself imports torchvision for its datasets; its kernels do not need that.
    sys.modules["byzfl"] = importlib.util.module_from_spec(spec)  # without running its __init__
    kernels = importlib.import_module("byzfl.aggregators")
    clipping = kernels.Clipping(c=RADIUS)
    return {
        "fedavg": kernels.Average(),
        "rfa": kernels.GeometricMedian(T=10),
        "krum": kernels.Krum(f=MALICIOUS),
        "multi-krum": kernels.MultiKrum(f=MALICIOUS),
        "median": kernels.Median(),
        "trimmed-mean": kernels.TrMean(f=MALICIOUS),
        "centered-clipping": lambda values: kernels.CenteredClipping(tau=RADIUS)(values),
        "norm-bound": lambda values: clipping(values.clone()),  # it changes its input
        "nearest-neighbour-mixing": kernels.NNM(f=MALICIOUS),
        "bucketing": kernels.Bucketing(s=2),
    }


def updates(clients: int, size: int) -> ClientUpdates:
    """Draw standard normal updates without weight decay, for a model of two layers."""
    values = torch.randn(clients, size, generator=torch.Generator().manual_seed(0))
    ones = np.ones(clients)
    zeros = np.zeros(clients)
    counts = ones.astype(np.int64)
    facts = Clients(
        ids=np.arange(clients),
        samples=counts,
        learning_rate=ones,
        steps=counts,
        batch_size=counts,
        last_batch=counts,
        weight_decay=zeros,
        retention=ones,
        update_bound=ones,
        group=counts * 0,
    )
    layout = Layout((("w", (size - size // 4,)), ("b", (size // 4,))))
    streams = Streams(0)
    server = server_of(size, facts, streams)
    return ClientUpdates(values, Round(1, 1, facts, layout, streams, torch.zeros(size), server))


def play(step: AggregationStep, submitted: ClientUpdates) -> object:
    """Run a step."""
    return step_function([step])(submitted)


def chains(steps: Mapping[str, AggregationStep]) -> dict[str, Steps]:
    """Return every step as a chain of its own."""
    return {name: [step] for name, step in steps.items()}


def compare(name: str, submitted: ClientUpdates, theirs: Callable[[Tensor], object] | None, target: str) -> None:
    """Compare the time of a step with ByzFL's version of it."""
    candidates = {"crfl": lambda: play(STEPS[name], submitted)}
    if theirs is not None:
        candidates["byzfl"] = lambda: theirs(submitted.values)
    times = best_times(candidates, turns=2, clock=time.process_time)
    shape = " x ".join(f"{length:,}" for length in submitted.values.shape)
    print(f"{name}, {shape}: " + "  ".join(f"{who} {seconds:.3f} s" for who, seconds in times.items()))
    if theirs is not None:
        report(f"time of ByzFL / {name}", times["byzfl"] / times["crfl"], target)


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    peers = byzfl()
    if not peers:
        print("byzfl is not installed: only our own times")
    full, tenth = (updates(100, size) for size in (1_000_000, 100_000))
    for name, step in STEPS.items():
        target = (
            "at least 8" if name == "rfa" else "at least 2" if isinstance(step, Aggregator) else "a stage: as it is"
        )
        compare(name, tenth if name == "nearest-neighbour-mixing" else full, peers.get(name), target)
    mean = partial(play, STEPS["fedavg"], full)
    once = best_times({"read": full.values.sum, "fedavg": mean}, turns=5, clock=time.process_time)
    report("time to read the updates once / fedavg", once["read"] / once["fedavg"], "at least 0.9: memory is the limit")
    del full, tenth, mean
    many = updates(*MANY)
    times = {name: time_once(step, many) for name, step in {**SLOW, "krum": STEPS["krum"]}.items()}
    for name in SLOW:
        report(f"time of {name} / krum, 1,000 x 100,000", times[name] / times["krum"], "at most 20")
    del many
    found = measure_peaks({**chains(STEPS), "chain": CHAIN}, updates, *WEIGHTY) | measure_peaks(
        chains(SLOW), updates, *FEWER
    )
    for name, ratio in found.items():
        report(f"peak memory beside the output / input, {name}", ratio, "at most 1.1")
    torch.set_num_threads(threads)


def time_once(step: AggregationStep, submitted: ClientUpdates) -> float:
    """Measure CPU seconds of a single turn, for slow steps."""
    started = time.process_time()
    play(step, submitted)
    return time.process_time() - started
