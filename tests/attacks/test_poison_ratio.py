"""Poison as a share of every batch, and whose test inputs are in the backdoored set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement

import crfl_core
from crfl_core.extend import Batches, ConfigError
from crfl_core.training.evaluation import backdoor_score
from crfl_core.training.federation import Federation
from tests.oracle import federation_of, played, tiny

SEMANTIC: dict[str, Any] = {
    "type": "semantic",
    "clients": [1, 2],
    "rounds": [2],
    "property": {"type": "above", "features": [20], "threshold": 0.3},
}


def attacked(training: dict[str, Any] | None = None, **options: Any) -> Federation:
    """The small federation, with epochs of batches of 10, of which the last is short."""
    trained = {"learning_rate": 0.1, "epochs": 1, "batch_size": 10} | (training or {})
    table = tiny()["attack"] | {"type": "model-replacement", "clients": [1, 2]} | options
    return federation_of(tiny(training=trained, attack=table))


def shares(federation: Federation) -> tuple[list[float], list[int]]:
    """The mean poisoned share of the attackers' steps, and their short batches."""
    rows = played(federation)[1].clients
    mine = rows.take(rows.attacking)
    return (mine.poisoned_share / mine.steps).tolist(), mine.last_batch.tolist()


def test_a_share_of_every_batch_is_never_exceeded_and_short_batches_have_less() -> None:
    found, last = shares(attacked({"batch_size": 13}, poison_ratio=0.24))
    assert max(last) < 13
    assert all(0 < share < 0.24 for share in found)
    fixed, _ = shares(attacked({"batch_size": 13}, poisoned_per_batch=3))
    assert min(fixed) > 0.24


@pytest.mark.parametrize("options", [{"poison_ratio": 0.2}, {"poisoned_per_batch": 2}])
def test_without_short_batches_the_share_is_exact_whichever_way_it_is_said(options: dict[str, Any]) -> None:
    found, last = shares(attacked({"drop_last": True}, **options))
    assert found == [0.2, 0.2]
    assert last == [10, 10]


def batches_of(sizes: list[list[int]]) -> Batches:
    """Batches of random inputs, labels 1."""
    shape = len(sizes), len(sizes[0]), max(map(max, sizes))
    x = torch.rand(*shape, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Batches(x, torch.ones(shape, dtype=torch.int64), torch.tensor(sizes), np.arange(len(sizes)), 1)


def test_a_share_is_rounded_down_to_whole_samples_but_not_below_what_it_says() -> None:
    batches = batches_of([[100, 8, 0], [50, 50, 3]])
    assert ModelReplacement(poison_ratio=0.29).poisoned_counts(batches).tolist() == [[29, 2, 0], [14, 14, 0]]
    assert ModelReplacement(poison_ratio=1.0).poisoned_counts(batches).tolist() == batches.sizes.tolist()


@pytest.mark.parametrize("kind", ["model-replacement", "semantic"])
def test_a_share_and_the_number_that_it_is_in_equal_batches_poison_the_same(kind: str) -> None:
    outcomes = []
    for options in ({"poison_ratio": 0.2}, {"poisoned_per_batch": 2}):
        table = (SEMANTIC if kind == "semantic" else tiny()["attack"]) | options
        training = {"learning_rate": 0.1, "steps": 2, "batch_size": 10, "drop_last": True}
        outcomes.append(played(federation_of(tiny(training=training, attack=table)))[1])
    assert outcomes[0].clients.poisoned_samples.any()
    assert torch.equal(outcomes[0].parameters, outcomes[1].parameters)


def test_samples_of_a_pool_do_not_depend_on_who_else_trains() -> None:
    federation = federation_of(tiny(training={"epochs": 1, "batch_size": 10}, attack=SEMANTIC | {"poison_ratio": 0.2}))
    attack, both = federation.config.attack, batches_of([[10, 10, 4], [10, 7, 0]])
    assert attack is not None
    inputs = replace(both, x=both.x.to(federation.data.x))
    together = attack.poison(inputs, federation.prepared).x[1, :2]
    alone = attack.poison(
        Batches(inputs.x[1:, :2], inputs.y[1:, :2], inputs.sizes[1:, :2], inputs.clients[1:], 1), federation.prepared
    )
    assert torch.equal(together, alone.x[0])


def test_a_share_that_is_less_than_a_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.01 of an attacker's batch of 10 samples is not one sample") as caught:
        attacked(poison_ratio=0.01)
    assert caught.value.key == "attack.poison_ratio"


def test_the_backdoored_set_may_hold_the_target_class_which_is_no_success(tmp_path: Path) -> None:
    runs = {}
    for classes in ("others", "all"):
        config = tiny(attack=tiny()["attack"] | {"target": 3, "backdoored_classes": classes})
        runs[classes] = crfl_core.run(config, out=tmp_path / classes)
    sets = {name: run.ledger.facts.test_sets for name, run in runs.items()}
    assert sets["all"]["backdoored"].samples == sets["all"]["clean"].samples > sets["others"]["backdoored"].samples
    assert runs["all"].metrics.backdoor == runs["others"].metrics.backdoor
    assert torch.equal(runs["all"].parameters, runs["others"].parameters)
    federation = federation_of(tiny(attack=tiny()["attack"] | {"target": 3, "backdoored_classes": "all"}))
    assert torch.equal(federation.test_sets["backdoored"].labels, federation.test_sets["clean"].labels)
    found = backdoor_score(federation, runs["all"].parameters)
    assert found is not None
    assert runs["all"].metrics.backdoor is not None
    assert found.success_rate == runs["all"].metrics.backdoor.success_rate
