"""What the server computes on its own samples, against plain loops in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from crfl_core.extend import Aggregator, ClientUpdates, PluginFailure, RootSamples, RuleResult, ServerView, State
from crfl_core.plugin_api.model import GradientSteps
from crfl_core.training.federation import Federation
from tests.oracle import federation_of, played, tiny

Array = NDArray[np.float64]


def federation(**changes: Any) -> Federation:
    """A federation whose server holds 23 samples."""
    return federation_of(tiny(reserve={"root": 23}, dtype="float64", **changes))


def root_of(server: ServerView) -> RootSamples:
    assert server.root is not None
    return server.root


def loss_and_gradient(model: Array, x: Array, y: NDArray[np.int64]) -> tuple[float, Array]:
    """Mean cross-entropy of `W x + b`, one sample at a time."""
    weight, bias = model[:-10].reshape(10, -1), model[-10:]
    loss, gradient = 0.0, np.zeros_like(model)
    for sample, label in zip(x, y, strict=True):
        exponentials = np.exp(weight @ sample + bias)
        shares = exponentials / exponentials.sum()
        loss -= float(np.log(shares[label])) / len(y)
        shares[label] -= 1.0
        gradient += np.concatenate([np.outer(shares, sample).ravel(), shares]) / len(y)
    return loss, gradient


def sgd(server: ServerView, start: Array, rate: float, steps: int, batch: int, decay: float = 0.0) -> Array:
    """The update of a client with the root samples in round 5."""
    x, y = root_of(server).x.numpy(), root_of(server).y.numpy()
    generator = server.streams.generator("aggregation/root", round_number=5)
    model, left = start.copy(), np.zeros(0, np.int64)
    for _ in range(steps):
        if not len(left):
            left = generator.permutation(len(y))
        rows, left = left[:batch], left[batch:]
        model = model - rate * (loss_and_gradient(model, x[rows], y[rows])[1] + decay * model)
    return np.asarray(model - start)


def test_loss_and_gradient_are_those_of_the_root_samples() -> None:
    server = federation().server_view(1)
    models = 0.3 * np.random.default_rng(0).standard_normal((3, server.layout.size))
    x, y = root_of(server).x.numpy(), root_of(server).y.numpy()
    expected = [loss_and_gradient(model, x, y) for model in models]
    several = torch.from_numpy(models)
    np.testing.assert_allclose(server.loss(several), [loss for loss, _ in expected], rtol=1e-12)
    np.testing.assert_allclose(server.gradient(several), [gradient for _, gradient in expected], atol=1e-14)
    np.testing.assert_allclose(server.loss(several[0]), expected[0][0], rtol=1e-12)
    np.testing.assert_allclose(server.gradient(several[0]), expected[0][1], atol=1e-14)
    assert server.logits(several).shape == (3, 23, 10)
    torch.testing.assert_close(server.logits(several)[0], server.logits(several[0]))


@pytest.mark.parametrize(("steps", "batch"), [(1, 23), (7, 5), (3, 100), (12, 8)])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_local_update_is_that_of_a_client_with_the_root_samples(steps: int, batch: int, decay: float) -> None:
    training = {"learning_rate": 0.2, "steps": 5, "weight_decay": decay}
    server = federation(training=training).server_view(1)
    start = 0.1 * np.random.default_rng(1).standard_normal(server.layout.size)
    found = server.local_update(torch.from_numpy(start), learning_rate=0.4, steps=steps, batch_size=batch, number=5)
    np.testing.assert_allclose(found, sgd(server, start, 0.4, steps, batch, decay), atol=1e-13)


def test_any_model_has_a_loss_and_an_update() -> None:
    server = federation(model={"type": "mlp", "hidden": [7]}).server_view(1)
    start = torch.from_numpy(0.3 * np.random.default_rng(1).standard_normal(server.layout.size))
    step = server.local_update(start, learning_rate=0.1, steps=1, batch_size=23, number=1)
    torch.testing.assert_close(step, -0.1 * server.gradient(start))
    assert float(server.loss(start + step)) < float(server.loss(start))


def test_the_server_knows_the_whole_federation() -> None:
    server = federation(training={"steps": 1, "participation": 0.5}, attack="none").server_view(1)
    assert server.clients.ids.tolist() == list(range(8))
    assert server.rounds == 4
    with pytest.raises(ValueError, match="not drawn here"):
        server.streams.generator("noise")


def test_without_root_samples_it_is_said_how_to_get_them() -> None:
    server = federation_of(tiny()).server_view(1)
    with pytest.raises(PluginFailure, match=r"set `needs_root = True` .* a config without reserve.root is refused"):
        server.loss(torch.zeros(server.layout.size))


class Turning(Aggregator):
    """Turns the model that it may ask upside down."""

    turned: bool = True

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        model = updates.round.server.model
        if self.turned:
            vars(model)["gradient"] = lambda parameters, *_: parameters
            vars(model)["local"] = lambda start, *_: GradientSteps(model, -start)
        weights = torch.full((len(updates.values),), 1 / len(updates.values), dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values, weights, state=state)


def test_what_a_rule_does_to_the_model_is_not_noticed_in_training() -> None:
    models = [
        played(federation_of(tiny(aggregation=[{"type": "turning", "turned": turned}]), {"turning": Turning}))
        for turned in (True, False)
    ]
    assert torch.equal(models[0][-1].parameters, models[1][-1].parameters)
