"""Assumptions about local training: rates, convexity, precision, and inputs that are bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.postprocess import Postprocess

from crfl_core.certification import certifier as certification
from crfl_core.extend import Attack, Batches, FederatedData, State, Streams
from crfl_core.runs.worlds import with_attack
from crfl_core.training.steering import PoisonAim
from tests.certificates.attackers import Submitting
from tests.certificates.audited import LABELS, PATHWISE, SOUND, attacked_world, audits, refused, small
from tests.certificates.worlds import federation_of, play


def test_a_rate_above_the_limit_is_refused_with_the_norm_that_makes_it_too_large() -> None:
    """The run without a feature map: inputs are long, so the loss is steep."""
    config = small(model={"type": "softmax"}, training={"learning_rate": 0.5, "steps": 2})
    world = attacked_world(config)
    found = audits(world)
    norm = np.hypot(max(world.ledger.facts.feature_norms), 1.0)
    reason = (
        f"local steps are non-expansive: found eta = 0.5 > 2/beta = {4 / norm**2:.3g} because max ||x|| = {norm:.3g}, "
        "needs eta <= 2/beta: set model.features = { type = 'unit-ball' } or lower the rate"
    )
    assert refused(found) == SOUND
    assert {found[name].refusal for name in SOUND} == {reason}
    assert any("step size" in condition for condition in found["paper"].conditions)


def test_the_rate_of_an_attacker_counts_unless_its_training_is_arbitrary_anyway() -> None:
    cap = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]
    world = attacked_world(small(attack=LABELS | {"learning_rate": 50.0}, aggregation=cap))
    assert refused(audits(world)) == SOUND
    assert refused(audits(world, world.threat(poison="update"))) == set()


def test_a_rate_that_only_the_clean_world_would_use_is_found_as_well() -> None:
    training = {"learning_rate": {"per_client": [100.0, 0.5, 0.5, 0.5]}, "steps": 2}
    attack = LABELS | {"rounds": [1, 2, 3, 4], "learning_rate": 0.5}
    found = audits(attacked_world(small(training=training, attack=attack)))
    assert "eta = 100 > 2/beta" in found["linear"].refusal


def test_models_that_are_not_convex_get_only_what_needs_no_convexity() -> None:
    capped = [{"type": "update-cap", "bound": 0.5}, {"type": "fedavg"}]
    attack = {"type": "submitting", "clients": [0], "rounds": [2], "how": "reverse"}
    config = small(model={"type": "mlp", "hidden": [4]}, aggregation=capped, attack=attack)
    federation = federation_of(config)
    assert isinstance(federation.config.attack, Submitting)
    parameters = torch.ones(federation.facts.parameters)
    aim = PoisonAim(federation.maps, federation.model, parameters, parameters, federation.data.facts.domain)
    world = play(with_attack(federation, federation.config.attack.aimed(aim)))
    found = audits(world)
    assert refused(found) == PATHWISE | {"paper"}
    assert "use model.type = 'softmax', or the certificate 'postprocess'" in found["linear"].refusal


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_single_precision_is_declared_and_double_precision_holds(dtype: Literal["float32", "float64"]) -> None:
    found = audits(attacked_world(small(dtype=dtype)))
    assert not refused(found)
    for name in SOUND:
        (check,) = (check for check in found[name].checks if check.name == "local steps are non-expansive")
        assert check.status == {"float32": "declared", "float64": "held"}[dtype]
        assert ("dtype = 'float64'" in check.remedy) == (dtype == "float32")


@pytest.mark.parametrize(("dtype", "status"), [("float32", "declared"), ("float64", "held")])
def test_postprocess_declares_single_precision_whatever_attackers_submit(dtype: str, status: str) -> None:
    """Two rounded aggregates of one client drift twice as far as its cap says."""
    capped = [{"type": "update-cap", "bound": 0.5}, {"type": "fedavg"}]
    for changes in ({"aggregation": capped}, {"aggregation": ["rfa"]}):
        world = attacked_world(small(dtype=dtype, **changes))
        found = certification.audit_certificate(Postprocess(), world.ledger, world.threat(poison="update"))
        assert not found.refusal
        assert {check.status for check in found.checks if check.name == "rounding is bounded"} == {status}


def test_inputs_without_a_bound_are_refused_until_the_threat_bounds_them() -> None:
    dataset = {"type": "cached-digits", "train_samples": 200, "test_samples": 60, "scaling": "standardise"}
    training = {"learning_rate": 0.0001, "steps": 2}
    world = attacked_world(small(dataset=dataset, model={"type": "softmax"}, training=training))
    found = audits(world)
    assert refused(found) == SOUND
    assert "input norms: found largest" in found["linear"].refusal
    assert "declared inf" in found["linear"].refusal
    assert "set threat.input_bound" in found["linear"].refusal
    assert not refused(audits(world, world.threat(input_bound=100.0)))


def test_a_fitted_scaling_is_declared_and_minmax_bounds_the_inputs() -> None:
    dataset = {"type": "cached-digits", "train_samples": 200, "test_samples": 60, "scaling": "minmax"}
    training = {"learning_rate": 0.01, "steps": 2}
    found = audits(attacked_world(small(dataset=dataset, model={"type": "softmax"}, training=training)))
    assert not refused(found)
    (check,) = (check for check in found["linear"].checks if check.name == "preprocessing is public")
    assert check.status == "declared"
    assert check.measured == "scaling 'minmax' fitted on training data, inputs within [0, 1]"


class Blinding(Attack):
    """Feeds its model inputs far outside of the domain."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=100.0 * batches.x)


def test_poisoned_inputs_outside_the_declared_domain_are_noticed() -> None:
    """Attackers that promised to keep within a domain did not: their data poison is not covered."""
    attack = {"type": "blinding", "clients": [0], "rounds": [2]}
    config = small(model={"type": "softmax"}, training={"learning_rate": 0.01, "steps": 2}, attack=attack)
    world = attacked_world(config, {"blinding": Blinding})
    found = audits(world)
    assert refused(found) == SOUND
    assert f"poisoned {100 * max(world.ledger.facts.feature_norms[:1]):.2g}"[:10] in found["linear"].refusal
    inside = attacked_world(small(attack=attack), {"blinding": Blinding})  # the unit ball maps them back
    assert not refused(audits(inside))


def test_inputs_beyond_their_own_declared_bound_are_refused() -> None:
    world = attacked_world(small())
    facts = world.ledger.facts.model_copy(update={"feature_norm_bound": 0.5})
    found = certification.audit_certificate(PathwiseLinear(), replace(world.ledger, facts=facts), world.threat())
    assert found.refusal.startswith("input norms: found largest 1, poisoned 1, declared 0.5")
