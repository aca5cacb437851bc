"""How far arbitrary clients can move rules that look at the updates, as `postprocess` uses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.krum import Krum
from crfl_aggregators.rfa import Rfa
from crfl_certificates.postprocess import BreakdownDrift, Postprocess
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core import Threat
from crfl_core.certification import assumption_checks
from crfl_core.certification import certifier as certification
from crfl_core.extend import Aggregator, Level
from tests.aggregators.support import participants, updates_of
from tests.certificates.federations import small
from tests.certificates.ledgers import synthetic_ledger
from tests.certificates.worlds import attacked, federation_of, honest_world, play

BOUND = 2.0
"""The norm that no honest update exceeds."""


@settings(max_examples=80, deadline=None)
@given(
    rule=st.sampled_from([Rfa(weighting="uniform"), Rfa(), Krum(f=1), Krum(f=2)]),
    clients=st.integers(7, 11),
    attackers=st.integers(1, 5),
    size=st.sampled_from([1.0, 10.0, 1e3, 1e6, 1e9, 1e12, 1e15, 1e20, 1e30]),
    together=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10**6),
)
def test_attackers_of_any_size_stay_within_the_breakdown(
    rule: Aggregator, clients: int, attackers: int, size: float, together: bool, dtype: torch.dtype, seed: int
) -> None:
    """Huge updates must not drown the small distances that the bound is computed from, either."""
    generator = np.random.default_rng(seed)
    honest = generator.normal(size=(clients, 12)) * generator.choice([0.01, 1.0]) + generator.normal(size=12)
    honest *= BOUND / np.maximum(np.linalg.norm(honest, axis=1, keepdims=True), BOUND) * (1 - 1e-6)
    submitted = honest.copy()
    directions = generator.normal(size=(1 if together else attackers, 12))
    submitted[-attackers:] = size * directions / np.linalg.norm(directions, axis=1, keepdims=True)

    def aggregate(values: Any) -> Any:
        return rule.aggregate(updates_of(torch.tensor(values, dtype=dtype)), {})

    poisoned, clean = aggregate(submitted), aggregate(honest)
    drifts = rule.breakdown(participants(clients), poisoned, BOUND)
    assert drifts is not None
    assert drifts[0] == 0.0
    if attackers < len(drifts):
        moved = torch.linalg.vector_norm(poisoned.update.double() - clean.update.double())
        assert float(moved) <= drifts[attackers] * (1 + 1e-5)


def test_attackers_in_the_majority_have_no_bound() -> None:
    equal = updates_of(torch.ones(7, 3))
    rule = Rfa(weighting="uniform")
    found = rule.breakdown(participants(7), rule.aggregate(equal, {}), BOUND)
    assert found.tolist() == pytest.approx([0.0, 2 * BOUND, 2 * BOUND, 2 * BOUND], abs=1e-4)
    assert Krum(f=2).breakdown(participants(7), rule.aggregate(equal, {}), BOUND).shape == (3,)


@pytest.mark.parametrize(
    ("stages", "decay", "known"),
    [
        ([], 0.0, True),
        ([], 0.1, True),
        ([{"type": "update-cap", "bound": "honest"}], 0.1, True),
        ([{"type": "norm-bound", "bound": 0.5}], 0.0, True),
        ([{"type": "norm-bound", "bound": 0.5}], 0.1, False),
        ([{"type": "bucketing", "size": 2}], 0.0, False),
        ([{"type": "weak-noise"}], 0.0, False),
    ],
)
def test_a_bound_needs_stages_that_keep_honest_residuals_short(
    stages: list[dict[str, Any]], decay: float, known: bool
) -> None:
    """With weight decay, a norm bound shrinks away what pulls toward zero, and the residual grows with the model."""
    training = {"learning_rate": 0.5, "steps": 2, "weight_decay": decay}
    world = play(federation_of(small(rounds=1, training=training, aggregation=[*stages, {"type": "rfa"}])))
    (record,) = world.ledger.rounds
    assert (record.breakdown is not None) == known


@pytest.mark.parametrize(
    ("stated", "recorded"),
    [
        ([0.0, np.inf, 1e-6], (0.0,)),
        ([0.0, 0.5, np.nan, 0.7], (0.0, 0.5)),
        ([np.inf, 0.1], ()),
        ([0.0, 0.5, 0.7], (0.0, 0.5, 0.7)),
    ],
)
def test_a_rule_breaks_down_at_the_first_entry_that_is_not_finite(
    stated: list[float], recorded: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says about more attackers than that is not moved to fewer of them."""
    monkeypatch.setattr(Rfa, "breakdown", lambda *_: np.array(stated))
    world = play(federation_of(small(rounds=1, aggregation=["rfa"])))
    assert world.ledger.round(1).breakdown == recorded
    found = assumption_checks.check_breakdown(world.ledger, Threat(clients=1, rounds=(1,), poison="update"))
    assert (found.status == "failed") == (len(recorded) < 2)


