"""Local training with a pull toward the broadcast model: what it contracts by, against worlds that are coupled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crfl_core.certification.formulas as formulas
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import TrainingTask
from crfl_core.records.inputs import as_floats
from crfl_core.runs.worlds import with_attack
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.steering import Steering
from tests.certificates.audited import audits, refused
from tests.certificates.federations import coins, small
from tests.certificates.test_corners import Elsewhere, Flipping, bound, versus
from tests.certificates.worlds import federation_of, honest_world, play


def proximal(mu: float, **training: Any) -> dict[str, Any]:
    """Training with FedProx."""
    return {"learning_rate": 0.5, "steps": 4, "algorithm": {"type": "fedprox", "mu": mu}} | training


@given(rate=st.floats(1e-3, 1.0), decay=st.floats(0.0, 0.5), mu=st.floats(0.0, 0.5), steps=st.integers(1, 60))
def test_what_is_kept_and_reached_are_those_of_the_recursion(rate: float, decay: float, mu: float, steps: int) -> None:
    """`w <- a w + eta mu w_0 - eta g`, once from a model with no gradients, once from 0 with gradients of norm 1."""
    kept, reached = 1.0, 0.0
    for _ in range(steps):
        kept = (1 - rate * (decay + mu)) * kept + rate * mu
        reached = (1 - rate * (decay + mu)) * reached + rate
    assert float(formulas.retention(rate, steps, decay, mu)) == pytest.approx(kept, rel=1e-9)
    found = float(formulas.update_bound(rate, steps, 2**-0.5, decay, proximal=mu))
    assert found == pytest.approx(reached, rel=1e-9)
    whole = float(formulas.update_bound(rate, steps, 2**-0.5, decay, 3.0, mu))
    assert whole == pytest.approx(reached + 3.0 * (1 - kept), rel=1e-9, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    decay=st.sampled_from([0.0, 0.05, 0.4]),
    mu=st.sampled_from([0.0, 0.1, 0.6]),
    share=st.floats(0.2, 1.0),
    steps=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_two_starts_end_no_further_apart_than_the_round_contracts(
    decay: float, mu: float, share: float, steps: int, seed: int
) -> None:
    """Coupled worlds in double precision, at rates up to the limit `eta (beta + 2 (lambda + mu)) <= 2`."""
    beta = (1.0 + 1.0) / 2.0  # unit ball and bias
    rate = share * 2.0 / (beta + 2.0 * (decay + mu))
    training = proximal(mu, learning_rate=rate, steps=steps, weight_decay=decay)
    federation = federation_of(small(model={"type": "softmax", "features": "unit-ball"}, training=training))
    clients, source = federation.participation.participants(1), torch.Generator().manual_seed(seed)
    size = federation.model.layout.size
    models = torch.randn(2, 1, size, generator=source, dtype=torch.float64) * torch.tensor([3.0, 3.0])[:, None, None]
    ends = (
        models
        + LocalTraining(federation)
        .train(TrainingTask(1, models, clients, attacked=False), slice(0, len(clients)))
        .updates
    )
    before, after = float((models[0] - models[1]).norm()), (ends[0] - ends[1]).norm(dim=-1).numpy()
    assert (after <= clients.retention * before * (1 + 1e-9)).all()
    assert clients.retention[0] == pytest.approx(float(formulas.retention(rate, steps, decay, mu)), rel=1e-12)


def test_a_gap_that_the_data_do_not_see_contracts_exactly_so() -> None:
    """All coins look one way, so nothing but decay and pull acts along the other: the constant is attained."""
    federation = federation_of(coins(proximal(0.5, weight_decay=0.25), rounds=1))
    clients = federation.participation.participants(1)
    unseen = torch.zeros(2, 1, federation.model.layout.size, dtype=torch.float64)
    features = as_floats(federation.features)
    orthogonal = torch.tensor([-features[0, 1], features[0, 0]], dtype=torch.float64)
    assert float((features.double() @ orthogonal).abs().max()) < 1e-12
    unseen[1, 0, :2] = orthogonal
    ends = (
        unseen + LocalTraining(federation).train(TrainingTask(1, unseen, clients, attacked=False), slice(0, 2)).updates
    )
    gap = (ends[0] - ends[1]).norm(dim=-1) / unseen[1].norm()
    np.testing.assert_allclose(gap.numpy(), clients.retention, rtol=1e-12)
    assert float(gap[0]) == pytest.approx((1 - 0.5 * 0.75) ** 4 + 0.5 / 0.75 * (1 - (1 - 0.5 * 0.75) ** 4))


def test_a_flipped_label_is_damped_by_the_pull_and_no_more() -> None:
    """One step attains the bound; in four the pull takes back a part of every push but the last.

    What was measured is taken for late poison, of which nothing is taken back: the bound is that of plain steps.
    """
    for steps in (1, 4):
        world, drift = versus(coins(proximal(1.0, steps=steps), rounds=1), Flipping(flips=3))
        assert drift <= bound(world) * (1 + 1e-9)
        assert drift > (0.7 if steps == 1 else 0.3) * bound(world)  # measured poison is taken for late
        if steps == 1:
            assert bound(world) == pytest.approx(drift)
    plain, pushed = versus(coins(proximal(0.0), rounds=1), Flipping(flips=3))
    assert drift < 0.6 * pushed
    assert bound(world) <= bound(plain) * (1 + 1e-9)


def test_without_decay_a_pull_lets_no_drift_fade() -> None:
    """Each world is pulled toward its own model."""
    federation = federation_of(coins(proximal(0.5, steps=2), rounds=6))
    attack = Elsewhere(clients=(0,), rounds=(1,))
    world, clean = play(with_attack(federation, attack)), honest_world(federation)
    drifts = [float(np.linalg.norm(world.aggregate(t) - clean.aggregate(t))) for t in (1, 6)]
    scenario = DriftBound(world.ledger, world.threat(poison="replacement"), 6)
    np.testing.assert_allclose(scenario.lipschitz, 1.0, rtol=1e-9)
    assert drifts[1] <= scenario.sample_cost(np.array([0.25]))[0] * (1 + 1e-9)
    assert drifts[1] > 0.9 * drifts[0]


def test_with_decay_a_drift_fades_as_the_round_contracts() -> None:
    federation = federation_of(coins(proximal(0.5, steps=2, weight_decay=0.5), rounds=6))
    attack = Elsewhere(clients=(0,), rounds=(1,))
    world, clean = play(with_attack(federation, attack)), honest_world(federation)
    for number in (2, 6):
        drift = float(np.linalg.norm(world.aggregate(number) - clean.aggregate(number)))
        cost = DriftBound(world.ledger, world.threat(poison="replacement"), number).sample_cost(np.array([0.25]))[0]
        assert 0.2 * cost < drift <= cost


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("own", [{"learning_rate": 0.05}, {"steps": 9}, {"learning_rate": 0.1, "steps": 20}])
def test_attackers_with_a_rate_of_their_own_are_bounded(own: dict[str, Any], decay: float) -> None:
    federation = federation_of(small(training=proximal(0.4, weight_decay=decay)))
    attack = Steering(kind="none", clients=(0, 1), rounds=(2,), scale=3.0, **own)
    world = play(with_attack(federation, attack))
    drift = float(np.linalg.norm(world.final - honest_world(federation).final))
    assert 0.01 < drift <= bound(world, clean_world="honest")


def test_multiplied_clean_updates_expand_a_gap_no_more_than_the_bound() -> None:
    config = coins(proximal(0.3, learning_rate=1.0, steps=2), rounds=2)
    attack = Flipping(alternates=True, clients=(0,), rounds=(1, 2), scale=10.0)
    world, drift = versus(config, attack, clean=attack.model_copy(update={"flips": 0}))
    assert drift <= bound(world, clean_world="scaled") * (1 + 1e-9)


def test_the_rule_for_the_rate_counts_the_pull_twice() -> None:
    """`eta <= 2 / (beta + lambda + 2 mu)`: at the limit the audit holds, above it refuses."""
    model = {"type": "softmax", "bias": False, "features": {"type": "unit-sphere"}}  # beta = 1/2
    for rate, holds in ((2 / (0.5 + 0.1 + 0.8) * 0.999, True), (2 / (0.5 + 0.1 + 0.8) * 1.01, False)):
        training = proximal(0.4, learning_rate=rate, weight_decay=0.1)
        found = audits(play(federation_of(small(model=model, training=training))))
        (check,) = (check for check in found["linear"].checks if check.name == "local steps are non-expansive")
        assert (check.status == "held") == holds


def test_steps_above_the_rule_do_expand() -> None:
    """On curvature beta in one direction, the map of one step: `1 - eta (beta + lambda + mu)`, and a pull back."""
    beta, decay, mu, steps = 0.5, 0.1, 0.4, 2

    def factor(rate: float) -> float:
        kept = 1.0
        for _ in range(steps):
            kept = (1 - rate * (beta + decay + mu)) * kept + rate * mu
        return abs(kept)

    limit = 2.0 / (beta + decay + 2.0 * mu)
    assert factor(limit) <= 1.0
    assert factor(1.6 * limit) > 1.0


@pytest.mark.parametrize("algorithm", ["momentum", "adam"])
def test_other_algorithms_are_refused_with_the_reason(algorithm: str) -> None:
    config = small(training={"learning_rate": 0.1, "algorithm": algorithm})
    found = audits(play(federation_of(config)))
    assert {"linear", "smoothed", "tail", "paper"} <= refused(found)
    assert f"found algorithm '{algorithm}'" in found["linear"].refusal
    assert "training.algorithm = 'sgd' or 'fedprox'" in found["linear"].refusal


def test_clipped_gradients_are_refused_pathwise_with_the_reason() -> None:
    found = audits(play(federation_of(small(training={"learning_rate": 0.1, "clip_gradients": 0.5}))))
    assert {"linear", "smoothed", "tail", "paper"} <= refused(found)
    assert "gradients are clipped at 0.5" in found["linear"].refusal


def test_clipped_steps_do_expand() -> None:
    """Why they are refused: the mean of a clipped and an unclipped gradient is not a monotone map of the model."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.9]], dtype=torch.float64)
    scales, longest = torch.tensor([1.0, 40.0], dtype=torch.float64), 1.0

    def gradient(w: torch.Tensor) -> torch.Tensor:
        each = scales[:, None] * (x @ w)[:, None] * x  # quadratic losses scale/2 (x w)^2
        mean: torch.Tensor = (each * (longest / each.norm(dim=1)).clamp(max=1.0)[:, None]).mean(0)
        return mean

    source = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(4000):
        one = 2 * torch.randn(2, generator=source, dtype=torch.float64)
        two = one + 0.01 * torch.randn(2, generator=source, dtype=torch.float64)
        worst = min(worst, float((gradient(one) - gradient(two)) @ (one - two)))
    assert worst < 0.0
