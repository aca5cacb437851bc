"""What float64 does to training: the model's own steps against extended precision, at sizes where it hurts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core.certification.formulas import (
    Aggregation,
    Array,
    LocalSteps,
    ModelSize,
    Rounding,
    budget_per_unit_drift,
    gamma,
    label_shift,
    local_rounding,
    local_weight_norm,
    logit_rounding,
    noisy_norm,
    retention,
    round_rounding,
    rounding_budget,
    rounding_drift,
    server_rounding,
    tradeoff_budget,
    update_bound,
    weight_norm_bound,
)
from crfl_core.extend import BoundModel, LinearModel
from crfl_core.plugin_api.model import GradientSteps

Long = NDArray[np.longdouble]
"""64 bits of mantissa: its rounding is 1/2048 of what is measured."""
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Client:
    """Batches of one client, (steps, b, d), and how it trains."""

    x: Array
    y: Labels
    rate: float
    decay: float

    @property
    def steps(self) -> LocalSteps:
        norms = np.sqrt(np.square(self.x).sum(axis=-1) + 1.0)
        return LocalSteps(self.rate, len(self.x), self.x.shape[1], self.decay, norms.max() * (1.0 + 1e-15))


def random_client(generator: np.random.Generator, size: ModelSize, steps: int, batch: int, decay: float) -> Client:
    """Inputs of norm at most 3, at the largest rate that the theory allows."""
    x = generator.normal(size=(steps, batch, size.features))
    x *= 3.0 * generator.uniform(0.1, 1.0, (steps, batch, 1)) / np.linalg.norm(x, axis=-1, keepdims=True)
    return Client(x, generator.integers(size.classes, size=(steps, batch)), 2.0 / (10.0 / 2.0 + 2.0 * decay), decay)


def computed(model: BoundModel, start: Array, client: Client, own_layout: bool) -> Array:
    """The update as the core computes it, (P,), in the model's own layout of local training or along its gradient."""
    begin = torch.from_numpy(start)[None, None]
    local = model.local_models(begin) if own_layout else GradientSteps(model, begin)
    decay = torch.tensor([client.decay], dtype=torch.float64) if client.decay else None
    for x, y in zip(client.x, client.y, strict=True):
        weights = torch.full((1, len(y)), 1.0 / len(y), dtype=torch.float64)
        rates = torch.tensor([client.rate], dtype=torch.float64)
        local.step(torch.from_numpy(x)[None], torch.from_numpy(y)[None], weights, rates, decay)
    update: Array = (local.parameters() - begin)[0, 0].numpy()
    return update


def exact(size: ModelSize, start: Array, client: Client) -> Long:
    """The same update in extended precision, weights (C, d) first and then the bias."""
    split = size.features * size.classes
    begin = start.astype(np.longdouble)
    weight, bias = begin[:split].reshape(size.classes, size.features), begin[split:]
    rate, decay = np.longdouble(client.rate), np.longdouble(client.decay)
    for x, y in zip(client.x.astype(np.longdouble), client.y, strict=True):
        logits = x @ weight.T + bias
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        residual = powers / powers.sum(axis=1, keepdims=True)
        residual[np.arange(len(y)), y] -= 1.0
        weight = (1 - rate * decay) * weight - rate * (residual.T @ x) / len(y)
        bias = (1 - rate * decay) * bias - rate * residual.mean(axis=0)
    result: Long = np.concatenate([weight.ravel(), bias]) - begin
    return result


def starts(generator: np.random.Generator, size: ModelSize, scale: float) -> Array:
    """A model of about this norm. Half of them are nearly the same for all classes: everything ties."""
    shared = generator.integers(2)
    weights = generator.normal(size=(size.classes, size.features)) * (1e-9 if shared else 1.0)
    weights += shared * generator.normal(size=size.features)
    flat: Array = np.concatenate([weights.ravel(), generator.normal(size=size.classes)])
    return scale * flat / np.linalg.norm(flat)


@pytest.mark.parametrize("own_layout", [True, False])
@pytest.mark.parametrize("decay", [0.0, 1e-14, 0.05])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_local_training_stays_within_its_rounding(scale: float, decay: float, own_layout: bool) -> None:
    generator = np.random.default_rng(int(scale))
    for size, steps, batch in ((ModelSize(4, 2), 30, 1), (ModelSize(60, 10), 8, 20), (ModelSize(10, 47), 5, 64)):
        model = LinearModel(size.features, size.classes, bias=True)
        for _ in range(4):
            client, start = random_client(generator, size, steps, batch, decay), starts(generator, size, scale)
            apart = np.linalg.norm(computed(model, start, client, own_layout) - exact(size, start, client))
            allowed = local_rounding(size, client.steps, np.linalg.norm(start)).error
            assert allowed / 1e5 < apart <= allowed


