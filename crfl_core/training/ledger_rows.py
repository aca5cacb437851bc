"""From a round that was played to its lines in the ledger."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure, failures_named
from crfl_core.plugin_api.aggregator import Aggregator
from crfl_core.records.ledger import ClientColumns, RoundRecord
from crfl_core.training.aggregation import ChainResult
from crfl_core.training.evaluation import score, taken_for_target
from crfl_core.training.federation import Federation
from crfl_core.training.groups import keeps_to_itself
from crfl_core.training.rounds import Outcome

UPDATE_BOUND_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""By how much, relatively, rounding may carry an honest update beyond its bound before the bound is doubted."""


def record(federation: Federation, outcome: Outcome) -> tuple[RoundRecord, ClientColumns]:
    """What the ledger says of a round of the run itself."""
    plan = outcome.plan
    start = outcome.before.models[0]
    aggregated = outcome.aggregated
    (result,), (accepted,) = aggregated.results, outcome.accepted
    if outcome.after.failed is None:
        check_honest(federation, outcome)
    model = outcome.before_noise[0]
    wanted = measured(federation, plan.number)
    figures, success = (score(federation, model), taken_for_target(federation, model)) if wanted else (None, None)
    combined = start + result.update if accepted else start
    line = RoundRecord(
        round=plan.number,
        clip_norm=plan.clip_norm,
        noise_std=plan.noise_std,
        start_norm=float(torch.linalg.vector_norm(start)),
        start_operator_norm=federation.model.operator_norm(start),
        norm_before_clip=float(torch.linalg.vector_norm(combined)),
        accepted=accepted,
        depends=result.depends,
        weights_from=result.weights_from,
        participants=len(plan.clients),
        quarantined=int(aggregated.bad.sum()),
        accuracy=None if figures is None else figures.accuracy,
        loss=None if figures is None else figures.loss,
        success_rate=success,
        notes=({} if result.rule is None else dict(result.rule.notes)) | dict(result.notes),
        breakdown=breakdown(outcome, result),
        carries_state=any(outcome.after.states[0].values()) or keeps_to_itself(plan.server),
        rounding=result.rounding,
        has_offset=result.has_offset,
        group=plan.group or 0,
        failed=outcome.after.failed,
        server_rate=result.server_rate,
    )
    return line, columns(outcome, result)


def check_honest(federation: Federation, outcome: Outcome) -> None:
    """What honest clients trained is within what the model says about its gradients: certificates rest on it."""
    plan = outcome.plan
    aggregated = outcome.aggregated
    rounding = UPDATE_BOUND_TOLERANCE[federation.dtype]
    start = float(torch.linalg.vector_norm(outcome.before.models[0]))
    errors = torch.finfo(federation.dtype).eps
    bounds = plan.clients.update_bound
    lengths = aggregated.results[0].residual.numpy()
    honest = ~plan.conduct.attacking & ~aggregated.bad & np.isfinite(bounds)
    ball = federation.honest.facts.ball
    if ball is not None and start > ball.radius:  # the bound is for models inside: certificates are refused
        return
    # A step is rounded as a part of its model, which attackers may have made long.
    rounded = rounding * (bounds + (1.0 - plan.clients.retention) * start) + plan.clients.steps * errors * start
    over = honest & (lengths > bounds + rounded)
    if over.any():
        client = int(np.flatnonzero(over)[0])
        raise PluginFailure(
            f"model {federation.config.model.full_name}: client {plan.clients.ids[client]} trained a residual of norm "
            f"{lengths[client]:.4g} in round {plan.number}, which its gradient_bound() rules out "
            f"({bounds[client]:.4g}): correct the bound"
        )


def breakdown(outcome: Outcome, result: ChainResult) -> tuple[float, ...] | None:
    """What the rule knows about its breakdown, if it saw the clients' own updates and all residuals alike.

    The model moves by the server's rate times as much.
    """
    *stages, rule = outcome.plan.server.aggregation
    clients = outcome.plan.clients
    rate = result.server_rate
    same = len(set(clients.retention)) == 1 and result.weights_from == "chain" and result.keeps_bounds
    if not isinstance(rule, Aggregator) or result.rule is None or rate is None or not same:
        return None
    if any(stage.depends != "own" for stage in stages):
        return None
    honest = np.minimum(result.cap.numpy(), clients.update_bound)
    with failures_named(f"aggregator {rule.full_name} failed in breakdown"):
        found = rule.breakdown(clients, result.rule, float(honest.max()))
        return None if found is None else tuple(rate * float(drift) for drift in found[np.isfinite(found)])


def columns(outcome: Outcome, result: ChainResult) -> ClientColumns:
    """The round's rows of the ledger. In a rejected round nobody's update reached the model."""

    def array(values: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return values.double().cpu().numpy()

    clients = outcome.plan.clients
    conduct = outcome.plan.conduct
    aggregated = outcome.aggregated
    poison = aggregated.poisoning
    return ClientColumns(
        round=np.full(len(clients), outcome.plan.number),
        client=clients.ids,
        group=clients.group,
        weight=array(result.weights) * outcome.accepted[0],
        weight_bound=array(result.weight_bound),
        learning_rate=conduct.learning_rate,
        steps=conduct.steps,
        honest_rate=clients.learning_rate,
        honest_steps=clients.steps,
        batch_size=clients.batch_size,
        last_batch=clients.last_batch,
        weight_decay=clients.weight_decay,
        retention=clients.retention,
        update_bound=clients.update_bound,
        cap=array(result.cap),
        submitted_norm=aggregated.norms,
        residual_norm=np.minimum(array(result.residual), array(result.cap)),
        quarantined=aggregated.bad,
        attacking=conduct.attacking,
        scale=aggregated.scale,
        poisoned_share=poison.poisoned_share,
        poisoned_samples=poison.poisoned_samples,
        poisoned_most=poison.poisoned_most,
        delta=poison.delta,
        label_flips=poison.label_flips,
        poisoned_norm=poison.poisoned_norm,
        spectrum=poison.spectrum,
        start_gradient=poison.start_gradient,
        batch_factor=poison.batch_factor,
        scaled_batches=poison.scaled_batches,
    )


def measured(federation: Federation, number: int) -> bool:
    """Whether the config asks for accuracy and loss in this round; in the final one they are always wanted."""
    every = federation.config.evaluation.every
    return number == federation.config.rounds or (every > 0 and number % every == 0)
