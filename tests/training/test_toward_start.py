"""A start model that the server trains on its labelled samples, and weight decay that pulls toward the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_engines.stacked import stack_tasks
from sklearn.linear_model import LogisticRegression

import crfl_core
from crfl_core.extend import (
    Attack,
    ConfigError,
    FederatedData,
    PluginFailure,
    State,
    Streams,
    TrainingTask,
    open_job,
)
from crfl_core.records.array_bytes import digest_of
from crfl_core.runs.planned_ledger import check_certificates
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.runs.verification import recompute_run
from crfl_core.training import rounds
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.trusted_baseline import score_trusted_samples
from tests.oracle import Problem, batches, federation_of, played, sample_gradient, tiny


def pulled(**changes: Any) -> dict[str, Any]:
    """Nine groups of one client that start at the model of the server's 120 samples and are pulled toward it."""
    given = dict(changes)
    training = {"learning_rate": 0.3, "steps": 4, "batch_size": 12, "weight_decay": 0.1, "toward_start": True}
    return tiny(
        **{
            "dtype": "float64",
            "dataset": {"type": "digits", "train_samples": 400, "test_samples": 200},
            "partition": {"type": "iid", "clients": 9},
            "groups": {"count": 9},
            "model": {"type": "softmax", "start": "reserve"},
            "reserve": {"root": 80, "curator": 40, "weight_decay": 0.01},
            "training": training | given.pop("training", {}),
            "server": {"noise_std": 0.0, "clip_norm": 100.0},
            "attack": "none",
            "threat": {"clients": 1},
            "certificates": ["group-vote"],
        }
        | given
    )


def task_of(federation: Federation) -> TrainingTask:
    """The task of round 1 for models that are not the start."""
    groups = len(federation.participation.members)
    source = torch.Generator().manual_seed(3)
    starts = 0.1 * torch.randn(2, groups, federation.model.layout.size, generator=source, dtype=torch.float64)
    clients = federation.participation.participants(1)
    return TrainingTask(1, starts, clients, attacked=False, origins=federation.origins)


@pytest.mark.parametrize("algorithm", ["sgd", {"type": "fedprox", "mu": 0.3}])
@pytest.mark.parametrize("clip", [None, 0.8])
def test_decay_pulls_toward_the_start(algorithm: Any, clip: float | None) -> None:
    """Updates equal loops over clients and samples, with lambda (w - w_0) in every step."""
    training: dict[str, Any] = {"algorithm": algorithm} | ({} if clip is None else {"clip_gradients": clip})
    federation = federation_of(pulled(training=training))
    task = task_of(federation)
    trained = LocalTraining(federation).train(task, slice(0, 9)).updates
    origin = federation.start.parameters.numpy()
    assert np.linalg.norm(origin) > 0.5
    clients = federation.participation.participants(1)
    problem = Problem(
        x=federation.data.x.numpy(),
        y=federation.data.y.numpy(),
        classes=10,
        holdings=federation.data.partition,
        participants=[],
        rates=[0.3] * 9,
        steps=[4] * 9,
        batch_size=12,
        weight_decay=0.1,
        clip_norms=[],
        noise_stds=[],
        streams=federation.streams,
    )
    for place, client in enumerate(clients.ids.tolist()):
        for model in range(2):
            start = task.starts[model, place].numpy()
            local = start.copy()
            for batch in batches(problem, client, 1, 4):
                gradient = 0.1 * (local - origin)
                if algorithm != "sgd":
                    gradient = gradient + 0.3 * (local - start)
                for row in batch:
                    each = sample_gradient(problem, local, problem.x[row], int(problem.y[row]))
                    shortened = 1.0 if clip is None else min(1.0, clip / float(np.linalg.norm(each)))
                    gradient = gradient + shortened * each / len(batch)
                local = local - 0.3 * gradient
            np.testing.assert_allclose(trained[model, place].numpy(), local - start, rtol=0, atol=1e-12)


def test_toward_a_start_of_zeros_is_plain_decay() -> None:
    zeros = {"model": {"type": "softmax", "start": "zeros"}}
    one, other = (federation_of(pulled(**zeros, training={"toward_start": toward})) for toward in (True, False))
    trained = [LocalTraining(each).train(task_of(each), slice(0, 9)).updates for each in (one, other)]
    torch.testing.assert_close(*trained, rtol=0, atol=1e-13)


def test_a_strong_pull_keeps_models_at_the_start() -> None:
    def way(decay: float) -> float:
        training = {"weight_decay": decay, "learning_rate": 0.05, "steps": 20}
        federation = federation_of(pulled(training=training, groups="none", certificates=[]))
        last = played(federation)[-1].aggregate
        return float((last - federation.start.parameters).norm())

    weak, strong = way(0.01), way(15.0)
    assert strong < 0.2 * weak


