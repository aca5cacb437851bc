"""Algorithm 1: the batched rounds against the oracle's plain loops, and what must not change a result."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crfl_core
from crfl_core.extend import Data, Dataset, Domain, TrainingTask
from crfl_core.training import rounds
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from tests.oracle import Backdoor, Problem, Vector, Veto, algorithm_1, federation_of, played, tiny

PATTERN = np.zeros(64)
PATTERN[[0, 1, 8, 9]] = 0.5
"""The default trigger: four pixels in the top left corner, of norm 1."""


def problem_of(federation: Federation, backdoor: Backdoor | None, **known: Any) -> Problem:
    """The oracle's view of a federation. What a config says is repeated by hand in `known`."""
    config, total = federation.config, federation.config.rounds
    drawn = max(1, round(config.training.participation * federation.data.clients))
    return Problem(
        x=federation.data.x.numpy(),
        y=federation.data.y.numpy(),
        classes=10,
        holdings=federation.data.partition,
        participants=[
            np.sort(
                federation.streams.generator("participation", round_number=number).choice(
                    federation.data.clients, drawn, replace=False
                )
            ).tolist()
            for number in range(1, total + 1)
        ],
        streams=federation.streams,
        backdoor=backdoor,
        **known,
    )


def assert_same_models(federation: Federation, expected: list[Vector]) -> None:
    """Every round's model, the noisy and the final one, to ten digits."""
    found = [outcome.parameters.numpy() for outcome in played(federation)]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_several_rounds_with_everything_at_once_equal_the_oracle() -> None:
    """Attack, weight decay, both kinds of schedule, unequal clients, half of them in a round, different rates."""
    rates, steps = [0.05 * (client + 1) for client in range(8)], [3, 7, 1, 4, 2, 9, 5, 6]
    federation = federation_of(
        tiny(
            dtype="float64",
            rounds=5,
            training={
                "learning_rate": {"per_client": rates},
                "steps": {"per_client": steps},
                "batch_size": 24,
                "weight_decay": 0.01,
                "participation": 0.5,
            },
            server={"clip_norm": {"start": 0.5, "slope": 0.25}, "noise_std": [0.01, 0.03, 0.02, 0.04, 0.05]},
            attack={
                "type": "model-replacement",
                "clients": [0, 3, 6],
                "rounds": {"first": 2, "every": 2},
                "scale": 4.0,
                "poisoned_per_batch": 3,
                "target": 7,
            },
        )
    )
    problem = problem_of(
        federation,
        Backdoor((0, 3, 6), (2, 4), per_batch=3, target=7, pattern=PATTERN, scale=4.0),
        rates=rates,
        steps=steps,
        batch_size=24,
        weight_decay=0.01,
        clip_norms=[0.75, 1.0, 1.25, 1.5, 1.75],
        noise_stds=[0.01, 0.03, 0.02, 0.04, 0.05],
    )
    assert min(len(rows) for rows in federation.data.partition) < 24  # a client has less than a batch
    assert_same_models(federation, algorithm_1(problem))


