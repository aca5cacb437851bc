"""Every algorithm once more: float64, plain loops, one client and one sample at a time, written from the papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement

from crfl_core.extend import (
    BoundModel,
    FederatedData,
    LocalAlgorithm,
    LocalStep,
    PluginFailure,
    ProximalAlgorithm,
    State,
    StepDirection,
    Streams,
    TrainingTask,
)
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from tests.oracle import Problem, Vector, batches, federation_of, sample_gradient, tiny

TRAINING = {
    "learning_rate": 0.1,
    "steps": {"per_client": [1, 2, 3, 4, 5, 6, 7, 8]},
    "batch_size": 12,
    "weight_decay": 0.05,
}
Direct = Callable[[int, Vector, Vector], Vector]


def sgd() -> Direct:
    """The gradient itself."""
    return lambda number, gradient, moved: gradient


def proximal() -> Direct:
    """FedProx with mu = 0.3: `moved` is the way from the broadcast model."""
    return lambda number, gradient, moved: gradient + 0.3 * moved


def momentum() -> Direct:
    """Heavy ball with beta = 0.8."""
    velocity = [0.0 * np.zeros(1)]

    def direct(number: int, gradient: Vector, moved: Vector) -> Vector:
        velocity[0] = 0.8 * velocity[0] + gradient
        return np.asarray(velocity[0])

    return direct


def adam() -> Direct:
    """Algorithm 1 of Kingma & Ba, with betas 0.7 and 0.9."""
    gradients: list[Vector] = []

    def direct(number: int, gradient: Vector, moved: Vector) -> Vector:
        gradients.append(gradient)
        ages = np.arange(number - 1, -1, -1.0)[:, None]
        mean = (0.3 * 0.7**ages * np.array(gradients)).sum(0) / (1 - 0.7**number)
        square = (0.1 * 0.9**ages * np.array(gradients) ** 2).sum(0) / (1 - 0.9**number)
        return np.asarray(mean / (np.sqrt(square) + 1e-4))

    return direct


ALGORITHMS: dict[str, tuple[Any, Callable[[], Direct]]] = {
    "sgd": ("sgd", sgd),
    "fedprox": ({"type": "fedprox", "mu": 0.3}, proximal),
    "momentum": ({"type": "momentum", "beta": 0.8}, momentum),
    "adam": ({"type": "adam", "beta1": 0.7, "beta2": 0.9, "epsilon": 1e-4}, adam),
}


def alone(problem: Problem, start: Vector, client: int, direct: Direct, longest: float) -> Vector:
    """A client's update in round 1, every sample's gradient shortened to `longest`."""
    local = start.copy()
    for number, batch in enumerate(batches(problem, client, 1, problem.steps[client]), start=1):
        gradient = problem.weight_decay * local
        for row in batch:
            own = sample_gradient(problem, local, problem.x[row], int(problem.y[row]))
            gradient = gradient + own * min(1.0, longest / float(np.linalg.norm(own))) / len(batch)
        local = local - problem.rates[client] * direct(number, gradient, local - start)
    return local - start


def problem_of(federation: Federation) -> Problem:
    """The same for the loops below."""
    clients, data = federation.participation.participants(1), federation.data
    return Problem(
        x=data.x.numpy(),
        y=data.y.numpy(),
        classes=data.facts.classes,
        holdings=data.partition,
        participants=[],
        rates=clients.learning_rate.tolist(),
        steps=clients.steps.tolist(),
        batch_size=federation.config.training.batch_size,
        weight_decay=federation.config.training.weight_decay,
        clip_norms=[],
        noise_stds=[],
        streams=federation.streams,
    )


def starts_of(federation: Federation, models: int = 2) -> torch.Tensor:
    """Models to train from, (K, 1, P)."""
    source = torch.Generator().manual_seed(3)
    return 0.1 * torch.randn(models, 1, federation.model.layout.size, generator=source, dtype=torch.float64)


@pytest.mark.parametrize("clip", [None, 0.8])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_equals_loops_over_clients_and_samples(name: str, clip: float | None) -> None:
    """Clients make one to eight steps, from two models each; some of the gradients are longer than the clip."""
    table, make = ALGORITHMS[name]
    training = TRAINING | {"algorithm": table} | ({} if clip is None else {"clip_gradients": clip})
    federation = federation_of(tiny(dtype="float64", training=training, attack="none"))
    starts, problem = starts_of(federation), problem_of(federation)
    task = TrainingTask(1, starts, federation.participation.participants(1), attacked=False)
    found = LocalTraining(federation).train(task, slice(0, 8)).updates
    for model in range(2):
        for client in range(8):
            expected = alone(problem, starts[model, 0].numpy(), client, make(), np.inf if clip is None else clip)
            np.testing.assert_allclose(found[model, client].numpy(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_results_do_not_depend_on_who_is_trained_together(name: str) -> None:
    federation = federation_of(tiny(dtype="float64", training=TRAINING | {"algorithm": ALGORITHMS[name][0]}))
    task = TrainingTask(2, starts_of(federation, 1), federation.participation.participants(2), attacked=True)
    job = LocalTraining(federation)
    together = job.train(task, slice(0, 8)).updates
    parts = [job.train(task, slice(first, first + 3)).updates for first in (0, 3)] + [
        job.train(task, slice(6, 8)).updates
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), together, rtol=1e-12, atol=1e-13)


def test_attackers_that_bend_their_gradients_follow_the_algorithm_all_the_same() -> None:
    """An attack that bends nothing away trains like one that has nothing to bend."""
    attack = {"type": "constrain-and-scale", "clients": [0], "rounds": [1], "scale": 1.0, "alpha": 1.0}
    plain = {"type": "model-replacement", "clients": [0], "rounds": [1], "scale": 1.0}
    updates = []
    for chosen in (attack, plain):
        training = TRAINING | {"algorithm": "adam", "clip_gradients": 0.5}
        federation = federation_of(tiny(dtype="float64", training=training, attack=chosen))
        task = TrainingTask(1, starts_of(federation, 1), federation.participation.participants(1), attacked=True)
        updates.append(LocalTraining(federation).train(task, slice(0, 8)).updates)
    torch.testing.assert_close(updates[0], updates[1], rtol=1e-10, atol=1e-12)


class Keeping(ModelReplacement):
    """Remembers something, under a name that algorithms have as well, and bends nothing."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {**super().prepare(data, streams), "velocity": torch.ones(3)}

    def local_gradient(
        self, gradient: torch.Tensor, parameters: torch.Tensor, start: torch.Tensor, state: State
    ) -> torch.Tensor:
        assert state["velocity"].shape == (3,)
        return gradient


