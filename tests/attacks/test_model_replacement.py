"""Model replacement: what is poisoned, when it does not fit a run, and how well the backdoor works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from crfl_attacks.triggers import PixelTrigger
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import crfl_core
from crfl_core.extend import Batches, ConfigError
from tests.attacks.support import IMAGES, attack, prepared
from tests.oracle import federation_of, tiny


def some_batches(sizes: list[list[int]], batch: int = 6) -> Batches:
    """Batches of random images, none of which has the target label 0."""
    generator = torch.Generator().manual_seed(0)
    clients, steps = len(sizes), len(sizes[0])
    return Batches(
        x=torch.rand(clients, steps, batch, 64, generator=generator, dtype=torch.float64),
        y=torch.randint(1, 10, (clients, steps, batch), generator=generator),
        sizes=torch.tensor(sizes),
        clients=np.arange(clients),
        round=1,
    )


@settings(deadline=None, max_examples=30)
@given(per_batch=st.integers(1, 6), norm=st.floats(0.1, 5.0))
def test_the_first_samples_of_every_batch_get_trigger_and_target(per_batch: int, norm: float) -> None:
    own = ModelReplacement(poisoned_per_batch=per_batch, trigger=PixelTrigger(norm=norm))
    clean = some_batches([[6, 6], [6, 2]])
    before = clean.x.clone(), clean.y.clone()
    dirty = own.poison(clean, prepared(own))
    pattern = own.trigger.pattern(IMAGES)
    poisoned, rest = slice(0, per_batch), slice(per_batch, None)
    torch.testing.assert_close(dirty.x[:, :, poisoned], (clean.x[:, :, poisoned] + pattern).clamp(0, 1))
    assert (dirty.y[:, :, poisoned] == 0).all()
    assert torch.equal(dirty.x[:, :, rest], clean.x[:, :, rest])
    assert torch.equal(dirty.y[:, :, rest], clean.y[:, :, rest])
    assert torch.equal(clean.x, before[0])  # what it was handed is left as it was
    assert torch.equal(clean.y, before[1])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"poisoned_per_batch": 17}, "attack.poisoned_per_batch"),
        ({"target": 10}, "attack.target"),
        ({"clients": [8]}, "attack.clients"),
        ({"clients": 9}, "attack.clients"),
        ({"rounds": [5]}, "attack.rounds"),
        ({"trigger": {"type": "pixels", "size": 9}}, "attack.trigger.size"),
    ],
)
def test_an_attack_that_does_not_fit_the_run_is_refused_before_training(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federation_of(tiny(attack=attack(**changes)))
    assert caught.value.key == key


def test_attackers_given_by_number_are_drawn_from_the_attack_stream() -> None:
    plain, same, other = (
        federation_of(tiny(attack=attack(clients=3), seeds=seeds)).facts.attackers
        for seeds in ({}, {"noise": 7}, {"attack": 7})
    )
    assert plain == same != other
    assert len(set(plain)) == 3


def test_the_backdoored_test_set_holds_triggered_samples_of_the_other_classes_with_their_true_labels() -> None:
    federation = federation_of(tiny(attack=attack(target=3)))
    clean, backdoored = federation.test_sets["clean"], federation.test_sets["backdoored"]
    others = clean.labels != 3
    assert 0 < int(others.sum()) < len(clean.labels)
    assert torch.equal(backdoored.labels, clean.labels[others])
    moved = backdoored.features - clean.features[others]
    elsewhere = torch.ones(64, dtype=torch.bool)
    elsewhere[[0, 1, 8, 9]] = False
    assert float(moved[:, ~elsewhere].amin()) >= 0
    assert not moved[:, elsewhere].any()
    assert float(moved.norm(dim=1).max()) <= 1.0 + 1e-6


def test_the_backdoor_works_and_the_report_says_how_well(tmp_path: Path) -> None:
    """A scaled attacker in the final round; the success rate is recomputed from model and test set."""
    config = tiny(
        attack=attack(rounds=[4], scale=4.0, poisoned_per_batch=6, trigger={"type": "pixels", "norm": 2.0}),
        partition={"type": "iid", "clients": 8},
        training={"learning_rate": 0.3, "steps": 20, "batch_size": 16},
        server={"clip_norm": 50.0, "noise_std": 0.01},
    )
    result = crfl_core.run(config, out=tmp_path / "run")
    federation = federation_of(config)
    logits = federation.model.logits(result.parameters[None], federation.test_sets["backdoored"].features)[0]
    assert result.metrics.backdoor is not None
    assert result.metrics.backdoor.success_rate == pytest.approx(float((logits.argmax(1) == 0).double().mean()))
    assert result.metrics.backdoor.success_rate > result.metrics.backdoor.clean_rate + 0.2
    assert result.metrics.backdoor.samples == federation.facts.test_sets["backdoored"].samples


@pytest.mark.parametrize("options", [{"poisoned_per_batch": 0}, {"scale": 0.5}, {"target": -1}, {"steps": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelReplacement.model_validate(options)
