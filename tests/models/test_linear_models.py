"""A linear model is the core's own, whatever a plugin does to the object that it builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crfl_core.extend import BoundModel, DataFacts, Domain, Layout, LinearModel, Model, PluginFailure
from crfl_core.testing import check_plugin
from tests.certificates.federations import small
from tests.certificates.worlds import federation_of

FACTS = DataFacts(inputs=64, classes=10, domain=Domain(0.0, 1.0))


def gained(self: LinearModel, parameters: Tensor, x: Tensor) -> Tensor:
    """Logits with a gain, about which no certificate knows."""
    found: Tensor = 50.0 * x.norm(dim=1)[None, :, None] * LinearModel.logits(self, parameters, x)
    return found


class Gain:
    """Brings the gain along."""

    logits = gained


class Mixed(Gain, LinearModel):
    """Inherits the gain from a class that stands ahead."""


class Intercepting(LinearModel):
    """Answers for its methods itself."""

    def __getattribute__(self, name: str) -> Any:
        return gained.__get__(self) if name == "logits" else super().__getattribute__(name)


class Bending(Layout):
    """Takes absolute values on the way."""

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        return {name: block.abs() for name, block in super().unflatten(flat).items()}


def assigned(facts: DataFacts) -> LinearModel:
    """Replaces a method of the instance."""
    model = LinearModel(facts.inputs, facts.classes, bias=True)
    model.logits = gained.__get__(model)  # type: ignore[method-assign]
    return model


def bent(facts: DataFacts) -> LinearModel:
    """Replaces the layout."""
    model = LinearModel(facts.inputs, facts.classes, bias=True)
    model.layout = Bending(model.layout.shapes)
    return model


class Disguised(Model):
    """Builds what it was made with."""

    def build(self, facts: DataFacts) -> BoundModel:
        return DISGUISES[self.configured_as](facts)


DISGUISES: dict[str, Callable[[DataFacts], LinearModel]] = {
    "mixin": lambda facts: Mixed(facts.inputs, facts.classes, bias=True),
    "interception": lambda facts: Intercepting(facts.inputs, facts.classes, bias=True),
    "assignment": assigned,
    "layout": bent,
}


@pytest.mark.parametrize("name", DISGUISES)
def test_a_model_that_only_calls_itself_linear_is_refused_by_the_run_and_by_the_kit(name: str) -> None:
    with pytest.raises(PluginFailure, match=r"model: .* \(.*test_linear_models.py:\d+\): certificates rest on"):
        federation_of(small(model={"type": name}), {name: Disguised})
    failed = [result.check for result in check_plugin(Disguised().with_name(name)) if result.status == "failed"]
    assert "linear_models_are_the_cores_own" in failed


class Late(LinearModel):
    """Waits until it was looked at."""

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        self.logits = gained.__get__(self)  # type: ignore[method-assign]
        return torch.full((self.layout.size,), 0.5)


class LateModel(Model):
    """Builds it."""

    def build(self, facts: DataFacts) -> BoundModel:
        return Late(facts.inputs, facts.classes, bias=True)


def test_of_a_plugins_linear_model_only_the_start_is_used() -> None:
    model = federation_of(small(model={"type": "late"}), {"late": LateModel}).model
    start = model.initial_parameters(np.random.default_rng(0))
    assert start.tolist() == [0.5] * model.layout.size
    x, own = torch.rand(3, FACTS.inputs), LinearModel(FACTS.inputs, FACTS.classes, bias=True)
    assert torch.equal(model.logits(start[None], x), own.logits(start[None], x))
