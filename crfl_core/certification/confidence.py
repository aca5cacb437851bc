"""Bounds on the probabilities of classes, as the settings ask for them."""

from __future__ import annotations

import crfl_core.certification.formulas as formulas
from crfl_core.records.votes import CountVotes, VoteRequest, Votes, VoteSettings


def vote_count_request(settings: VoteSettings, noise_std: float) -> VoteRequest:
    """Votes of noisy copies of the final model, with a separate selection if the bound needs one."""
    selection = settings.selection_models if settings.bound == "two-stage" else 0
    return VoteRequest("monte-carlo", models=settings.models, noise_std=noise_std, selection_models=selection)


def vote_bounds(votes: Votes) -> formulas.Bounds:
    """The predicted class and bounds that hold together with probability 1 - alpha, per sample."""
    counted = votes.expect(CountVotes)
    alpha = votes.settings.alpha
    if votes.request.selection_models:
        return formulas.two_stage(counted.selection, counted.counts, alpha)
    if votes.settings.bound == "one-stage":
        return formulas.one_stage(counted.counts, alpha)
    if votes.settings.bound == "hoeffding":
        # The class is selected on the same counts: a union over all classes and both bounds.
        return formulas.hoeffding(counted.counts, alpha / (2 * counted.counts.shape[1]))
    return formulas.one_stage_bonferroni(counted.counts, alpha)
