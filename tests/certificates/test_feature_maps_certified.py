"""Feature maps in front of the model: what they do to the certificates, and that these still hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crfl_certificates.pathwise_linear import PathwiseLinear

from crfl_core.certification.contraction import domain_bound, input_bound
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import Level
from tests.certificates.federations import small
from tests.certificates.worlds import World, attacked, federation_of, honest_world

MAPS: dict[str, Any] = {
    "ball": {"type": "unit-ball", "radius": 2.0},
    "fourier": {"type": "random-fourier", "outputs": 60, "bandwidth": 4.0},
    "ball, then fourier": [{"type": "unit-ball", "radius": 2.0}, {"type": "random-fourier", "outputs": 60}],
    "ball in a ball": [{"type": "unit-ball", "radius": 2.0}, {"type": "unit-ball", "radius": 0.5}],
    "sphere": {"type": "unit-sphere"},
}


def pair(features: Any, **attack: Any) -> tuple[World, World]:
    """An attacked world behind feature maps, and the honest one."""
    options = {"type": "steering", "clients": [0], "rounds": [2], "kind": "features", "delta": 0.4} | attack
    federation = federation_of(small(model={"type": "softmax", "features": features}, attack=options))
    clean = honest_world(federation)
    return attacked(federation, clean), clean


@pytest.mark.parametrize("name", MAPS)
def test_all_norms_are_those_behind_the_maps_and_include_the_bias(name: str) -> None:
    world, _ = pair(MAPS[name])
    assert input_bound(world.ledger) == pytest.approx(np.sqrt(2.0))
    assert domain_bound(world.ledger, world.threat()) == pytest.approx(np.sqrt(2.0))
    assert domain_bound(world.ledger, world.threat(input_bound=0.5)) == pytest.approx(np.sqrt(1.25))
    assert float(world.ledger.clients.poisoned_norm.max()) <= 1 + 1e-12


@pytest.mark.parametrize("name", MAPS)
def test_the_drift_stays_within_the_bound_of_each_level(name: str) -> None:
    for attack in ({}, {"delta": 3.0, "ratio": 1.0}, {"kind": "replacement", "ratio": 0.3}):
        world, clean = pair(MAPS[name], **attack)
        drift = float(np.linalg.norm(world.final - clean.final))
        threat = world.threat()
        scenario = DriftBound(world.ledger, threat, 4)
        assert 0 < drift <= scenario.sample_cost(np.array([threat.poison_ratio]))[0]
        assert drift <= scenario.client_costs()[1]
        if name != "sphere":
            assert drift <= scenario.feature_cost(np.array([world.ledger.clients.delta.max()]))[0]


def test_the_constant_of_a_chain_is_the_product() -> None:
    world, _ = pair(MAPS["ball in a ball"])
    assert world.ledger.facts.feature_lipschitz == pytest.approx(0.5 / 0.5)
    world, _ = pair(MAPS["sphere"])
    assert world.ledger.facts.feature_lipschitz is None


def test_small_changes_before_the_map_move_features_by_no_more_than_its_constant() -> None:
    """The realised change of an input, times the constant, covers the realised change of the features."""
    for name in ("ball", "fourier", "ball, then fourier", "ball in a ball"):
        world, _ = pair(MAPS[name])
        federation = world.federation
        inputs = federation.data.x[:50]
        moved = (inputs + 0.05).clamp(0, 1)
        before, after = federation.maps(inputs), federation.maps(moved)
        constant = federation.facts.feature_lipschitz
        assert constant is not None
        assert bool(((after - before).norm(dim=1) <= constant * (moved - inputs).norm(dim=1) * (1 + 1e-12)).all())


@pytest.mark.parametrize("level", ["sample", "client"])
def test_levels_without_a_constant_are_certified_behind_the_sphere(level: Level) -> None:
    world, clean = pair(MAPS["sphere"], ratio=0.02)
    guarantee = world.certify(PathwiseLinear(), world.threat(), level)
    size = world.threat().poison_ratio if level == "sample" else 1
    certified = guarantee.radius >= size
    np.testing.assert_array_equal(guarantee.prediction[certified], clean.predictions[certified])
    assert not np.isnan(guarantee.radius[~guarantee.abstained]).all()
