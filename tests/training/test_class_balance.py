"""Class balance: every class that a client holds has the same total weight in its loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import crfl_core
from crfl_core.extend import Attack, Batches, ConfigError, FederatedData, State, Streams, TrainingTask, open_job
from crfl_core.runs.planned_ledger import check_certificates
from crfl_core.training.batch_scaling import batch_spectra
from crfl_core.training.class_balance import ClassBalance
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining, draw_batches
from tests.oracle import Problem, Vector, batches, federation_of, played, sample_gradient, tiny

Labels = NDArray[np.int64]


def balanced(**changes: Any) -> dict[str, Any]:
    """Eight unequal clients with few classes each, trained on all of their samples in every step."""
    training = {"learning_rate": 0.3, "steps": 3, "batch_size": 1000, "weight_decay": 0.02, "class_balance": True}
    given = dict(changes)
    return tiny(
        **{
            "dtype": "float64",
            "partition": {"type": "dirichlet", "clients": 8, "alpha": 0.3},
            "training": training | given.pop("training", {}),
            "attack": "none",
            "certificates": [],
        }
        | given
    )


def task_of(federation: Federation, models: int = 2, *, attacked: bool = False) -> TrainingTask:
    """The task of round 1 for models that are not zero."""
    source = torch.Generator().manual_seed(3)
    starts = 0.1 * torch.randn(models, 1, federation.model.layout.size, generator=source, dtype=torch.float64)
    return TrainingTask(1, starts, federation.participation.participants(1), attacked=attacked)


def weights_by_definition(labels: Labels) -> NDArray[np.float64]:
    """The weight of each of a client's samples, 1 on average: equal totals for all classes that it holds."""
    classes = np.unique(labels)
    weights = np.zeros(len(labels))
    for label in classes:
        of_class = labels == label
        weights[of_class] = len(labels) / (len(classes) * of_class.sum())
    return weights


def problem_of(federation: Federation) -> Problem:
    """The same federation for plain loops."""
    clients = federation.participation.participants(1)
    return Problem(
        x=federation.data.x.numpy(),
        y=federation.data.y.numpy(),
        classes=federation.data.facts.classes,
        holdings=federation.data.partition,
        participants=[],
        rates=clients.learning_rate.tolist(),
        steps=clients.steps.tolist(),
        batch_size=federation.config.training.batch_size,
        weight_decay=federation.config.training.weight_decay,
        clip_norms=[],
        noise_stds=[],
        streams=federation.streams,
    )


Direct = Callable[[Vector, Vector], Vector]
DIRECTIONS: dict[str, tuple[Any, Callable[[], Direct]]] = {
    "sgd": ("sgd", lambda: lambda gradient, moved: gradient),
    "fedprox": ({"type": "fedprox", "mu": 0.3}, lambda: lambda gradient, moved: gradient + 0.3 * moved),
    "momentum": ({"type": "momentum", "beta": 0.8}, lambda: HeavyBall()),
}


class HeavyBall:
    """Momentum with beta = 0.8."""

    def __init__(self) -> None:
        self.velocity: Any = 0.0

    def __call__(self, gradient: Vector, moved: Vector) -> Vector:
        self.velocity = 0.8 * self.velocity + gradient
        return np.asarray(self.velocity)


