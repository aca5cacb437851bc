"""Batches are multiplied by what their spectrum says: plain loops, 30 digits, and what a config may ask for."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core import run
from crfl_core.extend import Attack, Batches, ConfigError, CrflWarning, FederatedData, State, Streams, TrainingTask
from crfl_core.training import batch_scaling, local_training
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from tests.certificates.federations import small
from tests.certificates.worlds import federation_of

Array = NDArray[np.float64]


class Brighter(Attack):
    """Replaces the first samples of every batch by one input, which has another spectrum."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        x, y = batches.x.clone(), batches.y.clone()
        x[:, :, :3] = 1.0
        y[:, :, :3] = 2
        return replace(batches, x=x, y=y)


def config(**training: Any) -> dict[str, Any]:
    """Clients of unequal size, one of whom poisons its data; batches of which the last ones are short."""
    usual = {"learning_rate": 0.8, "steps": 5, "batch_size": 16, "weight_decay": 0.5, "spectrum": 0.6}
    return small(
        partition={"type": "dirichlet", "alpha": 2.0, "clients": 5},
        model={"type": "softmax", "bias": False, "features": "unit-sphere"},
        training=usual | training,
        server={"clip_norm": 4.0, "noise_std": 0.0, "cap_updates": False},
        attack={"type": "brighter", "clients": [1], "rounds": [1]},
    )


def built(**training: Any) -> Federation:
    return federation_of(config(**training), {"brighter": Brighter})


def looped(federation: Federation, start: Array, client: int) -> tuple[Array, list[float], list[float], list[float]]:
    """A client's update by plain loops, with L_s, F_s and factor of every batch; eigenvalues by singular values."""
    settings, classes = federation.config.training, federation.data.facts.classes
    clients = federation.participation.participants(1)
    drawn = local_training.draw_batches(
        federation.data.partition,
        clients.take(slice(client, client + 1)),
        clients.steps[[client]],
        1,
        federation.streams,
    )
    inputs, labels = federation.data.x.double().numpy(), federation.data.y.numpy()
    w, spectra, starts, factors = start.reshape(classes, -1).copy(), [], [], []
    for rows, size in zip(drawn.rows[0], drawn.sizes[0], strict=True):
        x, y = inputs[rows[:size]].copy(), labels[rows[:size]].copy()
        if client == 1:
            x[:3], y[:3] = 1.0, 2
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        onehot = np.eye(classes)[y]
        spectra.append(float(np.linalg.svd(x, compute_uv=False)[0] ** 2 / size))
        starts.append(float(np.linalg.norm((1 / classes - onehot).T @ x) / size))
        assert settings.spectrum is not None
        factor = min(1.0, settings.spectrum / spectra[-1])
        if settings.ball is not None:
            factor = min(factor, settings.ball / starts[-1])
        factors.append(factor)
        z = np.exp(x @ w.T - (x @ w.T).max(1, keepdims=True))
        gradient = (z / z.sum(1, keepdims=True) - onehot).T @ x / size
        w = w - settings.learning_rate * (factor * gradient + settings.weight_decay * w)
    return w.ravel() - start, spectra, starts, factors


