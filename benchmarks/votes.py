"""Votes of M = 1000 noisy models with 10 classes and 784 features on 5000 samples, and on two such test sets.

Compared with the same number of multiplications as plain float32 matrix products, in processor seconds of one thread;
and on the wall with as many threads as there are cores. Noise is drawn once for all test sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.timing import best_times, report
from crfl_core.extend import DataFacts, Domain, Registry, Streams
from crfl_core.plugin_api.model import Model
from crfl_core.records.vote_counting import MODELS_PER_CHUNK, SAMPLES_PER_BLOCK, count_votes, draw_noisy_models

MODELS = 1000
CLASSES = 10
FEATURES = 784
SAMPLES = 5000
NOISE = 0.1


def main() -> None:
    threads = torch.get_num_threads()
    for number in {1, threads}:
        torch.set_num_threads(number)
        for sets in (1, 2):
            compare(sets, number, time.process_time if number == 1 else time.perf_counter)
    torch.set_num_threads(threads)


def compare(sets: int, threads: int, clock: Callable[[], float]) -> None:
    """Compare votes on some test sets with products of the same size."""
    softmax = Registry().load("model", "softmax").model_validate({"bias": True})
    assert isinstance(softmax, Model)
    model = softmax.build(DataFacts(FEATURES, CLASSES, Domain()))
    generator = torch.Generator().manual_seed(0)
    x = [torch.rand(SAMPLES, FEATURES, generator=generator) for _ in range(sets)]
    parameters = 0.1 * torch.randn(model.layout.size, generator=generator)
    weights = torch.randn(MODELS * CLASSES, FEATURES, generator=generator)
    result = torch.empty(SAMPLES, MODELS_PER_CHUNK * CLASSES)

    def votes() -> None:
        blocks = [block for part in x for block in part.split(SAMPLES_PER_BLOCK)]
        count_votes(model, draw_noisy_models(parameters, NOISE, MODELS, Streams(0), "votes"), blocks)

    def products() -> None:
        for chunk in weights.split(MODELS_PER_CHUNK * CLASSES):
            for part in x:
                torch.mm(part, chunk.T, out=result[:, : len(chunk)])

    times = best_times({"votes": votes, "products": products}, turns=5, clock=clock)
    operations = 2.0 * SAMPLES * FEATURES * CLASSES * MODELS * sets
    reached, limit = (operations / times[name] / 1e9 for name in ("votes", "products"))
    print(f"votes {times['votes']:.3f} s, {reached:.0f} GFLOP/s; matrix products {limit:.0f} GFLOP/s")
    name = f"throughput of votes / of matrix products, {sets} test sets, {threads} threads"
    report(name, times["products"] / times["votes"], "at least 0.8")
