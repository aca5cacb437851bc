"""An attack that looks for the predictions nearest to their certificates, within the cap: none that is certified falls.

It is shipped, and knows the model and the test inputs. All bounds come from the ledger of the attacked world alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from crfl_certificates.pathwise_linear import PathwiseLinear
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.extend import Attack, AttackerView, ConfigError, FederatedData, State, Streams
from tests.certificates.drawn_worlds import (
    ROUNDING_FACTOR,
    assert_nothing_flips,
    drift_between,
    federations,
    scenarios,
    threats_of,
)
from tests.certificates.federations import certifiable
from tests.certificates.worlds import World, federation_of, honest_world, play


@st.composite
def seeking(draw: st.DrawFn) -> dict[str, Any]:
    """A federation whose server caps updates, with attackers that push as far as the cap lets them, or less."""
    config = draw(federations())
    cap = draw(st.sampled_from(["honest", 500.0]))
    config["aggregation"] = [{"type": "update-cap", "bound": cap}, {"type": "fedavg"}]
    config["attack"] |= {
        "type": "certificate-seeking",
        "bound": draw(st.sampled_from(["honest", cap])),
        "samples": draw(st.sampled_from([1, 5, 60])),
    }
    return config


@settings(max_examples=60, deadline=None)
@given(config=seeking())
def test_nothing_certified_changes_under_the_attack_that_seeks_certificates(config: dict[str, Any]) -> None:
    try:
        federation = federation_of(config)
    except ConfigError:  # no attacker is drawn in any attacked round
        assume(False)
    world, clean = play(federation), honest_world(federation)
    for threat in threats_of(world, "honest"):
        assert threat.poison == "update"
        for scenario in scenarios(world, threat):
            actual = drift_between(world, clean, scenario.horizon) - scenario.rounding
            assert actual <= scenario.client_costs()[threat.attackers] * ROUNDING_FACTOR
        assert_nothing_flips(world, clean, threat, "client", threat.attackers)


TRAINING = {"learning_rate": 0.5, "steps": 1, "batch_size": 16, "weight_decay": 0.02}

SCHEDULES = {"last": [30], "last three": [28, 29, 30], "once": [10], "twice": [10, 20]}


def campaign(rounds: list[int], attackers: int, seed: int, **attack: Any) -> tuple[World, World, NDArray[np.bool_]]:
    """An attacked world of sixty clients, its clean one, and which predictions are certified against the attackers."""
    table = {"type": "certificate-seeking", "clients": list(range(attackers)), "rounds": rounds} | attack
    many = {"partition": {"type": "iid", "clients": 60}, "training": TRAINING}
    federation = federation_of(certifiable(seed=seed, attack=table, **many), {"wandering": Wandering})
    world, clean = play(federation), honest_world(federation)
    return world, clean, world.certify(PathwiseLinear(), world.threat(), "client").radius >= attackers


@pytest.mark.parametrize("rounds", SCHEDULES.values(), ids=SCHEDULES)
def test_predictions_change_but_no_certified_one(rounds: list[int]) -> None:
    """Neither side is a straw man: much is certified, and the attack changes some of the rest."""
    changed_at_all = certified_at_all = 0
    for seed, attackers in ((1, 1), (2, 2), (3, 4)):
        world, clean, certified = campaign(rounds, attackers, seed)
        changed = world.predictions != clean.predictions
        assert not (changed & certified).any()
        changed_at_all, certified_at_all = changed_at_all + int(changed.sum()), certified_at_all + int(certified.sum())
    assert changed_at_all >= 10
    assert certified_at_all >= 40


class Wandering(Attack):
    """Pushes as far, in a random direction: what an attack does that knows nothing of margins."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def craft(self, known: AttackerView, state: State) -> Tensor:
        drawn = known.round.streams.generator("attack/direction").standard_normal(len(known.round.start))
        lengths = torch.from_numpy(known.round.clients.update_bound)
        decay = torch.from_numpy(1 - known.round.clients.retention)
        direction = torch.from_numpy(drawn / np.linalg.norm(drawn))
        return torch.outer(lengths, direction) - torch.outer(decay, known.round.start)


def test_the_direction_matters_more_than_the_length() -> None:
    rounds = [28, 29, 30]
    seeking, clean, _ = campaign(rounds, 4, 1)
    wandering, same, _ = campaign(rounds, 4, 1, type="wandering")
    np.testing.assert_array_equal(clean.predictions, same.predictions)
    found, other = (int((world.predictions != clean.predictions).sum()) for world in (seeking, wandering))
    assert found >= 3 * max(1, other)
