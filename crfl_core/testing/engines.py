"""What every engine promises: the same training, wherever it happens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfl_core.api.stored_votes import opened
from crfl_core.config import load_config
from crfl_core.federation import rounds
from crfl_core.federation.local import LocalTraining
from crfl_core.federation.setup import Federation, build
from crfl_core.kinds.engine import Engine
from crfl_core.testing.suite import Case, CheckFailed, promised_by, used_as
from crfl_core.updates import LocalUpdates, Poisoning, Round

REPLICAS = 3
CLOSE = 1e-5
"""Engines may cut the clients of a round differently, which changes the order of sums."""


class Exercise(NamedTuple):
    """A round to train, and what has to come out. Only installed plugins take part, so that any process can do it."""

    federation: Federation
    start: Tensor
    round: Round
    expected: LocalUpdates


def exercise(_: Case[Engine]) -> Exercise:
    """A round of ten clients, one of them an attacker, from three models."""
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
    clients = federation.participation.round(1)
    first = rounds.initial(federation).parameters
    current = Round(1, 2, first, clients, federation.model.layout, federation.streams)
    start = first + torch.linspace(0.0, 0.1, REPLICAS)[:, None]
    return Exercise(federation, start, current, LocalTraining(federation).train(start, current, slice(0, len(clients))))


@used_as(Engine)
def trained(engine: Engine, case: Case[Engine]) -> dict[str, object]:
    """The updates of all clients and what was measured."""
    task = case.once(exercise)
    with opened(engine, task.federation):
        updates, poisoning, _ = collected(engine, task)
    return {"updates": updates, "poisoning": poisoning}


@promised_by(Engine)
def check_everybody_is_trained_once(case: Case[Engine]) -> None:
    """Every participant of a round is in exactly one of the parts."""
    task = case.once(exercise)
    engine = case.fresh()
    with opened(engine, task.federation):
        seen = collected(engine, task)[2]
    if (seen != 1).any():
        client = int(np.flatnonzero(seen != 1)[0])
        raise CheckFailed(
            "every participant in exactly one part",
            f"participant {client} in {seen[client]}",
            "cut the round into slices",
        )


@promised_by(Engine)
def check_training_is_that_of_the_job(case: Case[Engine]) -> None:
    """Updates of all replicas and the measured poison are those of `job.train`, also when opened again."""
    task = case.once(exercise)
    engine = case.fresh()
    for attempt in ("first", "second"):
        with opened(engine, task.federation):
            updates, poisoning, _ = collected(engine, task)
        gap = float((updates - task.expected.updates).abs().max())
        if not gap <= CLOSE:
            raise CheckFailed(
                "the updates that job.train gives",
                f"a difference of {gap:.3g} when opened for the {attempt} time",
                "hand start, round and part on as they are, and return the answer as it is",
            )
        for name, column in vars(task.expected.poisoning).items():
            if not np.allclose(getattr(poisoning, name), column, atol=CLOSE):
                raise CheckFailed(f"the measured {name} of the poison", "another", "return `poisoning` as it is")


@promised_by(Engine)
def check_closing_early_is_fine(case: Case[Engine]) -> None:
    """`close` works before any round, and in the middle of one, as after an error."""
    task = case.once(exercise)
    engine = case.fresh()
    with opened(engine, task.federation):
        pass
    with opened(engine, task.federation):
        next(engine.train(task.start, task.round))


def collected(engine: Engine, task: Exercise) -> tuple[Tensor, Poisoning, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The parts of a round put together, and how often each participant appeared."""
    clients = len(task.round.clients)
    updates = torch.full_like(task.expected.updates, torch.nan)
    columns = {name: column.copy() for name, column in vars(Poisoning.none(clients)).items()}
    seen = np.zeros(clients, np.int64)
    for part in engine.train(task.start, task.round):
        seen[part.part] += 1
        updates[:, part.part] = part.updates
        for name, column in columns.items():
            column[part.part] = getattr(part.poisoning, name)
    return updates, Poisoning(**columns), seen
