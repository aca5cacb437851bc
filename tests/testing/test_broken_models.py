"""Models and feature maps that are broken in one way each."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from crfl_models.feature_maps.rescaling import BoundUnitBall
from crfl_models.softmax import Softmax
from torch import Tensor, nn

from crfl_core.extend import (
    BoundMap,
    BoundModel,
    DataFacts,
    FeatureMap,
    FittedMap,
    LinearModel,
    LocalModels,
    Model,
    ModelFacts,
    ModuleModel,
    OptionError,
    Plugin,
    State,
)
from tests.models.second_hand import Regression
from tests.testing.support import assert_fails, checks_of, verdict


class Sized(LinearModel):
    """One parameter too many."""

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        return torch.zeros(self.layout.size + 1)


class Averaging(Regression):
    """Mixes replicas."""

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        found = super().logits(parameters, x)
        return found.mean(0, keepdim=True).expand_as(found)


class Miscounting(Regression):
    """Counts the losers."""

    def count_votes(self, parameters: Tensor, x: Tensor) -> Tensor:
        return len(parameters) - super().count_votes(parameters, x)


class Steep(Regression):
    """Doubles its gradient."""

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return 2.0 * super().gradient(parameters, x, y, weights)


class Leaking(Regression):
    """Lets clients share their gradient."""

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        found = super().gradient(parameters, x, y, weights)
        return found.mean(1, keepdim=True).expand_as(found)


class Peaked(Regression):
    """Subtracts the largest number of all clients, if it is large."""

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        peak = parameters.nan_to_num().max().clamp(min=1e2) - 1e2
        return super().gradient(parameters / (1.0 + peak), x, y, weights)


class Startled(Regression):
    """Answers otherwise once it has seen a large model."""

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        if bool((parameters.abs() > 1e2).any()):
            self._startled = True
        return super().gradient(parameters, x, y, weights) / (1.0 + hasattr(self, "_startled"))


class Hurried(Regression):
    """Trains with other clients' rates."""

    def local_models(self, start: Tensor) -> LocalModels:
        local = super().local_models(start)
        step = local.step
        local.step = lambda x, y, weights, rates, decay: step(x, y, weights, rates.flip(0), decay)  # type: ignore[method-assign]
        return local


class Amplified(Regression):
    """Multiplies its inputs on the quiet, and calls itself linear."""

    def __init__(self, inputs: int, classes: int, *, bias: bool) -> None:
        super().__init__(inputs, classes, bias=bias)
        self.facts = ModelFacts(linear=True, convex=True, bias=bias)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return super().logits(parameters, 1.05 * x)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return super().gradient(parameters, 1.05 * x, y, weights)


class Modest(Regression):
    """Forgets that two classes are wrong at once: its bound lacks a factor."""

    def gradient_bound(self, input_norm: float) -> float:
        return super().gradient_bound(input_norm) / 1.3


class Concave(Regression):
    """Takes the sine of its parameters, and calls the loss convex."""

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return super().logits(10.0 * torch.sin(3.0 * parameters), x)


class Constant(Regression):
    """Calls any norm 1."""

    def operator_norm(self, parameters: Tensor) -> float:
        return 1.0


class Absentminded(Regression):
    """Lays its parameters down on the instance while it thinks."""

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        self._desk = parameters
        time.sleep(0.001)
        return super().logits(self._desk, x)


class Broken(Softmax):
    """Builds what it was made with."""

    def build(self, facts: DataFacts) -> BoundModel:
        return CLASSES[self.configured_as](facts.inputs, facts.classes, bias=self.bias)