class Shoving(Attack):
    """Doubles every step of its local training."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def local_gradient(
        self, gradient: torch.Tensor, parameters: torch.Tensor, start: torch.Tensor, state: State
    ) -> torch.Tensor:
        return 2.0 * gradient


def test_attackers_that_change_steps_are_pulled_as_well() -> None:
    """Their gradient holds the decay of the protocol, which they may change like the rest of it."""
    attack = {"type": "shoving", "clients": [3], "rounds": [1]}
    config = pulled(attack=attack, training={"steps": 1})
    federation = federation_of(config, {"shoving": Shoving})
    honest = federation_of(pulled(training={"steps": 1}))
    task = task_of(federation)
    attacked = TrainingTask(1, task.starts, task.clients, attacked=True, origins=federation.origins)
    one = LocalTraining(federation).train(attacked, slice(0, 9)).updates
    other = LocalTraining(honest).train(task, slice(0, 9)).updates
    factor = torch.where(torch.from_numpy(task.clients.ids == 3), 2.0, 1.0)[None, :, None]
    torch.testing.assert_close(one, factor * other, rtol=0, atol=1e-12)


def test_workers_and_stacks_are_told_where_decay_pulls_to() -> None:
    federation = federation_of(pulled())
    task = task_of(federation)
    job = LocalTraining(federation)
    expected = job.train(task, slice(0, 9)).updates
    again = open_job(job.specification).train(task, slice(0, 9)).updates
    assert torch.equal(again, expected)
    assert task.origins is not None
    one = TrainingTask(1, task.starts[:1], task.clients, attacked=False, origins=task.origins)
    other = TrainingTask(1, task.starts[1:], task.clients, attacked=False, origins=2.0 * task.origins)
    stacked = job.train(stack_tasks({0: one, 1: other}, 2, one), slice(0, 9)).updates
    for place, alone in enumerate((one, other)):
        torch.testing.assert_close(stacked[place], job.train(alone, slice(0, 9)).updates[0], rtol=0, atol=1e-12)
    lost = TrainingTask(1, task.starts, task.clients, attacked=False)
    with pytest.raises(PluginFailure, match=r"the engine must hand on TrainingTask\.origins"):
        job.train(lost, slice(0, 9))


def test_the_start_is_the_regression_on_the_labelled_reserve() -> None:
    """On those of root and curator; samples for validation score the run and stay unseen."""
    federation = federation_of(pulled(reserve={"root": 80, "curator": 40, "validation": 50, "weight_decay": 0.01}))
    kept = [federation.reserve[name] for name in ("root", "curator")]
    x = torch.cat([part.features for part in kept]).numpy()
    y = torch.cat([part.labels for part in kept]).numpy()
    inputs = np.hstack([x, np.ones((len(x), 1))])
    peer = LogisticRegression(C=1 / (0.01 * len(x)), fit_intercept=False, max_iter=10_000, tol=1e-12).fit(inputs, y)
    blocks = federation.model.layout.unflatten(federation.start.parameters)
    found = torch.cat([blocks["weight"], blocks["bias"][:, None]], dim=1).numpy()
    np.testing.assert_allclose(found, peer.coef_, rtol=0, atol=2e-3)
    score = score_trusted_samples(federation)
    assert score is not None
    assert score.samples == 170


def test_all_groups_start_there_and_the_ledger_has_its_digest() -> None:
    federation = federation_of(pulled())
    facts = federation.facts
    assert facts.start.kind == "reserve"
    assert facts.start.digest == digest_of(federation.start.parameters)
    for progress in rounds.initial_progress(federation):
        assert torch.equal(progress.models[0], federation.start.parameters)
    assert facts.reserve["root"].used_by == ("model.start",)
    assert facts.reserve["curator"].used_by == ("model.start",)


def test_no_client_reaches_the_start() -> None:
    """It follows from the reserve and the config alone: not from who holds what, nor from an attack."""
    first = federation_of(pulled()).start
    attack = {"type": "label-flip", "clients": [1, 2, 3], "rounds": [1, 2]}
    others = [
        pulled(attack=attack),
        pulled(partition={"type": "dirichlet", "clients": 5, "alpha": 0.3}, groups={"count": 5}),
        pulled(training={"steps": 9, "learning_rate": 0.01}),
    ]
    for config in others:
        assert federation_of(config).start.facts == first.facts
    assert federation_of(pulled(seeds={"data": 9})).start.facts != first.facts
    assert federation_of(pulled(reserve={"root": 80, "curator": 40})).start.facts != first.facts  # another penalty


def test_a_network_may_start_at_the_reserve() -> None:
    model = {"type": "mlp", "hidden": [8], "start": "reserve"}
    federation = federation_of(pulled(model=model))
    score = score_trusted_samples(federation)
    assert score is not None
    assert score.accuracy > 0.5
    assert federation.start.facts == federation_of(pulled(model=model)).start.facts


def test_a_run_declares_the_start_and_verification_trains_it_again(tmp_path: Path) -> None:
    run = crfl_core.run(pulled(), out=tmp_path / "run")
    assert not run.metrics.refused
    declared = {check.measured for check in run.audits[0].checks if check.status == "declared"}
    assert "reserve.root: 80 samples, used by model.start" in declared
    digest = run.ledger.facts.start.digest
    assert digest is not None
    text = f"start model ({digest:.12}) trained on labelled samples of the server, who is trusted"
    assert any(text in measured for measured in declared)
    assert not recompute_run(RunDirectory(run.path)).problems
    baseline = run.metrics.trusted_baseline
    assert baseline is not None
    federation = federation_of(pulled())
    chosen = federation.test_sets["clean"]
    logits = federation.model.logits(federation.start.parameters[None], chosen.features)[0]
    assert baseline.accuracy == pytest.approx(float((logits.argmax(1) == chosen.labels).double().mean()))


def test_groups_that_shrink_toward_the_start_withstand_more(tmp_path: Path) -> None:
    """Groups of one small client each vote alike near the trusted model, which no number of attackers changes."""
    few = {"dataset": {"type": "digits", "train_samples": 400}, "rounds": 8}
    shapes: dict[str, dict[str, Any]] = {
        "plain": {
            "training": {"toward_start": False, "weight_decay": 1e-3, "steps": 30},
            "model": {"type": "softmax"},
        },
        "pulled": {"training": {"weight_decay": 0.1, "steps": 30}},
    }
    shares = {}
    for name, changes in shapes.items():
        run = crfl_core.run(pulled(**few, evaluation={"radii": [1, 2, 4]}, **changes), out=tmp_path / name)
        curve = next(one for one in run.metrics.curves if one.test_set == "clean")
        shares[name] = np.array(curve.certified_accuracy)
    assert (shares["pulled"] > shares["plain"]).all()
    assert shares["pulled"][-1] > shares["plain"][-1] + 0.05


def test_no_certified_prediction_changes_when_clients_attack_pulled_groups(tmp_path: Path) -> None:
    run = crfl_core.run(pulled(), out=tmp_path / "clean")
    answer = next(one.guarantee for one in run.certified if one.test_set == "clean")
    reached = 0
    changed = 0
    for number, clients in enumerate([[0], [1, 5], [2, 3, 7], [0, 1, 2, 3]]):
        for kind in ("label-flip", "sign-flip"):
            attack = {"type": kind, "clients": clients, "rounds": [1, 2, 3, 4], "scale": 30.0}
            attacked = crfl_core.run(pulled(attack=attack), out=tmp_path / f"{kind}-{number}")
            prediction = next(one.guarantee for one in attacked.certified if one.test_set == "clean").prediction
            stands = answer.radius >= len(clients)
            assert (prediction == answer.prediction)[stands].all()
            reached += int(stands.sum())
            changed += int((prediction != answer.prediction).sum())
    assert reached > 200
    assert changed > 5  # or the attacks would show nothing


SENTENCE = "clients minimise the plain mean of their losses: found weight decay pulls toward the start model"


@pytest.mark.parametrize("certificate", ["paper", "pathwise-linear", "pathwise-smoothed", "tail", "postprocess"])
def test_certificates_of_one_model_refuse_before_round_1(certificate: Any) -> None:
    config = pulled(groups="none", threat={"clients": 1, "rounds": [2]}, certificates=[certificate])
    with pytest.raises(ConfigError, match="refuses every certificate, so nothing is trained") as stop:
        check_certificates(federation_of(config))
    assert SENTENCE in str(stop.value)
    assert "set training.toward_start = false, or use groups and the certificate 'group-vote'" in str(stop.value)


def test_what_cannot_be_is_refused_with_its_remedy() -> None:
    with pytest.raises(ConfigError, match=r"set reserve\.root or reserve\.curator to their number, such as 500"):
        federation_of(pulled(reserve={"validation": 50}))
    with pytest.raises(ConfigError, match=r"needs training\.weight_decay above 0, which is what pulls"):
        federation_of(pulled(training={"weight_decay": 0.0}))
    with pytest.raises(ConfigError, match=r"leave out training\.toward_start, or give a rate"):
        federation_of(pulled(groups="none", training={"learning_rate": {"type": "equal-influence"}}))


def test_a_reserve_of_what_clients_bring_refuses_the_vote(tmp_path: Path) -> None:
    """Its samples were clients' before, so one of them would reach every group through the start."""
    path = tmp_path / "split.npz"
    np.savez(path, client=np.arange(280) % 9)
    run = crfl_core.run(pulled(partition={"type": "file", "path": str(path)}), out=tmp_path / "run")
    assert "nothing crosses groups: found reserve.root is drawn from the samples of all clients" in str(
        run.metrics.refused
    )
