"""Effect of a clean round on the gap between two worlds: input bounds, smoothness of the loss, Lipschitz constants.

Norms of inputs are Euclidean, behind the feature maps, and include the constant 1 of the bias where the model has one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.records.measurements import norm_error, precision, relative_error

if TYPE_CHECKING:
    from crfl_core.records.ledger import ClientColumns, Ledger
    from crfl_core.records.threat import Threat

Array = NDArray[np.float64]

BALL_ROUNDING_SLACK = 1e-6
"""Share of its radius by which rounding may carry models out of the ball of the ball rule; the audit checks it."""


def bias_input(ledger: Ledger) -> float:
    """Return the constant input of the bias.

    It is 1, or 0 for a model without one.
    """
    return 1.0 if ledger.facts.model_facts.bias else 0.0


def input_bound(ledger: Ledger) -> float:
    """Return B, the largest measured norm of a clean training input."""
    exact = 1.0 + relative_error(ledger.facts.features, "float64")
    return float(np.hypot(max(ledger.facts.feature_norms) * exact, bias_input(ledger)))


def domain_bound(ledger: Ledger, threat: Threat) -> float:
    """Return B', a bound on the norm of any poisoned input.

    It is that of the threat, else that of the data's domain.
    """
    return float(np.hypot(domain_bound_without_bias(ledger, threat), bias_input(ledger)))


def domain_bound_without_bias(ledger: Ledger, threat: Threat) -> float:
    """Return B' without the constant of the bias.

    The domain's bound is enlarged by the rounding of feature maps.
    """
    facts = ledger.facts
    return threat.input_bound or facts.feature_norm_bound * (1.0 + 2.0 * norm_error(facts))


def effective_input_bound(ledger: Ledger, longest: float) -> float:
    """Return b, which bounds the gradients of batches.

    No gradient of a batch of inputs of norm up to `longest` is longer than `sqrt(2) b`. That is `longest` itself, or
    `sqrt(L)` with the batch-spectrum rule if that is less. Losses are `b^2 / 2`-smooth.
    """
    limit = ledger.facts.training.spectrum
    return longest if limit is None else min(longest, math.sqrt(limit))


def smoothness(ledger: Ledger) -> float:
    """Return beta, the smoothness of clean losses without weight decay.

    It is `B^2 / 2`, with the batch-spectrum rule `L / 2`, with the ball rule the smoothness inside the ball. The ball
    counts as larger by what rounding may carry models out of it.
    """
    facts = ledger.facts.training
    longest = effective_input_bound(ledger, input_bound(ledger))
    beta = longest * longest / 2.0  # infinite, not an error, for inputs beyond 1e154
    ball = facts.ball
    if ball is None or facts.spectrum is None:
        return beta
    farthest = ball.gradient_bound * (1.0 + BALL_ROUNDING_SLACK)
    inside = formulas.ball_smoothness(
        facts.spectrum, farthest, ball.weight_decay, ball.input_bound, ledger.facts.classes
    )
    return min(beta, float(inside))


def damping(ledger: Ledger, rows: ClientColumns) -> Array:
    """Return `lambda + mu`, which damps a push in every later step.

    The damping comes from weight decay and the proximal weight.
    """
    pull: Array = rows.weight_decay + ledger.facts.training.proximal
    return pull


def is_contracting(ledger: Ledger, rows: ClientColumns, rates: Array) -> NDArray[np.bool_]:
    """Return where every local step contracts.

    Such a step contracts by `1 - eta (lambda + mu)`, rather than merely not expanding.
    """
    return np.less_equal(rates, formulas.largest_rate(smoothness(ledger), damping(ledger, rows)))


def has_honest_cap(ledger: Ledger, rows: ClientColumns) -> NDArray[np.bool_]:
    """Return whose cap is at most what an honest client may submit.

    The comparison allows for rounding.
    """
    return np.less_equal(rows.cap, rows.update_bound * (1.0 + 4.0 * precision(ledger.facts)))


def follows_protocol(rows: ClientColumns) -> NDArray[np.bool_]:
    """Return who trained with an honest client's rate and steps."""
    return np.equal(rows.learning_rate, rows.honest_rate) & np.equal(rows.steps, rows.honest_steps)


def round_lipschitz(ledger: Ledger, threat: Threat, number: int) -> float:
    """Return the Lipschitz constant of a clean round.

    It is 1, or less with weight decay, in exact arithmetic. In the scaled clean world attackers train and multiply as
    they do, which may expand a gap. An attack in a single unknown round makes the gap and meets none; of several
    unknown rounds, any may expand it.
    """
    rows = ledger.clients.of_round(number)
    contracts = bool(is_contracting(ledger, rows, rows.honest_rate).all())
    constant = formulas.round_contraction(rows.weight_bound, rows.retention if contracts else np.ones(len(rows)))
    if threat.clean_world == "honest" or number not in threat.rounds or threat.rounds_at_most == 1:
        return constant
    return max(constant, round_expansion_with_rate(ledger, threat, rows))


def round_expansion_with_rate(ledger: Ledger, threat: Threat, rows: ClientColumns) -> float:
    """Return the Lipschitz constant of a round with multiplied clean updates.

    The attackers multiply them. It is 0 if none does.
    """
    unknown_training = threat.poison == "update"
    rate = rows.honest_rate if unknown_training else rows.learning_rate
    steps = rows.honest_steps if unknown_training else rows.steps
    beta = smoothness(ledger) + rows.weight_decay
    proximal = ledger.facts.training.proximal
    if (rate * (beta + 2.0 * proximal) > 2.0).any():
        return np.inf
    reach = rows.weight_bound * (1.0 if proximal else formulas.averagedness(rate, beta, steps))
    if isinstance(threat.clients, int):
        chosen = np.argsort(-reach, kind="stable")[: threat.clients]
    else:
        chosen = np.flatnonzero(np.isin(rows.client, threat.clients))
    if threat.scale == 1 and (unknown_training or follows_protocol(rows).all()):
        return 0.0
    if proximal:  # an update is the difference of two non-expansive maps, which is not an averaged map
        return 1.0 + 2.0 * threat.scale * float(reach[chosen].sum())
    if np.isfinite(rows.cap[chosen]).any():
        return formulas.round_expansion_with_caps(
            rows.weight_bound[chosen], threat.scale, rate[chosen], beta[chosen], steps[chosen]
        )
    scales = np.ones(len(rows))
    scales[chosen] = threat.scale
    return formulas.round_expansion(rows.weight_bound, scales, rate, beta, steps)
