"""Algorithm 1 of the paper: federated averaging with clipping and noise on the global model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from crfl_core.federation import server
from crfl_core.federation.chain import States
from crfl_core.federation.session import Plan, Session
from crfl_core.federation.setup import Federation


@dataclass(frozen=True)
class Progress:
    """Where training stands after `number` rounds: the models for the next one, (R, P), and every plugin's state.

    `replicas` numbers the models: 0 is the run itself, from 1 on its continuations with other noise.
    """

    number: int
    models: Tensor
    states: tuple[States, ...]
    replicas: range = range(1)


@dataclass(frozen=True)
class Outcome:
    """A round that was played: its plan, the models before and after, what was aggregated, and which were accepted.

    `before_noise` are the clipped models that noise is added to.
    """

    plan: Plan
    before: Progress
    aggregated: server.Aggregated
    accepted: tuple[bool, ...]
    before_noise: Tensor
    after: Progress


def initial(federation: Federation) -> Progress:
    """Before the first round: w_0."""
    parameters = federation.start.parameters.to(federation.device, federation.dtype)
    return Progress(0, parameters[None], ({},))


def train(session: Session, progress: Progress) -> Iterator[Outcome]:
    """The rounds after `progress`, one at a time. The models of round T are clipped only: Clip(w_T)."""
    while progress.number < session.federation.config.rounds:
        outcome = play(session, progress)
        progress = outcome.after
        yield outcome
        del outcome  # what a rule has said about all updates is not kept through the next round


def play(session: Session, progress: Progress) -> Outcome:
    """One round of every model: broadcast, local training, aggregation, clip, noise."""
    start, number = progress.models, progress.number + 1
    plan = session.plan(number, attacked=0 in progress.replicas)
    if plan.attacked:
        session.hooks.observe("crfl_round_started", run=session.context, current=plan.seen_from(start[0]))

    aggregated = server.aggregate(session, plan, start, progress.states)
    candidates = server.clip(start + aggregated.updates, plan.clip_norm)
    accepted = judged(session, plan, start, candidates, aggregated)
    kept = torch.tensor(accepted, device=start.device)[:, None]
    clipped = torch.where(kept, candidates, server.clip(start, plan.clip_norm)) if not all(accepted) else candidates
    models = server.add_noise(clipped, plan.noise_std, session.federation.streams, number, progress.replicas)

    new = [result.states for result in aggregated.results]
    states = tuple(one if keep else old for one, old, keep in zip(new, progress.states, accepted, strict=True))
    after = Progress(number, models, states, progress.replicas)
    return Outcome(plan, progress, aggregated, accepted, clipped, after)


def judged(
    session: Session, plan: Plan, start: Tensor, candidates: Tensor, aggregated: server.Aggregated
) -> tuple[bool, ...]:
    """Whether each model is accepted by everybody who judges models."""
    if not session.hooks.may_reject:
        return (True,) * len(candidates)
    return tuple(
        session.hooks.accept(session.context, plan.seen_from(model), candidate, result.states)
        for model, candidate, result in zip(start, candidates, aggregated.results, strict=True)
    )