def test_steps_too_small_to_be_seen_are_lost_and_the_bound_is_within_a_factor_of_a_hundred() -> None:
    """Weights of 1.5 x 2^20, each to be moved by nearly half a unit in the last place in every step."""
    size, steps = ModelSize(16, 2), 50
    model = LinearModel(size.features, size.classes, bias=True)
    x = np.full((steps, 1, size.features), 0.25)
    start = np.concatenate([np.full(16, -1.5 * 2.0**20), np.full(16, 1.5 * 2.0**20), np.zeros(2)])
    client = Client(x, np.zeros((steps, 1), np.int64), 0.95 * 2.0**-33 / 0.25, 0.0)  # the label is never learnt
    update = computed(model, start, client, own_layout=True)
    apart = np.linalg.norm(update - exact(size, start, client))
    assert not update[:32].any()
    allowed = local_rounding(size, client.steps, np.linalg.norm(start)).error
    assert allowed / 100 < apart <= allowed


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_computed_local_models_stay_within_their_weight_norm(scale: float) -> None:
    """Also where all classes share a large vector, which centring has to remove."""
    size, generator = ModelSize(20, 5), np.random.default_rng(8)
    model = LinearModel(size.features, size.classes, bias=True)
    for _ in range(10):
        client, start = random_client(generator, size, 6, 10, 0.0), starts(generator, size, scale)
        end = start + computed(model, start, client, own_layout=True)
        weights = end[:100].reshape(5, 20).astype(np.longdouble)
        reached = np.linalg.norm((weights - weights.mean(axis=0)).astype(np.float64), 2)
        norm, length = model.operator_norm(torch.from_numpy(start)), np.linalg.norm(start)
        bound = weight_norm_bound(size, norm, client.steps, length)
        assert reached <= local_weight_norm(bound, math.sqrt(10.0), client.rate * 6)
        assert bound - norm <= 1e-9 * scale


def test_logits_stay_within_their_rounding() -> None:
    generator = np.random.default_rng(0)
    for scale in (1.0, 1e6):
        weights, x = scale * generator.normal(size=(784, 10)), generator.normal(size=(50, 784))
        apart = np.abs(x @ weights - x.astype(np.longdouble) @ weights.astype(np.longdouble)).max(axis=1)
        assert (apart <= logit_rounding(784, np.linalg.norm(weights)) * np.linalg.norm(x, axis=1)).all()


def in_order(weights: Array, updates: Array) -> Array:
    total: Array = (weights[:, None] * updates).cumsum(axis=0)[-1]
    return total


def as_one_product(weights: Array, updates: Array) -> Array:
    product: Array = weights @ updates
    return product


@pytest.mark.parametrize("add_up", [in_order, as_one_product])
@pytest.mark.parametrize("clip_norm", [np.inf, 1.5, 1e5])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_the_server_stays_within_its_rounding(
    scale: float, clip_norm: float, add_up: Callable[[Array, Array], Array]
) -> None:
    """Half of the clients submit ten times what the cap lets through."""
    generator, clients, parameters, kept = np.random.default_rng(1), 50, 300, 0.9
    for _ in range(10):
        start = scale * generator.normal(size=parameters) / math.sqrt(parameters)
        weights, caps = generator.dirichlet(np.ones(clients)), generator.uniform(0.1, 1.0, clients)
        residuals = generator.normal(size=(clients, parameters))
        residuals *= (caps * generator.choice([0.9, 10.0], clients) / np.linalg.norm(residuals, axis=1))[:, None]
        updates, noise = residuals - (1.0 - kept) * start, generator.normal(size=parameters)

        lengths = np.linalg.norm(updates + (1.0 - kept) * start, axis=1)
        factors = np.where(lengths > caps, caps / lengths * (1.0 - 1e-15), 1.0)[:, None]
        capped = factors * updates + (factors - 1.0) * (1.0 - kept) * start
        model = start + add_up(weights, capped)
        result = model / max(1.0, float(np.linalg.norm(model)) / clip_norm) + noise

        long = updates.astype(np.longdouble) + (1.0 - np.longdouble(kept)) * start
        long *= np.minimum(1.0, caps / np.sqrt(np.square(long).sum(axis=1)))[:, None]
        truth = start + weights.astype(np.longdouble) @ (long - (1.0 - np.longdouble(kept)) * start)
        truth = truth / np.maximum(1.0, np.sqrt(np.square(truth).sum()) / clip_norm) + noise
        allowed = server_rounding(parameters, Aggregation(weights, caps, kept, clip_norm), np.linalg.norm(start))
        final_addition = 2.0**-53 * np.linalg.norm(result)  # belongs to the next round, whose start this is
        assert np.linalg.norm(result - truth) <= allowed.error + final_addition


