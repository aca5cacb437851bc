"""What the tests of attacks share: attacks that fit the small federation, what they know, and what is measured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from crfl_attacks.model_replacement import ModelReplacement
from torch import Tensor

from crfl_core.extend import (
    Attack,
    AttackerView,
    ClientUpdates,
    DataFacts,
    Domain,
    FederatedData,
    Ledger,
    State,
    Streams,
)
from crfl_core.records.ledger import ClientColumns, RunFacts
from crfl_core.training.federation import Federation
from tests.oracle import federation_of, played, tiny

IMAGES = DataFacts(inputs=64, classes=10, domain=Domain(0.0, 1.0), image_shape=(8, 8))
FITTING: dict[str, dict[str, Any]] = {
    "model-replacement": {"poisoned_per_batch": 3},
    "dba": {"poisoned_per_batch": 3},
    "constrain-and-scale": {"poisoned_per_batch": 3, "alpha": 0.6},
    "pgd": {"poisoned_per_batch": 3, "radius": 0.1},
    "edge-case": {"poisoned_per_batch": 3, "tail": 0.2},
    "semantic": {"poisoned_per_batch": 3},
    "label-flip": {"source": 3, "target": 5},
    "sign-flip": {},
    "alie": {},
    "inner-product-manipulation": {},
    "gaussian": {},
    "neurotoxin": {"poisoned_per_batch": 3},
    "min-max": {},
    "min-sum": {"perturbation": "std"},
    "adaptive": {"halvings": 4},
    "certificate-seeking": {},
}
"""Options of every included attack."""


def attacked(name: str, options: dict[str, Any], **changes: Any) -> Federation:
    """Build the small federation under attack by clients 0 and 4 in rounds 1 and 2 of 2."""
    table = {"type": name, "clients": [0, 4], "rounds": [1, 2]} | options
    return federation_of(tiny(attack=table, rounds=2) | changes)


def attack_of(federation: Federation) -> Attack:
    """Its attack."""
    assert federation.config.attack is not None
    return federation.config.attack


def ledger_of(federation: Federation) -> Ledger:
    """Return the ledger of all rounds."""
    outcomes = played(federation)
    facts: RunFacts = federation.facts
    columns = ClientColumns.concatenate([outcome.clients for outcome in outcomes])
    return Ledger(facts, tuple(outcome.record for outcome in outcomes), columns)


@cache
def public() -> Federation:
    """Return a federation whose model and test inputs attackers know."""
    return federation_of(tiny(dtype="float64", attack="none"))


def known_of(honest: ClientUpdates, own: Tensor, weights: Tensor | None = None, **more: Any) -> AttackerView:
    """Return what attackers with these trained updates know; their clients are the last of the round's."""
    clients, federation = honest.round.clients, public()
    current = replace(honest.round, clients=clients.take(slice(len(clients) - len(own), None)))
    shares = torch.full((len(own),), 1.0 / len(own), dtype=torch.float64) if weights is None else weights
    features = federation.test_sets["clean"].features
    return replace(AttackerView(current, own, shares, honest, federation.model, features), **more)


def attack(**changes: Any) -> dict[str, Any]:
    """Return the attack table of the small config with some keys different."""
    table: dict[str, Any] = tiny()["attack"]
    return table | changes


def prepared(of: ModelReplacement, facts: DataFacts = IMAGES) -> State:
    """Return what the attack computes before training, in float64."""
    x, y = torch.zeros(1, facts.inputs, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    names = tuple(map(str, range(facts.classes)))
    return of.prepare(FederatedData(x, y, x, y, [np.arange(1)], facts, names), Streams(0))


def measured(federation: Federation, number: int = 2) -> Any:
    """Return the attackers' rows of the ledger in an attacked round."""
    columns = played(federation)[number - 1].clients
    return columns.take(columns.attacking)
