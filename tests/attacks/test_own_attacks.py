"""Attacks of third parties: what they may do, and the errors when they do it wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from crfl_attacks.model_replacement import ModelReplacement
from torch import Tensor

import crfl_core
from crfl_core.extend import Attack, AttackerView, Batches, FederatedData, PluginFailure, State, Streams
from tests.attacks.support import attack, measured
from tests.oracle import federation_of, played, tiny

T = TypeVar("T")


class Mislabelling(Attack):
    """Gives the first sample of every batch another label. Has neither trigger nor target."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        labels = batches.y.clone()
        labels[:, :, 0] = (labels[:, :, 0] + 1) % 10
        return replace(batches, y=labels)


def test_an_attack_without_a_trigger_has_no_backdoored_test_set(tmp_path: Path) -> None:
    table = {"type": "mislabelling", "clients": [0], "rounds": [2]}
    result = crfl_core.run(tiny(attack=table), out=tmp_path / "run", plugins={"mislabelling": Mislabelling})
    assert set(result.ledger.facts.test_sets) == {"clean"}
    assert (result.metrics.backdoor, result.metrics.backdoored_accuracy) == (None, None)
    assert result.threat.poison == "labels"
    assert result.threat.scale == 1.0
    attacked = result.ledger.clients.of_round(2)
    assert attacked.label_flips.tolist() == attacked.poisoned_samples.tolist() == [5] + [0] * 7


class Cropping(ModelReplacement):
    """Returns fewer samples than it was given."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=batches.x[:, :, 1:], y=batches.y[:, :, 1:])


def test_poison_that_changes_the_shape_of_batches_is_the_attacks_fault() -> None:
    with pytest.raises(PluginFailure, match=re.escape("'cropping' of (this process): poison() must keep the shapes")):
        played(federation_of(tiny(attack=attack(type="cropping")), {"cropping": Cropping}))


class Dividing(ModelReplacement):
    """Divides by a pixel that is zero in most images."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=batches.x / batches.x[..., :1])


def test_poison_that_is_not_finite_is_the_attacks_fault() -> None:
    with pytest.raises(PluginFailure, match=re.escape("'dividing' of (this process): poison() made inputs that are")):
        played(federation_of(tiny(attack=attack(type="dividing")), {"dividing": Dividing}))


class Constrained(ModelReplacement):
    """Follows half the gradient and stays within a ball around the broadcast model, as stealthy attackers do."""

    ball: float = 0.05

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return 0.5 * gradient

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:
        way = weights - start
        factor: Tensor = (self.ball / way.norm(dim=-1, keepdim=True)).clamp(max=1.0)
        return start + way * factor


def test_attackers_can_bend_their_gradient_and_project_their_weights() -> None:
    plugins = {"constrained": Constrained}
    for ball in (0.05, 0.1):
        federation = federation_of(tiny(attack=attack(type="constrained", ball=ball, scale=1.0)), plugins)
        assert measured(federation).submitted_norm == pytest.approx([ball], rel=1e-5)
    free = federation_of(tiny(attack=attack(type="constrained", ball=1e6, scale=1.0)), plugins)
    halved = federation_of(tiny(attack=attack(learning_rate=0.1, scale=1.0)))
    assert measured(free).submitted_norm == pytest.approx(measured(halved).submitted_norm, rel=1e-5)


class Retreating(ModelReplacement):
    """Takes back half of its way after every step: doing so once more makes a difference."""

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return (weights + start) / 2


def test_attackers_who_are_done_do_nothing_while_others_still_train() -> None:
    """Clients of a chunk make steps together; those that need fewer wait."""
    norms = []
    for chunk in (1, 8):
        engine = {"type": "local", "threads": 1, "chunk_clients": chunk}
        config = tiny(dtype="float64", attack=attack(type="retreating", steps=2), engine=engine)
        norms.append(measured(federation_of(config, {"retreating": Retreating})).submitted_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-10)


class Overlabelling(Mislabelling):
    """Gives samples a label that is not a class."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, y=batches.y + 10)


def test_labels_that_are_not_classes_are_the_fault_of_the_attack() -> None:
    table = {"type": "overlabelling", "clients": [0], "rounds": [1]}
    federation = federation_of(tiny(attack=table), {"overlabelling": Overlabelling})
    message = r"attack 'overlabelling' of .*poison\(\) \(.*:\d+\) made the label 1\d: labels are class numbers, 0\.\.9$"
    with pytest.raises(PluginFailure, match=message):
        played(federation)


class Raising(ModelReplacement):
    """Fails in a chosen place."""

    where: str

    def poison(self, batches: Batches, state: State) -> Batches:
        return self._maybe("poison", batches)

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return self._maybe("local_gradient", gradient)

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return self._maybe("after_step", weights)

    def craft(self, known: AttackerView, state: State) -> Tensor:
        return self._maybe("craft", known.own_updates)

    def _maybe(self, place: str, answer: T) -> T:
        if place == self.where:
            raise ZeroDivisionError(place)
        return answer


@pytest.mark.parametrize("where", ["poison", "local_gradient", "after_step", "craft"])
def test_an_attack_that_raises_is_named_with_what_it_raised(where: str) -> None:
    federation = federation_of(tiny(attack=attack(type="raising", where=where)), {"raising": Raising})
    with pytest.raises(PluginFailure, match=f"attack: 'raising' of .this process. failed: ZeroDivisionError: {where}"):
        played(federation)
