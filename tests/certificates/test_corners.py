"""Corners in which a plausible bound is false: each test plays an attack that breaks it, and shows that ours holds.

Most are played on `coins`, where bounds are nearly attained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor

from crfl_core import Threat
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import (
    Attack,
    AttackerView,
    Batches,
    ConfigError,
    FederatedData,
    State,
    Streams,
)
from crfl_core.runs.worlds import with_attack
from crfl_core.training.steering import PoisonAim, Steering
from tests.certificates.attackers import Submitting
from tests.certificates.federations import coins, small
from tests.certificates.worlds import World, attacked, federation_of, honest_world, play, scaled_world

SAMPLES = 40
"""What a client of `coins` holds, and has in every batch."""


class Flipping(Attack):
    """Turns `flips` coins in some steps of the attacked rounds, in turn to tails and to heads if it alternates."""

    flips: int = 1
    steps_from_end: int | None = None
    alternates: bool = False

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        y, total = batches.y.clone(), batches.y.shape[1]
        acting = total if self.steps_from_end is None else self.steps_from_end
        for step in range(total - acting, total):
            target = (total - 1 - step + batches.round) % 2 if self.alternates else 1
            for client in range(len(y)):
                others = (y[client, step] != target).nonzero()[: self.flips, 0]
                y[client, step, others] = target
        return replace(batches, y=y)


class Elsewhere(Attack):
    """Replaces samples by inputs that no other client has, so that honest training never unlearns them."""

    replaced: int = Field(10, ge=1)

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        x, y = batches.x.clone(), batches.y.clone()
        x[:, :, : self.replaced] = torch.tensor([0.0, 1.0], dtype=x.dtype)
        y[:, :, : self.replaced] = 1
        return replace(batches, x=x, y=y)


def versus(config: dict[str, Any], attack: Attack, clean: Attack | None = None) -> tuple[World, float]:
    """The attacked world, and how far its final model is from the clean one's."""
    federation = federation_of(config)
    world, other = play(with_attack(federation, attack)), play(with_attack(federation, clean))
    return world, float(np.linalg.norm(world.final - other.final))


def bound(world: World, **threat: Any) -> float:
    """What the certificates take for the largest drift of what was done."""
    assumed = world.threat(**threat)
    ratio = np.array([assumed.poison_ratio])
    return float(DriftBound(world.ledger, assumed, world.federation.config.rounds).sample_cost(ratio)[0])


def test_a_flipped_label_moves_the_model_exactly_as_far_as_the_bound_says() -> None:
    world, drift = versus(coins({"learning_rate": 0.5, "steps": 1}, rounds=1), Flipping(flips=3))
    assert drift == pytest.approx(0.5 * 0.5 * np.sqrt(2) * 3 / SAMPLES)
    assert bound(world) == pytest.approx(drift)


def test_steps_between_the_two_limits_of_the_rate_do_not_contract() -> None:
    """With weight decay, `eta <= 2/(beta + lambda)` is enough for non-expansive steps, not for contracting ones."""
    rate, decay, steps = 1.9, 0.5, 8  # limits 2 and 4/3; the curvature is 1/2
    config = coins({"learning_rate": rate, "steps": steps, "weight_decay": decay}, rounds=1)
    world, drift = versus(config, Flipping(alternates=True))
    contracting = 0.5 * rate * np.sqrt(2) / SAMPLES * (1 - (1 - rate * decay) ** steps) / (rate * decay)
    assert drift > 5 * contracting
    assert drift <= bound(world, poison_ratio=1 / SAMPLES) <= 1.5 * drift
    most = DriftBound(world.ledger, world.threat(), 1).sample_costs()
    assert drift <= most[1]


def test_with_weight_decay_poison_that_comes_late_counts_most() -> None:
    """Half a batch of one step in four is an eighth on average, but the last step is not damped any more."""
    config = coins({"learning_rate": 0.5, "steps": 4, "weight_decay": 1.0}, rounds=1)
    world, drift = versus(config, Flipping(flips=20, steps_from_end=1))
    on_average = DriftBound(world.ledger, world.threat(poison_ratio=1 / 8), 1).sample_cost(np.array([1 / 8]))[0]
    assert drift > 2 * on_average
    assert bound(world) == pytest.approx(drift)


