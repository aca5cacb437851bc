"""Many continuations of one run: the noise drawn again from some round on, everything else as it was.

All continuations are trained as one batch. They differ in noise alone, so they share data and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.records import schedules
from crfl_core.records.ledger import Ledger
from crfl_core.training import server
from crfl_core.training.rounds import Outcome, Progress, train
from crfl_core.training.session import Session

UPDATE_NUMBERS_AT_ONCE = 2**26
"""How many numbers the updates of one batch of continuations may have: 256 MiB in single precision."""


def continuations(
    session: Session, kept: Progress, count: int, ledger: Ledger, shown: Callable[[int, int], object]
) -> Iterator[Tensor]:
    """Final models Clip(w_T) of `count` independent honest continuations, in batches of (k, P).

    `kept` has the clipped model of its round *before* noise. Continuation k draws from streams of its own, so neither
    the batch size nor the number of continuations changes it. `ledger` is that of the run, whose steps they repeat.
    `shown` is told how many rounds of how many are trained, over all continuations.
    """
    federation = session.federation
    participants = len(federation.participation.round(federation.config.rounds))
    at_once = max(1, UPDATE_NUMBERS_AT_ONCE // (participants * kept.models.shape[1]))
    length = federation.config.rounds - kept.number
    for first in range(0, count, at_once):
        replicas = range(first + 1, min(count, first + at_once) + 1)  # replica 0 is the run itself

        def watch(outcome: Outcome, before: int = first * length, together: int = len(replicas)) -> None:
            check_repeated(ledger, outcome)
            shown(before + together * (outcome.plan.number - kept.number), count * length)

        yield continued(session, kept, replicas, watch)


def continued(
    session: Session, kept: Progress, replicas: range, watch: Callable[[Outcome], None] = lambda _: None
) -> Tensor:
    """The final models of some continuations, (k, P); `watch` is shown every round of them."""
    config = session.federation.config
    streams = session.federation.streams
    models = kept.models.expand(len(replicas), -1)
    if kept.number == config.rounds:
        return models
    noise_std = schedules.value_at(config.server.noise_std, kept.number)
    noisy = server.add_noise(models, noise_std, streams, kept.number, replicas)
    progress = Progress(kept.number, noisy, kept.states * len(replicas), replicas)
    for (outcome,) in train(session, (progress,)):
        watch(outcome)
        last = outcome.before_noise
    return last


def check_repeated(ledger: Ledger, outcome: Outcome) -> None:
    """Weights and caps that depend on no update are those of the run: a step that remembers on its own breaks that."""
    number = outcome.plan.number
    rows = ledger.clients.of_round(outcome.plan.number)
    if ledger.round(number).depends == "all":
        return
    for result in outcome.aggregated.results:
        for name, once in (("weights", rows.weight_bound), ("caps", rows.cap)):
            now = (result.weight_bound if name == "weights" else result.cap).numpy()
            if not np.array_equal(now, once):
                client = int(rows.client[int(np.argmax(now != once))])
                raise PluginFailure(
                    f"aggregation: in a continuation of round {number} the {name} of client {client} are not those of "
                    "the run: a step must answer from what it is given, and keep nothing itself"
                )


def with_test_noise(models: Tensor, std: float, session: Session) -> Tensor:
    """The final models of all continuations, (k, P), with the noise of the vote, each from its own stream."""
    final = session.federation.config.rounds
    replicas = range(1, len(models) + 1)
    return torch.as_tensor(server.add_noise(models, std, session.federation.streams, final, replicas))
