"""Many continuations of one run: the noise drawn again from some round on, everything else as it was.

All continuations are trained as one batch. They differ in noise alone, so they share data and batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from crfl_core import schedules
from crfl_core.federation import server
from crfl_core.federation.rounds import Progress, train
from crfl_core.federation.session import Session

NUMBERS_AT_ONCE = 2**26
"""How many numbers the updates of one batch of continuations may have: 256 MiB in single precision."""


def continuations(session: Session, kept: Progress, count: int) -> Iterator[Tensor]:
    """Final models Clip(w_T) of `count` independent honest continuations, in batches of (k, P).

    `kept` has the clipped model of its round *before* noise. Continuation k draws from streams of its own, so neither
    the batch size nor the number of continuations changes it.
    """
    federation = session.federation
    participants = len(federation.participation.round(federation.config.rounds))
    at_once = max(1, NUMBERS_AT_ONCE // (participants * kept.models.shape[1]))
    for first in range(0, count, at_once):
        yield continued(session, kept, range(first + 1, min(count, first + at_once) + 1))  # replica 0 is the run itself


def continued(session: Session, kept: Progress, replicas: range) -> Tensor:
    """The final models of some continuations, (k, P)."""
    config, streams = session.federation.config, session.federation.streams
    models = kept.models.expand(len(replicas), -1)
    if kept.number == config.rounds:
        return models
    noise_std = schedules.value_at(config.server.noise_std, kept.number)
    noisy = server.add_noise(models, noise_std, streams, kept.number, replicas)
    progress = Progress(kept.number, noisy, kept.states * len(replicas), replicas)
    *_, last = train(session, progress)
    return last.before_noise


def with_test_noise(models: Tensor, std: float, session: Session) -> Tensor:
    """The final models of all continuations, (k, P), with the noise of the vote, each from its own stream."""
    final, replicas = session.federation.config.rounds, range(1, len(models) + 1)
    return torch.as_tensor(server.add_noise(models, std, session.federation.streams, final, replicas))
