"""Algorithm 1 of the paper: federated averaging with clipping and noise on the global model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crfl_core import schedules
from crfl_core.errors import failures_named
from crfl_core.federation import server
from crfl_core.federation.chain import States
from crfl_core.federation.evaluation import score
from crfl_core.federation.setup import Federation
from crfl_core.hooks import Hooks
from crfl_core.kinds.aggregator import Aggregator
from crfl_core.kinds.complaints import settings_of
from crfl_core.kinds.engine import Engine
from crfl_core.kinds.tracker import RunContext
from crfl_core.ledger import ClientColumns, RoundRecord
from crfl_core.updates import Clients, Round


@dataclass(frozen=True)
class Progress:
    """Where training stands after `round` rounds: the model for the next one and every plugin's state."""

    round: int
    parameters: Tensor
    states: States


@dataclass(frozen=True)
class Outcome:
    """A finished round: where training stands now, the model before noise, and what goes into the ledger."""

    progress: Progress
    aggregate: Tensor
    record: RoundRecord
    clients: ClientColumns


def initial(federation: Federation) -> Progress:
    """Before the first round: w_0."""
    generator = federation.streams.generator("initial")
    with settings_of("model", federation.config.model):
        parameters = federation.model.initial(generator).to(federation.device, federation.dtype)
    return Progress(0, parameters, {})


def train(
    federation: Federation, engine: Engine, hooks: Hooks, run: RunContext, progress: Progress
) -> Iterator[Outcome]:
    """Rounds `progress.round` + 1 to T, one at a time. The parameters of round T are clipped only: Clip(w_T)."""
    for number in range(progress.round + 1, federation.config.rounds + 1):
        outcome = play(federation, engine, hooks, run, progress, number)
        progress = outcome.progress
        hooks.observe("crfl_round_finished", run=run, record=outcome.record)
        yield outcome


def play(
    federation: Federation, engine: Engine, hooks: Hooks, run: RunContext, progress: Progress, number: int
) -> Outcome:
    """One round: broadcast, local training, aggregation, clip, noise."""
    config, start = federation.config, progress.parameters
    clients = federation.participation.round(number)
    current = Round(number, config.rounds, start, clients, federation.model.layout, federation.streams)
    hooks.observe("crfl_round_started", run=run, current=current)

    with settings_of("engine", engine):
        trained, poisoning = server.collect(engine.train(start[None], current), current, federation.facts.parameters)
    received = server.receive(federation, current, trained, poisoning)
    aggregated = server.aggregate(federation, current, received, progress.states, hooks)

    clip_norm = schedules.value_at(config.server.clip_norm, number)
    combined = start + aggregated.combined.aggregate.update
    candidate = server.clip(combined, clip_norm)
    states = aggregated.combined.states
    accepted = hooks.accept(run, current, candidate, states)
    if not accepted:
        states = progress.states
        combined = start
        candidate = server.clip(combined, clip_norm)
    noise_std = schedules.value_at(config.server.noise_std, number) if number < config.rounds else 0.0
    figures = score(federation, candidate) if measured(federation, number) else None
    record = RoundRecord(
        round=number,
        clip_norm=clip_norm,
        noise_std=noise_std,
        start_norm=float(torch.linalg.vector_norm(start)),
        start_operator_norm=federation.model.operator_norm(start),
        norm_before_clip=float(torch.linalg.vector_norm(combined)),
        accepted=accepted,
        depends=aggregated.combined.depends,
        weights_from=aggregated.weights_from,
        participants=len(clients),
        attackers=int(clients.attacking.sum()),
        quarantined=int(received.bad.sum()),
        accuracy=None if figures is None else figures.accuracy,
        loss=None if figures is None else figures.loss,
        notes=dict(aggregated.combined.aggregate.notes),
        breakdown=breakdown(federation, current, aggregated),
        carries_state=any(states.values()),
        has_offset=aggregated.combined.aggregate.offset is not None,
    )
    parameters = server.add_noise(candidate, noise_std, federation.streams, number)
    return Outcome(
        Progress(number, parameters, states),
        candidate,
        record,
        columns(current, federation.participation.honest(number), received, aggregated, accepted=accepted),
    )


def breakdown(federation: Federation, current: Round, aggregated: server.Aggregated) -> tuple[float, ...] | None:
    """What the rule knows about its breakdown, if it saw the clients' own updates and all residuals alike."""
    *stages, rule = federation.config.aggregation
    clients, combined = current.clients, aggregated.combined
    honest = np.minimum(combined.cap.double().cpu().numpy(), clients.update_bound)
    same = len(set(clients.retention)) == 1 and aggregated.weights_from == "chain" and combined.keeps_bounds
    if not isinstance(rule, Aggregator) or not same or any(stage.depends != "own" for stage in stages):
        return None
    with failures_named(f"aggregator {rule.full_name} failed in breakdown"):
        found = rule.breakdown(clients, combined.aggregate, float(honest.max()))
        return None if found is None else tuple(float(drift) for drift in found[np.isfinite(found)])


def columns(
    current: Round,
    honest: Clients,
    received: server.Received,
    aggregated: server.Aggregated,
    *,
    accepted: bool,
) -> ClientColumns:
    """The round's rows of the ledger. In a rejected round nobody's update reached the model."""

    def array(values: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return values.double().cpu().numpy()

    clients = current.clients
    decay = torch.from_numpy(1.0 - clients.retention).to(current.start)
    residuals = torch.linalg.vector_norm(received.updates + torch.outer(decay, current.start), dim=1)
    reached = 1.0 if accepted else 0.0
    poison = received.poisoning
    return ClientColumns(
        round=np.full(len(clients), current.number),
        client=clients.ids,
        weight=array(aggregated.weights) * reached,
        weight_bound=array(aggregated.combined.weight_bound),
        learning_rate=clients.learning_rate,
        steps=clients.steps,
        honest_rate=honest.learning_rate,
        honest_steps=honest.steps,
        batch_size=clients.batch_size,
        last_batch=clients.last_batch,
        weight_decay=clients.weight_decay,
        retention=clients.retention,
        update_bound=clients.update_bound,
        cap=array(aggregated.combined.cap),
        submitted_norm=array(received.norms),
        residual_norm=np.minimum(array(aggregated.combined.cap), array(residuals)),
        quarantined=received.bad,
        attacking=clients.attacking,
        scale=received.scale,
        poisoned_share=poison.share,
        poisoned_samples=poison.samples,
        poisoned_most=poison.most,
        delta=poison.delta,
        label_flips=poison.flips,
        poisoned_norm=poison.norm,
    )


def measured(federation: Federation, number: int) -> bool:
    """Whether the config asks for accuracy and loss in this round; in the final one they are always wanted."""
    every = federation.config.evaluation.every
    return number == federation.config.rounds or (every > 0 and number % every == 0)