def test_with_large_weights_a_computed_drift_exceeds_the_exact_bound_but_not_the_allowance() -> None:
    """One flipped label, seen by a model that is hopelessly wrong about both: exactly `eta sqrt 2 ||x||` of drift."""
    size, rate, exceeded = ModelSize(8, 3), 0.1, 0
    model = LinearModel(size.features, size.classes, bias=True)
    generator = np.random.default_rng(2)
    for _ in range(50):
        x = generator.normal(size=(1, 1, size.features))
        start = np.zeros((size.classes, size.features))
        start[:2] = generator.normal(size=(2, size.features))
        start[2] = start[:2].sum(axis=0) + 3.0 * x[0, 0]  # the third class wins by far
        flat = np.concatenate([1e6 * start.ravel(), np.zeros(size.classes)])
        worlds = [Client(x, np.array([[label]]), rate, 0.0) for label in (0, 1)]
        clean, poisoned = (flat + computed(model, flat, world, own_layout=True) for world in worlds)
        gap = float(np.linalg.norm(clean - poisoned))
        bound = float(rate * label_shift(math.hypot(float(np.linalg.norm(x)), 1.0)))
        allowed = local_rounding(size, worlds[0].steps, np.linalg.norm(flat)).error
        assert gap <= bound + 2.0 * allowed
        exceeded += gap > bound * (1.0 + 1.3e-11)
    assert exceeded > 5


def test_two_computed_worlds_stay_within_drift_and_rounding_over_many_rounds() -> None:
    """The same flipped label in the first of ten noisy rounds: exactly the same gap ever after, but for rounding."""
    size, rate, exceeded, weights = ModelSize(8, 3), 0.1, 0, np.array([0.25, 0.75])
    model = LinearModel(size.features, size.classes, bias=True)
    generator = np.random.default_rng(7)
    for _ in range(30):
        x = generator.uniform(0.1, 1.0, (2, 1, 1, size.features))
        start = 1e6 * generator.uniform(-1.0, 1.0, size.parameters)
        start[16:24] = start[26] = 3e6  # the third class wins, whatever is learnt
        worlds, norms = [start, start], []
        for number in range(10):
            noise = generator.normal(size=len(start))
            norms.append(np.linalg.norm(worlds[0]))
            labels = [[0, 0], [1 if number == 0 else 0, 0]]
            updates = [
                [computed(model, world, Client(x[i], np.array([[label[i]]]), rate, 0.0), True) for i in range(2)]
                for world, label in zip(worlds, labels, strict=True)
            ]
            worlds = [world + weights @ np.array(each) + noise for world, each in zip(worlds, updates, strict=True)]
        bounds = [math.hypot(float(np.linalg.norm(inputs)), 1.0) for inputs in x]
        local = LocalSteps(rate, 1, 1, 0.0, bounds)
        server = Aggregation(weights, update_bound(rate, 1, bounds), 1.0, np.inf)
        rounding = rounding_drift(round_rounding(size, local, server, norms), np.ones(10))[0]
        gap = float(np.linalg.norm(worlds[0] - worlds[1]))
        drift = float(weights[0] * rate * label_shift(bounds[0]))
        final_addition = 2.0 * 2.0**-53 * np.linalg.norm(worlds[0])  # of noise, which belongs to the round that follows
        assert gap <= drift + rounding + final_addition
        exceeded += gap > drift * (1.0 + 1e-11)
    assert exceeded > 5


def mnist(rounds: int = 100, clients: int = 20) -> tuple[ModelSize, LocalSteps, Aggregation, Array]:
    """The settings of the paper: 28 x 28 pixels, norms up to 9.25, clip norms that grow slowly."""
    reach = update_bound(0.001, 30, 9.25)
    clips = 2.0 + 0.025 * np.arange(1, rounds + 1)
    weights = np.full((rounds, clients), 1.0 / clients)
    return (
        ModelSize(784, 10),
        LocalSteps(0.001, 30, 100, 0.0, 9.25),
        Aggregation(weights, reach, 1.0, clips),
        np.hypot(clips, 0.9),
    )