class Doubling(Regression):
    """Gives every sample twice its gradient."""

    def sample_gradients(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * super().sample_gradients(parameters, x, y)


MODELS: dict[str, tuple[type[LinearModel | Regression], str]] = {
    "parameters_follow_the_layout": (Sized, "let `layout` name every tensor"),
    "logits_of_many_models_are_those_of_each": (Averaging, "treat replicas independently"),
    "votes_are_counted_by_the_largest_logit": (Miscounting, "leave count_votes() as it is"),
    "gradient_is_that_of_the_loss": (Steep, "the slope of the weighted cross-entropy"),
    "clients_and_padding_do_not_mix": (Leaking, "treat clients independently"),
    "keeps_nothing_between_calls": (Startled, "keep nothing on the model"),
    "local_steps_follow_the_gradient": (Hurried, "compare step() with gradient()"),
    "gradients_of_samples_add_up": (Doubling, "take one gradient per sample"),
    "linear_models_are_the_cores_own": (Amplified, "declare linear=False"),
    "gradient_bound_holds": (Modest, "correct gradient_bound()"),
    "convex_models_are_convex": (Concave, "declare convex=False"),
    "threads_do_not_disturb_each_other": (Absentminded, "keep nothing on the instance while it works"),
    "operator_norm_is_a_norm": (Constant, "the largest singular value"),
}
CLASSES: dict[str, type[LinearModel | Regression]] = {model.__name__: model for model, _ in MODELS.values()} | {
    "Peaked": Peaked
}


class Batched(BoundUnitBall):
    """Divides by the largest norm of the batch."""

    def __call__(self, x: Tensor) -> Tensor:
        longest: Tensor = torch.linalg.vector_norm(x, dim=-1).max()
        return x / longest.clamp(min=1.0)


class Widened(BoundUnitBall):
    """Appends a feature that it does not announce."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([super().__call__(x), x[..., :1]], dim=-1)


class Stretching(BoundUnitBall):
    """Is three times as long as it says."""

    def __call__(self, x: Tensor) -> Tensor:
        return 3.0 * super().__call__(x)


class Shrinking(BoundUnitBall):
    """Says that longer inputs have shorter features."""

    def norm_bound(self, inputs: float) -> float:
        return 1.0 / (1.0 + inputs)


class Buffered(BoundUnitBall):
    """Has one buffer for all clients."""

    def __call__(self, x: Tensor) -> Tensor:
        self._buffer = x
        time.sleep(0.001)
        return super().__call__(self._buffer)


class Forgetful(FittedMap):
    """Is another every time it is fitted."""

    def fit(self, samples: Tensor) -> State:
        return {"mean": torch.rand(samples.shape[1])}

    def bind_fitted(self, inputs: int, fitted: State) -> BoundMap:
        return BoundUnitBall(inputs, 1.0)


class BrokenMap(FeatureMap):
    """Binds what it was made with."""

    def bind(self, inputs: int) -> BoundMap:
        return MAP_CLASSES[self.configured_as](inputs, 1.0)


MAPS = {
    "keeps_shapes": (Widened, "map the last axis only"),
    "samples_do_not_touch_each_other": (Batched, "use no statistics of the batch"),
    "threads_do_not_disturb_each_other": (Buffered, "keep nothing on the instance while it works"),
    "norm_bound_holds": (Stretching, "correct norm_bound()"),
    "norm_bound_is_monotone": (Shrinking, "never fall"),
    "lipschitz_constant_holds": (Stretching, "declare a larger `lipschitz`"),
}
MAP_CLASSES: dict[str, type[BoundUnitBall]] = {bound.__name__: bound for bound, _ in MAPS.values()}

FITTED = "fitting_twice_gives_the_same"

EXAMPLES: list[tuple[str, Plugin, str]] = [
    ("clients_and_padding_do_not_mix", Broken().with_name("Peaked"), "beside models 1000 times as large"),
    *((check, Broken().with_name(model.__name__), word) for check, (model, word) in MODELS.items()),
    *((check, BrokenMap().with_name(bound.__name__), word) for check, (bound, word) in MAPS.items()),
    (FITTED, Forgetful(), "draw from a seed"),
]


@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[f"{plugin.configured_as}-{check}" for check, plugin, _ in EXAMPLES]
)
def test_a_broken_model_is_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word)


class Normalised(Model):
    """Has a layer that no comparison of two runs could stand."""

    def build(self, facts: DataFacts) -> BoundModel:
        return ModuleModel(lambda: nn.Sequential(nn.BatchNorm1d(facts.inputs), nn.Linear(facts.inputs, facts.classes)))


class Large(Model):
    """Needs images that have room for its convolution."""

    def build(self, facts: DataFacts) -> BoundModel:
        if facts.image_shape is None or facts.image_shape[-1] < 28:
            raise OptionError("type", "it needs images of 28 pixels")
        return Softmax().build(facts)


def test_a_model_that_can_be_built_for_no_data_fails_and_says_why() -> None:
    assert_fails(Normalised(), "can_be_built", "the module has the buffer", "persistent=False")
    assert verdict(Large(), "can_be_built") == ("passed", "")


def test_every_check_has_a_model_that_fails_it() -> None:
    assert {*MODELS, "can_be_built"} == checks_of(Model)
    assert {*MAPS, FITTED} == checks_of(FeatureMap)
