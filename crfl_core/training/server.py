"""The server's side of a round, for any number of models and groups at once: aggregate, clip, add noise.

There is one way for runs and their continuations. Updates of chains that are linear in capped updates are added up as
they arrive, so memory does not grow with the number of clients; whoever needs all of them at once says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crfl_core.records.random_streams import Streams, of_group
from crfl_core.records.round import State, TrainingTask
from crfl_core.training.aggregation import States
from crfl_core.training.collecting import collect
from crfl_core.training.group_rounds import Aggregated, GroupRound
from crfl_core.training.session import Plan, Session


def aggregate(
    session: Session,
    plans: Sequence[Plan],
    models: Tensor,
    states: Sequence[Sequence[States]],
    attack_state: State | None = None,
) -> tuple[Aggregated, ...]:
    """Train from the models, (R, G, P), and aggregate what each group submits. In a run R is 1, and mostly G, too."""
    clients = session.federation.participation.round(plans[0].number)
    task = TrainingTask(plans[0].number, models, clients, plans[0].attacked, attack_state)
    each = zip(plans, models.unbind(1), states, strict=True)
    groups = [GroupRound(session, plan, own, before, attack_state) for plan, own, before in each]
    for part in collect(session.engine, task):
        for group in groups:
            group.take(part)
    return tuple(group.aggregated() for group in groups)


def clip(models: Tensor, norm: float) -> Tensor:
    """`Clip_rho(w) = w / max(1, ||w|| / rho)`: each model, (R, P), projected as a whole vector on a ball."""
    norms: Tensor = torch.linalg.vector_norm(models, dim=1, keepdim=True)
    return models / (norms / norm).clamp(min=1.0)


def add_noise(
    models: Tensor, std: float, streams: Streams, number: int, replicas: range, group: int | None = None
) -> Tensor:
    """`w + N(0, std^2 I)` on every parameter of each model, (R, P), from a stream of its own.

    Replica 0 is the run. Noise that is drawn again for votes belongs to the votes: it must not be known to attackers.
    """
    if std == 0:
        return models
    dtype = np.float64 if models.dtype == torch.float64 else np.float32
    noise = np.empty(models.shape, dtype)
    for row, replica in zip(noise, replicas, strict=True):
        purpose = of_group("votes/continuation" if replica else "noise", group)
        streams.generator(purpose, round_number=number, replica=replica).standard_normal(dtype=dtype, out=row)
    return models + std * torch.from_numpy(noise).to(models.device)
