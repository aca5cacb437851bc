"""Clients train and models vote as if there were no other: tried before training on what is not the core's own."""

from __future__ import annotations

import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.plugin_api.softmax_regression import LinearModel
from crfl_core.training.federation import Federation
from crfl_core.training.steps import honest_models

STEPS = 2
SAMPLES = 8
"""On how many samples of each of two clients it is tried."""
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-9}
"""By how much, relatively, computing things together may change them."""


def check_independence(federation: Federation) -> None:
    """Two clients, each on two models, train the same together and alone, and their models answer the same.

    Many clients and models are computed at once, also those of different groups. A plugin that lets one of them reach
    another breaks what certificates take for granted: an attacker changes its own update, and nobody else's.
    """
    own = isinstance(federation.model, LinearModel)
    if (own and federation.honest.facts.plain) or not federation.data.complete:  # elsewhere, each trains alone
        return
    start, rows = tried(federation)
    with settings_of("model", federation.config.model):
        together = trained(federation, start, rows)
        for model in range(2):
            for client in range(2):
                one = slice(model, model + 1), slice(client, client + 1)
                alone = trained(federation, start[one], rows[one[1]])
                compare(federation, "a client trains", together[one], alone, together[one] - start[one])
        models = together.flatten(0, 1)
        x = federation.features[rows.flatten()]
        logits = federation.model.logits(models, x)
        for place in range(len(models)):
            compare(federation, "a model answers", logits[place], federation.model.logits(models[place, None], x)[0])


def tried(federation: Federation) -> tuple[Tensor, Tensor]:
    """Models to start from, (2, 2, P), which all differ, and rows of the training data, (2, samples)."""
    first = federation.start.parameters.to(federation.device, federation.dtype)
    noise = torch.randn(2, 2, len(first), generator=torch.Generator().manual_seed(0), dtype=federation.dtype)
    count = min(SAMPLES, *map(len, federation.data.partition))
    rows = [federation.data.partition[client % federation.data.clients][:count] for client in range(2)]
    return first + 0.1 * noise.to(first), torch.stack([torch.from_numpy(each) for each in rows]).to(federation.device)


def trained(federation: Federation, start: Tensor, rows: Tensor) -> Tensor:
    """Where a few steps lead from `start`, (R, n, P)."""
    models = honest_models(federation, start)
    weights = torch.full(rows.shape, 1.0 / rows.shape[1], device=rows.device, dtype=federation.dtype)
    rates = weights.new_full((len(rows),), float(federation.participation.everybody(1).learning_rate[0]))
    for _ in range(STEPS):
        models.step(federation.features[rows], federation.data.y[rows], weights, rates, None)
    return models.parameters().clone()


def compare(federation: Federation, what: str, together: Tensor, alone: Tensor, moved: Tensor | None = None) -> None:
    """Raise unless both are the same up to rounding, as a part of what was moved, or of everything."""
    rounding = ROUNDING[federation.dtype]
    scale = alone if moved is None else moved
    allowed = rounding * float(scale.norm()) + 1e-2 * rounding * float(alone.norm())
    gap = float((together - alone).norm())
    if not gap <= allowed and bool(torch.isfinite(alone).all()):
        model = federation.config.model.full_name
        algorithm = federation.config.training.algorithm.full_name
        raise PluginFailure(
            f"model {model}, algorithm {algorithm}: {what} differently beside others than alone (by {gap:.3g}): what "
            "they compute for one client and model must not depend on another's, such as a norm over all of them"
        )
