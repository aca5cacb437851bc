"""What follows from the steps of an aggregation chain before anybody has looked at an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.plugin_api.aggregator import AggregationStep, CapStage
from crfl_core.records.round import Clients, Dependence, worst

if TYPE_CHECKING:
    from torch import Tensor


def linear(steps: Sequence[AggregationStep]) -> bool:
    """Whether no update is ever looked at beside another: caps come first, then fixed stages and a linear rule.

    Behind a stage that may mix clients, an "own" factor is a mixture's own: it depends on everybody in it.
    """
    kinds = [step.depends for step in steps]
    return "all" not in kinds and kinds == sorted(kinds, key=("own", "fixed").index)


def dependence(steps: Sequence[AggregationStep], clients: Clients) -> Dependence:
    """On what the weights of a chain depend, for clients like these.

    A cap on whole updates counts as looking at everybody under weight decay, as honest updates may be shortened by it.
    """
    shortens = any(isinstance(one, CapStage) and not centred(one, clients) for one in steps)
    return "all" if shortens or not linear(steps) else worst(*(step.depends for step in steps))


def centred(stage: CapStage, clients: Clients) -> bool:
    """Whether a stage caps what honest clients add to weight decay, so that it can leave all of that as it is."""
    return stage.centre == "decay" or not (clients.retention < 1).any()


def mixtures(clients: Clients, mixing: Tensor) -> Clients:
    """Clients as the next step sees them: a stage that mixes clients makes new ones, averages of the old.

    Samples, retention and the bound on honest updates are averaged as the updates are, so that weights by sample counts
    and caps still mean the same. In everything else, and in its id, a row stays who it was if there are as many rows as
    before, and is the client that it is mostly made of if not.
    """
    import torch

    if mixing.ndim == 1:
        return clients
    if mixing.shape[0] == mixing.shape[1] and torch.equal(mixing, torch.diag(mixing.diagonal())):
        return clients
    share = mixing.abs().double().cpu().numpy()
    share /= np.maximum(share.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    known = np.isfinite(clients.update_bound).all()
    averaged = {
        # Rounded twice: a half must not go up or down with the order in which it was summed.
        "samples": np.maximum(1, (share @ clients.samples).round(9).round()).astype(np.int64),
        "retention": share @ clients.retention,
        "update_bound": share @ clients.update_bound if known else np.full(len(share), np.inf),
    }
    if len(share) != len(clients):
        by_id = np.argsort(clients.ids)  # of equal parts the lowest id counts, in whatever order the rows come
        clients = clients.take(by_id[share[:, by_id].argmax(1)])
    return Clients(**(vars(clients) | averaged))