def test_more_attackers_can_do_what_fewer_can() -> None:
    ledger = synthetic_ledger(participants=[(0, 1, 2, 3, 4)], samples=(40,) * 5)
    (record,) = ledger.rounds
    falling = replace(ledger, rounds=(record.model_copy(update={"breakdown": (0.0, 0.7, 0.4)}),))
    costs = BreakdownDrift(falling, 1, attackers=2)
    assert costs.client_costs().tolist()[:3] == [0.0, 0.7, 0.7]
    assert costs.feature_cost(np.array([1.0])).tolist() == [0.7]


@pytest.mark.parametrize("rule", [{"type": "rfa"}, {"type": "krum", "f": 1}], ids=["rfa", "krum"])
def test_the_model_of_the_attacked_round_drifts_no_further(rule: dict[str, Any]) -> None:
    for how, size in (("push", 1e6), ("push", 0.5), ("reverse", 3.0), ("pull", 1.0)):
        config = small(
            partition={"type": "iid", "clients": 6},
            training={"learning_rate": 0.5, "steps": 2, "weight_decay": 0.1},
            aggregation=[rule],
            attack={"type": "submitting", "how": how, "size": size, "clients": [3], "rounds": [2]},
        )
        federation = federation_of(config)
        clean = honest_world(federation)
        world = attacked(federation, clean)
        known = world.ledger.round(2).breakdown
        assert known is not None
        drift = float(np.linalg.norm(world.aggregate(2) - clean.aggregate(2)))
        assert drift <= known[1]


@pytest.mark.parametrize("level", ["feature", "sample", "client"])
def test_what_attackers_do_does_not_matter_only_how_many_they_are(level: Level) -> None:
    ledger = synthetic_ledger(participants=[(0, 1, 2, 3, 4)], samples=(40,) * 5)
    (record,) = ledger.rounds
    known = replace(ledger, rounds=(record.model_copy(update={"breakdown": (0.0, 0.4, 0.7), "rounding": 0.1}),))
    costs = BreakdownDrift(known, 1, attackers=2)
    assert costs.rounding == 0.2  # the aggregates of both worlds are rounded
    assert costs.client_costs().tolist() == [0.0, 0.4, 0.7, np.inf, np.inf, np.inf]
    assert costs.feature_cost(np.array([0.0, 3.0, np.inf])).tolist() == [0.7] * 3
    assert costs.sample_cost(np.array([0.0, 0.1, 1.0])).tolist() == [0.0, 0.7, 0.7]
    assert costs.sample_costs().tolist() == [0.0, 0.7]
    config = small(
        aggregation=[{"type": "rfa"}],
        server={"clip_norm": 4.0, "noise_std": 30.0, "cap_updates": False},
        attack={"type": "submitting", "clients": [0], "rounds": [4]},
    )
    federation = federation_of(config)
    world = attacked(federation, honest_world(federation))
    certificate = Postprocess(continuations=30, selection=5)
    assert not certification.audit_certificate(certificate, world.ledger, world.threat()).refusals
    assert world.certify(certificate, world.threat(), level).radius.shape == (60,)
