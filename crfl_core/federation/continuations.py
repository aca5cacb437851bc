"""Many continuations of one run: the noise re-drawn from some round on, everything else as it was.

All continuations are trained as one batch. They differ in noise alone, so they share data and batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from crfl_core import schedules
from crfl_core.federation import server
from crfl_core.federation.chain import States, combine
from crfl_core.federation.rounds import Progress
from crfl_core.federation.setup import Federation
from crfl_core.hooks import Hooks
from crfl_core.kinds.aggregator import LinearAggregator
from crfl_core.kinds.complaints import settings_of
from crfl_core.kinds.engine import Engine
from crfl_core.kinds.tracker import RunContext
from crfl_core.updates import ClientUpdates, Round

NUMBERS_AT_ONCE = 2**26
"""How many numbers the updates of one batch of continuations may have: 256 MiB in single precision."""


def continuations(
    federation: Federation, engine: Engine, hooks: Hooks, run: RunContext, aggregate: Progress, count: int
) -> Iterator[Tensor]:
    """Final models Clip(w_T) of `count` independent honest continuations, in batches of (k, P).

    `aggregate` is the clipped model of its round *before* noise. Continuation k draws from streams of its own, so
    neither the batch size nor the number of continuations changes it.
    """
    participants = len(federation.participation.honest(federation.config.rounds))
    at_once = max(1, NUMBERS_AT_ONCE // (participants * len(aggregate.parameters)))
    for first in range(0, count, at_once):
        replicas = range(first + 1, min(count, first + at_once) + 1)  # replica 0 is the run itself
        yield continue_all(federation, engine, hooks, run, aggregate, replicas)


def continue_all(
    federation: Federation, engine: Engine, hooks: Hooks, run: RunContext, aggregate: Progress, replicas: range
) -> Tensor:
    """The final models of some continuations, (k, P)."""
    config = federation.config
    clipped = aggregate.parameters.repeat(len(replicas), 1)
    states: list[States] = [aggregate.states] * len(replicas)
    for number in range(aggregate.round + 1, config.rounds + 1):
        noise_std = schedules.value_at(config.server.noise_std, number - 1)
        starts = torch.stack(
            [
                server.add_noise(model, noise_std, federation.streams, number - 1, replica)
                for model, replica in zip(clipped, replicas, strict=True)
            ]
        )
        clients = federation.participation.honest(number)
        current = Round(number, config.rounds, starts[0], clients, federation.model.layout, federation.streams)
        updates = starts.new_empty(len(starts), len(clients), starts.shape[1])
        with settings_of("engine", engine):
            for trained in engine.train(starts, current):
                updates[:, trained.part] = trained.updates
        clip_norm = schedules.value_at(config.server.clip_norm, number)
        combined, new_states = aggregate_all(federation, current, starts, updates, states)
        clipped = clip_all(combined, clip_norm)
        if hooks.may_reject:
            rejected = [
                not hooks.accept(run, replace(current, start=start), candidate, state)
                for start, candidate, state in zip(starts, clipped, new_states, strict=True)
            ]
            clipped[rejected] = clip_all(starts[rejected], clip_norm)
            new_states = [old if back else new for back, old, new in zip(rejected, states, new_states, strict=True)]
        states = new_states
    return clipped


def aggregate_all(
    federation: Federation, current: Round, starts: Tensor, updates: Tensor, states: list[States]
) -> tuple[Tensor, list[States]]:
    """`w~ + aggregate` of every replica: one product for a linear rule, else the chain once per replica."""
    steps = federation.config.aggregation
    if len(steps) == 1 and isinstance(steps[0], LinearAggregator):
        weights = steps[0].weights(current.clients).to(updates)
        return starts + torch.einsum("n,rnp->rp", weights, updates), states
    totals, new_states = [], []
    for start, values, state in zip(starts, updates, states, strict=True):
        result = combine(steps, ClientUpdates(values, replace(current, start=start)), state)
        totals.append(start + result.aggregate.update)
        new_states.append(result.states)
    return torch.stack(totals), new_states


def clip_all(models: Tensor, norm: float) -> Tensor:
    """Every model projected on the ball of radius `norm`."""
    norms: Tensor = torch.linalg.vector_norm(models, dim=1, keepdim=True)
    return models / (norms / norm).clamp(min=1.0)
