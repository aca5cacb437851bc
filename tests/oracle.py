"""Algorithm 1 of the paper once more: float64, plain loops, one sample at a time, written from the paper alone.

It shares nothing with the code under test but the random draws, which it takes from `Streams` by their documented
meaning: one permutation of a client's samples per epoch, one Gaussian vector per round. Below it are the small
federations that the tests of the numerical parts are played on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfl_core import Engine, Plugin, Registry, RunContext, Streams, load_config
from crfl_core.federation import rounds
from crfl_core.federation.local import LocalTraining
from crfl_core.federation.rounds import Outcome
from crfl_core.federation.setup import Federation, build
from crfl_core.hooks import Hooks

Vector = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Backdoor:
    """What attackers do in attacked rounds: q_B samples per batch get the pattern and the target, gamma the update."""

    clients: tuple[int, ...]
    rounds: tuple[int, ...]
    per_batch: int
    target: int
    pattern: Vector
    scale: float


@dataclass(frozen=True)
class Problem:
    """A federation: who holds which samples, how everybody trains, what the server does. Inputs lie in [0, 1]."""

    x: Vector
    y: Rows
    classes: int
    holdings: Sequence[Rows]
    participants: Sequence[Sequence[int]]
    rates: Sequence[float]
    steps: Sequence[int]
    batch_size: int
    weight_decay: float
    clip_norms: Sequence[float]
    noise_stds: Sequence[float]
    streams: Streams
    backdoor: Backdoor | None = None
    ball_radius: float | None = None


def algorithm_1(problem: Problem) -> list[Vector]:
    """The models that are broadcast, w~_1, ..., w~_{T-1}, and the clipped one, Clip(w_T)."""
    model = np.zeros(problem.classes * (problem.x.shape[1] + 1))
    models = []
    total = len(problem.clip_norms)
    for number in range(1, total + 1):
        taking_part = problem.participants[number - 1]
        everything = sum(len(problem.holdings[client]) for client in taking_part)
        combined = model.copy()
        for client in taking_part:
            weight = len(problem.holdings[client]) / everything
            combined += weight * submitted(problem, model, client, number)
        rho, sigma = problem.clip_norms[number - 1], problem.noise_stds[number - 1]
        model = combined / max(1.0, float(np.sqrt(sum(value * value for value in combined))) / rho)
        if number < total:
            model = model + sigma * problem.streams.generator("noise", round=number).standard_normal(len(model))
        models.append(model)
    return models


def submitted(problem: Problem, start: Vector, client: int, number: int) -> Vector:
    """A client's update: tau steps of mini-batch SGD; attackers poison every batch and scale the result."""
    backdoor = problem.backdoor
    attacks = backdoor is not None and client in backdoor.clients and number in backdoor.rounds
    local = start.copy()
    for batch in batches(problem, client, number):
        gradient = problem.weight_decay * local
        for position, row in enumerate(batch):
            x, label = problem.x[row], int(problem.y[row])
            if backdoor is not None and attacks and position < backdoor.per_batch:
                x, label = np.clip(x + backdoor.pattern, 0.0, 1.0), backdoor.target
            gradient = gradient + sample_gradient(problem, local, x, label) / len(batch)
        local = local - problem.rates[client] * gradient
    return (local - start) * (backdoor.scale if backdoor is not None and attacks else 1.0)


def batches(problem: Problem, client: int, number: int) -> Iterator[list[int]]:
    """The rows of each local step: permutations of the client's samples, cut one after the other."""
    generator = problem.streams.generator("batches", round=number, client=client)
    left: list[int] = []
    for _ in range(problem.steps[client]):
        if not left:
            left = list(generator.permutation(problem.holdings[client]))
        batch, left = left[: problem.batch_size], left[problem.batch_size :]
        yield batch


def sample_gradient(problem: Problem, model: Vector, x: Vector, label: int) -> Vector:
    """The gradient of -log softmax(W x + b)[label] at one sample, flat: rows of W, then b."""
    if problem.ball_radius is not None:
        x = x / max(float(np.linalg.norm(x)), problem.ball_radius)
    inputs = len(x)
    weight, bias = model[: -problem.classes].reshape(problem.classes, inputs), model[-problem.classes :]
    logits = weight @ x + bias
    exponentials = np.exp(logits - logits.max())
    residual = exponentials / exponentials.sum()
    residual[label] -= 1.0
    return np.concatenate([np.outer(residual, x).ravel(), residual])


def tiny(**changes: Any) -> dict[str, Any]:
    """A config that trains in a blink: eight unequal clients on 300 digits, one of which attacks in round 2 of 4."""
    config: dict[str, Any] = {
        "name": "tiny",
        "seed": 1,
        "rounds": 4,
        "device": "cpu",
        "dataset": {"type": "digits", "train_samples": 300, "test_samples": 60},
        "partition": {"type": "dirichlet", "clients": 8, "alpha": 0.7},
        "training": {"learning_rate": 0.2, "steps": 5, "batch_size": 16},
        "server": {"clip_norm": 4.0, "noise_std": 0.02},
        "votes": {"models": 64},
        "engine": {"type": "local", "threads": 1},
        "attack": {"type": "model-replacement", "clients": [0], "rounds": [2], "scale": 3.0, "poisoned_per_batch": 3},
    }
    return config | changes


def federation_of(config: Mapping[str, Any], plugins: Mapping[str, type[Plugin]] | None = None) -> Federation:
    """The federation that a config describes."""
    return build(load_config(config, registry=Registry(plugins)).config)


def played(federation: Federation) -> list[Outcome]:
    """All rounds of a federation, in memory."""
    config = federation.config
    engine = config.engine.model_copy()
    assert isinstance(engine, Engine)
    context = RunContext(config.name, Path("nowhere"), config.rounds, 0, federation.data, federation.model)
    engine.open(LocalTraining(federation))
    try:
        start = rounds.initial(federation)
        return list(rounds.train(federation, engine, Hooks(config.plugins(), Registry()), context, start))
    finally:
        engine.close()


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a run directory by its relative name, except the lock and the record of versions."""
    files = {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}
    return {name: file.read_bytes() for name, file in files.items() if name not in (".lock", "environment.json")}
