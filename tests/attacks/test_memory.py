"""What attacks remember: handed on from round to round, to every method and engine, and through a resume."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from crfl_engines.local import Local
from torch import Tensor

import crfl_core
from crfl_core.extend import (
    Attack,
    AttackerObservation,
    AttackerView,
    Batches,
    FederatedData,
    LocalUpdates,
    Plugin,
    PluginFailure,
    State,
    Streams,
    TrainingTask,
)
from tests.oracle import federation_of, played, tiny

SPARSE = ("certificates=[]", "storage.figures=[]")


class Escalating(Attack):
    """Counts rounds, adds up what it submitted, and acts on both in every place where it may act."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {"rounds": data.x.new_zeros(()), "labels": (data.y.max() - torch.arange(10)).to(data.y)}

    def learn(self, seen: AttackerObservation, state: State) -> State:
        change = (seen.following - seen.round.start).norm()
        return {**state, "rounds": state["rounds"] + 1, "change": change, "sum": seen.submitted.sum(0)}

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, y=state["labels"][batches.y]) if state["rounds"] % 2 else batches

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return gradient * (1 + state["rounds"])

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return weights + state.get("change", 0.0) * 0.01

    def craft(self, known: AttackerView, state: State) -> Tensor:
        return known.own_updates - 0.1 * state["sum"] if "sum" in state else known.own_updates


class Shipping(Local):
    """Hands copies of the state on, as an engine with other processes does."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        state = (
            None if task.attack_state is None else {name: value.clone() for name, value in task.attack_state.items()}
        )
        yield from super().train(replace(task, attack_state=state))


PLUGINS: dict[str, type[Plugin]] = {"escalating": Escalating, "shipping": Shipping}


def config(**changes: Any) -> dict[str, Any]:
    attack = {"type": "escalating", "clients": [0, 4], "rounds": {"first": 2}}
    return tiny(rounds=5, attack=attack) | changes


def test_a_round_is_seen_as_it_was_and_the_state_reaches_every_method() -> None:
    seen: list[AttackerObservation] = []
    handed: list[tuple[str, int]] = []

    class Watching(Escalating):
        def learn(self, observed: AttackerObservation, state: State) -> State:
            seen.append(observed)
            return super().learn(observed, state)

        def poison(self, batches: Batches, state: State) -> Batches:
            handed.append(("poison", int(state["rounds"])))
            return super().poison(batches, state)

        def craft(self, known: AttackerView, state: State) -> Tensor:
            handed.append(("craft", int(state["rounds"])))
            return super().craft(known, state)

    table = {"type": "watching", "clients": [0, 4], "rounds": [2, 4]}
    outcomes = played(federation_of(config(attack=table), {"watching": Watching}))
    assert handed == [("poison", 1), ("craft", 1), ("poison", 3), ("craft", 3)]  # after rounds 1 and 3
    assert [one.round.number for one in seen] == [1, 2, 3, 4, 5]
    assert [one.attacked for one in seen] == [False, True, False, True, False]
    for one, outcome in zip(seen, outcomes, strict=True):
        assert one.round.clients.ids.tolist() == [0, 4]
        assert torch.equal(one.following, outcome.parameters)
        norms = outcome.clients.submitted_norm[[0, 4]]
        np.testing.assert_allclose(one.submitted.double().norm(dim=1).numpy(), norms, rtol=1e-6)
    for before, after in pairwise(seen):
        assert torch.equal(after.round.start, before.following)


def test_what_was_remembered_survives_a_kill(tmp_path: Path) -> None:
    """Bit for bit: the run that was stopped after round 3 ends as the one that was not."""

    class Stopping(Escalating):
        def learn(self, seen: AttackerObservation, state: State) -> State:
            if seen.round.number == 4 and not (tmp_path / "stopped").exists():
                (tmp_path / "stopped").touch()
                raise KeyboardInterrupt
            return super().learn(seen, state)

    plugins: dict[str, type[Plugin]] = {"escalating": Stopping}
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config(), overrides=SPARSE, out=tmp_path / "killed", plugins=plugins)
    resumed = crfl_core.resume(tmp_path / "killed", plugins=plugins)
    whole = crfl_core.run(config(), overrides=SPARSE, out=tmp_path / "whole", plugins=PLUGINS)
    assert torch.equal(resumed.parameters, whole.parameters)
    np.testing.assert_array_equal(resumed.ledger.clients.submitted_norm, whole.ledger.clients.submitted_norm)


@pytest.mark.parametrize("chunk", [1, 3])
def test_engines_hand_the_state_on_to_all_chunks(chunk: int) -> None:
    engines = ({"type": "local", "threads": 1}, {"type": "shipping", "threads": 1, "chunk_clients": chunk})
    one, other = (played(federation_of(config(dtype="float64", engine=engine), PLUGINS)) for engine in engines)
    torch.testing.assert_close(one[-1].parameters, other[-1].parameters, rtol=1e-9, atol=1e-12)


def test_continuations_are_honest_and_remember_nothing(tmp_path: Path) -> None:
    """Votes of models trained on from round 3 need no state of the attack: it is in no file but the checkpoint."""
    overrides = ["certificates=[{type='tail', resample_from=3}]", "votes.models=40", "storage.figures=[]"]
    aggregation = [{"type": "update-cap", "bound": "honest"}, "fedavg"]
    model = {"type": "softmax", "features": {"type": "unit-ball"}}
    settings = config(aggregation=aggregation, model=model, attack={**config()["attack"], "rounds": [2]})
    result = crfl_core.run(settings, overrides=overrides, out=tmp_path / "run", plugins=PLUGINS)
    assert result.metrics.curves
    kept = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"attack/rounds" in path.read_bytes()]
    assert kept == []


def test_memory_of_an_attack_is_no_state_of_the_aggregation() -> None:
    """Certificates that refuse rules with a memory do not refuse attacks with one."""
    assert not any(outcome.record.carries_state for outcome in played(federation_of(config(), PLUGINS)))


class Broken(ModelReplacement):
    """Remembers what it must not, or where it must not."""

    how: str

    def learn(self, seen: AttackerObservation, state: State) -> State:
        if self.how == "state":
            state["pattern"].add_(1.0)
        elif self.how == "model":
            seen.following.zero_()
        elif self.how == "list":
            return [1.0]  # type: ignore[return-value]
        elif self.how == "number":
            return {**state, "count": 1}  # type: ignore[dict-item]
        return state

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        if self.how == "gradient":
            state["pattern"].numpy()[:] = 7.0
        return gradient


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("state", r"learn\(\) \(.*test_memory.py:\d+\) changed what it was given"),
        ("model", r"learn\(\) \(.*test_memory.py:\d+\) changed what it was given"),
        ("list", r"learn\(\) \(.*\) must return `state` as a mapping of tensors, found list"),
        ("number", r"learn\(\) \(.*\): state\['count'\] must be a tensor, found int"),
        ("gradient", r"local_gradient\(\) \(.*test_memory.py:\d+\) changed what it was given"),
    ],
)
def test_an_attack_that_remembers_in_the_wrong_way_is_stopped_with_file_and_line(how: str, message: str) -> None:
    table = {"type": "broken", "clients": [0], "rounds": [1, 2], "how": how}
    with pytest.raises(PluginFailure, match=message):
        played(federation_of(tiny(attack=table), {"broken": Broken}))
