"""How long inputs can be, and how steep that makes the loss. Norms include the constant 1 of the bias."""

from __future__ import annotations

import math

import numpy as np

import crfl_core.certification.formulas as formulas
from crfl_core.records.ledger import Ledger
from crfl_core.records.measurements import norm_error, relative_error
from crfl_core.records.threat import Threat

BALL_ROUNDING_SLACK = 1e-6
"""How far, relative to its radius, rounding may carry models out of the ball of the ball rule; the audit checks it."""


def bias_input(ledger: Ledger) -> float:
    """The constant input of the bias, if the model has one."""
    return 1.0 if ledger.facts.model_facts.bias else 0.0


def input_bound(ledger: Ledger) -> float:
    """B: the largest norm among all clean training inputs, measured behind the feature maps."""
    exact = 1.0 + relative_error(ledger.facts.features, "float64")
    return float(np.hypot(max(ledger.facts.feature_norms) * exact, bias_input(ledger)))


def domain_bound(ledger: Ledger, threat: Threat) -> float:
    """B': a bound on the norm of any poisoned input, declared by the threat, else by the domain of the data."""
    return float(np.hypot(domain_bound_without_bias(ledger, threat), bias_input(ledger)))


def domain_bound_without_bias(ledger: Ledger, threat: Threat) -> float:
    """The same without the constant 1 of the bias; the domain's is enlarged by what feature maps may round."""
    facts = ledger.facts
    return threat.input_bound or facts.feature_norm_bound * (1.0 + 2.0 * norm_error(facts))


def effective_input_bound(ledger: Ledger, longest: float) -> float:
    """The `b` of `sqrt(2) b`, which no gradient of a batch of inputs up to this long exceeds, as clients train.

    That length itself, or `sqrt(L)` with the batch-spectrum rule, whichever is less. Losses are `b^2 / 2`-smooth.
    """
    limit = ledger.facts.training.spectrum
    return longest if limit is None else min(longest, math.sqrt(limit))


def smoothness(ledger: Ledger) -> float:
    """beta without weight decay: `B^2 / 2`, with the batch-spectrum rule `L / 2`, with the ball rule what it is inside.

    The ball counts as larger by what rounding may carry models out of it.
    """
    facts = ledger.facts.training
    beta = effective_input_bound(ledger, input_bound(ledger)) ** 2 / 2.0
    ball = facts.ball
    if ball is None or facts.spectrum is None:
        return beta
    farthest = ball.gradient_bound * (1.0 + BALL_ROUNDING_SLACK)
    inside = formulas.ball_smoothness(
        facts.spectrum, farthest, ball.weight_decay, ball.input_bound, ledger.facts.classes
    )
    return min(beta, float(inside))
