"""A vote of signs: no client has a weight, and how far attackers move it is known from the votes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.sign_majority import SignMajority

from crfl_core import run
from tests.aggregators.support import gaussian, updates_of


@pytest.mark.parametrize("seed", range(5))
def test_the_breakdown_is_what_the_worst_votes_of_so_many_clients_can_do(seed: int) -> None:
    """Against every vote of one or two attackers: of those that were seen, each other one is within the bound."""
    rule, values = SignMajority(step=0.5), np.sign(gaussian(5, 3, seed)).round()
    values[0, 0] = 0.0
    seen = rule.aggregate(updates_of(values), {})
    admitted = rule.breakdown(updates_of(values).round.clients, seen, 1.0)
    assert admitted is not None
    for attackers in (1, 2):
        farthest = 0.0
        for votes in product((-1.0, 0.0, 1.0), repeat=3 * attackers):
            other = values.copy()
            other[:attackers] = np.reshape(votes, (attackers, 3))
            moved = rule.aggregate(updates_of(other), {}).update - seen.update
            farthest = max(farthest, float(moved.norm()))
        assert farthest <= admitted[attackers] + 1e-12
    assert admitted[0] == 0.0
    assert (np.diff(admitted) >= 0).all()
    assert admitted[-1] <= 2 * 0.5 * np.sqrt(3)


def test_a_clear_majority_cannot_be_turned() -> None:
    rule, updates = SignMajority(step=0.1), updates_of(np.ones((9, 4)))
    admitted = rule.breakdown(updates.round.clients, rule.aggregate(updates, {}), 1.0)
    assert admitted is not None
    assert admitted[:6].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0, 0.4])


def test_the_ledger_and_the_audit_say_that_no_client_has_a_weight(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "rounds": 4,
        "partition": {"type": "iid", "clients": 9},
        "training": {"learning_rate": 0.2, "steps": 2},
        "aggregation": {"type": "sign-majority", "step": 0.001},
        "server": {"noise_std": 0.05},
        "threat": {"poison": "update", "clients": 1, "rounds": [4]},
        "votes": {"models": 20},
        "certificates": ["paper", "pathwise-linear", {"type": "postprocess", "continuations": 40, "selection": 10}],
        "storage": {"figures": []},
    }
    result = run(config, out=tmp_path / "run")
    assert not result.ledger.clients.weight.any()
    assert all(record.has_unweighted_part for record in result.ledger.rounds)
    assert "in no client's weight" in result.metrics.refused["paper"]
    assert "they depend on all updates" in result.metrics.refused["pathwise-linear"]
    assert "postprocess" not in result.metrics.refused
    (drift,) = {record.breakdown[1] for record in result.ledger.rounds[-1:] if record.breakdown}
    assert 0 < drift <= 2 * 0.001 * np.sqrt(650)


def test_half_of_nothing_is_no_vote() -> None:
    update = SignMajority().aggregate(updates_of(torch.tensor([[1.0, 0.0, -3.0], [-2.0, 0.0, -1e-30]])), {}).update
    assert update.tolist() == pytest.approx([0.0, 0.0, -0.01])
