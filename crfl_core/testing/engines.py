"""Checks of engines: the same training in any process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from crfl_core.config import load_config
from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.engine import Engine
from crfl_core.records.round import LocalUpdates, TrainingTask
from crfl_core.testing.suite import Case, CheckFailed, check_for, usage_of
from crfl_core.training import rounds
from crfl_core.training.federation import Federation, build
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.submissions import merge_parts, train_clients

REPLICAS = 3
CLOSE = 1e-5
"""Tolerance of updates: engines may cut a round differently, which changes the order of sums."""


class Exercise(NamedTuple):
    """Round to train with its expected updates. Only installed plugins take part, so any process can train it."""

    federation: Federation
    task: TrainingTask
    expected: LocalUpdates


def exercise(_: Case[Engine]) -> Exercise:
    """Set up a round of ten clients from three models.

    One of the clients is an attacker.
    """
    config = load_config(
        {
            "rounds": 2,
            "device": "cpu",
            "dataset": {"type": "digits", "train_samples": 150, "test_samples": 20},
            "partition": {"type": "dirichlet", "clients": 10},
            "training": {"epochs": 2, "batch_size": 6},
            "attack": {"type": "model-replacement", "rounds": [1], "poisoned_per_batch": 1},
            "certificates": ["pathwise-linear"],
        }
    ).config
    federation = build(config)
    # Other in every parameter: softmax does not notice a constant, and replicas would be trained alike.
    apart = torch.randn(REPLICAS, 1, federation.model.layout.size, generator=torch.Generator().manual_seed(0))
    starts = rounds.initial_progress(federation)[0].models[None] + 0.1 * apart
    fainter = {**federation.prepared, "pattern": federation.prepared["pattern"] / 2}  # as if the attack had learned
    task = TrainingTask(1, starts, federation.participation.participants(1), attacked=True, attack_state=fainter)
    return Exercise(federation, task, LocalTraining(federation).train(task, slice(0, len(task.clients))))


@contextmanager
def open_engine(engine: Engine, federation: Federation) -> Iterator[Engine]:
    """Open an engine and close it afterwards."""
    engine.open(LocalTraining(federation))
    try:
        yield engine
    finally:
        engine.close()


@usage_of(Engine)
def use_engine(engine: Engine, case: Case[Engine]) -> dict[str, object]:
    """Train all clients and return updates and measurements."""
    federation, task, _ = case.once(exercise)
    with open_engine(engine, federation):
        found = merge_parts(list(train_clients(engine, task)), len(task.clients))
    return {"updates": found.updates, "measurements": found.measurements}


@check_for(Engine)
def check_every_client_is_trained_once(case: Case[Engine]) -> None:
    """Every participant of a round is in exactly one of the parts, with an update from every model."""
    federation, task, _ = case.once(exercise)
    with open_engine(case.fresh(), federation) as engine:
        try:
            list(train_clients(engine, task))
        except PluginFailure as error:
            raise CheckFailed(
                "every participant in exactly one part", str(error), "cut the round into slices"
            ) from error


@check_for(Engine)
def check_training_is_that_of_the_job(case: Case[Engine]) -> None:
    """Updates of all replicas and the measured poison are those of `job.train`, also when opened again."""
    federation, task, expected = case.once(exercise)
    engine = case.fresh()
    for attempt in ("first", "second"):
        with open_engine(engine, federation):
            found = merge_parts(list(train_clients(engine, task)), len(task.clients))
        gap = float((found.updates - expected.updates).abs().max())
        if not gap <= CLOSE:
            raise CheckFailed(
                "the updates that job.train gives",
                f"a difference of {gap:.3g} when opened for the {attempt} time",
                "hand task and part on as they are, and return the answer as it is",
            )
        for name, column in vars(expected.measurements).items():
            if not np.allclose(getattr(found.measurements, name), column, atol=CLOSE):
                raise CheckFailed(f"the measured {name} of the poison", "another", "return `measurements` as they are")


@check_for(Engine)
def check_closing_early_is_fine(case: Case[Engine]) -> None:
    """`close` works before any round, and in the middle of one, as after an error."""
    federation, task, _ = case.once(exercise)
    engine = case.fresh()
    with open_engine(engine, federation):
        pass
    with open_engine(engine, federation):
        next(iter(engine.train(task)))
