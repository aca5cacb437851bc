"""Caps and bounds: what they let through, and that honest clients do not notice them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.mixing import Bucketing
from crfl_aggregators.norm_caps import NormBound, UpdateCap
from crfl_aggregators.weak_noise import WeakNoise
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.extend import Streams
from crfl_core.testing.aggregation_steps import matrix_of
from crfl_core.training.aggregation_chain import apply_stage, run_chain
from tests.aggregators.support import aggregate_of, gaussian, updates_of
from tests.oracle import federation_of, played, tiny


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999),
    retention=st.floats(0.0, 1.0),
    bound=st.floats(1e-3, 1e3),
    scale=st.floats(1e-3, 1e6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_nothing_beyond_weight_decay_exceeds_the_cap(
    seed: int, retention: float, bound: float, scale: float, dtype: torch.dtype
) -> None:
    values, start = (
        torch.from_numpy(scale * gaussian(6, 8, seed)).to(dtype),
        torch.from_numpy(gaussian(1, 8, seed + 1)[0]),
    )
    updates = updates_of(values, start=start.to(dtype), retention=np.full(6, retention))
    staged = apply_stage(UpdateCap(bound=bound), updates, {})
    assert staged.cap is not None
    residuals = (staged.values.double() + (1 - retention) * updates.round.start.double()).norm(dim=1)
    rounding = torch.finfo(dtype).eps * (scale * 10 + 10)
    assert (residuals <= staged.cap * (1 + 1e-12) + rounding).all()
    factors = staged.mixing
    untouched = (values.double() + (1 - retention) * updates.round.start.double()).norm(dim=1) <= bound * (1 - 1e-6)
    assert (factors[untouched] == 1).all()
    assert torch.equal(staged.values[untouched], values[untouched]) or staged.pull is not None


def test_the_cap_acts_on_what_remains_without_weight_decay() -> None:
    """w = 4, c = 1/2: an honest update is -2 + r. With a cap of 1 on r, 6 becomes -2 + 1 and -2.5 stays."""
    updates = updates_of(np.asarray([[6.0], [-2.5]]), start=torch.tensor([4.0]).double(), retention=np.full(2, 0.5))
    staged = apply_stage(UpdateCap(bound=1.0), updates, {})
    assert staged.values[:, 0].tolist() == pytest.approx([-1.0, -2.5])
    assert staged.mixing.tolist() == pytest.approx([1 / 8, 1.0])
    assert staged.offset is None  # nothing as large as the updates
    assert staged.pull is not None
    assert (4.0 * staged.pull[:, 0]).tolist() == pytest.approx([-7 / 8 * 2, 0.0])


def test_honest_caps_differ_between_clients() -> None:
    updates = updates_of(np.full((3, 1), 9.0), update_bound=np.asarray([1.0, 5.0, 20.0]))
    staged = apply_stage(UpdateCap(), updates, {})
    assert staged.values[:, 0].tolist() == pytest.approx([1.0, 5.0, 9.0])


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_honest_training_never_touches_an_honest_cap(weight_decay: float) -> None:
    """With and without the cap a run without attack is the same, to the last bit."""
    training = {"learning_rate": 0.5, "steps": 8, "batch_size": 16, "weight_decay": weight_decay}
    plain, capped = (
        played(federation_of(tiny(attack="none", training=training, aggregation=chain)))
        for chain in (["fedavg"], ["update-cap", "fedavg"])
    )
    assert torch.equal(plain[-1].parameters, capped[-1].parameters)
    for outcome in capped:
        assert outcome.record.depends == "own"
        assert np.isfinite(outcome.clients.cap).all()
        np.testing.assert_array_equal(outcome.clients.weight, outcome.clients.weight_bound)


def test_an_attacker_moves_a_capped_aggregate_by_twice_its_weight_times_the_cap_at_most() -> None:
    attack = {"type": "model-replacement", "clients": [0], "rounds": [2], "scale": 1e4, "poisoned_per_batch": 3}
    settings = {"rounds": 2, "aggregation": ["update-cap", "fedavg"], "server": {"clip_norm": 1e6, "noise_std": 0.0}}
    clean, attacked = (played(federation_of(tiny(attack=chosen, **settings)))[-1] for chosen in ("none", attack))
    drift = float((clean.parameters - attacked.parameters).norm())
    reach = 2 * float(attacked.clients.weight_bound[0] * attacked.clients.cap[0])
    assert 0.0 < drift <= reach
    assert attacked.clients.weight[0] < attacked.clients.weight_bound[0]


def test_a_norm_bound_is_a_cap_without_weight_decay_and_promises_none_with_it() -> None:
    values = 3 * gaussian(4, 5)
    plain = run_chain([NormBound(bound=1.0), FedAvg()], updates_of(values), {})
    assert (plain.cap.tolist(), plain.depends) == ([1.0] * 4, "own")
    decayed = run_chain([NormBound(bound=1.0), FedAvg()], updates_of(values, retention=np.full(4, 0.9)), {})
    assert (decayed.cap.tolist(), decayed.depends) == ([torch.inf] * 4, "all")


def test_a_cap_on_mixtures_depends_on_all_clients_in_them() -> None:
    result = run_chain([Bucketing(size=2), UpdateCap(bound=0.1), FedAvg()], updates_of(gaussian(6, 5)), {})
    assert (result.cap.tolist(), result.depends) == ([torch.inf] * 6, "all")


def test_mixtures_of_unlike_clients_have_the_mean_of_their_bounds() -> None:
    """The honest bound of a bucket is the mean of its clients' bounds, and so is what weight decay leaves."""
    bounds = np.asarray([1.0, 3.0, 5.0, 7.0])
    stage = Bucketing(size=2)
    updates = updates_of(100 * gaussian(4, 5), update_bound=bounds)
    mixing = matrix_of(apply_stage(stage, updates, {})).numpy()
    capped = aggregate_of([stage, UpdateCap(), FedAvg(weighting="uniform")], updates).update
    longest = float((mixing @ bounds).mean())
    assert 0.0 < float(capped.norm()) <= longest


def test_weak_noise_reaches_the_aggregate_exactly_once() -> None:
    """Whatever the weights: one draw for all clients, from the run's own stream."""
    values = gaussian(5, 1000)
    noisy = aggregate_of([WeakNoise(std=0.5), FedAvg()], updates_of(values, number=4))
    plain = aggregate_of([FedAvg()], updates_of(values, number=4))
    noise = Streams(3).generator("aggregation/weak-noise", round_number=4).standard_normal(1000)
    np.testing.assert_allclose(noisy.update - plain.update, 0.5 * noise, atol=1e-12)
    other = aggregate_of([WeakNoise(std=0.5), FedAvg()], updates_of(values, number=5))
    assert not torch.equal(noisy.update, other.update)
