"""Gradients that are clipped sample by sample, which gives the updates of any model a bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from crfl_core import run
from crfl_core.extend import BoundModel, ConfigError, LinearModel, ModuleModel, PluginFailure
from crfl_core.training import local_steps
from crfl_core.training.local_steps import clipped_gradient
from tests.oracle import federation_of, played, tiny

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def problem_for(model: BoundModel) -> Tensors:
    """Two models of three clients, batches of four of which one is padding."""
    source = torch.Generator().manual_seed(1)
    parameters = torch.randn(2, 3, model.layout.size, generator=source, dtype=torch.float64)
    x = 2.0 * torch.randn(3, 4, 6, generator=source, dtype=torch.float64)
    y = torch.randint(3, (3, 4), generator=source)
    weights = torch.tensor([[0.25] * 4, [0.5, 0.5, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3, 0.0]], dtype=torch.float64)
    return parameters, x, y, weights


def looped(model: BoundModel, problem: Tensors, longest: float) -> torch.Tensor:
    """One sample after the other."""
    parameters, x, y, weights = problem
    total = torch.zeros_like(parameters)
    for replica in range(2):
        for client in range(3):
            for sample in range(4):
                one = parameters[replica, client].clone().requires_grad_()
                logits = model.logits(one[None], x[client, sample][None])[0]
                if not logits.requires_grad:  # a module's logits are for votes: without gradients
                    layout = model.layout.unflatten(one)
                    logits = torch.func.functional_call(network().double(), layout, (x[client, sample][None],))
                loss = nn.functional.cross_entropy(logits, y[client, sample][None])
                (gradient,) = torch.autograd.grad(loss, one)
                factor = min(1.0, longest / float(gradient.norm()))
                total[replica, client] += weights[client, sample] * factor * gradient
    return total


@pytest.mark.parametrize("model", [LinearModel(6, 3, bias=True), LinearModel(6, 3, bias=False), ModuleModel(network)])
@pytest.mark.parametrize("longest", [0.3, 2.0, 1e9])
def test_every_sample_is_clipped_by_itself(model: BoundModel, longest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_for(model)
    expected = looped(model, problem, longest)
    for at_once in (1, 2**24):  # one sample at a time, and all of them
        monkeypatch.setattr(local_steps, "GRADIENT_NUMBERS_AT_ONCE", at_once)
        found = clipped_gradient(model, problem, longest)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert float(found.norm(dim=-1).max()) <= longest * (1 + 1e-12)
    generic = BoundModel.sample_gradients(model, *problem[:3])
    torch.testing.assert_close((problem[3][:, :, None] * generic).sum(2), model.gradient(*problem))


def test_a_model_that_gives_gradients_of_another_shape_is_named() -> None:
    class Short(ModuleModel):
        def sample_gradients(self, parameters: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return super().sample_gradients(parameters, x, y)[..., 1:]

    with pytest.raises(PluginFailure, match=r"sample_gradients\(\) must return \(2, 3, 4, 53\), found \(2, 3, 4, 52\)"):
        clipped_gradient(Short(network), problem_for(Short(network)), 1.0)


@pytest.mark.parametrize("algorithm", ["sgd", {"type": "fedprox", "mu": 0.2}])
@pytest.mark.parametrize("model", [{"type": "mlp", "hidden": [8]}, {"type": "softmax"}])
def test_updates_of_any_model_keep_the_bound(model: dict[str, Any], algorithm: Any) -> None:
    """`u = -(1 - c) w + r` with `||r|| <= C (1 - a^tau) / (lambda + mu)`, as the ledger measured it."""
    training = {"learning_rate": 0.5, "steps": 4, "clip_gradients": 0.2, "weight_decay": 0.1, "algorithm": algorithm}
    federation = federation_of(tiny(model=model, training=training, attack="none", dtype="float64"))
    pull = 0.1 if algorithm == "sgd" else 0.3
    bound = 0.2 * (1 - (1 - 0.5 * pull) ** 4) / pull
    for one in played(federation):
        np.testing.assert_allclose(one.clients.update_bound, bound)
        assert (one.clients.residual_norm <= bound * (1 + 1e-9)).all()
        assert one.clients.residual_norm.max() > 0.3 * bound


def test_a_bound_of_the_model_that_is_smaller_stays() -> None:
    ball = {"type": "softmax", "bias": False, "features": "unit-ball"}
    for clip, expected in ((0.5, 0.5), (99.0, 2**0.5)):
        training = {"learning_rate": 1.0, "steps": 1, "clip_gradients": clip}
        clients = federation_of(tiny(model=ball, training=training)).participation.participants(1)
        np.testing.assert_allclose(clients.update_bound, expected)


def test_other_algorithms_have_no_bound_even_with_clipped_gradients() -> None:
    training = {"learning_rate": 0.1, "clip_gradients": 0.5, "algorithm": "momentum", "weight_decay": 0.1}
    clients = federation_of(tiny(training=training)).participation.participants(1)
    assert np.isinf(clients.update_bound).all()
    assert (clients.retention == 1.0).all()


@pytest.mark.parametrize("model", [{"type": "mlp", "hidden": [6]}, {"type": "cnn", "channels": [2, 3]}])
def test_networks_are_certified_at_the_client_level_without_a_cap_of_their_own(
    model: dict[str, Any], tmp_path: Path
) -> None:
    """The cap is put in by itself, no honest client notices it, and `postprocess` counts clients."""
    config = tiny(
        model=model,
        rounds=2,
        attack="none",
        dtype="float64",
        partition={"type": "iid", "clients": 60},
        training={"learning_rate": 0.1, "steps": 1, "clip_gradients": 0.5},
        server={"clip_norm": 20.0, "noise_std": 0.05},
        certificates=[{"type": "postprocess", "levels": ["client"], "continuations": 80, "selection": 20}],
        threat={"poison": "update", "clients": 1, "rounds": [2]},
    )
    result = run(config, out=tmp_path / "run")
    assert not result.metrics.refused
    assert result.config.aggregation[0].configured_as == "update-cap"
    np.testing.assert_allclose(result.ledger.clients.cap, 0.1 * 0.5)
    (certified,) = result.certified
    assert float(np.nanmax(certified.guarantee.radius)) >= 5  # 60 clients, each worth 2 * 0.05 / 60


def test_a_clip_of_zero_is_no_clip() -> None:
    with pytest.raises(ConfigError, match=r"training\.clip_gradients = 0\.0: must be greater than 0"):
        federation_of(tiny(training={"clip_gradients": 0.0}))
