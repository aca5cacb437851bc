"""From a round that was played to its rows in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure, wrap_failures
from crfl_core.plugin_api.aggregator import Aggregator
from crfl_core.records.ledger import ClientColumns, RoundRecord
from crfl_core.training.evaluation import score, target_rate
from crfl_core.training.groups import has_private_state

if TYPE_CHECKING:
    from crfl_core.training.aggregation_chain import ChainResult
    from crfl_core.training.federation import Federation
    from crfl_core.training.rounds import RoundOutcome

UPDATE_BOUND_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""By how much, relatively, rounding may carry an honest update beyond its bound before the bound is doubted."""


def record_round(federation: Federation, outcome: RoundOutcome) -> tuple[RoundRecord, ClientColumns]:
    """Return what the ledger says of a round of the run.

    This is one line, and a row for each client. Raises `PluginFailure` if an honest update is longer than its model
    allows.
    """
    plan = outcome.plan
    start = outcome.before.models[0]
    (result,) = outcome.results
    (accepted,) = outcome.accepted
    if outcome.after.failed is None:
        check_honest_updates(federation, outcome)
    model = outcome.clipped[0]
    test_score = None
    success_rate = None
    if wants_evaluation(federation, plan.number):
        test_score = score(federation, model)
        success_rate = target_rate(federation, model)
    rule_notes = {} if result.rule is None else dict(result.rule.notes)
    combined = start + result.update if accepted else start
    line = RoundRecord(
        round=plan.number,
        clip_norm=plan.clip_norm,
        noise_std=plan.noise_std,
        start_norm=float(torch.linalg.vector_norm(start)),
        start_operator_norm=federation.new_model().operator_norm(start),
        norm_before_clip=float(torch.linalg.vector_norm(combined)),
        accepted=accepted,
        depends=result.depends,
        weights_from=result.weights_from,
        participants=len(plan.clients),
        quarantined=int(outcome.arrivals.quarantined.sum()),
        accuracy=None if test_score is None else test_score.accuracy,
        loss=None if test_score is None else test_score.loss,
        success_rate=success_rate,
        notes=rule_notes | dict(result.notes),
        breakdown=rule_breakdown(outcome, result),
        carries_state=any(outcome.after.states[0].values()) or has_private_state(plan.server),
        rounding=result.rounding,
        has_offset=result.has_offset,
        group=plan.group or 0,
        failed=outcome.after.failed,
        server_rate=result.server_rate,
    )
    return line, client_columns(outcome, result)


def check_honest_updates(federation: Federation, outcome: RoundOutcome) -> None:
    """Raise `PluginFailure` if an honest residual exceeds the model's gradient bound.

    Certificates rest on that bound.
    """
    plan = outcome.plan
    start = float(torch.linalg.vector_norm(outcome.before.models[0]))
    bounds = plan.clients.update_bound
    lengths = outcome.results[0].residual.numpy()
    honest = ~plan.behaviour.attacking & ~outcome.arrivals.quarantined & np.isfinite(bounds)
    ball = federation.honest.facts.ball
    if ball is not None and start > ball.radius:  # the bound is for models inside: certificates are refused
        return
    # A step is rounded as a part of its model, which attackers may have made long.
    relative = UPDATE_BOUND_TOLERANCE[federation.dtype] * (bounds + (1.0 - plan.clients.retention) * start)
    rounded = relative + plan.clients.steps * torch.finfo(federation.dtype).eps * start
    over = honest & (lengths > bounds + rounded)
    if over.any():
        client = int(np.flatnonzero(over)[0])
        raise PluginFailure(
            f"model {federation.config.model.full_name}: client {plan.clients.ids[client]} trained a residual of norm "
            f"{lengths[client]:.4g} in round {plan.number}, which its gradient_bound() rules out "
            f"({bounds[client]:.4g}): correct the bound"
        )


def rule_breakdown(outcome: RoundOutcome, result: ChainResult) -> tuple[float, ...] | None:
    """Bound how far 0, 1, 2, ... arbitrary clients move the model.

    The answer goes as far as the rule knows; None if it does not know. A rule knows only if it saw the clients' own
    updates and all residuals alike. The model moves by the server's rate times as much.
    """
    *stages, rule = outcome.plan.server.aggregation
    clients = outcome.plan.clients
    rate = result.server_rate
    if not isinstance(rule, Aggregator) or result.rule is None or rate is None:
        return None
    if len(set(clients.retention)) > 1 or result.weights_from != "chain" or not result.keeps_bounds:
        return None
    if any(stage.depends != "own" for stage in stages):
        return None
    honest = np.minimum(result.cap.numpy(), clients.update_bound)
    with wrap_failures(f"aggregator {rule.full_name} failed in breakdown"):
        found = rule.breakdown(clients, result.rule, float(honest.max()))
    if found is None:
        return None
    known = int(np.isfinite(found).cumprod().sum())  # from the first entry that is not finite, the rule breaks down
    return tuple(rate * float(drift) for drift in found[:known])


def client_columns(outcome: RoundOutcome, result: ChainResult) -> ClientColumns:
    """Return the round's rows of the ledger.

    In a rejected round no update reached the model: weights are 0.
    """

    def to_array(values: Tensor) -> NDArray[np.float64]:
        return values.double().cpu().numpy()

    clients = outcome.plan.clients
    behaviour = outcome.plan.behaviour
    arrivals = outcome.arrivals
    cap = to_array(result.cap)
    return ClientColumns(
        round=np.full(len(clients), outcome.plan.number),
        client=clients.ids,
        group=clients.group,
        weight=to_array(result.weights) * outcome.accepted[0],
        weight_bound=to_array(result.weight_bound),
        learning_rate=behaviour.learning_rate,
        steps=behaviour.steps,
        honest_rate=clients.learning_rate,
        honest_steps=clients.steps,
        batch_size=clients.batch_size,
        last_batch=clients.last_batch,
        weight_decay=clients.weight_decay,
        retention=clients.retention,
        update_bound=clients.update_bound,
        cap=cap,
        submitted_norm=arrivals.norms,
        residual_norm=np.minimum(to_array(result.residual), cap),
        quarantined=arrivals.quarantined,
        attacking=behaviour.attacking,
        scale=arrivals.scale,
        **vars(arrivals.measurements),
    )


def wants_evaluation(federation: Federation, number: int) -> bool:
    """Ask whether the ledger has accuracy and loss of this round.

    It always has those of the final round.
    """
    every = federation.config.evaluation.every
    return number == federation.config.rounds or (every > 0 and number % every == 0)
