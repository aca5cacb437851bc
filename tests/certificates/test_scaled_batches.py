"""Worlds whose honest clients scale their batches, by the spectrum rule or the ball rule, side by side with attacks.

No drift exceeds its bound, no certified prediction changes, and constructed cases come close to the bound. All bounds
come from the ledger of the attacked world alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_certificates.pathwise_linear import PathwiseLinear
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

import crfl_core.certification.formulas as formulas
from crfl_core.certification import certifier
from crfl_core.certification.ball_rule_checks import LEVELS_WITHOUT_BALL_RULE
from crfl_core.certification.certifier import Audit
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import Attack, AttackerView, ConfigError, Data, Dataset, Domain, FederatedData, State, Streams
from crfl_core.runs.worlds import with_attack
from tests.certificates.drawn_worlds import (
    FEATURES,
    ROUNDING_FACTOR,
    assert_nothing_flips,
    assert_poison_is_bounded,
    data_attacks,
    drift_between,
    federations,
    scenarios,
    threats_of,
    update_attacks,
    worlds,
)
from tests.certificates.federations import certifiable, coins, small
from tests.certificates.worlds import federation_of, honest_world, play

CAPPED = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]


def scaled(config: dict[str, Any], share: float, rate: float) -> dict[str, Any]:
    """The same federation with the spectrum rule: L is a share of B^2, the rate one of what the rule allows."""
    training, features = config["training"], config["model"]["features"]
    norm = 8.0 if not features else 1.0
    limit, decay = share * norm**2, training["weight_decay"]
    pull = 0.0 if training["algorithm"] == "sgd" else training["algorithm"]["mu"]
    largest = min(2 / (min(limit, norm**2) / 2 + decay + 2 * pull), 1 / (decay + pull) if decay + pull else np.inf)
    if "learning_rate" in config["attack"] and config["attack"]["learning_rate"] is not None:
        config["attack"]["learning_rate"] = 0.3 * rate * largest
    return config | {
        "model": config["model"] | {"bias": False},
        "training": training | {"learning_rate": rate * largest, "spectrum": limit},
    }


LIMITS = st.sampled_from([0.05, 0.3, 0.8, 1.5])
RATES = st.sampled_from([0.05, 0.5, 0.999])


@settings(max_examples=150, deadline=None)
@given(config=update_attacks(), limit=LIMITS, rate=RATES, sample=st.integers(0, 59))
def test_arbitrary_clients_never_move_the_model_beyond_the_smaller_cap(
    config: dict[str, Any], limit: float, rate: float, sample: int
) -> None:
    world, clean_worlds = worlds(scaled(config, limit, rate), sample)
    for threat in threats_of(world, "honest"):
        for scenario in scenarios(world, threat):
            actual = drift_between(world, clean_worlds["honest"], scenario.horizon) - scenario.rounding
            assert actual <= scenario.client_costs()[threat.attackers] * ROUNDING_FACTOR
        assert_nothing_flips(world, clean_worlds["honest"], threat, "client", threat.attackers)


@settings(max_examples=150, deadline=None)
@given(config=data_attacks(), limit=LIMITS, rate=RATES, sample=st.integers(0, 59))
def test_poisoned_batches_may_get_another_factor_and_stay_within_the_bound(
    config: dict[str, Any], limit: float, rate: float, sample: int
) -> None:
    world, clean_worlds = worlds(scaled(config, limit, rate), sample)
    assert_poison_is_bounded(world, clean_worlds)


@settings(max_examples=40, deadline=None)
@given(config=data_attacks(), limit=LIMITS, share=st.sampled_from([0.02, 0.2, 0.9]), sample=st.integers(0, 59))
def test_so_many_samples_in_the_shortest_batches_do_no_more_harm(
    config: dict[str, Any], limit: float, share: float, sample: int
) -> None:
    config["attack"] |= {"count": max(1, int(share * 200 / config["partition"]["clients"])), "last_steps_only": False}
    world, clean_worlds = worlds(scaled(config, limit, 0.9), sample)
    count = config["attack"]["count"]
    for threat in threats_of(world, "honest"):
        scenario = DriftBound(world.ledger, threat, world.federation.config.rounds)
        table = scenario.sample_costs()
        if count < len(table):
            actual = drift_between(world, clean_worlds["honest"], world.federation.config.rounds)
            assert actual <= table[count] * ROUNDING_FACTOR + scenario.rounding


class Wall(Attack):
    """Submits residuals of a length, as shares of the cap, toward or away from where the honest clients go."""

    share: float = 1.0
    against: bool = True

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def craft(self, known: AttackerView, state: State) -> Tensor:
        clients = known.round.clients
        lost = torch.from_numpy(1.0 - clients.retention)[:, None]
        towards = known.own_updates + lost * known.round.start
        unit = towards / towards.norm(dim=1, keepdim=True).clamp(min=1e-300)
        lengths = torch.from_numpy(clients.update_bound)[:, None] * self.share
        submitted: Tensor = (-lengths if self.against else lengths) * unit - lost * known.round.start
        return submitted


ATTACKS = {
    "seeking": {"type": "certificate-seeking", "bound": "honest"},
    "wall": {"type": "wall"},
    "beyond the cap": {"type": "wall", "share": 50.0, "against": False},
}


@st.composite
def balls(draw: st.DrawFn) -> dict[str, Any]:
    """Federations under the ball rule, with attackers who submit what they like in every round or some."""
    config = draw(federations())
    features, norm = draw(FEATURES)
    decay = draw(st.sampled_from([0.05, 0.3, 2.0]))
    limit = decay * draw(st.sampled_from([0.3, 1.0, 2.5]))
    start = np.sqrt(limit * 0.9) * draw(st.sampled_from([0.2, 0.6, 2.0]))
    kappa = formulas.ball_gradient_bound(min(start, np.sqrt(limit * 0.9)), limit, decay, norm, classes=10)
    assume(kappa < 0.99 * min(np.sqrt(2 * limit), np.sqrt(2) * norm))
    inside = float(formulas.ball_smoothness(limit, kappa, decay, norm, classes=10))
    rate = draw(RATES) * min(2 / (inside * 1.0001 + draw(st.sampled_from([1.0, 2.0])) * decay), 1 / decay)
    config["model"] = {"type": "softmax", "bias": False, "features": features}
    config["training"] |= {"algorithm": "sgd", "weight_decay": decay, "spectrum": limit, "ball": start}
    config["training"]["learning_rate"] = rate
    config["server"] |= {"noise_std": 0.0}
    config["aggregation"] = CAPPED
    config["attack"] |= draw(st.sampled_from([*ATTACKS.values()]))
    return config


@settings(max_examples=160, deadline=None)
@given(config=balls())
def test_models_stay_in_the_ball_and_no_drift_exceeds_its_bound(config: dict[str, Any]) -> None:
    try:
        federation = federation_of(config, {"wall": Wall})
    except ConfigError:  # no attacker is drawn in any attacked round
        assume(False)
    ball = federation.honest.facts.ball
    assert ball is not None
    world, clean = play(federation), honest_world(federation)
    for number in range(1, config["rounds"] + 1):
        for one in (world, clean):
            assert float(one.start(number).norm()) <= ball.radius
            honest = one.ledger.clients.take(~one.ledger.clients.attacking)
            assert (honest.residual_norm <= honest.update_bound * ROUNDING_FACTOR).all()
    for threat in threats_of(world, "honest"):
        for scenario in scenarios(world, threat):
            actual = drift_between(world, clean, scenario.horizon) - scenario.rounding
            assert actual <= scenario.client_costs()[threat.attackers] * ROUNDING_FACTOR
        assert_nothing_flips(world, clean, threat, "client", threat.attackers)


WHITENED = {
    "dataset": {"type": "cached-digits", "train_samples": 1400, "test_samples": 200},
    "reserve": {"curator": 200},
    "partition": {"type": "iid", "clients": 60},
    "model": {
        "type": "softmax",
        "bias": False,
        "features": {"type": "whiten", "on": "curator", "components": 40, "floor": 10},
    },
    "server": {"clip_norm": 20.0, "noise_std": 0.0, "cap_updates": False},
}
SPECTRUM = {"steps": 1, "batch_size": 100, "spectrum": 0.2, "weight_decay": 0.05, "learning_rate": 4.0}
BALL = SPECTRUM | {"ball": 0.2, "weight_decay": 0.2, "learning_rate": 2.0}


def campaign(training: dict[str, Any], rounds: list[int]) -> tuple[int, int]:
    """How many predictions are certified against the attack that seeks certificates, and how many it changes."""
    changed_at_all = certified_at_all = 0
    for seed, attackers in ((1, 1), (2, 2)):
        table = {"type": "certificate-seeking", "clients": list(range(attackers)), "rounds": rounds}
        federation = federation_of(certifiable(seed=seed, attack=table, training=training, **WHITENED))
        world, clean = play(federation), honest_world(federation)
        certified = world.certify(PathwiseLinear(), world.threat(), "client").radius >= attackers
        changed = world.predictions != clean.predictions
        assert not (changed & certified).any()
        changed_at_all, certified_at_all = changed_at_all + int(changed.sum()), certified_at_all + int(certified.sum())
    return certified_at_all, changed_at_all


@pytest.mark.parametrize("training", [SPECTRUM, BALL], ids=["spectrum", "ball"])
def test_predictions_change_but_no_certified_one(training: dict[str, Any]) -> None:
    """Neither side is a straw man: much is certified, and the attack changes some of the rest."""
    certified, changed = campaign(training, [28, 29, 30])
    assert certified >= 100
    assert changed >= 10


def test_attackers_in_every_round_are_certified_by_the_ball_rule_most() -> None:
    by_spectrum, _ = campaign(SPECTRUM, list(range(1, 31)))
    by_ball, _ = campaign(BALL, list(range(1, 31)))
    assert by_ball >= 2 * by_spectrum >= 40
    without = {key: value for key, value in SPECTRUM.items() if key != "spectrum"} | {"learning_rate": 3.0}
    assert campaign(without, list(range(1, 31)))[0] <= by_spectrum / 4


class Crossed(Dataset):
    """Two directions in equal shares, all of one class: L_s is 1/2, and gradients of a wrong model are sqrt(2 L_s)."""

    def read(self) -> Data:
        x = np.eye(2, dtype=np.float32)[np.arange(80) % 2]
        return Data(x, np.zeros(80, np.int64), x[:4], np.arange(4) % 2, Domain(0.0, 1.0), ("heads", "tails"))


@pytest.mark.parametrize(("limit", "reached"), [(0.5, 0.999), (0.45, 0.97)])
def test_a_wrong_model_and_an_attacker_who_pushes_back_reach_the_bound(
    limit: float, reached: float, tmp_path: Path
) -> None:
    """The second limit scales all batches by 0.9; with B in place of L the bound would be 1.4 times as large."""
    start = tmp_path / "wrong.safetensors"
    save_file({"weight": torch.tensor([[-100.0, -100.0], [100.0, 100.0]], dtype=torch.float64)}, start)
    config = coins({"learning_rate": 1.0, "steps": 3, "spectrum": limit}, rounds=1, aggregation=CAPPED)
    config["dataset"] = {"type": "crossed"}
    config["model"] = {"type": "softmax", "bias": False, "features": "unit-sphere", "start": str(start)}
    config["attack"] = {"type": "wall", "clients": [0], "rounds": [1]}
    federation = federation_of(config, {"crossed": Crossed, "wall": Wall})
    world, clean = play(federation), honest_world(federation)
    drift = drift_between(world, clean, 1)
    cost = DriftBound(world.ledger, world.threat(), 1).client_costs()[1]
    assert reached * cost <= drift <= cost * ROUNDING_FACTOR
    assert cost == pytest.approx(2 * 0.5 * 3 * np.sqrt(2 * limit))


def test_two_attacks_on_the_ball_reach_its_bound() -> None:
    """Nine clients of ten push to one side or to the other, in every round: the forward reading."""
    rounds = 8
    config = small(
        rounds=rounds,
        partition={"type": "iid", "clients": 10},
        model={"type": "softmax", "bias": False, "features": "unit-sphere"},
        training={
            "learning_rate": 1.0,
            "steps": 2,
            "batch_size": 20,
            "weight_decay": 0.5,
            "spectrum": 0.7,
            "ball": 0.2,
        },
        server={"clip_norm": 1e6, "noise_std": 0.0, "cap_updates": False},
        aggregation=CAPPED,
    )
    federation = federation_of(config)
    ends = []
    for sign in (1.0, -1.0):
        attack = Sideways(clients=tuple(range(9)), rounds=tuple(range(1, rounds + 1)), sign=sign)
        ends.append(play(with_attack(federation, attack)))
    world = ends[0]
    cost = DriftBound(world.ledger, world.threat(), rounds).client_costs()[9]
    assert 0.9 * cost <= drift_between(ends[0], ends[1], rounds) <= cost * ROUNDING_FACTOR


class Sideways(Attack):
    """Submits residuals as long as the cap in one fixed direction."""

    sign: float = 1.0

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def craft(self, known: AttackerView, state: State) -> Tensor:
        clients, start = known.round.clients, known.round.start
        lengths = torch.from_numpy(clients.update_bound)
        pushed = torch.zeros_like(known.own_updates)
        pushed[:, 0] = self.sign * lengths
        return pushed - torch.from_numpy(1.0 - clients.retention)[:, None] * start


def ball_run(**training: Any) -> dict[str, Any]:
    """A run under the ball rule of which everything holds, if nothing of it is changed."""
    usual = {"learning_rate": 1.0, "steps": 2, "batch_size": 16, "weight_decay": 0.5, "spectrum": 0.7, "ball": 0.2}
    return small(
        model={"type": "softmax", "bias": False, "features": "unit-sphere"},
        training=usual | training,
        server={"clip_norm": 20.0, "noise_std": 0.0, "cap_updates": False},
        aggregation=CAPPED,
        attack={"type": "wall", "clients": [0], "rounds": [2]},
    )


def audit_of(config: dict[str, Any], **threat: Any) -> Audit:
    """What the pathwise certificate says of a run that was attacked."""
    world = play(federation_of(config, {"wall": Wall}))
    return certifier.audit_certificate(PathwiseLinear(), world.ledger, world.threat(**threat))


def test_the_ball_rule_counts_clients_only() -> None:
    audit = audit_of(ball_run())
    assert audit.refusal == ""
    assert audit.refusal_at("client") == ""
    for level in LEVELS_WITHOUT_BALL_RULE:
        assert f"the ball rule has no {level} level: found factors depend on labels" in audit.refusal_at(level)


def test_a_ball_that_models_may_leave_is_refused(tmp_path: Path) -> None:
    assert "models stay in the ball: found the scaled clean world" in audit_of(ball_run(), clean_world="scaled").refusal
    uncapped = ball_run() | {"aggregation": ["fedavg"]}
    assert "messages are not capped at what is honest" in audit_of(uncapped).refusal
    looser = ball_run() | {"aggregation": [{"type": "update-cap", "bound": 9.0}, "fedavg"]}
    assert "set server.cap_updates = true" in audit_of(looser).refusal
    start = tmp_path / "far.safetensors"
    save_file({"weight": torch.full((10, 64), 5.0, dtype=torch.float64)}, start)
    far = ball_run()
    far["model"] |= {"start": str(start)}
    assert "a start model of norm 126.5" in audit_of(far).refusal


def test_a_room_smaller_than_rounding_is_refused() -> None:
    """Gradients that leave nothing of kappa: one rounding may carry a model out of the ball."""
    world = play(federation_of(ball_run(), {"wall": Wall}))
    ball = world.ledger.facts.training.ball
    assert ball is not None
    tight = ball.model_copy(update={"gradient_bound": ball.gradient_bound / (1 + 1e-6)})
    training = world.ledger.facts.training.model_copy(update={"ball": tight})
    ledger = replace(world.ledger, facts=world.ledger.facts.model_copy(update={"training": training}))
    assert "found rounding of" in certifier.audit_certificate(PathwiseLinear(), ledger, world.threat()).refusal


def test_single_precision_is_declared() -> None:
    checks = {check.name: check for check in audit_of(ball_run() | {"dtype": "float32"}).checks}
    assert checks["models stay in the ball"].status == "declared"
    assert checks["models stay in the ball"].measured.endswith("in single precision")


def test_a_rate_beyond_the_rule_names_the_limit() -> None:
    config = ball_run(learning_rate=9.0, weight_decay=0.05, spectrum=0.7)
    del config["training"]["ball"]
    assert "eta = 9 > 2/beta = 5 because L = 0.7" in audit_of(config).refusal
    assert "lower the rate or training.spectrum" in audit_of(config).refusal
    assert audit_of(config | {"training": config["training"] | {"learning_rate": 4.99}}).refusal == ""


def test_the_audit_says_how_often_honest_batches_were_scaled() -> None:
    config = ball_run(spectrum=0.72)
    del config["training"]["ball"]
    world = play(federation_of(config, {"wall": Wall}))
    honest = world.ledger.clients.take(~world.ledger.clients.attacking)
    audit = certifier.audit_certificate(PathwiseLinear(), world.ledger, world.threat())
    (measured,) = [check.measured for check in audit.checks if check.name == "honest clients scale their batches"]
    scaled_count, total = int(honest.scaled_batches.sum()), int(honest.steps.sum())
    assert 0 < scaled_count < total
    largest = honest.spectrum.max()
    assert measured == (
        f"L = 0.72: {scaled_count} of {total} honest batches were scaled, by {0.72 / largest:.3g} at least; "
        f"L = {largest:.4g} would scale none"
    )
    none = audit_of(ball_run(spectrum=0.99) | {"training": config["training"] | {"spectrum": 0.99}})
    assert any("none of 30 honest batches was scaled, the largest L_s is" in check.measured for check in none.checks)
