"""Rates that give every round the same influence: docs/certificates/every-round.md#equal-influence."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.config import RunConfig
from crfl_core.config.schema import Training
from crfl_core.errors import ConfigError
from crfl_core.records.ledger import ModelFacts, TrainingFacts
from crfl_core.records.schedules import EqualInfluence, each_of, values

KEY = "training.learning_rate"
ROUNDED = 1e-9
ROOM = 1e-3
"""The step rule of certificates is about measured norms, which may exceed declared ones by rounding."""


def with_found_start(
    config: RunConfig, model: ModelFacts, facts: TrainingFacts, smoothness: float, samples: NDArray[np.int64]
) -> RunConfig:
    """The same config with the t0 of its equal influence: the smallest one whose rates keep the step rule.

    It is found from what is public: the declared bound on inputs, decay and numbers of steps.
    """
    schedule = config.training.learning_rate
    training = config.training
    if not isinstance(schedule, EqualInfluence):
        return config
    if not facts.plain or facts.proximal:
        raise ConfigError(
            f"equal influence is for plain SGD, found {facts.algorithm!r}: set algorithm = 'sgd'", key=KEY
        )
    steps = fewest_steps(training, config.rounds, samples)
    if not (model.linear and model.convex and facts.clip_gradients is None and math.isfinite(smoothness)):
        if schedule.start is None:
            raise ConfigError(
                "there is no step rule to find t0 from: use softmax regression without clip_gradients on inputs with a "
                "bound (model.features = { type = 'unit-ball' }), or set its start",
                key=KEY,
            )
        return config
    least = formulas.equal_influence_start(smoothness, training.weight_decay, steps)
    if schedule.start is not None:
        if schedule.start < least * (1.0 - ROUNDED):
            first = float(equal_influence(schedule, training, np.array([steps]), 1)[0])
            limit = float(formulas.largest_rate(smoothness, training.weight_decay))
            raise ConfigError(
                f"start = {schedule.start:g} breaks the step rule, eta <= 2 / (beta + 2 lambda): the rate of round 1 "
                f"is {first:.4g}, at most {limit:.4g} keeps it: set start to {least:.6g} or more, or leave it out",
                key=KEY,
            )
        return config
    found = formulas.equal_influence_start(smoothness * (1.0 + ROOM), training.weight_decay, steps)
    rates = schedule.model_copy(update={"start": found})
    return config.model_copy(update={"training": training.model_copy(update={"learning_rate": rates})})


def fewest_steps(training: Training, rounds: int, samples: NDArray[np.int64]) -> int:
    """The fewest local steps that any client takes in any round: whoever takes fewer takes larger ones."""
    if training.steps is not None:
        return int(min(min(values(one, rounds)) for one in each_of(training.steps)))
    return int((-(-samples // np.minimum(training.batch_size, samples))).min()) * (training.epochs or 1)


def equal_influence(
    schedule: EqualInfluence, training: Training, steps: NDArray[np.int64], number: int
) -> NDArray[np.float64]:
    """The rate of every client in round t = 1, 2, ...: all of them keep the same share of their model."""
    assert schedule.start is not None
    rates = formulas.equal_influence_rates(1, steps, training.weight_decay, schedule.start + number - 1)
    return np.asarray(rates[0])
