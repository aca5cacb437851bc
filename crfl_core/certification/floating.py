"""What floating-point arithmetic adds to the drift of a run, from its ledger: docs/certificates.md#rounding.

Known in double precision. In single precision it is not, and the audit says that it is relied upon.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crfl_core.certification import formulas
from crfl_core.certification.measurements import observed_residuals
from crfl_core.ledger import Ledger

NONE = formulas.Rounding(np.array(0.0), np.array(0.0))


def of_round(ledger: Ledger, number: int, start_norm: float, input_bound: float, scale: float) -> formulas.Rounding:
    """What rounding does to a round that starts at a model of this norm, if attackers multiply by `scale`.

    Of a model that is not linear, local training is left out: it must start at the same model in both worlds.
    """
    facts, record, rows = ledger.facts, ledger.round(number), ledger.clients.of_round(number)
    if facts.dtype != "float64":
        return NONE
    rate, steps = np.maximum(rows.honest_rate, rows.learning_rate), np.maximum(rows.honest_steps, rows.steps)
    local = formulas.LocalSteps(rate, steps, rows.batch_size, rows.weight_decay, input_bound)
    linear = facts.model_facts.linear
    trained = scale * formulas.update_bound(rate, steps, input_bound, rows.weight_decay) if linear else np.inf
    messages = np.minimum(rows.cap, np.maximum(observed_residuals(ledger, number), trained))
    server = formulas.Aggregation(scale * rows.weight_bound, messages, rows.retention, record.clip_norm)
    if linear:
        found = formulas.round_rounding(formulas.ModelSize(facts.features, facts.classes), local, server, start_norm)
    else:
        found = formulas.server_rounding(facts.parameters, server, start_norm)
    return formulas.Rounding(found.error + record.rounding, found.growth)


def unseen_start(ledger: Ledger, number: int) -> float:
    """A norm that no broadcast model of a round exceeds whose noise was drawn again; the run's own in the first."""
    before = ledger.round(max(1, number - 1))
    return float(formulas.noisy_norm(before.clip_norm, before.noise_std, ledger.facts.parameters))


def final_norm(ledger: Ledger) -> float:
    """A norm that the final model does not exceed."""
    last = ledger.rounds[-1]
    return float(min(last.clip_norm, last.norm_before_clip) * (1.0 + formulas.gamma(ledger.facts.parameters)))


def terms(ledger: Ledger) -> int:
    """How many numbers at most are added up for a drift."""
    facts = ledger.facts
    return facts.clients + facts.rounds + facts.parameters + int(ledger.clients.steps.max(initial=0))


def margins(ledger: Ledger, logits: NDArray[np.float64], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """The drift that each prediction of a linear model stands, from computed logits and norms of the inputs."""
    return np.asarray(
        formulas.margin_threshold(logits, norms, features=ledger.facts.features, model_norm=final_norm(ledger))
    )
