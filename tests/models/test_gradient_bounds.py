"""What a model says about its gradients is checked on every honest update, under weight decay as well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from crfl_core.extend import BoundModel, DataFacts, Model, PluginFailure
from tests.certificates.federations import small
from tests.certificates.worlds import federation_of, play
from tests.models.second_hand import Regression


class Modest(Regression):
    """Starts far from zero and promises gradients much shorter than they are."""

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        return torch.full((self.layout.size,), 0.15)

    def gradient_bound(self, input_norm: float) -> float:
        return 0.05


class ModestModel(Model):
    """Builds it."""

    def build(self, facts: DataFacts) -> BoundModel:
        return Modest(facts.inputs, facts.classes, bias=True)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_bound_that_honest_clients_exceed_stops_the_run(decay: float) -> None:
    """Decay pulls updates toward zero by more than the bound: it is their residual that has to keep it."""
    training = {"learning_rate": 0.5, "steps": 4, "batch_size": 16, "weight_decay": decay}
    federation = federation_of(small(model={"type": "modest"}, training=training), {"modest": ModestModel})
    with pytest.raises(PluginFailure, match=r"trained a residual of norm .* its gradient_bound\(\) rules out"):
        play(federation)