@pytest.mark.parametrize("batch_size", [16, 1000], ids=["mini-batches", "all samples"])
@pytest.mark.parametrize("ball", [None, 0.2], ids=["spectrum", "ball"])
def test_updates_and_columns_are_those_of_plain_loops(batch_size: int, ball: float | None) -> None:
    federation = built(batch_size=batch_size, **({} if ball is None else {"ball": ball}))
    clients = federation.participation.participants(1)
    size = federation.model.layout.size
    start = torch.randn(1, 1, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 0.05
    trained = LocalTraining(federation).train(TrainingTask(1, start, clients, attacked=True), slice(0, 5))
    measured = trained.measurements
    for client in range(5):
        update, spectra, starts, factors = looped(federation, start[0, 0].numpy(), client)
        np.testing.assert_allclose(trained.updates[0, client].numpy(), update, rtol=1e-9, atol=1e-12)
        assert measured.spectrum[client] == pytest.approx(max(spectra), rel=1e-9)
        assert measured.start_gradient[client] == pytest.approx(max(starts), rel=1e-9)
        assert measured.batch_factor[client] == pytest.approx(min(factors), rel=1e-9)
        assert measured.scaled_batches[client] == sum(factor < 1 for factor in factors)
    assert measured.scaled_batches.sum() > 0


@pytest.mark.parametrize("shape", [(3, 7), (9, 4)])
def test_spectra_are_not_below_those_of_thirty_digits(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y, sizes = torch.zeros(4, shape[0], dtype=torch.int64), torch.tensor([shape[0], 2, 1, 0])
    spectra, _ = batch_scaling.batch_spectra(x, y, sizes, 3)
    for batch, count, found in zip(x, sizes.tolist(), spectra.tolist(), strict=True):
        with mpmath.workdps(40):
            rows = mpmath.matrix(batch[:count].tolist()) if count else mpmath.matrix(1, shape[1])
            exact = max(mpmath.eigsy(rows.T * rows, eigvals_only=True)) / max(1, count)
            assert exact <= found <= exact * (1 + mpmath.mpf("1e-11"))
    assert spectra[3] == 0.0
    np.testing.assert_allclose(spectra[0], formulas.batch_spectrum(x[0].numpy()), rtol=1e-12)
    monkeypatch.setattr(batch_scaling, "BATCH_NUMBERS_AT_ONCE", 1)  # one batch at a time
    torch.testing.assert_close(batch_scaling.batch_spectra(x, y, sizes, 3)[0], spectra, rtol=1e-13, atol=0.0)


def test_a_client_that_always_trains_on_everything_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, calls, measured = built(batch_size=1000, steps=4), [], batch_scaling.batch_spectra

    def counted(
        x: torch.Tensor, y: torch.Tensor, sizes: torch.Tensor, classes: int, weights: torch.Tensor | None
    ) -> batch_scaling.Measured:
        calls.append(len(x))
        return measured(x, y, sizes, classes, weights)

    monkeypatch.setattr(batch_scaling, "batch_spectra", counted)
    clients, training = federation.participation.participants(1), LocalTraining(federation)
    start = torch.zeros(1, 1, federation.model.layout.size, dtype=torch.float64)
    for _ in range(3):
        training.train(TrainingTask(2, start, clients, attacked=False), slice(0, 5))
    assert calls == [1] * 5


def test_replicas_share_their_factors() -> None:
    federation = built()
    clients, training = federation.participation.participants(2), LocalTraining(federation)
    starts = torch.randn(3, 1, federation.model.layout.size, dtype=torch.float64)
    together = training.train(TrainingTask(2, starts, clients, attacked=False), slice(0, 5))
    for start, updates in zip(starts, together.updates, strict=True):
        alone = training.train(TrainingTask(2, start[None], clients, attacked=False), slice(0, 5))
        torch.testing.assert_close(alone.updates[0], updates, rtol=1e-10, atol=1e-13)
        np.testing.assert_array_equal(alone.measurements.spectrum, together.measurements.spectrum)


def test_the_update_bound_is_that_of_the_rule() -> None:
    clients = built(weight_decay=0.0).participation.participants(1)
    np.testing.assert_allclose(clients.update_bound, 0.8 * 5 * np.sqrt(2 * 0.6))
    federation = built(ball=0.2)
    kappa = formulas.ball_gradient_bound(0.2, 0.6, 0.5, 1.0, classes=10)
    assert federation.honest.gradient_bound == pytest.approx(float(kappa), rel=2e-6)
    assert federation.honest.gradient_bound > kappa


MODEL = {"type": "softmax", "bias": False, "features": "unit-sphere"}


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"model": MODEL | {"bias": True}}, "training.spectrum", "a bias is a constant input of 1.*model.bias = false"),
        ({"model": {"type": "mlp", "hidden": [4]}}, "training.spectrum", "proved for softmax regression alone"),
        ({"training": {"ball": 0.2, "weight_decay": 0.5}}, "training.ball", "needs training.spectrum"),
        ({"training": {"ball": 0.2, "spectrum": 0.5}}, "training.ball", "needs training.weight_decay"),
        ({"server": {"noise_std": 0.01}}, "training.ball", "without training noise.*server.noise_std = 0"),
        ({"aggregation": ["krum"]}, "training.ball", "rule with fixed weights: remove 'krum'"),
        ({"server": {"noise_std": 0.0, "optimiser": "momentum"}}, "training.ball", "plain step of the server"),
        (
            {"model": MODEL | {"features": []}, "dataset": "standardised"},
            "training.ball",
            "bound on the norm of inputs",
        ),
        (
            {"training": {"spectrum": 0.6, "ball": 0.2, "weight_decay": 0.01}},
            "training.ball",
            "gains nothing here: .* leave it out, raise training.weight_decay",
        ),
        (
            {"training": {"spectrum": 0.6, "ball": 0.2, "weight_decay": 0.5, "clip_gradients": 1.0}},
            "training.ball",
            "needs plain SGD",
        ),
        ({"training": {"spectrum": -0.6}}, "training.spectrum", "greater than 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(changes: dict[str, Any], key: str, message: str) -> None:
    changed = config(ball=0.2) | {"attack": "none"} | changes
    if changed["dataset"] == "standardised":
        changed["dataset"] = {"type": "cached-digits", "scaling": "standardise"}
    with pytest.raises(ConfigError, match=message) as caught:
        federation_of(changed)
    assert caught.value.key == key or f"{key}" in str(caught.value)


def test_a_limit_that_scales_most_batches_is_warned_of_with_the_one_that_would_not(tmp_path: Path) -> None:
    settings = config(spectrum=0.2) | {"attack": "none", "dataset": {"type": "digits", "train_samples": 200}}
    with pytest.warns(CrflWarning, match=r"scales most batches.*L = 0\.2: 100 of 100 honest batches.*; L = 1 would"):
        run(settings, out=tmp_path / "one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(settings | {"training": settings["training"] | {"spectrum": 1.1}}, out=tmp_path / "two")
    assert not result.ledger.clients.scaled_batches.any()
    assert (result.ledger.clients.spectrum > 0.5).all()
