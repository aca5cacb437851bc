"""Continuations of a run: noise is drawn again from some round on, and everything else repeats.

All continuations train as one batch. They differ in noise alone, so they share data and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.records import schedules
from crfl_core.training.rounds import Progress, RoundOutcome, add_noise, play_rounds

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger
    from crfl_core.training.session import Session

UPDATE_NUMBERS_AT_ONCE = 2**26
"""Numbers in the updates of one batch of continuations: 256 MiB in single precision."""


def train_continuations(
    session: Session, kept: Progress, count: int, ledger: Ledger, on_progress: Callable[[int, int], object]
) -> Iterator[Tensor]:
    """Yield final models Clip(w_T) of `count` independent honest continuations.

    They come in batches of (k, P). `kept` has the clipped model of its round *before* noise. Continuation k draws from
    streams of its own, so neither the batch size nor the number of continuations changes it. `ledger` is that of the
    run, whose steps they repeat. `on_progress` gets the number of rounds trained so far and in all, over all
    continuations.
    """
    federation = session.federation
    participants = len(federation.participation.participants(federation.config.rounds))
    at_once = max(1, UPDATE_NUMBERS_AT_ONCE // (participants * kept.models.shape[1]))
    length = federation.config.rounds - kept.number
    for first in range(0, count, at_once):
        replicas = range(first + 1, min(count, first + at_once) + 1)  # replica 0 is the run itself

        def on_round(outcome: RoundOutcome, before: int = first * length, together: int = len(replicas)) -> None:
            check_same_steps(ledger, outcome)
            on_progress(before + together * (outcome.plan.number - kept.number), count * length)

        yield continue_run(session, kept, replicas, on_round)


def continue_run(
    session: Session, kept: Progress, replicas: range, on_round: Callable[[RoundOutcome], None] = lambda _: None
) -> Tensor:
    """Return the final models of some continuations, (k, P).

    `on_round` gets every round of them.
    """
    config = session.federation.config
    streams = session.federation.streams
    models = kept.models.expand(len(replicas), -1)
    if kept.number == config.rounds:
        return models
    noise_std = schedules.value_at(config.server.noise_std, kept.number)
    noisy = add_noise(models, noise_std, streams, kept.number, replicas)
    memory = {name: values.expand(len(replicas), -1, -1) for name, values in kept.memory.items()}
    progress = Progress(kept.number, noisy, kept.states * len(replicas), replicas, memory=memory)
    for (outcome,) in play_rounds(session, (progress,)):
        on_round(outcome)
        last = outcome.clipped
    return last


def check_same_steps(ledger: Ledger, outcome: RoundOutcome) -> None:
    """Raise `PluginFailure` if a continuation has other weights or caps.

    Weights and caps that depend on no update must be those of the run. A step that remembers something on its own
    breaks that.
    """
    number = outcome.plan.number
    rows = ledger.clients.of_round(number)
    if ledger.round(number).depends == "all":
        return
    for result in outcome.results:
        for name, found, expected in (
            ("weights", result.weight_bound.numpy(), rows.weight_bound),
            ("caps", result.cap.numpy(), rows.cap),
        ):
            if not np.array_equal(found, expected):
                client = int(rows.client[int(np.argmax(found != expected))])
                raise PluginFailure(
                    f"aggregation: in a continuation of round {number} the {name} of client {client} are not those of "
                    "the run: a step must answer from what it is given, and keep nothing itself"
                )


def add_test_noise(models: Tensor, std: float, session: Session) -> Tensor:
    """Return the final models of all continuations with the vote's noise.

    The models are (k, P). The noise of each comes from its own stream.
    """
    final = session.federation.config.rounds
    replicas = range(1, len(models) + 1)
    return torch.as_tensor(add_noise(models, std, session.federation.streams, final, replicas))
