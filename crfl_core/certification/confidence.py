"""From votes and logits to the drift that a prediction tolerates: bounds on class probabilities and margins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.certification.contraction import bias_input
from crfl_core.records.votes import CountVotes, ExactVotes, VoteRequest, Votes, VoteSettings

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger

Array = NDArray[np.float64]


def vote_count_request(settings: VoteSettings, noise_std: float) -> VoteRequest:
    """Request the votes of noisy copies of the final model.

    A two-stage bound gets copies of its own that select the class; other bounds select it by the same votes.
    """
    selection = settings.selection_models if settings.bound == "two-stage" else 0
    return VoteRequest("monte-carlo", models=settings.models, noise_std=noise_std, selection_models=selection)


def vote_bounds(votes: Votes) -> formulas.Bounds:
    """Bound the class probabilities of every sample from counted votes.

    The rule is that of the vote settings. For each sample by itself, the lower bound on the selected class and the
    upper bound on every other class hold together with probability at least 1 - alpha over the noise of the votes.
    """
    counted = votes.expect(CountVotes)
    alpha = votes.settings.alpha
    if votes.request.selection_models:
        return formulas.two_stage(counted.selection, counted.counts, alpha)
    if votes.settings.bound == "one-stage":
        return formulas.one_stage(counted.counts, alpha)
    if votes.settings.bound == "hoeffding":
        # The class is selected by the same counts: a union bound over all classes and both sides.
        return formulas.hoeffding(counted.counts, alpha / (2 * counted.counts.shape[1]))
    return formulas.one_stage_bonferroni(counted.counts, alpha)


def margin_thresholds(ledger: Ledger, logits: Array, norms: Array) -> Array:
    """Return the drift below which a linear model keeps each prediction.

    It follows from computed logits and input norms. `norms` (m,) include the constant input of the bias. The thresholds
    are Euclidean norms in parameter space, rounded to the safe side.
    """
    norm = final_model_norm(ledger)
    return np.asarray(formulas.margin_threshold(logits, norms, features=ledger.facts.features, model_norm=norm))


def smoothed_thresholds(ledger: Ledger, votes: ExactVotes) -> Array:
    """Return the drift below which each exact vote stays the same.

    The vote is that of noisy linear models. Thresholds are rounded down.
    """
    noise = votes.request.noise_std
    norms = np.hypot(votes.input_norms, bias_input(ledger))
    threshold = noise * formulas.gaussian_threshold_of_logs(votes.log_p_a, votes.log_rest, votes.log_p_b)
    lost = formulas.logit_rounding(ledger.facts.features, final_model_norm(ledger))
    long_enough = np.minimum(norms, noise * norms) >= formulas.SHORTEST_INPUT
    return np.where(long_enough, np.maximum(threshold - lost, 0.0), 0.0)


def final_model_norm(ledger: Ledger) -> float:
    """Return a norm that the final model does not exceed."""
    last = ledger.rounds[-1]
    return float(min(last.clip_norm, last.norm_before_clip) * (1.0 + formulas.gamma(ledger.facts.parameters)))