def test_on_mnist_rounding_is_nothing_beside_the_drift_of_an_attack() -> None:
    size, local, server, norms = mnist()
    rounding = round_rounding(size, local, server, norms)
    assert rounding_drift(rounding, np.ones(100))[0] < 1e-7 * 0.01
    assert rounding.growth.max() < 1e-10


def test_rounds_and_clients_are_computed_together_as_one_by_one() -> None:
    size, local, server, norms = mnist(rounds=7, clients=3)
    together = round_rounding(size, local, server, norms)
    clips = np.asarray(server.clip_norm)
    for number in range(7):
        alone = round_rounding(
            size, local, Aggregation(np.full(3, 1 / 3), server.message_bound, 1.0, clips[number]), norms[number]
        )
        assert alone.error == pytest.approx(together.error[number], rel=1e-12)
        assert alone.growth == pytest.approx(together.growth[number], rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(
    start=st.floats(0.0, 1e9),
    gap=st.floats(0.0, 1e3),
    clip=st.sampled_from([0.5, 20.0, 1e4, math.inf]),
    decay=st.sampled_from([0.0, 0.1]),
)
def test_another_start_errs_by_no_more_than_growth_says(start: float, gap: float, clip: float, decay: float) -> None:
    size, local = ModelSize(30, 5), LocalSteps([0.1, 0.2], [5, 10], 16, decay, [1.0, 2.0])
    reach, kept = update_bound(*local[:2], local[4], decay), retention(*local[:2], decay)
    server = Aggregation([0.3, 0.7], reach, kept, clip)
    near, far = (round_rounding(size, local, server, norm) for norm in (start, start + gap))
    assert far.error <= (near.error + near.growth * gap) * (1.0 + 1e-12)


def test_the_allowance_is_the_recursion_of_the_rounds() -> None:
    generator = np.random.default_rng(3)
    rounding = Rounding(generator.uniform(0.0, 1e-12, 20), generator.uniform(0.0, 1e-9, 20))
    lipschitz = generator.uniform(0.5, 1.0, 20)
    found = rounding_drift(rounding, lipschitz)
    for first in range(20):
        gap = 0.0
        for error, growth, constant in zip(*(values[first:] for values in (*rounding, lipschitz)), strict=True):
            gap = (constant + growth) * gap + 2.0 * error
        assert found[first] == pytest.approx(gap, rel=1e-9)


def test_what_rounding_costs_in_rounds_with_fresh_noise_covers_all_of_it_together() -> None:
    generator = np.random.default_rng(6)
    for _ in range(20):
        noise, lipschitz = generator.choice([0.0, 0.1, 1.0], 12), generator.uniform(0.5, 1.0, 12)
        noise[9], noise[10:] = 0.1, 0.0  # nothing is hidden after that, and nothing differs
        errors = generator.uniform(0.0, 1e-9, 12)
        extra = rounding_budget(Rounding(errors, np.zeros(12)), noise, lipschitz)
        attack = np.zeros(12)
        attack[0] = 0.3
        drifts = np.where(np.arange(12) < 10, attack + 2.0 * errors, 0.0)
        price = budget_per_unit_drift(noise, lipschitz)[0]
        assert tradeoff_budget(drifts, noise, lipschitz) <= 0.3 * price + extra * (1.0 + 1e-12) + 1e-15 * price
        assert 0.0 < extra < 1e-5


def test_noise_hardly_ever_exceeds_its_norm() -> None:
    generator = np.random.default_rng(4)
    clipped = np.zeros(500)
    clipped[0] = 2.0
    norms = np.linalg.norm(clipped + 0.1 * generator.normal(size=(2000, 500)), axis=1)
    assert norms.max() < noisy_norm(2.0, 0.1, 500) < 4.0 * norms.max()


def test_gamma_bounds_sums_in_any_order() -> None:
    terms = np.random.default_rng(5).normal(size=100_000)
    computed_sums = [terms.sum(), terms.cumsum()[-1], terms[::-1].cumsum()[-1], math.fsum(terms)]
    assert np.ptp(computed_sums) <= 2.0 * gamma(len(terms)) * np.abs(terms).sum()