@pytest.mark.parametrize("clip", [None, 0.8])
@pytest.mark.parametrize("batch_size", [12, 1000])
@pytest.mark.parametrize("name", DIRECTIONS)
def test_updates_equal_loops_over_weighted_samples(name: str, batch_size: int, clip: float | None) -> None:
    """Whatever the algorithm, on batches or on all samples, clipped or not, for clients of different sizes at once."""
    algorithm, new_direction = DIRECTIONS[name]
    training = {"algorithm": algorithm, "batch_size": batch_size, "clip_gradients": clip}
    federation = federation_of(balanced(training={key: one for key, one in training.items() if one is not None}))
    task = task_of(federation)
    trained = LocalTraining(federation).train(task, slice(0, 8)).updates
    problem = problem_of(federation)
    for client in range(8):
        own = federation.data.partition[client]
        weight = dict(zip(own.tolist(), weights_by_definition(problem.y[own]), strict=True))
        for model, start in enumerate(task.starts[:, 0].numpy()):
            direction = new_direction()
            local = start.copy()
            for batch in batches(problem, client, 1, problem.steps[client]):
                gradient = problem.weight_decay * local
                for row in batch:
                    each = sample_gradient(problem, local, problem.x[row], int(problem.y[row]))
                    shortened = 1.0 if clip is None else min(1.0, clip / float(np.linalg.norm(each)))
                    gradient = gradient + shortened * weight[int(row)] * each / len(batch)
                local = local - problem.rates[client] * direction(gradient, local - start)
            np.testing.assert_allclose(trained[model, client].numpy(), local - start, rtol=0, atol=1e-12)


def test_a_network_follows_the_mean_of_its_classes() -> None:
    """One step on all samples is along the mean over classes of the mean gradient of a class."""
    config = balanced(model={"type": "mlp", "hidden": [5]}, training={"steps": 1, "weight_decay": 0.0})
    federation = federation_of(config)
    task = task_of(federation, 1)
    trained = LocalTraining(federation).train(task, slice(0, 8)).updates[0]
    model = federation.new_model()
    for client in range(8):
        rows = torch.from_numpy(federation.data.partition[client])
        x, y = federation.features[rows], federation.data.y[rows]
        means = []
        for label in y.unique():
            chosen = y == label
            share = torch.full((1, int(chosen.sum())), 1.0 / int(chosen.sum()), dtype=torch.float64)
            means.append(model.gradient(task.starts, x[chosen][None], y[chosen][None], share)[0, 0])
        torch.testing.assert_close(trained[client], -0.3 * torch.stack(means).mean(0), rtol=0, atol=1e-12)


def test_batches_of_an_epoch_have_the_gradient_of_the_balanced_loss_on_average() -> None:
    """Weights follow from all samples of a client, not from those of its batch."""
    federation = federation_of(balanced(partition={"type": "iid", "clients": 5}, training={"batch_size": 12}))
    clients = federation.participation.participants(1)
    assert (clients.samples == 60).all()
    drawn = draw_batches(federation.data.partition, clients, np.full(5, 5), 1, federation.streams)
    rows, sizes = torch.from_numpy(drawn.rows), torch.from_numpy(drawn.sizes)
    labels = federation.data.y[rows]
    weights = ClassBalance(federation.data).sample_weights(clients.ids, labels, sizes, 0)
    assert (weights.sum(2) / 12 - 1).abs().max() > 0.05  # batches weigh more or less than 1
    model = federation.new_model()
    start = task_of(federation, 1).starts[0, 0].expand(1, 5, -1)
    by_batch = [
        model.gradient(start, federation.features[rows[:, step]], labels[:, step], weights[:, step] / 12)
        for step in range(5)
    ]
    for client in range(5):
        own = torch.from_numpy(federation.data.partition[client])
        share = torch.from_numpy(weights_by_definition(federation.data.y[own].numpy()))[None] / 60
        whole = model.gradient(start[:, :1], federation.features[own][None], federation.data.y[own][None], share)
        torch.testing.assert_close(torch.stack(by_batch).mean(0)[:, client], whole[:, 0], rtol=0, atol=1e-12)


def test_clients_train_together_as_they_train_alone() -> None:
    federation = federation_of(balanced(training={"batch_size": 12}))
    task = task_of(federation)
    together = LocalTraining(federation).train(task, slice(0, 8)).updates
    for client in range(8):
        alone = LocalTraining(federation).train(task, slice(client, client + 1)).updates[:, 0]
        torch.testing.assert_close(together[:, client], alone, rtol=0, atol=1e-12)


