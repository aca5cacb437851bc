"""Votes of M = 1000 noisy models with 10 classes and 784 features on 5000 samples.

Compared with the same number of multiplications as plain float32 matrix products.
"""

from __future__ import annotations

import torch

from benchmarks.timing import best_times, report
from crfl_core.extend import DataFacts, Domain, Registry, Streams
from crfl_interface.ballots import MODELS_AT_ONCE, SAMPLES_AT_ONCE, count, noisy_models
from crfl_interface.kinds.model import Model

MODELS, CLASSES, FEATURES, SAMPLES = 1000, 10, 784, 5000
NOISE = 0.1


def main() -> None:
    softmax = Registry().load("model", "softmax").model_validate({"bias": True})
    assert isinstance(softmax, Model)
    model = softmax.build(DataFacts(FEATURES, CLASSES, Domain()))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(SAMPLES, FEATURES, generator=generator)
    parameters = 0.1 * torch.randn(model.layout.size, generator=generator)
    weights = torch.randn(MODELS_AT_ONCE * CLASSES, FEATURES, generator=generator)
    result = torch.empty(SAMPLES, MODELS_AT_ONCE * CLASSES)

    def votes() -> None:
        count(model, noisy_models(parameters, NOISE, MODELS, Streams(0), "votes"), x.split(SAMPLES_AT_ONCE))

    def products() -> None:
        for _ in range(MODELS // MODELS_AT_ONCE):
            torch.mm(x, weights.T, out=result)

    times = best_times({"votes": votes, "products": products}, turns=5)
    operations = 2.0 * SAMPLES * FEATURES * CLASSES
    reached = operations * MODELS / times["votes"]
    limit = operations * (MODELS // MODELS_AT_ONCE) * MODELS_AT_ONCE / times["products"]
    print(f"votes {times['votes']:.3f} s, {reached / 1e9:.0f} GFLOP/s; matrix products {limit / 1e9:.0f} GFLOP/s")
    report("throughput of votes / throughput of matrix products", reached / limit, "at least 0.6")
