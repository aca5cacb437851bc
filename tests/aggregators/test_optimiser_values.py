"""Every optimiser against its formula, written once more in plain float64: whole runs against Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crfl_core.extend import Registry
from tests.oracle import Vector, algorithm_1, federation_of, tiny
from tests.training.test_rounds import assert_same_models, problem_of

Step = Callable[[Vector], Vector]


def rate(eta: float, decay: float) -> Step:
    played = []

    def step(aggregate: Vector) -> Vector:
        played.append(aggregate)
        return eta * decay ** (len(played) - 1) * aggregate

    return step


def fedavgm(eta: float, beta: float) -> Step:
    """Hsu, Qi, Brown (2019): v <- beta v + mean update, w <- w + eta v. As a sum over all rounds so far."""
    seen: list[Vector] = []

    def step(aggregate: Vector) -> Vector:
        seen.append(aggregate)
        return eta * sum((beta ** (len(seen) - 1 - s) * one for s, one in enumerate(seen)), np.zeros_like(aggregate))

    return step


def fedopt(how: str, eta: float, tau: float, beta_1: float, beta_2: float) -> Step:
    """Algorithm 2 of Reddi et al. (2021), one parameter at a time."""
    first: dict[int, float] = {}
    second: dict[int, float] = {}

    def step(aggregate: Vector) -> Vector:
        moved = []
        for j, delta in enumerate(aggregate.tolist()):
            m = beta_1 * first.get(j, 0.0) + (1 - beta_1) * delta
            v = second.get(j, tau**2)
            if how == "adagrad":
                v = v + delta**2
            elif how == "yogi":
                v = v - (1 - beta_2) * delta**2 * np.sign(v - delta**2)
            else:
                v = beta_2 * v + (1 - beta_2) * delta**2
            first[j], second[j] = m, v
            moved.append(eta * m / (math.sqrt(v) + tau))
        return np.array(moved)

    return step


CASES: dict[str, tuple[dict[str, Any], Callable[[], Step]]] = {
    "rate": ({"type": "rate", "learning_rate": 0.6, "decay": 0.8}, lambda: rate(0.6, 0.8)),
    "rate above 1": ({"type": "rate", "learning_rate": 1.7}, lambda: rate(1.7, 1.0)),
    "momentum": ({"type": "momentum", "learning_rate": 0.7, "beta": 0.8}, lambda: fedavgm(0.7, 0.8)),
    "adam": ({"type": "adam"}, lambda: fedopt("adam", 0.1, 1e-3, 0.9, 0.99)),
    "yogi": (
        {"type": "yogi", "learning_rate": 0.05, "tau": 0.01, "beta_1": 0.5, "beta_2": 0.9},
        lambda: fedopt("yogi", 0.05, 0.01, 0.5, 0.9),
    ),
    "adagrad": ({"type": "adagrad", "beta_1": 0.3}, lambda: fedopt("adagrad", 0.1, 1e-3, 0.3, 0.0)),
}


@pytest.mark.parametrize(("options", "formula"), CASES.values(), ids=CASES)
def test_a_run_equals_algorithm_1_with_the_formula_behind_the_aggregate(
    options: dict[str, Any], formula: Callable[[], Step]
) -> None:
    """With a clip that is felt and noise, so that the optimiser stands between the aggregate and both."""
    federation = federation_of(
        tiny(
            dtype="float64",
            rounds=5,
            training={"learning_rate": 0.3, "steps": 2, "batch_size": 24, "participation": 0.5},
            server={"clip_norm": 0.9, "noise_std": 0.02, "optimiser": options},
            attack="none",
        )
    )
    problem = problem_of(
        federation,
        None,
        rates=[0.3] * 8,
        steps=[2] * 8,
        batch_size=24,
        weight_decay=0.0,
        clip_norms=[0.9] * 5,
        noise_stds=[0.02] * 5,
        server_step=formula(),
    )
    assert_same_models(federation, algorithm_1(problem))


def test_every_optimiser_has_a_case_here() -> None:
    ours = {found.name for found in Registry().listing() if found.kind == "optimiser" and found.distribution == "crfl"}
    with_clients = {"feddyn"}  # compared together with what its clients remember, in tests/models/test_client_memory.py
    assert ours - with_clients == {str(options["type"]) for options, _ in CASES.values()}
