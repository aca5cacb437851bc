"""Forward statements: what might be done to a run that was not attacked yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crfl_certificates.pathwise_linear import PathwiseLinear

from crfl_core import Threat
from crfl_core.certification.certifier import audit_certificate
from crfl_core.certification.drift import DriftBound
from tests.certificates.federations import small
from tests.certificates.worlds import attacked, federation_of, honest_world

DELTA = 4.0
ATTACK = {"type": "steering", "clients": [0], "rounds": [6], "kind": "features+labels", "ratio": 1.0, "delta": DELTA}


@pytest.mark.parametrize("threat", [{"scale": 30.0}, {"input_bound": 30.0}], ids=["scaled", "longer inputs"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_poison_to_come_may_reach_farther_than_what_was_observed(threat: dict[str, Any], decay: float) -> None:
    """Nothing is capped, so the short updates of a clean run say nothing about those of an attacker who multiplies."""
    config = small(
        rounds=6,
        dataset={"type": "zeros-and-ones", "train_samples": 290, "test_samples": 60},
        partition={"type": "iid", "clients": 10},
        attack=ATTACK | {"scale": threat.get("scale", 1.0)},
        training={"learning_rate": 0.1, "steps": 8, "batch_size": 16, "weight_decay": decay},
        server={"clip_norm": 50.0, "noise_std": 0.0, "cap_updates": False},
    )
    federation = federation_of(config)
    clean = honest_world(federation)
    assumed = Threat(clients=1, rounds=(6,), poison="features+labels", **threat)
    certificate = PathwiseLinear()
    assert "forward" in audit_certificate(certificate, clean.ledger, assumed).directions["feature"]
    guarantee = clean.certify(certificate, assumed, "feature")
    certified = guarantee.radius >= DELTA
    bound = DriftBound(clean.ledger, assumed, 6, observed=True).feature_cost(np.array([DELTA]))[0]
    for sample in (0, 7):
        world = attacked(federation, clean, sample)
        assert float((world.final - clean.final).norm()) <= bound
        np.testing.assert_array_equal(world.predictions[certified], clean.predictions[certified])


def test_a_clean_run_bounds_poison_that_obeys_the_protocol_as_tightly_as_before() -> None:
    """Who neither multiplies nor feeds longer inputs trains no longer update than an honest client may."""
    clean = honest_world(federation_of(small(attack=ATTACK | {"rounds": [4]})))
    threat = Threat(clients=1, rounds=(4,), poison="replacement")
    rows = clean.ledger.clients.of_round(4)
    cost = DriftBound(clean.ledger, threat, 4, observed=True).client_costs()[1]
    expected = (rows.weight_bound * (rows.residual_norm + rows.update_bound)).max()
    np.testing.assert_allclose(cost, expected, rtol=1e-9)