def test_epochs_with_a_feature_map_equal_the_oracle() -> None:
    features = {"type": "unit-ball", "radius": 2.5}
    federation = federation_of(
        tiny(
            dtype="float64",
            rounds=3,
            model={"type": "softmax", "features": features},
            training={"learning_rate": 0.7, "epochs": 2, "batch_size": 10},
            server={"clip_norm": 1.0, "noise_std": 0.1},
        )
    )
    problem = problem_of(
        federation,
        Backdoor((0,), (2,), per_batch=3, target=0, pattern=PATTERN, scale=3.0),
        rates=[0.7] * 8,
        steps=[2 * -(-len(rows) // min(10, len(rows))) for rows in federation.data.partition],
        batch_size=10,
        weight_decay=0.0,
        clip_norms=[1.0] * 3,
        noise_stds=[0.1] * 3,
        ball_radius=2.5,
    )
    assert_same_models(federation, algorithm_1(problem))


@settings(deadline=None, max_examples=6)
@given(
    seed=st.integers(0, 1000),
    batch_size=st.integers(2, 40),
    weight_decay=st.sampled_from([0.0, 0.1]),
    participation=st.sampled_from([0.3, 1.0]),
    rho=st.floats(0.2, 3.0),
)
def test_honest_rounds_equal_the_oracle_for_any_settings(
    seed: int, batch_size: int, weight_decay: float, participation: float, rho: float
) -> None:
    federation = federation_of(
        tiny(
            seed=seed,
            rounds=2,
            dtype="float64",
            attack="none",
            dataset={"type": "digits", "train_samples": 120, "test_samples": 10},
            partition={"type": "iid", "clients": 5},
            training={
                "learning_rate": 0.3,
                "steps": 3,
                "batch_size": batch_size,
                "weight_decay": weight_decay,
                "participation": participation,
            },
            server={"clip_norm": rho, "noise_std": 0.05},
        )
    )
    problem = problem_of(
        federation,
        None,
        rates=[0.3] * 5,
        steps=[3] * 5,
        batch_size=batch_size,
        weight_decay=weight_decay,
        clip_norms=[rho] * 2,
        noise_stds=[0.05] * 2,
    )
    assert_same_models(federation, algorithm_1(problem))


def test_attackers_may_train_longer_and_faster_than_honest_clients() -> None:
    attack = tiny()["attack"] | {"clients": [1], "learning_rate": 0.4, "steps": 11}
    federation = federation_of(tiny(dtype="float64", attack=attack))
    problem = problem_of(
        federation,
        Backdoor((1,), (2,), per_batch=3, target=0, pattern=PATTERN, scale=3.0, rate=0.4, steps=11),
        rates=[0.2] * 8,
        steps=[5] * 8,
        batch_size=16,
        weight_decay=0.0,
        clip_norms=[4.0] * 4,
        noise_stds=[0.02] * 4,
    )
    assert_same_models(federation, algorithm_1(problem))


def test_the_final_round_is_only_clipped() -> None:
    config = tiny(server={"clip_norm": 0.5, "noise_std": 1.0})
    outcomes = played(federation_of(config))
    norms = [float(torch.linalg.vector_norm(outcome.parameters)) for outcome in outcomes]
    assert min(norms[:-1]) > 10.0  # 650 parameters with noise 1
    assert norms[-1] == pytest.approx(0.5, rel=1e-6)
    assert [outcome.record.noise_std for outcome in outcomes] == [1.0, 1.0, 1.0, 0.0]


def test_without_noise_every_broadcast_model_lies_in_the_ball() -> None:
    """The whole vector is clipped, weights and bias together."""
    outcomes = played(federation_of(tiny(server={"clip_norm": [0.2, 0.4, 0.1, 0.3], "noise_std": 0.0})))
    norms = [float(torch.linalg.vector_norm(outcome.parameters)) for outcome in outcomes]
    assert norms == pytest.approx([0.2, 0.4, 0.1, 0.3], rel=1e-6)
    assert min(outcome.record.norm_before_clip - outcome.record.clip_norm for outcome in outcomes) > 0


def task_of(federation: Federation, count: int) -> TrainingTask:
    """The second round, which is attacked, from several models."""
    starts = torch.from_numpy(np.random.default_rng(0).standard_normal((count, 1, federation.facts.parameters)))
    return TrainingTask(2, starts.to(federation.dtype) * 0.1, federation.participation.participants(2), attacked=True)


@pytest.mark.parametrize("model", [{"type": "softmax"}, {"type": "mlp", "hidden": [6]}], ids=["softmax", "mlp"])
def test_training_three_replicas_equals_training_each_alone(model: dict[str, Any]) -> None:
    """Replicas differ in their start, never in data, batches or poison."""
    federation = federation_of(tiny(dtype="float64", model=model))
    job = LocalTraining(federation)
    task = task_of(federation, 3)
    together = job.train(task, slice(0, 8))
    assert together.updates.shape == (3, 8, federation.facts.parameters)
    for replica in range(3):
        alone = job.train(replace(task, starts=task.starts[replica : replica + 1]), slice(0, 8))
        torch.testing.assert_close(together.updates[replica], alone.updates[0], rtol=1e-10, atol=1e-12)
        for name, column in vars(together.measurements).items():
            np.testing.assert_array_equal(column, getattr(alone.measurements, name))


@pytest.mark.parametrize("model", [{"type": "softmax"}, {"type": "mlp", "hidden": [6]}], ids=["softmax", "mlp"])
def test_the_size_of_a_chunk_changes_only_the_rounding(model: dict[str, Any]) -> None:
    final = {}
    for chunk in (1, 3, 64):
        engine = {"type": "local", "threads": 1, "chunk_clients": chunk}
        outcomes = played(federation_of(tiny(dtype="float64", model=model, engine=engine)))
        again = played(federation_of(tiny(dtype="float64", model=model, engine=engine)))
        final[chunk] = outcomes[-1].parameters
        assert torch.equal(final[chunk], again[-1].parameters)  # to the bit for the same chunks
    torch.testing.assert_close(final[1], final[64], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(final[3], final[64], rtol=1e-9, atol=1e-11)


def test_the_order_in_which_clients_are_trained_changes_nothing() -> None:
    federation = federation_of(tiny())
    job = LocalTraining(federation)
    task = task_of(federation, 1)
    parts = [slice(first, first + 2) for first in range(0, 8, 2)]
    forwards = {part.start: job.train(task, part).updates for part in parts}
    backwards = {part.start: job.train(task, part).updates for part in reversed(parts)}
    assert all(torch.equal(forwards[first], backwards[first]) for first in forwards)


def test_a_rejected_round_goes_on_from_the_broadcast_model_clipped_and_with_fresh_noise() -> None:
    federation = federation_of(tiny(trackers=[{"type": "veto"}]), {"veto": Veto})
    first, second, *_ = played(federation)
    assert (first.record.accepted, second.record.accepted) == (True, False)
    assert second.record.norm_before_clip == second.record.start_norm
    assert second.clients.weight.tolist() == [0.0] * 8  # no update reached the model
    assert second.clients.weight_bound.sum() == pytest.approx(1.0, abs=1e-6)
    noise = federation.streams.generator("noise", round_number=2).standard_normal(650, dtype=np.float32)
    expected = first.parameters + 0.02 * torch.from_numpy(noise)
    torch.testing.assert_close(second.parameters, expected)


def test_the_initial_model_comes_from_its_own_stream() -> None:
    mlp = {"type": "mlp", "hidden": [6]}
    plain = rounds.initial_progress(federation_of(tiny(model=mlp)))[0].models
    same = rounds.initial_progress(federation_of(tiny(model=mlp, seeds={"noise": 5})))[0].models
    other = rounds.initial_progress(federation_of(tiny(model=mlp, seeds={"initial": 5})))[0].models
    assert torch.equal(plain, same)
    assert not torch.equal(plain, other)


class Many(Dataset):
    """Ten thousand and a few samples of twenty features, of two classes that a plane separates."""

    def read(self) -> Data:
        generator = np.random.default_rng(0)
        x = generator.uniform(0, 1, (12_100, 20)).astype(np.float32)
        y = (x.sum(axis=1) > 10).astype(np.int64)
        return Data(x[:12_000], y[:12_000], x[12_000:], y[12_000:], Domain(0.0, 1.0), class_names=("low", "high"))


CROWD = {
    "rounds": 2,
    "device": "cpu",
    "dataset": {"type": "many"},
    "partition": {"type": "iid", "clients": 10_000},
    "training": {"learning_rate": 0.5, "steps": 2, "batch_size": 4},
    "server": {"clip_norm": 10.0, "noise_std": 0.001},
    "votes": {"models": 64},
    "engine": {"type": "local", "threads": 1, "chunk_clients": 500},
}


def test_ten_thousand_clients_fit(tmp_path: Path) -> None:
    result = crfl_core.run(CROWD, out=tmp_path / "crowd", plugins={"many": Many})
    assert [record.participants for record in result.ledger.rounds] == [10_000, 10_000]
    assert len(result.ledger.clients) == 20_000
    assert result.ledger.clients.of_round(2).weight.sum() == pytest.approx(1.0, abs=1e-5)
    assert result.metrics.accuracy > 0.5


MEASURED = """
import resource, sys
import crfl_core
from tests.training.test_rounds import CROWD, Many

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
crfl_core.run(CROWD, out=sys.argv[1], plugins={"many": Many})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_ten_thousand_clients_need_no_matrix_of_clients_by_clients(tmp_path: Path) -> None:
    """Such a matrix would take 400 MB in float32. A process of its own, because the peak of this one is past."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "crowd")]
    ended = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert float(ended.stdout) < 200
