"""Models: gradients, logits and votes of many replicas at once equal the plain computation for each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_models.networks import Cnn, Mlp
from crfl_models.softmax import Softmax
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import crfl_core
from crfl_core import resource_limits
from crfl_core.errors import CrflWarning
from crfl_core.extend import (
    BoundModel,
    ConfigError,
    DataFacts,
    Domain,
    LocalModels,
    Model,
    ModuleModel,
    OptionError,
    PluginFailure,
)
from crfl_core.plugin_api import model as kind
from tests.oracle import federation_of, played, tiny

FACTS = DataFacts(inputs=36, classes=4, domain=Domain(0.0, 1.0), image_shape=(6, 6))
MODELS: list[Model] = [Softmax(), Softmax(bias=False), Mlp(hidden=(7, 5)), Cnn(channels=(2, 3))]


def named(model: Model) -> str:
    return repr(model)


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    """Reproducible float64 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_data(clients: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and weights of padded batches: client i has i samples fewer than the first."""
    x = gaussian(clients, batch, FACTS.inputs, seed=1)
    y = torch.randint(FACTS.classes, (clients, batch), generator=torch.Generator().manual_seed(2))
    real = torch.arange(batch)[None, :] < batch - torch.arange(clients)[:, None]
    return x, y, real.double() / real.sum(1, keepdim=True)


def module_of(model: Model, bound: BoundModel, parameters: Tensor) -> Callable[[Tensor], Tensor]:
    """The same classifier as an ordinary module that holds these parameters."""
    tensors = bound.layout.unflatten(parameters)
    if isinstance(model, Softmax):
        return lambda x: nn.functional.linear(x, tensors["weight"], tensors.get("bias"))
    assert isinstance(bound, ModuleModel)
    module = bound._build().double()
    module.load_state_dict(tensors)
    return module


def by_autograd(model: Model, bound: BoundModel, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy of one client, by PyTorch's autograd on a plain module."""
    if isinstance(model, Softmax):
        leaf = parameters.clone().requires_grad_()
        nn.functional.cross_entropy(module_of(model, bound, leaf)(x), y).backward()
        assert leaf.grad is not None
        return leaf.grad
    module = module_of(model, bound, parameters)
    assert isinstance(module, nn.Module)
    nn.functional.cross_entropy(module(x), y).backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_the_gradient_equals_autograd_for_every_client_and_replica(model: Model) -> None:
    """Batches are padded to a common size; autograd gets only the real samples."""
    bound = model.build(FACTS)
    clients, batch, replicas = 3, 5, 2
    x, y, weights = some_data(clients, batch)
    parameters = gaussian(replicas, clients, bound.layout.size, seed=3) * 0.3
    gradients = bound.gradient(parameters, x, y, weights)
    assert gradients.shape == parameters.shape
    for replica in range(replicas):
        for client in range(clients):
            real = slice(0, batch - client)
            expected = by_autograd(model, bound, parameters[replica, client], x[client, real], y[client, real])
            torch.testing.assert_close(gradients[replica, client], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_three_replicas_equal_three_calls(model: Model) -> None:
    bound = model.build(FACTS)
    x, y, weights = some_data(clients=4, batch=6)
    parameters = gaussian(3, 4, bound.layout.size) * 0.3
    together = bound.gradient(parameters, x, y, weights)
    apart = [bound.gradient(parameters[i : i + 1], x, y, weights) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(apart), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("decay", [None, [0.1, 0.1, 0.1], [0.0, 0.2, 0.1]], ids=["none", "equal", "different"])
@pytest.mark.parametrize("model", MODELS, ids=named)
def test_steps_in_a_layout_of_their_own_are_steps_along_the_gradient(model: Model, decay: list[float] | None) -> None:
    """`w <- w - rate (gradient + decay w)`, written out; the client with rate 0 is done and stands still."""
    bound = model.build(FACTS)
    x, y, weights = some_data(clients=3, batch=5)
    rates = torch.tensor([0.3, 0.0, 0.7], dtype=torch.float64)
    decays = None if decay is None else torch.tensor(decay, dtype=torch.float64)
    start = gaussian(2, bound.layout.size) * 0.3
    expected = start[:, None, :].repeat(1, 3, 1)
    local = bound.local_models(start[:, None, :].expand(-1, 3, -1))
    for _ in range(3):
        local.step(x, y, weights, rates, decays)
        gradient = bound.gradient(expected, x, y, weights)
        pull = 0.0 if decays is None else decays[:, None] * expected
        expected = expected - rates[:, None] * (gradient + pull)
    torch.testing.assert_close(local.parameters(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(local.parameters()[:, 1], start, rtol=0, atol=0)


@pytest.mark.parametrize("shared", [True, False], ids=["one model", "own models"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("decay", [None, [0.1, 0.1, 0.1]], ids=["none", "some"])
@pytest.mark.parametrize("model", MODELS, ids=named)
def test_the_last_step_tells_how_far_all_of_them_went(
    model: Model, decay: list[float] | None, steps: int, shared: bool
) -> None:
    bound = model.build(FACTS)
    x, y, weights = some_data(clients=3, batch=5)
    rates = torch.tensor([0.3, 0.0, 0.7], dtype=torch.float64)
    decays = None if decay is None else torch.tensor(decay, dtype=torch.float64)
    start = gaussian(2, 1, bound.layout.size) * 0.3
    start = start.expand(-1, 3, -1) if shared else start.repeat(1, 3, 1)
    local, plain, moved = bound.local_models(start), bound.local_models(start), torch.full_like(start, torch.nan)
    for _ in range(steps - 1):
        local.step(x, y, weights, rates, decays)
    local.last_step(x, y, weights, rates, decays, start, moved)
    for _ in range(steps):
        plain.step(x, y, weights, rates, decays)
    torch.testing.assert_close(moved, plain.parameters() - start, rtol=1e-10, atol=1e-12)
    assert (moved[:, 1] == 0).all()


@pytest.mark.parametrize("decay", [None, [0.1, 0.2]], ids=["none", "some"])
@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_client_makes_the_same_steps_alone_as_beside_others(model: Model, decay: list[float] | None) -> None:
    bound = model.build(FACTS)
    x, y, weights = some_data(clients=2, batch=5)
    rates = torch.tensor([0.3, 0.7], dtype=torch.float64)
    decays = None if decay is None else torch.tensor(decay, dtype=torch.float64)
    start = gaussian(1, 2, bound.layout.size) * 0.3
    before = start.clone()
    together, moved = bound.local_models(start), torch.empty_like(start)
    alone, moved_alone = bound.local_models(start[:, 1:]), torch.empty_like(start[:, 1:])
    own = slice(1, 2)
    for _ in range(2):
        together.step(x, y, weights, rates, decays)
        alone.step(x[own], y[own], weights[own], rates[own], None if decays is None else decays[own])
    torch.testing.assert_close(alone.parameters(), together.parameters()[:, own], rtol=1e-10, atol=1e-12)
    together.write_updates(start, moved)
    alone.write_updates(start[:, own], moved_alone)
    torch.testing.assert_close(moved_alone, moved[:, own], rtol=1e-10, atol=1e-12)
    assert torch.equal(start, before)


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_logits_of_replicas_equal_those_of_the_plain_module(model: Model) -> None:
    bound = model.build(FACTS)
    parameters, x = gaussian(3, bound.layout.size), gaussian(5, FACTS.inputs, seed=1)
    with torch.no_grad():
        expected = torch.stack([module_of(model, bound, one)(x) for one in parameters])
    torch.testing.assert_close(bound.logits(parameters, x), expected, rtol=1e-12, atol=1e-12)


def counted_by_hand(bound: BoundModel, parameters: Tensor, x: Tensor) -> np.ndarray:
    """One model and one sample at a time; the lowest class wins a tie."""
    counts = np.zeros((len(x), FACTS.classes), np.int64)
    for one in parameters:
        for sample, logits in enumerate(bound.logits(one[None], x)[0].numpy()):
            counts[sample, int(np.flatnonzero(logits == logits.max())[0])] += 1
    return counts


@settings(deadline=None, max_examples=40)
@given(models=st.integers(1, 40), samples=st.integers(1, 6), bias=st.booleans(), ties=st.booleans())
def test_counts_are_those_of_argmax_whatever_the_number_of_models(
    models: int, samples: int, bias: bool, ties: bool
) -> None:
    """Parameters and inputs of few distinct values make ties likely."""
    bound = Softmax(bias=bias).build(FACTS)
    parameters, x = gaussian(models, bound.layout.size), gaussian(samples, FACTS.inputs, seed=1)
    if ties:
        parameters, x = parameters.sign() * (parameters.abs() > 1.5), x.round()
    counts = bound.count_votes(parameters, x)
    np.testing.assert_array_equal(counts, counted_by_hand(bound, parameters, x))
    assert counts.sum(1).tolist() == [models] * samples


@pytest.mark.parametrize("models", [8, 13, 2040, 2048])
def test_models_that_know_nothing_all_vote_for_the_first_class(models: int) -> None:
    """Zero parameters tie every class; 2048 models are more than one byte can count eight times."""
    bound = Softmax().build(FACTS)
    counts = bound.count_votes(torch.zeros(models, bound.layout.size), torch.ones(3, FACTS.inputs))
    assert counts.tolist() == [[models, 0, 0, 0]] * 3


@pytest.mark.parametrize("models", [2032, 2040, 2048])
def test_unanimous_votes_do_not_overflow(models: int) -> None:
    bound = Softmax().build(FACTS)
    parameters = torch.zeros(models, bound.layout.size)
    bound.layout.unflatten(parameters)["bias"][:, 2] = 1.0
    assert bound.count_votes(parameters, torch.ones(2, FACTS.inputs)).tolist() == [[0, 0, models, 0]] * 2


@pytest.mark.parametrize("bias", [True, False])
def test_the_operator_norm_is_the_largest_singular_value_of_the_centred_weight(bias: bool) -> None:
    bound = Softmax(bias=bias).build(FACTS)
    parameters = gaussian(bound.layout.size)
    weight = bound.layout.unflatten(parameters)["weight"].numpy()
    expected = np.linalg.svd(weight - weight.mean(axis=0), compute_uv=False)[0]
    norm = bound.operator_norm(parameters)
    assert norm is not None
    assert norm == pytest.approx(float(expected), rel=1e-12)
    shifted = parameters.clone()
    bound.layout.unflatten(shifted)["weight"][:] += gaussian(1, FACTS.inputs, seed=4)
    assert bound.operator_norm(shifted) == pytest.approx(norm, rel=1e-9)  # the same to all classes changes no vote
    assert bound.operator_norm(torch.zeros_like(parameters)) == 0.0


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_model_says_whether_it_is_convex(model: Model) -> None:
    bound = model.build(FACTS)
    softmax = isinstance(model, Softmax)
    assert (bound.facts.linear, bound.facts.convex) == (softmax, softmax)
    assert (bound.operator_norm(gaussian(bound.layout.size)) is not None) == softmax


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_the_start_depends_on_its_stream_and_leaves_torchs_generator_alone(model: Model) -> None:
    bound = model.build(FACTS)
    before = torch.random.get_rng_state()
    first, again, other = (bound.initial_parameters(np.random.default_rng(seed)) for seed in (0, 0, 1))
    torch.testing.assert_close(torch.random.get_rng_state(), before)
    assert first.shape == (bound.layout.size,)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert torch.equal(first, other) == isinstance(model, Softmax)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(36), nn.Dropout(0.1)], ids=["buffers", "stochastic"])
def test_modules_that_break_the_comparison_of_two_runs_are_refused(layer: nn.Module) -> None:
    with pytest.raises(OptionError, match=r"the module has (the buffer|a stochastic layer)"):
        ModuleModel(lambda: nn.Sequential(layer, nn.Linear(36, 4)))


class Recurrent(nn.Module):
    """Reads images row by row."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 6, num_layers=2, dropout=dropout, batch_first=True)
        self.out = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rows(x.view(len(x), 8, 8))
        logits: Tensor = self.out(states[:, -1])
        return logits


class Attentive(nn.Module):
    """Attends to the earlier rows of images, with a mask that is not part of its state."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.rows = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, 10)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.rows(x.view(len(x), 8, 8), mask=self.mask.to(x)).mean(1))
        return logits


def differentiate(module: nn.Module, layout: Any, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the weighted loss by PyTorch alone, without any batching."""
    for name, value in layout.unflatten(flat).items():
        module.get_parameter(name).data = value.clone()
    losses = nn.functional.cross_entropy(module(x), y, reduction="none")
    slopes = torch.autograd.grad((losses * weights).sum(), list(module.parameters()))
    return torch.cat([slope.flatten() for slope in slopes])


@pytest.mark.filterwarnings("ignore:.*cannot batch this module", "ignore:There is a performance drop")
@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_recurrent_and_attentive_modules_have_the_gradients_of_pytorch(kind: type[nn.Module]) -> None:
    bound = ModuleModel(kind)
    parameters = 0.3 * gaussian(2, 3, bound.layout.size)
    x = gaussian(3, 4, 64, seed=1)
    y = torch.arange(12).view(3, 4) % 10
    weights = torch.full((3, 4), 0.25, dtype=torch.float64)
    weights[1, 3] = 0.0
    found = bound.gradient(parameters, x, y, weights)
    each = bound.sample_gradients(parameters, x, y)
    module = kind().double()
    for replica in range(2):
        for client in range(3):
            own = (bound.layout, parameters[replica, client], x[client], y[client], weights[client])
            torch.testing.assert_close(found[replica, client], differentiate(module, *own))
    torch.testing.assert_close((weights[:, :, None] * each).sum(2), found)
    logits = bound.logits(parameters[:, 0], x[0])
    torch.testing.assert_close(logits[1], bound.logits(parameters[1:, 0], x[0])[0])


def test_a_module_that_cannot_be_batched_trains_with_a_note_about_its_speed(tmp_path: Path) -> None:
    config = tiny(
        attack="none", model={"type": "recurrent"}, training={"learning_rate": 0.5, "steps": 3, "batch_size": 16}
    )
    with pytest.warns(CrflWarning, match=r"Recurrent: PyTorch cannot batch this module over clients .* slower"):
        result = crfl_core.run(config, out=tmp_path / "run", plugins={"recurrent": Rows})
    assert result.ledger.rounds[-1].accepted


class Rows(Model):
    """Builds the recurrent module."""

    def build(self, facts: DataFacts) -> BoundModel:
        return ModuleModel(Recurrent)


@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_dropout_hidden_in_recurrent_and_attentive_layers_is_refused(kind: Any) -> None:
    with pytest.raises(OptionError, match="the module has a stochastic layer"):
        ModuleModel(lambda: kind(dropout=0.1))


class Noisy(Recurrent):
    """Draws random numbers in a way that no layer tells."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5))


class Counting(nn.Linear):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        calls = self.get_buffer("calls")
        calls += 1
        return super().forward(x)


@pytest.mark.parametrize(("kind", "why"), [(Noisy, "draws random numbers"), (Counting, "changes its buffers")])
def test_modules_that_remember_or_draw_are_refused_when_they_are_called(kind: type[nn.Module], why: str) -> None:
    bound = ModuleModel(kind)
    with pytest.raises(OptionError, match=why):
        bound.logits(gaussian(2, bound.layout.size), gaussian(3, 64))


def test_constant_buffers_are_allowed_and_random_ones_are_not() -> None:
    def build(buffer: Tensor) -> nn.Module:
        module = nn.Linear(64, 10)
        module.register_buffer("mask", buffer, persistent=False)
        return module

    ModuleModel(lambda: nn.Sequential(nn.Dropout(0.0), build(torch.ones(3))))
    with pytest.raises(OptionError, match="only constants can be buffers"):
        ModuleModel(lambda: build(torch.randn(3)))


def test_an_image_too_small_for_its_convolutions_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("it must be at least 16 pixels wide, found 8 x 8")) as caught:
        federation_of(tiny(model={"type": "cnn", "channels": [2, 2, 2, 2]}))
    assert caught.value.key == "model.channels"


@pytest.mark.parametrize(
    "model", [{"type": "mlp", "hidden": [8]}, {"type": "cnn", "channels": [3]}], ids=["mlp", "cnn"]
)
def test_networks_are_trained_and_voted_on_but_get_no_certificate_that_needs_convexity(
    model: dict[str, object], tmp_path: Path
) -> None:
    training = {"learning_rate": 0.5, "steps": 20, "batch_size": 16}
    config = tiny(model=model, training=training, attack="none", server={"clip_norm": 50.0, "noise_std": 0.01})
    result = crfl_core.run(config, out=tmp_path / "run")
    assert result.metrics.loss < np.log(10)
    assert re.match(r"softmax regression: found model '(mlp|cnn)'", result.metrics.refused["paper"])
    assert result.metrics.curves == ()
    assert not (result.path / "certificates").exists()
    (votes,) = (result.path / "votes").glob("*.npz")
    with np.load(votes, allow_pickle=False) as arrays:
        assert arrays["clean/counts"].sum(axis=1).tolist() == [64] * 60
    assert [record.start_operator_norm for record in result.ledger.rounds] == [None] * 4


class StuckModule(ModuleModel):
    """Cannot be trained."""

    def local_models(self, start: Tensor) -> LocalModels:
        raise ZeroDivisionError


class Stuck(Model):
    """Builds it."""

    def build(self, facts: DataFacts) -> BoundModel:
        return StuckModule(lambda: nn.Linear(facts.inputs, facts.classes))


def test_a_model_that_raises_is_named_not_the_engine_that_trained_it() -> None:
    federation = federation_of(tiny(model={"type": "stuck"}), {"stuck": Stuck})
    with pytest.raises(PluginFailure, match=r"model: 'stuck' of .this process. failed: ZeroDivisionError"):
        played(federation)


def test_a_module_that_memory_cannot_hold_is_counted_and_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """36 x 10^9 weights: two copies of it in single precision are 328 GB."""
    monkeypatch.setattr(resource_limits, "free_memory", lambda: resource_limits.Headroom(10**9, "as the test says"))
    found = (
        r"has 41,000,000,004 parameters, which need at least 328\.0 GB of memory, and 1\.0 GB are left \(as the test"
    )
    with pytest.raises(OptionError, match=found):
        Mlp(hidden=(10**9,)).build(FACTS)


def test_a_module_that_cannot_be_counted_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at its values as it is made, and without room for any nothing is refused."""
    monkeypatch.setattr(resource_limits, "free_memory", lambda: resource_limits.Headroom(0, "as the test says"))

    def made() -> nn.Module:
        layer = nn.Linear(36, 4)
        assert float(layer.weight.sum()) != 0
        return layer

    assert ModuleModel(made).layout.size == 148


@pytest.mark.parametrize("model", MODELS, ids=named)
@pytest.mark.parametrize("numbers", [1, 40, 5000, 2**26])
def test_logits_in_parts_are_those_of_all_samples(model: Model, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few numbers there is room for: some samples at a time, or even some models."""
    bound = model.build(FACTS)
    parameters, x = gaussian(5, bound.layout.size), gaussian(11, FACTS.inputs, seed=3)
    monkeypatch.setattr(kind, "ACTIVATIONS_AT_ONCE", numbers)
    parts = list(bound.logits_in_parts(parameters, x.float()))
    together = torch.cat([logits for _, logits in parts], dim=1)
    torch.testing.assert_close(together, bound.logits(parameters, x.float().double()), rtol=1e-12, atol=1e-12)
    assert [row for part, _ in parts for row in range(11)[part]] == list(range(11))
    torch.testing.assert_close(bound.count_votes(parameters, x).sum(1), torch.full((11,), 5))


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        (Softmax(), 1),
        (Mlp(hidden=(7, 5)), 36 + 2 * 7 + 2 * 5 + 4),
        # Images as they are, both convolutions, before and behind ReLU, and what pooling leaves; flat, and the logits.
        (Cnn(channels=(2, 3)), 36 + 36 + 2 * 2 * 36 + 2 * 9 + 2 * 3 * 9 + 3 * 1 + 3 + 4),
    ],
    ids=["softmax", "mlp", "cnn"],
)
def test_what_a_module_makes_of_a_sample_is_counted(model: Model, numbers: int) -> None:
    bound = model.build(FACTS)
    assert bound.numbers_per_sample(gaussian(3, FACTS.inputs)) == numbers
    assert bound.numbers_per_sample(gaussian(2, FACTS.inputs).float()) == numbers


def test_a_module_that_makes_much_of_a_sample_answers_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most as many numbers as there is room for, whatever the number of samples."""
    bound = Mlp(hidden=(7, 5)).build(FACTS)
    monkeypatch.setattr(kind, "ACTIVATIONS_AT_ONCE", 64 * 3 * 4)
    parts = [part for part, _ in bound.logits_in_parts(gaussian(3, bound.layout.size), gaussian(50, FACTS.inputs))]
    assert {part.stop - part.start for part in parts} == {4}