def test_multiplied_clean_updates_make_a_gap_grow() -> None:
    """Two attacked rounds against the scaled clean world: its second round overshoots and expands the first drift."""
    config = coins({"learning_rate": 1.0, "steps": 1}, rounds=2)
    attack = Flipping(alternates=True, clients=(0,), rounds=(1, 2), scale=10.0)
    world, drift = versus(config, attack, clean=attack.model_copy(update={"flips": 0}))
    single = 0.5 * 10 * np.sqrt(2) / SAMPLES
    assert drift > 2.5 * single
    assert drift <= bound(world, clean_world="scaled") * (1 + 1e-9)
    assert bound(world, clean_world="scaled") == pytest.approx(2.75 * single)


def test_capped_updates_that_are_multiplied_expand_more() -> None:
    """A cap makes a projection of a multiplied update, which is not an averaged map any more."""
    cap = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]
    config = coins({"learning_rate": 1.0, "steps": 1}, rounds=2, aggregation=cap)
    attack = Flipping(alternates=True, clients=(0,), rounds=(1, 2), scale=10.0)
    world, drift = versus(config, attack, clean=attack.model_copy(update={"flips": 0}))
    threat = world.threat(clean_world="scaled")
    assert DriftBound(world.ledger, threat, 2).lipschitz[1] == pytest.approx(1 + 2 * 0.5 * 10 * 0.25)
    assert drift <= bound(world, clean_world="scaled")


def test_weight_decay_lets_a_drift_fade_and_no_faster() -> None:
    """Honest data know nothing of the replaced inputs, so weight decay alone pulls the drift back."""
    config = coins({"learning_rate": 0.5, "steps": 2, "weight_decay": 0.5}, rounds=6)
    attack = Elsewhere(clients=(0,), rounds=(1,))
    ratios = []
    federation = federation_of(config)
    world, clean = play(with_attack(federation, attack)), honest_world(federation)
    for number in (2, 6):
        drift = float(np.linalg.norm(world.aggregate(number) - clean.aggregate(number)))
        scenario = DriftBound(world.ledger, world.threat(poison="replacement"), number)
        ratios.append(drift / scenario.sample_cost(np.array([0.25]))[0])
    assert 0.2 < ratios[1] <= ratios[0] <= 1.0


def test_attackers_that_attack_in_every_round_are_bounded_by_weight_decay() -> None:
    """`2 max_t(p U) / (1 - c)` for any number of rounds, with the cap centred on the decayed model."""
    cap = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]
    config = coins({"learning_rate": 0.5, "steps": 2, "weight_decay": 0.5}, rounds=12, aggregation=cap)
    federation = federation_of(config)
    direction = torch.tensor([0.0, 1.0, 0.0, -1.0], dtype=torch.float64) / 2**0.5
    aim = PoisonAim(federation.maps, federation.model, torch.zeros(4), direction, federation.data.facts.domain)
    attack = Submitting(clients=(0,), rounds=tuple(range(1, 13))).aimed(aim)
    world, drift = versus(config, attack)
    threat = world.threat()
    costs = DriftBound(world.ledger, threat, 12).client_costs()
    honest = world.ledger.clients.update_bound[0]
    limit = 2 * 0.5 * honest / (1 - world.ledger.clients.retention[0])
    assert drift <= costs[1] <= limit
    assert drift > 0.45 * limit


@pytest.mark.parametrize(
    ("own", "scale"), [({"learning_rate": 0.05}, 1.0), ({"steps": 9}, 1.0), ({"learning_rate": 0.1, "steps": 20}, 3.0)]
)
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_a_rate_or_steps_of_their_own_are_a_drift_even_without_any_poison(
    own: dict[str, Any], scale: float, decay: float
) -> None:
    """The honest clean world trains as the protocol says; in the scaled one attackers keep their rate and steps."""
    federation = federation_of(small(training={"learning_rate": 0.5, "steps": 4, "weight_decay": decay}))
    world = play(with_attack(federation, Steering(kind="none", clients=(0, 1), rounds=(2,), scale=scale, **own)))
    drift = float(np.linalg.norm(world.final - honest_world(federation).final))
    assert 0.01 < drift <= bound(world, clean_world="honest")
    assert bound(world, clean_world="scaled") == 0.0
    np.testing.assert_array_equal(scaled_world(world.federation).final, world.final)


