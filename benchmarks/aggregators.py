"""Every aggregation rule on 100 clients x 1,000,000 parameters in float32, one thread, against ByzFL in the same run.

Times are CPU times, so that other work on the machine counts as little as possible. ByzFL is no dependency: `make
peers` adds it, and without it only our own times are printed. Its nearest-neighbour mixing gathers a copy of the
updates for each client, 36 GB at this size, so that one is compared on a tenth of the parameters. Peak memory is
measured in a fresh process, also on 1,000 clients x 100,000 parameters.

No rule can be faster than memory is read. What that takes is measured as the sum of all numbers, and printed beside
fedavg, which does nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from crfl_aggregators.bucketing import Bucketing
from crfl_aggregators.bulyan import Bulyan
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.cosine_filter import CosineFilter
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.foolsgold import FoolsGold
from crfl_aggregators.krum import Krum, MultiKrum
from crfl_aggregators.median import Median
from crfl_aggregators.median_of_means import MedianOfMeans
from crfl_aggregators.nearest_neighbour_mixing import NearestNeighbourMixing
from crfl_aggregators.norm_bound import NormBound
from crfl_aggregators.norm_filter import NormFilter
from crfl_aggregators.residual_reweighting import ResidualReweighting
from crfl_aggregators.rfa import Rfa
from crfl_aggregators.trimmed_mean import TrimmedMean
from crfl_aggregators.update_cap import UpdateCap
from crfl_aggregators.weak_noise import WeakNoise
from torch import Tensor

from benchmarks.timing import best_times, report
from crfl_core.extend import Aggregator, Clients, ClientUpdates, Layout, Round, Stage, State, Streams
from crfl_core.federation.chain import Staged, run_chain, staged_by
from crfl_interface.kinds.aggregator import AggregationStep

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
}

SLOW = {"residual-reweighting": ResidualReweighting()}
"""Compares all pairs in every coordinate; measured beside krum, which multiplies them, on many clients."""
CHAIN = [NormBound(bound=RADIUS), WeakNoise(), NormBound(bound=RADIUS), Krum(f=MALICIOUS)]
"""Three stages that have one buffer between them."""


def byzfl() -> dict[str, Callable[[Tensor], object]]:
    """ByzFL's version of our steps; empty if it is not installed."""
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
    """Standard normal updates of alike clients without weight decay."""
    values = torch.randn(clients, size, generator=torch.Generator().manual_seed(0))
    ones, zeros = np.ones(clients), np.zeros(clients)
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
    return ClientUpdates(values, Round(1, 1, facts, Layout((("w", (size,)),)), Streams(0), torch.zeros(size)))


def play(step: AggregationStep, submitted: ClientUpdates, state: State | None = None) -> object:
    """The step's answer."""
    if isinstance(step, Stage):
        return staged_by(step, submitted, state or {})
    assert isinstance(step, Aggregator)
    return step.aggregate(submitted, state or {})


def peak_memory(clients: int, size: int, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Peak memory of steps in units of their input, without what a stage hands on, and in GiB with it."""
    torch.set_num_threads(1)
    small, submitted = updates(clients, 1000), updates(clients, size)
    data = submitted.values.nbytes
    peaks = {}
    for name in names:
        step = STEPS.get(name)
        work = partial(run_chain, CHAIN) if step is None else partial(play, step)
        work(small, {})  # libraries allocate their buffers once
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        answer = work(submitted, {})
        peak, handed_on = memory("VmHWM"), data if step is None else 0
        if isinstance(answer, Staged) and answer.values.data_ptr() != submitted.values.data_ptr():
            handed_on = answer.values.nbytes
        peaks[name] = (1.0 + (peak - before - handed_on) / data, peak / 2**30)
        del answer
    return peaks


def memory(field: str) -> int:
    """Resident memory of this process in bytes, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def in_own_process(clients: int, size: int, names: Sequence[str] = (*STEPS, "chain")) -> dict[str, tuple[float, float]]:
    """`peak_memory` where nothing else was allocated before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_memory, (clients, size, names))


def compare(name: str, submitted: ClientUpdates, theirs: Callable[[Tensor], object] | None, target: str) -> None:
    """The time of a step, and of ByzFL's version of it."""
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
    once = best_times(
        {"read": full.values.sum, "fedavg": lambda: play(STEPS["fedavg"], full)}, turns=5, clock=time.process_time
    )
    report("time to read the updates once / fedavg", once["read"] / once["fedavg"], "at least 0.9: memory is the limit")
    many = updates(1000, 20_000)
    for name, step in SLOW.items():
        candidates = {name: partial(play, step, many), "krum": partial(play, STEPS["krum"], many)}
        times = best_times(candidates, turns=2, clock=time.process_time)
        report(f"time of {name} / krum, 1,000 x 20,000", times[name] / times["krum"], "at most 20")
    for name, (ratio, _) in in_own_process(100, 1_000_000).items():
        report(f"peak memory beside the output / input, {name}", ratio, "at most 1.1")
    largest, worst = max((peak, name) for name, (_, peak) in in_own_process(1000, 100_000).items())
    report("peak memory in GiB on 1,000 x 100,000, of the worst", largest, "at most 4", detail=worst)
    torch.set_num_threads(threads)
