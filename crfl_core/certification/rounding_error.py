"""Rounding error in the drift of a run, from its ledger: docs/certificates.md#rounding.

Bounded in double precision. There is no bound for single precision: errors count as 0, and the audit declares that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.records.measurements import observed_residuals

if TYPE_CHECKING:
    from crfl_core.records.ledger import ClientColumns, Ledger

Array = NDArray[np.float64]


def is_proved(ledger: Ledger) -> bool:
    """Return whether a rounding bound exists for a run's arithmetic."""
    return ledger.facts.dtype == "float64"


def rounding_of_rounds(ledger: Ledger, start_norms: Array, input_bound: float, scale: float) -> formulas.Rounding:
    """Bound what rounding does to every round.

    Models have these start norms, and attackers scale by `scale`. For a model that is not linear, or is not trained by
    plain SGD, local training is left out: there both worlds must start local training from the same model.
    """
    facts = ledger.facts
    rows = ledger.clients
    if not is_proved(ledger):
        return formulas.Rounding(np.zeros(facts.rounds), np.zeros(facts.rounds))
    by_sgd = facts.training.plain and facts.training.clip_gradients is None
    linear = facts.model_facts.linear and by_sgd
    local = local_steps(rows, input_bound)
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
        rate, steps, batch, decay = (table_by_round(ledger, np.asarray(column)) for column in local[:4])
        local = formulas.LocalSteps(rate, steps, batch, decay, input_bound)
        found = formulas.round_rounding(model_size(ledger), local, server, start_norms)
    else:
        found = formulas.server_rounding(facts.parameters, server, start_norms)
    return formulas.Rounding(found.error + [record.rounding for record in ledger.rounds], found.growth)


def model_size(ledger: Ledger) -> formulas.ModelSize:
    """Return the size of a linear model."""
    return formulas.ModelSize(ledger.facts.features, ledger.facts.classes)


def local_steps(rows: ClientColumns, input_bound: float) -> formulas.LocalSteps:
    """Return how clients train or might train, whichever is more.

    A proximal weight is left out: it only shortens the path of local training.
    """
    rate = np.maximum(rows.honest_rate, rows.learning_rate)
    steps = np.maximum(rows.honest_steps, rows.steps)
    return formulas.LocalSteps(rate, steps, rows.batch_size, rows.weight_decay, input_bound)


def weight_norms(ledger: Ledger, number: int, input_bound: float) -> Array:
    """Bound the spectral norm of the computed weights in local training.

    There is a bound for each client of a round.
    """
    record = ledger.round(number)
    rows = ledger.clients.of_round(number)
    found = np.full(len(rows), np.inf if record.start_operator_norm is None else record.start_operator_norm)
    if not is_proved(ledger):
        return found
    local = local_steps(rows, input_bound)
    return np.asarray(formulas.weight_norm_bound(model_size(ledger), found, local, record.start_norm))


def start_norms(ledger: Ledger, horizon: int) -> Array:
    """Return the norms of the broadcast models.

    They are observed up to the horizon and bounded after it. After the horizon noise is drawn again; the bound holds
    for every such model.
    """
    seen = [record.start_norm for record in ledger.rounds[:horizon]]
    unseen = [
        formulas.noisy_norm(record.clip_norm, record.noise_std, ledger.facts.parameters)
        for record in ledger.rounds[horizon - 1 : -1]
    ]
    return np.array([*seen, *unseen], np.float64)


def table_by_round(ledger: Ledger, column: NDArray[np.generic], missing: float = 0.0) -> Array:
    """Arrange a column of the ledger as a table.

    It is (rounds, participants), filled up with `missing`.
    """
    counts = np.array([record.participants for record in ledger.rounds])
    place = np.arange(len(column)) - np.repeat(counts.cumsum() - counts, counts)
    table = np.full((len(counts), int(counts.max())), missing)
    table[ledger.clients.round - 1, place] = column
    return table


def count_terms(ledger: Ledger) -> int:
    """Return the largest number of terms added up for a drift."""
    facts = ledger.facts
    return facts.clients + facts.rounds + facts.parameters + int(ledger.clients.steps.max(initial=0))
