"""The drift of an attack never exceeds its bound, and no certified prediction ever changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from crfl_certificates.pathwise_linear import PathwiseLinear
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crfl_core.certification.drift import DriftBound
from crfl_core.runs.worlds import with_attack
from crfl_core.training.steering import Steering
from tests.certificates.drawn_worlds import (
    ROUNDING_FACTOR,
    assert_nothing_flips,
    assert_poison_is_bounded,
    data_attacks,
    drift_between,
    scenarios,
    threats_of,
    update_attacks,
    worlds,
)
from tests.certificates.federations import small
from tests.certificates.worlds import play

LATE_POISON_AGAINST_A_PULL = small(
    partition={"type": "iid", "clients": 2},
    training={
        "algorithm": {"type": "fedprox", "mu": 1.0},
        "learning_rate": [0.04, 0.4, 0.04],
        "steps": 2,
        "batch_size": 7,
    },
    rounds=3,
    model={"type": "softmax", "bias": False, "features": {"type": "unit-ball", "radius": 0.5}},
    server={"clip_norm": 0.3, "noise_std": 0.0, "cap_updates": False},
    attack={"type": "steering", "clients": [0], "rounds": [1, 2, 3], "kind": "labels", "last_steps_only": True},
)


@settings(max_examples=100, deadline=None)
@given(config=data_attacks(), sample=st.integers(0, 59), runner_up=st.integers(1, 3))
@example(config=LATE_POISON_AGAINST_A_PULL, sample=0, runner_up=1)
def test_poisoned_data_never_move_the_model_beyond_the_bound(
    config: dict[str, Any], sample: int, runner_up: int
) -> None:
    world, clean_worlds = worlds(config, sample, runner_up)
    assert_poison_is_bounded(world, clean_worlds)


@settings(max_examples=40, deadline=None)
@given(config=data_attacks(), share=st.sampled_from([0.02, 0.2, 0.9]), sample=st.integers(0, 59))
def test_so_many_samples_do_no_more_harm_wherever_they_fall(config: dict[str, Any], share: float, sample: int) -> None:
    """Short batches come last in an epoch, where a sample weighs most; they are poisoned first."""
    config["attack"] |= {"count": max(1, int(share * 200 / config["partition"]["clients"])), "last_steps_only": False}
    world, clean_worlds = worlds(config, sample)
    count = config["attack"]["count"]
    for name, clean in clean_worlds.items():
        for threat in threats_of(world, name):
            scenario = DriftBound(world.ledger, threat, world.federation.config.rounds)
            table = scenario.sample_costs()
            if count < len(table):
                actual = drift_between(world, clean, world.federation.config.rounds)
                assert actual <= table[count] * ROUNDING_FACTOR + scenario.rounding
            guarantee = world.certify(PathwiseLinear(), threat, "sample")
            assert guarantee.count is not None
            certified = guarantee.count >= count
            np.testing.assert_array_equal(guarantee.prediction[certified], clean.predictions[certified])


@settings(max_examples=60, deadline=None)
@given(config=update_attacks(), sample=st.integers(0, 59), scale=st.sampled_from([1.0, 3.0]))
def test_arbitrary_updates_never_move_the_model_beyond_the_cap(
    config: dict[str, Any], sample: int, scale: float
) -> None:
    """Rates that would be far too large for the data, updates of any size or none at all: only the cap counts."""
    world, clean_worlds = worlds(config, sample)
    multiplying = Steering(
        kind="none", clients=config["attack"]["clients"], rounds=config["attack"]["rounds"], scale=scale
    )
    clean_worlds["scaled"] = play(with_attack(world.federation, multiplying))
    for name, clean in clean_worlds.items():
        for threat in threats_of(world, name):
            assert threat.poison == "update"
            threat = threat.model_copy(update={"scale": scale})
            for scenario in scenarios(world, threat):
                actual = drift_between(world, clean, scenario.horizon) - scenario.rounding
                assert actual <= scenario.client_costs()[threat.attackers] * ROUNDING_FACTOR
                assert actual <= scenario.sample_cost(np.array([0.0]))[0] * ROUNDING_FACTOR
            assert_nothing_flips(world, clean, threat, "client", threat.attackers)
            if world.federation.facts.feature_lipschitz is not None:
                assert_nothing_flips(world, clean, threat, "feature", 0.0)