@pytest.mark.parametrize("algorithm", ["momentum", "adam"])
def test_what_attackers_remember_is_not_what_their_algorithm_remembers(algorithm: str) -> None:
    updates = []
    for name in ("keeping", "model-replacement"):
        attack = {"type": name, "clients": [5], "rounds": [1], "scale": 1.0}
        config = tiny(dtype="float64", training=TRAINING | {"algorithm": algorithm}, attack=attack)
        federation = federation_of(config, {"keeping": Keeping})
        task = TrainingTask(1, starts_of(federation, 1), federation.participation.participants(1), attacked=True)
        updates.append(LocalTraining(federation).train(task, slice(0, 8)).updates)
    torch.testing.assert_close(updates[0], updates[1], rtol=1e-10, atol=1e-12)


class Wandering(LocalAlgorithm):
    """Goes wherever it likes, in one wrong way each."""

    way: str

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        if self.way == "changes models":
            step.parameters.mul_(0.5)
        if self.way == "wrong shape":
            return StepDirection(step.gradient[..., 1:])
        if self.way == "wrong precision":
            return StepDirection(step.gradient.half())
        return StepDirection(step.gradient) if self.way == "changes models" else step.gradient  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("changes models", r"direction\(\).*changed what it was given: work on a copy"),
        ("wrong shape", r"must go somewhere in each of \(1, 8, 650\) of torch.float32, found \(1, 8, 649\)"),
        ("wrong precision", r"found \(1, 8, 650\) of torch.float16"),
        ("no direction", "must return a StepDirection, found Tensor"),
    ],
)
def test_what_an_algorithm_answers_is_checked(way: str, message: str) -> None:
    training = {"learning_rate": 0.1, "algorithm": {"type": "wandering", "way": way}}
    federation = federation_of(tiny(training=training), {"wandering": Wandering})
    task = TrainingTask(1, starts_of(federation, 1).float(), federation.participation.participants(1), attacked=False)
    with pytest.raises(PluginFailure, match=message):
        LocalTraining(federation).train(task, slice(0, 8))


class Repelling(ProximalAlgorithm):
    """Names a weight that none can be."""

    weight: float = -1.0

    def proximal_weight(self) -> float:
        return self.weight


def test_a_proximal_weight_below_zero_is_refused_before_training() -> None:
    with pytest.raises(PluginFailure, match=r"proximal_weight\(\) must be finite and at least 0, found -1"):
        federation_of(tiny(training={"algorithm": "repelling"}), {"repelling": Repelling})


def test_plain_steps_are_made_in_the_layout_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs what it asks for, and no more."""
    federation = federation_of(tiny(training={"learning_rate": 0.1}))
    task = TrainingTask(1, starts_of(federation, 1).float(), federation.participation.participants(1), attacked=False)

    def refuse(*_: object) -> None:
        raise AssertionError("flat gradients were asked for")

    monkeypatch.setattr(type(federation.model), "gradient", refuse)
    monkeypatch.setattr(BoundModel, "sample_gradients", refuse)
    assert bool(torch.isfinite(LocalTraining(federation).train(task, slice(0, 8)).updates).all())
