"""Models and local algorithms keep nothing: every call of training and every count of votes has its own instance."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from crfl_models.networks import Mlp
from pydantic import PrivateAttr
from torch import Tensor, nn

import crfl_core
from crfl_core.extend import (
    BoundModel,
    DataFacts,
    LocalAlgorithm,
    LocalStep,
    ModuleModel,
    PluginError,
    PluginFailure,
    State,
    StepDirection,
    hookimpl,
)
from tests.oracle import tiny


class Remembering(LocalAlgorithm):
    """Makes steps that are the shorter, the more it has made, in whatever round."""

    _made: int = PrivateAttr(default=0)

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        assert step.number == self._made + 1
        self._made += 1
        return StepDirection(step.gradient / self._made)


class Keeping(BoundModel):
    """A network that keeps how long the models are that it has seen, and answers by that."""

    def __init__(self, model: BoundModel, *, locked: bool) -> None:
        self._model = model
        self._lock = threading.Lock() if locked else None  # which cannot be copied
        self.layout = model.layout
        self.facts = model.facts
        self.seen: list[float] = []

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        return self._model.initial_parameters(generator)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        assert len(self.seen) < 2  # of the steps of one round
        self.seen.append(float(parameters.norm()))
        return self._model.gradient(parameters, x, y, weights)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        assert not self.seen
        return self._model.logits(parameters, x)


class KeepingModel(Mlp):
    locked: bool = False

    def build(self, facts: DataFacts) -> BoundModel:
        return Keeping(super().build(facts), locked=self.locked)


class Counting(nn.Module):
    """A module that counts its calls, and answers differently from the fourth on."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.layer(x) * (1.0 if self.calls < 4 else 100.0)
        return found


ENGINES: list[Any] = [{"type": "local", "threads": 1, "chunk_clients": 3}, {"type": "stacked"}]
TRAINING = {"learning_rate": 0.2, "steps": 2, "batch_size": 16}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["type"])
@pytest.mark.parametrize("groups", [None, {"count": 3}], ids=["one model", "groups"])
@pytest.mark.parametrize("what", ["algorithm", "model", "model that cannot be copied"])
def test_what_an_instance_keeps_is_gone_in_the_next_call(what: str, groups: Any, engine: Any, tmp_path: Path) -> None:
    config = tiny(rounds=2, engine=engine, groups=groups, certificates=["group-vote" if groups else "paper"])
    if what == "algorithm":
        config |= {"training": TRAINING | {"algorithm": "remembering"}}
    else:
        model = {"type": "keeping", "hidden": [5], "locked": what != "model"}
        config |= {"training": TRAINING, "model": model, "evaluation": {"every": 1}}
    plugins: dict[str, Any] = {"remembering": Remembering, "keeping": KeepingModel}
    if groups is not None and what == "model that cannot be copied":
        with pytest.raises(PluginFailure, match="cannot be copied, as every group needs its own"):
            crfl_core.run(config, out=tmp_path / "run", plugins=plugins)
        return
    assert crfl_core.run(config, out=tmp_path / "run", plugins=plugins).ledger.rounds


@pytest.mark.parametrize("kind", [LocalAlgorithm, Mlp])
def test_hooks_of_models_and_local_algorithms_are_refused(kind: Any) -> None:
    def watch(self: Any) -> None:
        """Watch the run."""

    with pytest.raises(PluginError, match=r"has the hook crfl_run_started .* put the hook into a tracker"):
        type("Watching", (kind,), {"crfl_run_started": hookimpl(watch), "__module__": __name__})


@pytest.mark.parametrize("use", ["gradient", "logits"])
def test_a_copy_of_a_module_has_computed_nothing(use: Literal["gradient", "logits"]) -> None:
    model = ModuleModel(lambda: Counting(6, 3))
    parameters = model.initial_parameters(np.random.default_rng(0))[None]
    x = torch.rand(1, 4, 6)

    def answer(one: ModuleModel) -> Tensor:
        if use == "logits":
            return one.logits(parameters, x[0])
        return one.gradient(parameters[None], x, torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4))

    first = answer(copy.deepcopy(model))
    used = copy.deepcopy(model)
    for _ in range(6):
        late = answer(used)
    assert not torch.equal(late, first)
    assert torch.equal(answer(copy.deepcopy(used)), first)
    assert torch.equal(answer(copy.deepcopy(model)), first)
