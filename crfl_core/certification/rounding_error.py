"""What floating-point arithmetic adds to the drift of a run, from its ledger: docs/certificates.md#rounding.

Known in double precision. In single precision it is not, and the audit says that it is relied upon.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.records.ledger import ClientColumns, Ledger
from crfl_core.records.measurements import observed_residuals

Array = NDArray[np.float64]


def rounding_of_rounds(ledger: Ledger, start_norms: Array, input_bound: float, scale: float) -> formulas.Rounding:
    """What rounding does to every round, if they start at models of these norms and attackers multiply by `scale`.

    Of a model that is not linear, or trained otherwise than by SGD, local training is left out: it must start at the
    same model in both worlds.
    """
    facts = ledger.facts
    rows = ledger.clients
    if not is_proved(ledger):
        return formulas.Rounding(np.zeros(facts.rounds), np.zeros(facts.rounds))
    by_sgd = facts.training.plain and facts.training.clip_gradients is None
    local = local_steps(rows, input_bound)
    linear = facts.model_facts.linear and by_sgd
    rate, steps, batch, decay, _ = local
    trained = scale * formulas.update_bound(rate, steps, input_bound, decay) if linear else np.inf
    messages = np.minimum(rows.cap, np.maximum(observed_residuals(ledger), trained))
    server = formulas.Aggregation(
        table_by_round(ledger, scale * rows.weight_bound),
        table_by_round(ledger, messages),
        table_by_round(ledger, rows.retention, 1.0),
        np.array([record.clip_norm for record in ledger.rounds]),
    )
    if linear:
        rate, steps, batch, decay = (
            table_by_round(ledger, np.asarray(column)) for column in (rate, steps, batch, decay)
        )
        local = formulas.LocalSteps(rate, steps, batch, decay, input_bound)
        found = formulas.round_rounding(model_size(ledger), local, server, start_norms)
    else:
        found = formulas.server_rounding(facts.parameters, server, start_norms)
    return formulas.Rounding(found.error + [record.rounding for record in ledger.rounds], found.growth)


def is_proved(ledger: Ledger) -> bool:
    """Whether there is a proof for the arithmetic of a run."""
    return ledger.facts.dtype == "float64"


def model_size(ledger: Ledger) -> formulas.ModelSize:
    """The size of a linear model."""
    return formulas.ModelSize(ledger.facts.features, ledger.facts.classes)


def local_steps(rows: ClientColumns, input_bound: float) -> formulas.LocalSteps:
    """How clients train, or might train, whichever is more. A proximal weight only shortens how far they get."""
    rate = np.maximum(rows.honest_rate, rows.learning_rate)
    steps = np.maximum(rows.honest_steps, rows.steps)
    return formulas.LocalSteps(rate, steps, rows.batch_size, rows.weight_decay, input_bound)


def weight_norms(ledger: Ledger, number: int, input_bound: float) -> Array:
    """A spectral norm that the weights have at most when each client of a round begins to train, as computed."""
    record = ledger.round(number)
    rows = ledger.clients.of_round(number)
    found = np.full(len(rows), np.inf if record.start_operator_norm is None else record.start_operator_norm)
    if not is_proved(ledger):
        return found
    local = local_steps(rows, input_bound)
    return np.asarray(formulas.weight_norm_bound(model_size(ledger), found, local, record.start_norm))


def table_by_round(ledger: Ledger, column: NDArray[np.generic], missing: float = 0.0) -> Array:
    """A column of the ledger with a row for each round; rounds of fewer clients are filled up with a number."""
    counts = np.array([record.participants for record in ledger.rounds])
    place = np.arange(len(column)) - np.repeat(counts.cumsum() - counts, counts)
    table = np.full((len(counts), int(counts.max())), missing)
    table[ledger.clients.round - 1, place] = column
    return table


def start_norms(ledger: Ledger, horizon: int) -> Array:
    """The norms of the broadcast models; after the horizon noise is drawn again, and what no such model exceeds."""
    seen = [record.start_norm for record in ledger.rounds[:horizon]]
    unseen = [
        formulas.noisy_norm(record.clip_norm, record.noise_std, ledger.facts.parameters)
        for record in ledger.rounds[horizon - 1 : -1]
    ]
    return np.array([*seen, *unseen], np.float64)


def final_model_norm(ledger: Ledger) -> float:
    """A norm that the final model does not exceed."""
    last = ledger.rounds[-1]
    return float(min(last.clip_norm, last.norm_before_clip) * (1.0 + formulas.gamma(ledger.facts.parameters)))


def count_terms(ledger: Ledger) -> int:
    """How many numbers at most are added up for a drift."""
    facts = ledger.facts
    return facts.clients + facts.rounds + facts.parameters + int(ledger.clients.steps.max(initial=0))


def margin_thresholds(ledger: Ledger, logits: Array, norms: Array) -> Array:
    """The drift that each prediction of a linear model stands, from computed logits and norms of the inputs."""
    return np.asarray(
        formulas.margin_threshold(logits, norms, features=ledger.facts.features, model_norm=final_model_norm(ledger))
    )
