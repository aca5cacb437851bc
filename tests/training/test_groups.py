"""A start model per group: every client trains from the models of its own group, and from no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.extend import TrainingTask
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from tests.oracle import federation_of, tiny

GROUPS = np.asarray([2, 0, 1, 1, 0, 2, 2, 0])
MODELS = [{"type": "softmax"}, {"type": "softmax", "bias": False}, {"type": "mlp", "hidden": [6]}]
ATTACKS: list[Any] = ["none", tiny()["attack"] | {"clients": [2, 5], "steps": 9, "learning_rate": 0.4}]


def task_of(federation: Federation, starts: Tensor, groups: NDArray[np.int64]) -> TrainingTask:
    """The second round, with a group for each client."""
    clients = replace(federation.participation.participants(2), group=groups)
    return TrainingTask(2, starts, clients, attacked=True)


def starts_of(federation: Federation, models: int, groups: int) -> Tensor:
    """Unlike models, (K, G, P)."""
    drawn = np.random.default_rng(0).standard_normal((models, groups, federation.facts.parameters))
    return torch.from_numpy(0.1 * drawn).to(federation.dtype)


@pytest.mark.parametrize("attack", ATTACKS, ids=["honest", "attacked"])
@pytest.mark.parametrize("model", MODELS, ids=["softmax", "without bias", "mlp"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_client_trains_from_the_models_of_its_group(model: dict[str, Any], attack: Any, dtype: str) -> None:
    """Bit for bit as if every group had these models, up to rounding as if there were no groups or it were alone."""
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "weight_decay": 0.05}
    federation = federation_of(tiny(model=model, attack=attack, dtype=dtype, training=training))
    job, starts = LocalTraining(federation), starts_of(federation, models=2, groups=3)
    task = task_of(federation, starts, GROUPS)
    together = job.train(task, slice(0, 8))
    assert together.updates.shape == (2, 8, federation.facts.parameters)
    tolerance = 1e-5 if dtype == "float32" else 1e-11
    for client, group in enumerate(GROUPS):
        own = replace(task, starts=starts[:, group : group + 1])
        everywhere = job.train(replace(task, starts=own.starts.expand(-1, 3, -1)), slice(0, 8))
        assert torch.equal(together.updates[:, client], everywhere.updates[:, client])
        all_clients = job.train(own, slice(0, 8))
        torch.testing.assert_close(together.updates[:, client], all_clients.updates[:, client], rtol=0, atol=tolerance)
        alone = job.train(own, slice(client, client + 1))
        torch.testing.assert_close(together.updates[:, client], alone.updates[:, 0], rtol=0, atol=tolerance)
        for name, column in vars(together.measurements).items():
            assert column[client] == pytest.approx(getattr(alone.measurements, name)[0])


def test_the_models_of_other_groups_change_nothing() -> None:
    federation = federation_of(tiny(dtype="float64"))
    job, starts = LocalTraining(federation), starts_of(federation, models=1, groups=3)
    before = job.train(task_of(federation, starts, GROUPS), slice(0, 8)).updates
    moved = starts.clone()
    moved[:, 1] += 1.0
    after = job.train(task_of(federation, moved, GROUPS), slice(0, 8)).updates
    same = torch.from_numpy(GROUPS != 1)
    assert torch.equal(before[:, same], after[:, same])
    assert not torch.equal(before[:, ~same], after[:, ~same])


def test_with_one_model_for_all_the_group_does_not_matter() -> None:
    """As in every federation of today, where it is 0 for every client."""
    federation = federation_of(tiny())
    job, starts = LocalTraining(federation), starts_of(federation, models=2, groups=1)
    assert not federation.participation.participants(2).group.any()
    for groups in (np.zeros(8, np.int64), GROUPS):
        updates = job.train(task_of(federation, starts, groups), slice(0, 8)).updates
        assert torch.equal(updates, job.train(task_of(federation, starts, GROUPS), slice(0, 8)).updates)


def test_parts_of_a_round_keep_their_groups() -> None:
    federation = federation_of(tiny(dtype="float64"))
    job, starts = LocalTraining(federation), starts_of(federation, models=2, groups=3)
    task = task_of(federation, starts, GROUPS)
    whole = job.train(task, slice(0, 8)).updates
    parts = torch.cat([job.train(task, part).updates for part in (slice(0, 3), slice(3, 4), slice(4, 8))], dim=1)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-11)
