"""Algorithm 1 of the paper: federated averaging with clipping and noise on the global model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from crfl_core.plugin_api.aggregator import state_key
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.records.round import State
from crfl_core.training import aggregator_contract as answers
from crfl_core.training import memory, server
from crfl_core.training.aggregation import States
from crfl_core.training.federation import Federation
from crfl_core.training.group_rounds import Aggregated
from crfl_core.training.session import Plan, Session


@dataclass(frozen=True)
class Progress:
    """Where a group stands after `number` rounds: its models for the next one, (R, P), and every plugin's state.

    `replicas` numbers the models: 0 is the run itself, from 1 on its continuations with other noise. `failed` says why
    the group does not train any more. What attackers remember is the same in all groups, since they may talk to each
    other. It lies apart from the states of aggregation, which must not see it; continuations are honest and have none.
    """

    number: int
    models: Tensor
    states: tuple[States, ...]
    replicas: range = range(1)
    failed: str | None = None
    attack_state: State | None = None


@dataclass(frozen=True)
class Outcome:
    """A round that a group has played: its plan, the models before and after, what was aggregated, what was accepted.

    `before_noise` are the clipped models that noise is added to.
    """

    plan: Plan
    before: Progress
    aggregated: Aggregated
    accepted: tuple[bool, ...]
    before_noise: Tensor
    after: Progress


def initial(federation: Federation) -> tuple[Progress, ...]:
    """Before the first round: w_0 of every group, and what steps of the aggregation have prepared for it."""

    def start(group: int) -> Progress:
        parameters = federation.start_of_group(group).parameters.to(federation.device, federation.dtype)
        states = (prepared_states(federation, group),)
        return Progress(0, parameters[None], states, attack_state=memory.first_state(federation))

    return tuple(map(start, range(len(federation.participation.members))))


def prepared_states(federation: Federation, group: int) -> States:
    """What every step of a group's aggregation wants to see in the first round."""
    states: dict[str, State] = {}
    for position, step in enumerate(federation.servers[group].aggregation):
        with errors_of(f"aggregation.{position}", step):
            states[state_key(position)] = answers.prepared(step, federation.server(1))
    return {key: state for key, state in states.items() if state}


def train(session: Session, progress: tuple[Progress, ...]) -> Iterator[tuple[Outcome, ...]]:
    """The rounds after `progress`, one at a time, with an outcome for every group.

    The models of round T are clipped only: Clip(w_T).
    """
    while progress[0].number < session.federation.config.rounds:
        outcomes = play(session, progress)
        progress = tuple(outcome.after for outcome in outcomes)
        yield outcomes
        del outcomes  # what a rule has said about all updates is not kept through the next round


def play(session: Session, progress: tuple[Progress, ...], *, clean: bool = False) -> tuple[Outcome, ...]:
    """One round of every group: broadcast, local training, aggregation, clip, noise. If `clean`, nobody attacks."""
    plans = session.plans(progress[0].number + 1, attacked=0 in progress[0].replicas and not clean)
    for plan, before in zip(plans, progress, strict=True):
        if plan.attacked:
            session.hooks.observe("crfl_round_started", run=session.context, current=plan.seen_from(before.models[0]))
    models = torch.stack([before.models for before in progress], dim=1)
    states = [before.states for before in progress]
    memories = progress[0].attack_state
    aggregated = server.aggregate(session, plans, models, states, memories)
    outcomes = tuple(concluded(session, *group) for group in zip(plans, progress, aggregated, strict=True))
    state = remembered(session, outcomes)
    return tuple(replace(one, after=replace(one.after, attack_state=state)) for one in outcomes)


def concluded(session: Session, plan: Plan, before: Progress, aggregated: Aggregated) -> Outcome:
    """What the aggregate of a group makes of its models."""
    start = before.models
    failed = before.failed or aggregated.failed
    if failed is not None:  # it stands still from now on
        after = replace(before, number=plan.number, failed=failed)
        return Outcome(plan, before, aggregated, (False,) * len(start), server.clip(start, plan.clip_norm), after)
    candidates = server.clip(start + aggregated.updates, plan.clip_norm)
    accepted = judged(session, plan, start, candidates, aggregated)
    kept = torch.tensor(accepted, device=start.device)[:, None]
    clipped = torch.where(kept, candidates, server.clip(start, plan.clip_norm)) if not all(accepted) else candidates
    streams = session.federation.streams
    replicas = before.replicas
    models = server.add_noise(clipped, plan.noise_std, streams, plan.number, replicas, plan.group)

    new = [result.states for result in aggregated.results]
    states = tuple(one if keep else old for one, old, keep in zip(new, before.states, accepted, strict=True))
    after = Progress(plan.number, models, states, replicas)
    return Outcome(plan, before, aggregated, accepted, clipped, after)


def remembered(session: Session, outcomes: tuple[Outcome, ...]) -> State | None:
    """What the attackers of a run know after a round, of one group after the other; None if they never learn."""
    state = outcomes[0].before.attack_state
    for one in outcomes:
        if state is not None and one.aggregated.own is not None:
            models = one.before.models[0], one.after.models[0]
            seen = memory.observed(session.federation, one.plan, *models, one.aggregated.own)
            state = memory.learned(session.federation, seen, state)
    return state


def judged(session: Session, plan: Plan, start: Tensor, candidates: Tensor, aggregated: Aggregated) -> tuple[bool, ...]:
    """Whether each model is accepted by everybody who judges models."""
    if not session.hooks.may_reject:
        return (True,) * len(candidates)
    return tuple(
        session.hooks.accept(session.context, plan.seen_from(model), candidate, result.states)
        for model, candidate, result in zip(start, candidates, aggregated.results, strict=True)
    )
