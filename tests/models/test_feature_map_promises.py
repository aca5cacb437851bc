"""What feature maps promise is tried before a run, and on every poisoned input."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import crfl_core
from crfl_core.extend import BoundMap, FeatureMap, PluginFailure
from tests.oracle import tiny


class Mapping(BoundMap):
    """Keeps the size of its inputs."""

    def __init__(self, inputs: int, plugin: Lying) -> None:
        self.outputs, self.lipschitz, self._plugin = inputs, 1.0, plugin

    def __call__(self, x: Tensor) -> Tensor:
        return self._plugin.apply(x)

    def norm_bound(self, inputs: float) -> float:
        return inputs


class Lying(FeatureMap):
    """Claims to be 1-Lipschitz."""

    def bind(self, inputs: int) -> BoundMap:
        return Mapping(inputs, self)

    def apply(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Stretching(Lying):
    """Moves inputs apart."""

    def apply(self, x: Tensor) -> Tensor:
        longer: Tensor = x * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return longer


class Centring(Lying):
    """Takes off the mean of whatever it is given together."""

    def apply(self, x: Tensor) -> Tensor:
        return (x - x.reshape(-1, x.shape[-1]).mean(0)) / 2


class Changing(Lying):
    """Never maps an input twice in the same way."""

    calls: ClassVar[list[int]] = []

    def apply(self, x: Tensor) -> Tensor:
        self.calls.append(0)
        return x / len(self.calls)


class Tripping(Lying):
    """Keeps its promise on data as they are, and breaks it where a trigger lights the first pixel."""

    def apply(self, x: Tensor) -> Tensor:
        return torch.where(x[..., :1] > 0.9, 3 * x, x / 3)


@pytest.mark.parametrize(
    ("plugin", "complaint"),
    [
        (Stretching, "which their Lipschitz constant 1 rules out"),
        (Centring, "beside other inputs"),
        (Changing, "mapped differently the second time"),
    ],
)
def test_a_map_that_breaks_its_promise_on_training_data_is_refused(
    plugin: type[Lying], complaint: str, tmp_path: Path
) -> None:
    config = tiny(model={"type": "softmax", "features": {"type": "lying"}})
    with pytest.raises(PluginFailure, match=complaint):
        crfl_core.run(config, out=tmp_path / "run", plugins={"lying": plugin})


def test_a_map_that_breaks_its_promise_on_poisoned_inputs_is_refused(tmp_path: Path) -> None:
    trigger = {"type": "features", "features": [0], "norm": 1.0}
    attack = {"type": "model-replacement", "clients": [0], "rounds": [1], "trigger": trigger}
    config = tiny(model={"type": "softmax", "features": {"type": "lying"}}, attack=attack)
    with pytest.raises(PluginFailure, match="Lipschitz constant 1 rules out"):
        crfl_core.run(config, out=tmp_path / "run", plugins={"lying": Tripping})