class Relabelling(Attack):
    """Gives all of its samples of even classes the label 1, and leaves the inputs alone."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, clean: Batches, state: State) -> Batches:
        return Batches(clean.x, torch.where(clean.y % 2 == 0, 1, clean.y), clean.sizes, clean.clients, clean.round)


def test_the_labels_of_attackers_are_data_of_their_own() -> None:
    """An attacker weighs its samples as the labels say that it gave them; honest clients beside it do not notice."""
    attack = {"type": "relabelling", "clients": [2, 5], "rounds": [1]}
    plugins = {"relabelling": Relabelling}
    federation = federation_of(balanced(attack=attack), plugins)
    task = task_of(federation, 1, attacked=True)
    trained = LocalTraining(federation).train(task, slice(0, 8)).updates[0]
    honest = LocalTraining(federation_of(balanced())).train(task_of(federation, 1), slice(0, 8)).updates[0]
    problem = problem_of(federation)
    for client in range(8):
        if client not in (2, 5):
            torch.testing.assert_close(trained[client], honest[client], rtol=0, atol=1e-12)
            continue
        own = federation.data.partition[client]
        labels = np.where(problem.y[own] % 2 == 0, 1, problem.y[own])
        assert len(np.unique(labels)) > 1
        assert not np.array_equal(labels, problem.y[own])
        weights = weights_by_definition(labels) / len(own)
        start = task.starts[0, 0].numpy()
        local = start.copy()
        for _ in range(3):
            each = [
                sample_gradient(problem, local, problem.x[row], label) for row, label in zip(own, labels, strict=True)
            ]
            local = local - 0.3 * (weights @ np.array(each) + 0.02 * local)
        np.testing.assert_allclose(trained[client].numpy(), local - start, rtol=0, atol=1e-12)


def test_the_spectrum_is_that_of_the_weighted_batch() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(3, 7, 4, generator=source, dtype=torch.float64)
    y = torch.randint(3, (3, 7), generator=source)
    weights = torch.rand(3, 7, generator=source, dtype=torch.float64)
    sizes = torch.tensor([7, 5, 2])
    spectra, starts = batch_spectra(x, y, sizes, 3, weights)
    for client, size in enumerate(sizes.tolist()):
        inputs = x[client, :size].numpy()
        shares = weights[client, :size].numpy() / size
        largest = np.linalg.eigvalsh(inputs.T @ (shares[:, None] * inputs))[-1]
        residuals = 1 / 3 - np.eye(3)[y[client, :size].numpy()]
        gradient = np.linalg.norm((shares[:, None] * residuals).T @ inputs)
        assert largest <= spectra[client] <= largest * (1 + 1e-10)
        assert gradient <= starts[client] <= gradient * (1 + 1e-10)


@pytest.mark.parametrize("batch_size", [12, 1000])
def test_scaled_batches_keep_their_curvature_at_the_limit(batch_size: int) -> None:
    """The factor of the spectrum rule is about the weighted batch, whether it is of all samples or of some."""
    model = {"type": "softmax", "bias": False}
    federation = federation_of(
        balanced(model=model, training={"batch_size": batch_size, "steps": 1, "weight_decay": 0.0, "spectrum": 2.0})
    )
    task = task_of(federation, 1)
    found = LocalTraining(federation).train(task, slice(0, 8))
    problem = problem_of(federation)
    for client in range(8):
        own = federation.data.partition[client]
        weight = dict(zip(own.tolist(), weights_by_definition(problem.y[own]), strict=True))
        (batch,) = batches(problem, client, 1, 1)
        shares = np.array([weight[int(row)] for row in batch]) / len(batch)
        inputs = problem.x[batch]
        largest = np.linalg.eigvalsh(inputs.T @ (shares[:, None] * inputs))[-1]
        assert found.measurements.spectrum[client] == pytest.approx(largest, rel=1e-9)
        factor = min(1.0, 2.0 / largest)
        start = task.starts[0, 0].numpy().reshape(10, -1)
        logits = inputs @ start.T
        residuals = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(10)[problem.y[batch]]
        step = -0.3 * factor * (shares[:, None] * residuals).T @ inputs
        np.testing.assert_allclose(found.updates[0, client].numpy(), step.ravel(), rtol=0, atol=1e-9)


def test_only_batches_of_all_samples_keep_the_bound_on_updates() -> None:
    """A batch of rare samples weighs more than 1, so no public number bounds the step along it."""
    whole = federation_of(balanced()).participation.participants(1).update_bound
    some = federation_of(balanced(training={"batch_size": 12})).participation.participants(1)
    plain = federation_of(balanced(training={"class_balance": False})).participation.participants(1).update_bound
    np.testing.assert_array_equal(whole, plain)
    np.testing.assert_array_equal(np.isinf(some.update_bound), some.samples > 12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch_size", [12, 1000])
def test_the_cap_leaves_honest_clients_alone(batch_size: int, dtype: str) -> None:
    """The server checks the bound on every honest update, and caps none where there is no bound."""
    config = balanced(
        dtype=dtype,
        model={"type": "softmax", "features": {"type": "unit-sphere"}},
        aggregation=[{"type": "update-cap", "bound": "known"}, {"type": "fedavg"}],
        partition={"type": "dirichlet", "clients": 8, "alpha": 0.1},
        training={"batch_size": batch_size, "steps": 6, "learning_rate": 1.0},
    )
    for line in played(federation_of(config)):
        rows = line.clients
        np.testing.assert_array_equal(np.isfinite(rows.cap), rows.batch_size == federation_of(config).facts.samples)
        assert (rows.residual_norm <= rows.cap * (1 + 1e-6)).all()
        np.testing.assert_allclose(rows.weight, rows.weight_bound, rtol=1e-6)


def test_workers_that_rebuild_the_training_weigh_alike() -> None:
    """Ray workers and Flower nodes get the specification alone."""
    federation = federation_of(balanced(training={"batch_size": 12}))
    job = LocalTraining(federation)
    task = task_of(federation)
    again = open_job(job.specification).train(task, slice(0, 8)).updates
    assert torch.equal(again, job.train(task, slice(0, 8)).updates)


def test_clients_of_one_class_and_padding_are_fine() -> None:
    shards = {"type": "shards", "clients": 8, "shards": 1}
    federation = federation_of(balanced(partition=shards, training={"batch_size": 7}))
    task = task_of(federation)
    trained = LocalTraining(federation).train(task, slice(0, 8)).updates
    assert torch.isfinite(trained).all()


SENTENCE = "clients minimise the plain mean of their losses: found samples are weighed by the counts of their classes"


@pytest.mark.parametrize("certificate", ["paper", "pathwise-linear", "pathwise-smoothed", "tail", "postprocess"])
def test_certificates_of_one_model_refuse_before_round_1(certificate: Any, tmp_path: Path) -> None:
    config = balanced(threat={"clients": 1, "rounds": [2]}, certificates=[certificate])
    with pytest.raises(ConfigError, match="refuses every certificate, so nothing is trained") as stop:
        check_certificates(federation_of(config))
    assert SENTENCE in str(stop.value)
    assert "set training.class_balance = false, or use groups and the certificate 'group-vote'" in str(stop.value)
    if certificate != "tail":  # whose many continuations take their time
        (refused,) = crfl_core.run(config, out=tmp_path / "run").metrics.refused.values()
        assert SENTENCE in refused


def test_rules_that_only_these_certificates_need_are_refused() -> None:
    model = {"type": "softmax", "bias": False, "features": {"type": "unit-ball"}}
    ball = {"spectrum": 0.5, "ball": 0.1, "weight_decay": 0.1}
    with pytest.raises(ConfigError, match=r"leave out training\.class_balance"):
        federation_of(balanced(model=model, training=ball, server={"noise_std": 0.0, "clip_norm": 4.0}))
    with pytest.raises(ConfigError, match=r"leave out training\.class_balance, or give a rate"):
        federation_of(balanced(training={"learning_rate": {"type": "equal-influence"}}))


def test_groups_that_would_certify_themselves_count_as_one_client(tmp_path: Path) -> None:
    """Their own certificates refuse, so `refine` adds nothing and its forward reading is refused."""
    both = [{"type": "group-vote", "name": "no"}, {"type": "group-vote", "name": "yes", "refine": True}]
    threat = {"clients": 1, "rounds": [1], "poison": "update"}
    run = crfl_core.run(balanced(groups={"count": 3}, threat=threat, certificates=both), out=tmp_path / "run")
    assert not run.metrics.refused
    radii = {one.certificate: one.guarantee.radius for one in run.certified if one.test_set == "clean"}
    np.testing.assert_array_equal(radii["yes"], radii["no"])
    directions = {one.certificate: one.directions for one in run.certified}
    assert directions == {"no": ("backward", "forward"), "yes": ("backward",)}


def skewed(seed: int, alpha: float, *, balance: bool) -> dict[str, Any]:
    """Twenty groups of one client each, whose classes a Dirichlet distribution draws."""
    return {
        "seed": seed,
        "rounds": 5,
        "partition": {"type": "dirichlet", "clients": 20, "alpha": alpha},
        "training": {"learning_rate": 2.0, "steps": 50, "batch_size": 16, "weight_decay": 1e-4}
        | {"class_balance": balance},
        "server": {"noise_std": 0.0, "clip_norm": 1000.0},
        "groups": {"count": 20},
        "engine": {"type": "local", "threads": 1},
        "storage": {"figures": []},
        "evaluation": {"every": 0, "radii": [0, 1, 2, 3, 5]},
        "certificates": ["group-vote"],
    }


@pytest.mark.parametrize(("alpha", "least"), [(0.1, 0.025), (0.3, 0.02)])
def test_balanced_groups_of_skewed_clients_certify_more(alpha: float, least: float, tmp_path: Path) -> None:
    """The mean gain of two seeds against 1 and 2 of 20 clients, measured as .038 and .028."""
    gains = []
    for seed in range(2):
        curves = []
        for balance in (False, True):
            run = crfl_core.run(skewed(seed, alpha, balance=balance), out=tmp_path / f"{seed}-{balance}")
            curves.append(next(one.certified_accuracy for one in run.metrics.curves if one.test_set == "clean"))
        plain, better = map(np.array, curves)
        gains.append((better - plain)[1:3])
    assert np.mean(gains) > least


def test_no_certified_prediction_changes_when_clients_attack_balanced_groups(tmp_path: Path) -> None:
    """In every round, by their labels, their updates or both."""
    config = balanced(
        dataset={"type": "digits", "train_samples": 300, "test_samples": 200},
        partition={"type": "dirichlet", "clients": 9, "alpha": 0.4},
        groups={"count": 9},
        training={"learning_rate": 1.0, "steps": 20, "batch_size": 16},
        server={"noise_std": 0.0, "clip_norm": 100.0},
        threat={"clients": 1},
        certificates=["group-vote"],
    )
    run = crfl_core.run(config, out=tmp_path / "clean")
    answer = next(one.guarantee for one in run.certified if one.test_set == "clean")
    plugins = {"relabelling": Relabelling}
    reached = 0
    changed = 0
    attacks = {"labels": ("relabelling", 1.0), "both": ("relabelling", 30.0), "updates": ("sign-flip", 30.0)}
    for number, clients in enumerate([[0], [1, 5], [2, 3, 7], [0, 1, 2, 3]]):
        for name, (kind, scale) in attacks.items():
            attack = {"type": kind, "clients": clients, "rounds": [1, 2, 3, 4], "scale": scale}
            attacked = crfl_core.run(config | {"attack": attack}, out=tmp_path / f"{name}-{number}", plugins=plugins)
            prediction = next(one.guarantee for one in attacked.certified if one.test_set == "clean").prediction
            stands = answer.radius >= len(clients)
            assert (prediction == answer.prediction)[stands].all()
            reached += int(stands.sum())
            changed += int((prediction != answer.prediction).sum())
    assert reached > 200
    assert changed > 20  # or the attacks would show nothing
