"""Rates that give an attack in any one round the same effect: what they are, what they leave, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_certificates.pathwise_linear import PathwiseLinear

import crfl_core
import crfl_core.certification.formulas as formulas
from crfl_core import Threat
from crfl_core.certification import certifier
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import ConfigError
from crfl_core.runs.worlds import with_attack
from crfl_core.training.client_sampling import STEP_RULE_SLACK
from crfl_core.training.steering import PoisonAim
from tests.certificates.attackers import Submitting
from tests.certificates.federations import certifiable, coins
from tests.certificates.worlds import World, attacked, federation_of, honest_world, play

EQUAL = {"type": "equal-influence"}
DECAY = 0.01
LONGEST = 1.0
"""What the unit ball lets through."""


def equal(steps: Any = 1, rate: Any = EQUAL, **changes: Any) -> dict[str, Any]:
    training = {"learning_rate": rate, "steps": steps, "batch_size": 16, "weight_decay": DECAY}
    server = {"clip_norm": 50.0, "noise_std": 0.0, "cap_updates": False}
    return certifiable(**({"training": training, "server": server} | changes))


def by_hand(steps: int) -> float:
    """t0 from the rule `eta_1 <= 2 / (beta + 2 lambda)`, found by halving instead of the closed form."""
    beta = LONGEST**2 / 2 * (1 + STEP_RULE_SLACK)
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        kept = middle / (middle + 1)
        low, high = (low, middle) if (1 - kept ** (1 / steps)) / DECAY <= 2 / (beta + 2 * DECAY) else (middle, high)
    return high


@pytest.mark.parametrize("steps", [1, 3])
def test_rates_keep_the_share_that_gives_every_round_the_same_influence(steps: int) -> None:
    federation = federation_of(equal(steps))
    start, rounds = by_hand(steps), federation.config.rounds
    rates = np.array([federation.participation.participants(t).learning_rate[0] for t in range(1, rounds + 1)])
    kept = (1 - rates * DECAY) ** steps
    np.testing.assert_allclose(kept, [(t + start - 1) / (t + start) for t in range(1, rounds + 1)], rtol=1e-9)
    influence = [(1 - kept[t]) / DECAY * kept[t + 1 :].prod() for t in range(rounds)]
    np.testing.assert_allclose(influence, 1 / (DECAY * (rounds + start)), rtol=1e-9)


def test_clients_with_more_steps_take_smaller_ones_and_keep_as_much() -> None:
    federation = federation_of(equal({"per_client": [1, 2] * 10}))
    for number in (1, 7, 30):
        clients = federation.participation.participants(number)
        assert clients.learning_rate[0] > 1.9 * clients.learning_rate[1]
        np.testing.assert_allclose(clients.retention, clients.retention[0], rtol=1e-12)
    assert federation.config.training.learning_rate == federation_of(equal(1)).config.training.learning_rate


def test_epochs_and_steps_that_fall_count_with_their_fewest_steps() -> None:
    falling = federation_of(equal([3] * 29 + [2]))
    assert falling.config.training.learning_rate == federation_of(equal(2)).config.training.learning_rate
    limit = 2 / (LONGEST**2 / 2 + 2 * DECAY)
    assert max(falling.participation.participants(t).learning_rate.max() for t in range(1, 31)) <= limit


def test_every_single_round_costs_the_same_and_less_than_the_last_at_a_constant_rate() -> None:
    ledger = honest_world(federation_of(equal())).ledger
    costs = [
        DriftBound(ledger, Threat(clients=1, rounds=(t,), poison="update"), 30).client_costs()[1] for t in range(1, 31)
    ]
    # 2 q kappa / (lambda (T + t0)) with a twentieth of the weight; norms as they were declared, rounding on top
    expected = 2 / 20 * np.sqrt(2) * LONGEST / (DECAY * (30 + by_hand(1)))
    np.testing.assert_allclose(costs, expected, rtol=1e-6)
    forgets_as_much = (1 - (by_hand(1) / (30 + by_hand(1))) ** (1 / 30)) / DECAY
    constant = honest_world(federation_of(equal(rate=forgets_as_much))).ledger
    last = DriftBound(constant, Threat(clients=1, rounds=(30,), poison="update"), 30).client_costs()[1]
    assert last > 1.3 * expected


@pytest.fixture(scope="module")
def clean() -> World:
    return honest_world(federation_of(equal(attack={"type": "submitting", "clients": [3], "rounds": [9]})))


def test_a_certificate_for_any_round_stands_attacks_in_each(clean: World) -> None:
    every = tuple(range(1, 31))
    threat = Threat(clients=1, rounds=every, rounds_at_most=1, poison="update")
    assert not certifier.audit_certificate(PathwiseLinear(), clean.ledger, threat).refusal
    stood = clean.certify(PathwiseLinear(), threat, "client").radius >= 1
    assert stood.mean() > 0.3
    bound = DriftBound(clean.ledger, threat, 30).client_costs()[1]
    weakest = int(np.flatnonzero(stood)[clean.certify(PathwiseLinear(), threat, "client").radius[stood].argmin()])
    drifts = []
    for number in (1, 2, 5, 12, 20, 29, 30):
        attack = {"type": "submitting", "clients": [3], "rounds": [number]}
        world = attacked(federation_of(equal(attack=attack)), clean, weakest)
        drifts.append(float((world.final - clean.final).norm()))
        assert (world.predictions[stood] == clean.predictions[stood]).all()
    assert max(drifts) <= bound
    assert min(drifts) > 0.2 * bound  # early attacks are not forgotten: that is the price


@pytest.mark.parametrize("number", [1, 4, 12])
def test_the_bound_for_any_round_is_nearly_reached_in_every_round(number: int) -> None:
    """Coins: honest updates are 0, and a push at a weight that no input reaches is forgotten by decay alone."""
    training = {"learning_rate": EQUAL, "steps": 1, "weight_decay": 0.2}
    settings = coins(training, rounds=12, attack={"type": "submitting", "clients": [0], "rounds": [number]})
    settings["aggregation"] = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]
    federation = federation_of(settings)
    clean, attack = honest_world(federation), federation.config.attack
    assert isinstance(attack, Submitting)
    direction = torch.zeros_like(clean.final)
    federation.model.layout.unflatten(direction)["weight"][0, 1] = 1.0
    aim = PoisonAim(federation.maps, federation.model, clean.start(number), direction, federation.data.facts.domain)
    drift = float((play(with_attack(federation, attack.aimed(aim))).final - clean.final).norm())
    threat = Threat(clients=1, rounds=tuple(range(1, 13)), rounds_at_most=1, poison="update")
    bound = DriftBound(clean.ledger, threat, 12, observed=True).client_costs()[1]
    assert 0.9 * bound < drift <= bound


BALL = {"batch_size": 100, "spectrum": 0.2, "ball": 0.1, "weight_decay": 0.3, "steps": 1, "learning_rate": EQUAL}


def test_under_the_ball_rule_the_first_round_takes_the_largest_rate_that_is_smooth_inside_the_ball() -> None:
    settings = equal(
        model={"type": "softmax", "bias": False, "features": ["unit-sphere"]},
        training=BALL,
        aggregation=[{"type": "update-cap", "bound": "honest"}, "fedavg"],
    )
    federation = federation_of(settings)
    ball = federation.honest.facts.ball
    assert ball is not None
    inside = formulas.ball_smoothness(0.2, ball.gradient_bound, 0.3, ball.input_bound, classes=10)
    assert ball.gradient_bound**2 / 4 < 0.9 * inside < 0.09  # neither kappa nor L alone gives it
    first = federation.participation.participants(1).learning_rate[0]
    assert first == pytest.approx(formulas.largest_rate(inside * (1 + STEP_RULE_SLACK), 0.3), rel=1e-9)
    world = honest_world(federation)
    assert certifier.audit_certificate(PathwiseLinear(levels=("client",)), world.ledger, world.threat()).refusal == ""


def test_the_found_start_is_recorded_and_the_run_is_the_same_from_it(tmp_path: Path) -> None:
    settings = equal(rounds=4, dataset={"type": "digits", "train_samples": 200, "test_samples": 20}, storage={})
    run = crfl_core.run(settings, out=tmp_path / "found")
    rates = run.config.training.learning_rate
    assert rates.start == pytest.approx(by_hand(1))  # type: ignore[union-attr]
    assert f"start = {rates.start!r}" in (tmp_path / "found" / "config.toml").read_text()  # type: ignore[union-attr]
    again = crfl_core.run(tmp_path / "found" / "config.toml", out=tmp_path / "again")
    assert (again.parameters == run.parameters).all()
    assert run.metrics.refused == {}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rate": EQUAL | {"start": 5.0}}, "start = 5 breaks the step rule, eta <= 2 / (beta + 2 lambda)"),
        ({"model": {"type": "mlp", "hidden": [4]}}, "there is no step rule to find t0 from"),
    ],
)
def test_a_schedule_that_breaks_the_step_rule_or_cannot_know_it_is_an_error(changes: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federation_of(equal(**changes))
    assert caught.value.key == "training.learning_rate"
    assert told in str(caught.value)


def test_without_weight_decay_there_is_no_equal_influence() -> None:
    with pytest.raises(ConfigError, match=r"needs training\.weight_decay above 0"):
        federation_of(equal(training={"learning_rate": EQUAL}))


@pytest.mark.parametrize("algorithm", ["fedprox", "momentum"])
def test_other_algorithms_are_refused(algorithm: str) -> None:
    training = {"learning_rate": EQUAL, "weight_decay": DECAY, "algorithm": algorithm}
    with pytest.raises(ConfigError, match="equal influence is for"):
        federation_of(equal(training=training))
