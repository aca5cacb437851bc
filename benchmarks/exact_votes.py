"""Exact votes of 10,000 samples against Monte Carlo votes of 1000 noisy models: 784 features, 10 and 47 classes."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.timing import best_times, report
from crfl_core import formulas
from crfl_core.extend import BoundModel, DataFacts, Domain, Model, Registry, Streams
from crfl_core.records.vote_counting import SAMPLES_PER_BLOCK, count_votes, draw_noisy_models

SAMPLES = 10_000
FEATURES = 784
MODELS = 1000
NOISE = 0.05


def build(classes: int) -> BoundModel:
    """Softmax regression with a number of classes."""
    softmax = Registry().load("model", "softmax").model_validate({"bias": False})
    assert isinstance(softmax, Model)
    return softmax.build(DataFacts(FEATURES, classes, Domain()))


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(SAMPLES, FEATURES, generator=generator)
    for classes, target in ((10, "at most 0.2"), (47, "at most 1")):
        model = build(classes)
        parameters = 0.1 * torch.randn(model.layout.size, generator=generator)
        logits = model.logits(parameters[None], x)[0].double().numpy()
        stds = NOISE * np.linalg.norm(x.numpy(), axis=1)

        def exact(logits: np.ndarray = logits, stds: np.ndarray = stds) -> None:
            formulas.exact_votes(logits, stds)

        def monte_carlo(model: BoundModel = model, parameters: torch.Tensor = parameters) -> None:
            count_votes(
                model, draw_noisy_models(parameters, NOISE, MODELS, Streams(0), "votes"), x.split(SAMPLES_PER_BLOCK)
            )

        times = best_times({"exact": exact, "monte carlo": monte_carlo}, turns=3)
        print(f"{classes} classes: exact {times['exact']:.3f} s, Monte Carlo {times['monte carlo']:.3f} s")
        report(f"time of exact votes / Monte Carlo, {classes} classes", times["exact"] / times["monte carlo"], target)
