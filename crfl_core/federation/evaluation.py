"""How well a global model does its own task, and the attacker's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from crfl_core.federation.setup import Federation
from crfl_core.kinds.complaints import settings_of


class Score(NamedTuple):
    """Accuracy and mean cross-entropy on a test set."""

    accuracy: float
    loss: float


class BackdoorScore(NamedTuple):
    """Share of non-target inputs taken for the target class, with the backdoor and on the clean test set."""

    success_rate: float
    clean_rate: float


def score(federation: Federation, parameters: Tensor, test_set: str = "clean") -> Score:
    """How well a model, (P,), does on a test set."""
    chosen = federation.test_sets[test_set]
    with settings_of("model", federation.config.model):
        logits = federation.model.logits(parameters[None], chosen.features)[0]
    accuracy = (logits.argmax(-1) == chosen.labels).double().mean()
    return Score(float(accuracy), float(torch.nn.functional.cross_entropy(logits.double(), chosen.labels)))


def backdoor_score(federation: Federation, parameters: Tensor) -> BackdoorScore | None:
    """How well the backdoor works in a model; None without an attack that has a target."""
    target = None if federation.attack is None else federation.attack.backdoor_class
    if target is None or "backdoored" not in federation.test_sets:
        return None
    clean = federation.test_sets["clean"]
    untouched = clean.features[clean.labels != target]
    rates = [
        float((federation.model.logits(parameters[None], features)[0].argmax(-1) == target).double().mean())
        for features in (federation.test_sets["backdoored"].features, untouched)
    ]
    return BackdoorScore(*rates)
