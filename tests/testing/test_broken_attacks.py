"""Attacks that are broken in one way each."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from pydantic import PrivateAttr
from torch import Tensor

from crfl_core import Threat
from crfl_core.extend import (
    Attack,
    AttackerObservation,
    AttackerView,
    Batches,
    FederatedData,
    Plugin,
    RealisedAttack,
    State,
    Streams,
)
from tests.testing.support import assert_fails, checks_of, verdict


class Flipping(Attack):
    """Calls the first sample of every batch class 0."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        y = batches.y.clone()
        y[:, :, 0] = 0
        return replace(batches, y=y)


class Shortening(Flipping):
    """Drops a sample."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=batches.x[:, :, :-1], y=batches.y[:, :, :-1])


class InPlace(Flipping):
    """Changes the batches that it was handed."""

    def poison(self, batches: Batches, state: State) -> Batches:
        batches.y[:, :, 0] = 0
        return batches


class OutOfRange(Flipping):
    """Uses a class that does not exist."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, y=batches.y + 99)


class Unclamped(Flipping):
    """Makes inputs brighter than white."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=batches.x + 1.0)


class BrightestFirst(Flipping):
    """Chooses a sample among padding as well."""

    def poison(self, batches: Batches, state: State) -> Batches:
        chosen = batches.x.sum(-1).argmin(-1, keepdim=True)
        return replace(batches, y=batches.y.scatter(-1, chosen, 0))


class Colluding(Flipping):
    """Needs all attackers in one process."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=batches.x.mean(0, keepdim=True).expand_as(batches.x).clone())


class Disordered(Flipping):
    """Names its attackers in any order."""

    def attackers(self, clients: int, streams: Streams) -> tuple[int, ...]:
        return 5, 3


class Infectious(Flipping):
    """Changes the model that all clients start from."""

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        start.add_(1.0)
        return gradient


class OneForAll(Flipping):
    """Crafts one update for several attackers."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        return known.own_updates[:1]


class Listing(Flipping):
    """Remembers something that no checkpoint could hold."""

    def learn(self, seen: AttackerObservation, state: State) -> State:
        return {"rounds": [seen.round.number]}  # type: ignore[dict-item]


class Elsewhere(Flipping):
    """Remembers in itself what it has seen, where no checkpoint finds it."""

    _rounds: int = PrivateAttr(default=0)

    def learn(self, seen: AttackerObservation, state: State) -> State:
        self._rounds += 1
        return {"rounds": seen.following.new_tensor(float(self._rounds))}


class Diverging(Flipping):
    """Submits nothing that is a number once it has learned something."""

    def learn(self, seen: AttackerObservation, state: State) -> State:
        return {"factor": seen.following.new_tensor(torch.inf)}

    def craft(self, known: AttackerView, state: State) -> Tensor:
        return known.own_updates * state["factor"] if state else known.own_updates


class Flattering(ModelReplacement):
    """Counts samples of the target class as successes."""

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor]:
        return self.add_trigger(data.test_x, state), data.test_y


class Modest(ModelReplacement):
    """States less than it does."""

    def threat(self, realised: RealisedAttack) -> Threat:
        return super().threat(realised).model_copy(update={"delta": 0.01})


class OnlyData(Flipping):
    """Says that it only poisons data, and submits whatever it likes."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        return -known.own_updates

    def threat(self, realised: RealisedAttack) -> Threat:
        return super().threat(realised).model_copy(update={"poison": "labels"})


class Anonymous(Flipping):
    """Does not say who attacks."""

    def threat(self, realised: RealisedAttack) -> Threat:
        return super().threat(realised).model_copy(update={"clients": (19,), "rounds": (3,)})


class Growing(Flipping):
    """Moves inputs farther from round to round, and states what it does in the first one."""

    def poison(self, batches: Batches, state: State) -> Batches:
        x = batches.x.clone()
        x[..., 0] *= 1.0 - 0.1 * batches.round
        return replace(batches, x=x)

    def threat(self, realised: RealisedAttack) -> Threat:
        return super().threat(realised).model_copy(update={"delta": 0.1, "poison": "update"})


class Inventive(ModelReplacement):
    """Labels what it shows to the model as it likes."""

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor]:
        return self.add_trigger(data.test_x, state), data.test_y * 0 + 7


class Alternating(Flipping):
    """Flips every other time that it is asked."""

    _asked: list[int] = PrivateAttr(default_factory=list)

    def poison(self, batches: Batches, prepared: State) -> Batches:
        self._asked.append(batches.round)
        return replace(batches, y=batches.y * (len(self._asked) % 2))


class Absentminded(Flipping):
    """Lays its batches down on the instance while it thinks."""

    _desk: list[Batches] = PrivateAttr(default_factory=list)

    def poison(self, batches: Batches, prepared: State) -> Batches:
        self._desk[:] = [batches]
        time.sleep(0.002)
        return super().poison(self._desk[0], prepared)


BROKEN: dict[str, list[tuple[Plugin, str]]] = {
    "batches_keep_their_shape": [(Shortening(), "change entries of x and y, nothing else")],
    "keeps_inputs": [(InPlace(), "poison() (")],
    "labels_stay_in_range": [(OutOfRange(), "labels 0..9")],
    "inputs_stay_in_the_domain": [(Unclamped(), "x.clamp(low, high)")],
    "padding_does_not_matter": [(BrightestFirst(), "sizes[client, step]")],
    "attackers_can_be_trained_apart": [(Colluding(clients=2), "alone")],
    "attackers_exist": [(Disordered(), "(5, 3)")],
    "others_and_other_rounds_are_left_alone": [(Infectious(), "changed what it was given")],
    "submitted_updates_fit": [(OneForAll(clients=2), "return (attackers, P)")],
    "memory_is_tensors_and_survives_a_resume": [
        (Listing(), "a mapping of tensors"),
        (Elsewhere(), "keep everything in the state"),
        (Diverging(), "with the state that was learned"),
    ],
    "a_resumed_run_ends_the_same": [(Alternating(rounds=(1, 2)), "the same run, interrupted or not")],
    "threads_do_not_disturb_each_other": [(Absentminded(), "keep nothing on the instance while it works")],
    "backdoored_set_is_honest": [
        (Flattering(), "they would count as successes"),
        (Inventive(), "true labels"),
    ],
    "threat_covers_what_was_done": [
        (Modest(), "a stated delta of at least"),
        (OnlyData(), "a threat that covers 'update'"),
        (Anonymous(clients=(4,)), "state who attacked"),
        (Growing(rounds=(1, 6)), "a stated delta of at least"),
    ],
}
EXAMPLES = [(check, plugin, word) for check, examples in BROKEN.items() for plugin, word in examples]


@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[type(plugin).__name__ for _, plugin, _ in EXAMPLES]
)
def test_a_broken_attack_is_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word)


def test_every_check_has_an_attack_that_fails_it() -> None:
    assert set(BROKEN) == checks_of(Attack)


def test_an_attack_that_fits_neither_images_nor_tables_is_not_judged() -> None:
    status, message = verdict(ModelReplacement(target=77), "labels_stay_in_range")
    assert status == "skipped"
    assert "it refuses images" in message
    assert "there is no class 77" in message