def test_the_ledger_keeps_what_an_attacker_would_have_done_as_an_honest_client() -> None:
    """A small rate of an attacker must not hide that the clean world would train it with one that is too large."""
    rates = [100.0, 0.5, 0.5, 0.5]
    federation = federation_of(small(training={"learning_rate": {"per_client": rates}, "steps": 4}))
    world = play(with_attack(federation, Steering(clients=(0,), rounds=(1, 2, 3, 4), learning_rate=0.1)))
    rows = world.ledger.clients.of_round(2)
    assert rows.learning_rate.tolist() == [0.1, 0.5, 0.5, 0.5]
    assert rows.honest_rate.tolist() == rates
    assert rows.honest_steps.tolist() == [4] * 4


def test_attacks_that_make_their_own_updates_are_not_taken_for_poisoned_data() -> None:
    """Turned round, an update has its old norm and its data are clean; still nothing but a cap bounds it."""

    class Reversed(Flipping):
        def craft(self, known: AttackerView, state: State) -> Tensor:
            return -known.own_updates

    federation = federation_of(small())
    world = play(with_attack(federation, Reversed(flips=0, clients=(0,), rounds=(2,))))
    threat = world.threat()
    assert (threat.poison, threat.poison_ratio, threat.scale) == ("update", 0.0, 1.0)
    drift = float(np.linalg.norm(world.final - honest_world(federation).final))
    assert drift > bound(world, poison="features+labels") == 0.0
    assert np.isinf(DriftBound(world.ledger, threat, 4).attacked[0].arbitrary_cost).all()


def test_a_learning_rate_that_turns_the_sign_of_the_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"times training.weight_decay must be at most 1, found 3 x 0.5"):
        federation_of(small(training={"learning_rate": 3.0, "steps": 2, "weight_decay": 0.5}))
    attack = {"type": "steering", "clients": [0], "learning_rate": 3.0}
    with pytest.raises(ConfigError, match=r"found 3 x 0.5"):
        federation_of(small(training={"learning_rate": 0.3, "weight_decay": 0.5}, attack=attack))


@pytest.mark.parametrize("decay", [0.0, 1e-18, 1e-14, 1e-6, 0.5, 2.0])
def test_the_smallest_weight_decay_does_not_shrink_what_honest_clients_may_submit(decay: float) -> None:
    """`(1 - c) / lambda` has to be `eta tau` in the limit; a cap of 0 would silence every client."""
    federation = federation_of(small(training={"learning_rate": 0.5, "steps": 4, "weight_decay": decay}))
    clients = federation.participation.participants(1)
    gradient = 2.0  # sqrt 2 times the norm of an input with its bias
    steps = sum((1 - 0.5 * decay) ** step for step in range(4))
    np.testing.assert_allclose(clients.update_bound, gradient * 0.5 * steps, rtol=1e-12)
    np.testing.assert_allclose(clients.retention, (1 - 0.5 * decay) ** 4, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("certificates", "capped"),
    [
        ([{"type": "paper"}], False),
        ([{"type": "pathwise-linear"}], True),
        ([{"type": "pathwise-linear", "levels": ["feature", "sample"]}], False),
        ([{"type": "paper"}, {"type": "tail", "levels": ["client"]}], True),
    ],
)
def test_updates_are_capped_by_default_where_a_sound_certificate_counts_clients(
    certificates: list[dict[str, Any]], capped: bool
) -> None:
    server = {"clip_norm": 4.0, "noise_std": 0.02}
    federation = federation_of(small(certificates=certificates, server=server))
    assert np.isfinite(play(federation).ledger.clients.cap).all() == capped
    chosen = federation_of(small(certificates=certificates, server=server | {"cap_updates": not capped}))
    assert np.isfinite(play(chosen).ledger.clients.cap).all() != capped


def test_an_unbounded_domain_makes_no_bound_undefined() -> None:
    """Honest updates have no declared bound then; what scaling adds is 0 without scaling, not 0 times infinity."""
    dataset = {"type": "cached-digits", "train_samples": 200, "test_samples": 60, "scaling": "standardise"}
    config = small(dataset=dataset, model={"type": "softmax"}, training={"learning_rate": 0.0001, "steps": 3})
    config["attack"] = {"type": "steering", "clients": [0], "rounds": [2], "kind": "labels"}
    federation = federation_of(config)
    clean = honest_world(federation)
    world = attacked(federation, clean)
    assert np.isinf(world.ledger.clients.update_bound).all()
    threat: Threat = world.threat(input_bound=100.0)
    cost = DriftBound(world.ledger, threat, 4).feature_cost(np.array([0.0, 1.0]))
    assert np.isfinite(cost).all()
    assert float(np.linalg.norm(world.final - clean.final)) <= cost[0]
