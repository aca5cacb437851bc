"""Models: from flat parameters and inputs to logits and gradients, for many models at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from crfl_core.files.data_files import UserPath
from crfl_core.plugin_api.base import Plugin, PluginField, refuse_hooks
from crfl_core.plugin_api.feature_map import FeatureMap
from crfl_core.records.inputs import DataFacts
from crfl_core.records.ledger import ModelFacts
from crfl_core.records.round import Layout

if TYPE_CHECKING:
    from torch import Tensor


VOTES_AT_ONCE = 2**18
"""Pairs of a model and a sample whose votes are in memory at a time."""
LOGITS_AT_ONCE = 2**16
"""Pairs of a model and a sample whose logits are in memory at a time."""
ACTIVATIONS_AT_ONCE = 2**26
"""Numbers that models may make of samples on the way to logits, and that are in memory together."""


def as_list(value: object) -> object:
    """Turn a single table into a list of one."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


class LocalModels(ABC):
    """Models of some clients during local training, in the layout that is fastest."""

    @abstractmethod
    def step(self, x: Tensor, y: Tensor, weights: Tensor, rates: Tensor, decay: Tensor | None) -> None:
        """Make a step for all clients and replicas.

        A step is `w <- w - rate (gradient + decay w)`. `x`, `y` and `weights` are those of `BoundModel.gradient`;
        `rates` and `decay` are (n,). A rate of 0 makes no step.
        """

    @abstractmethod
    def parameters(self) -> Tensor:
        """Return the models as they are now, (R, n, P)."""

    def write_updates(self, start: Tensor, out: Tensor) -> None:
        """Write the difference of the models and `start` into `out`.

        All are (R, n, P). Override it to save a copy.
        """
        import torch

        torch.sub(self.parameters(), start, out=out)

    def last_step(  # noqa: PLR0913 - what `step` and `write_updates` take
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        rates: Tensor,
        decay: Tensor | None,
        start: Tensor,
        out: Tensor,
    ) -> None:
        """Make the last step and write the updates.

        The models are not used again. Override it to save work.
        """
        self.step(x, y, weights, rates, decay)
        self.write_updates(start, out)


class GradientSteps(LocalModels):
    """Local models that step along the model's `gradient`, on flat parameters.

    Weight decay pulls toward `origin`, which broadcasts to (R, n, P), or toward 0 if that is None. Attackers override
    `adjust_gradient` and `project`.
    """

    def __init__(self, model: BoundModel, start: Tensor, origin: Tensor | None = None) -> None:
        import torch

        self._model = model
        self._parameters = start.clone(memory_format=torch.contiguous_format)
        self._origin = origin

    def step(self, x: Tensor, y: Tensor, weights: Tensor, rates: Tensor, decay: Tensor | None) -> None:
        """Compute one gradient for all clients, then make one step."""
        gradient = self.gradient(x, y, weights)
        if decay is not None:
            pulled = self._parameters if self._origin is None else self._parameters - self._origin
            gradient = gradient.addcmul(pulled, decay[:, None])
        self._parameters.addcmul_(self.adjust_gradient(gradient, self._parameters), rates[:, None], value=-1)
        self.project(self._parameters)

    def gradient(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradients of all models at their current parameters.

        They are (R, n, P).
        """
        return self._model.gradient(self._parameters, x, y, weights)

    def adjust_gradient(self, gradient: Tensor, parameters: Tensor) -> Tensor:  # noqa: ARG002
        """Return the gradients to follow, (R, n, P)."""
        return gradient

    def project(self, parameters: Tensor) -> None:
        """Project the models after a step, in place."""

    def parameters(self) -> Tensor:
        """Return the models as they are now, (R, n, P)."""
        return self._parameters


class BoundModel(ABC):
    """Model for data of a known shape. Parameters are flat vectors that `layout` describes.

    One call handles R replicas of a model, because votes and continuations need many at once. An answer depends on its
    own replica and client alone. Every call of local training, and every count of votes, has a copy (`copy.deepcopy`)
    of the model as it was built, so what one keeps reaches no other.
    """

    layout: Layout
    facts: ModelFacts

    @abstractmethod
    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        """Return parameters to start from, (P,)."""

    @abstractmethod
    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return logits: (R, P) and (b, features) -> (R, b, C)."""

    @abstractmethod
    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return gradients of the weighted cross-entropy of each client.

        Shapes: (R, n, P), (n, b, features), (n, b), (n, b) -> (R, n, P). `weights` are those of the samples in the
        mean; padding has weight 0.
        """

    def sample_gradients(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return one gradient per sample, (R, n, b, P).

        Shapes are (R, n, P), (n, b, features), (n, b) -> (R, n, b, P). Used when gradients are clipped. Override it if
        there is a faster way than one `gradient` for each sample.
        """
        each = parameters.repeat_interleave(y.shape[1], dim=1)
        rows = x.flatten(0, 1)[:, None]
        labels = y.flatten()[:, None]
        gradients = self.gradient(each, rows, labels, x.new_ones(labels.shape))
        by_sample: Tensor = gradients.unflatten(1, y.shape)
        return by_sample

    def local_models(self, start: Tensor) -> LocalModels:
        """Begin local training from the read-only models `start`, (R, n, P).

        Override it for a faster layout.
        """
        return GradientSteps(self, start)

    def gradient_bound(self, input_norm: float) -> float:  # noqa: ARG002
        """Bound the norm of a sample's gradient.

        Inputs are up to `input_norm` long. Return infinity if there is no bound. The core checks the bound on every
        honest update.
        """
        return math.inf

    def operator_norm(self, parameters: Tensor) -> float | None:  # noqa: ARG002
        """Return the spectral norm of the column-centred weight block.

        This is for linear models; None for others.
        """
        return None

    def count_votes(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Count the votes of R models per class.

        Ties go to the lowest class: (R, P), (b, features) -> (b, C). Memory is bounded: samples are voted on in parts.
        """
        import torch

        pieces = []
        for _, logits in self.logits_in_parts(parameters, x, VOTES_AT_ONCE):
            winners = logits.argmax(-1).T
            zeros = winners.new_zeros(len(winners), logits.shape[-1])
            pieces.append(zeros.scatter_add_(1, winners, winners.new_ones(winners.shape)))
        return torch.cat(pieces)

    def vote_counter(self, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `count_votes` of these models, for several calls.

        Override it to prepare something once.
        """
        return partial(self.count_votes, parameters)

    def logits_in_parts(
        self, parameters: Tensor, x: Tensor, pairs: int = LOGITS_AT_ONCE
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of samples with all models' logits, (R, b, C).

        A part has at most this number of pairs of a model and a sample, and fewer if a model makes many numbers of a
        sample, so memory is bounded for any number of samples.
        """
        import torch

        together = max(1, min(pairs, ACTIVATIONS_AT_ONCE // max(1, self.numbers_per_sample(x))))
        step = max(1, together // len(parameters))
        for first in range(0, max(1, len(x)), step):
            part = slice(first, first + step)
            each = [self.logits(models, x[part].to(parameters.dtype)) for models in parameters.split(together)]
            yield part, each[0] if len(each) == 1 else torch.cat(each)

    def numbers_per_sample(self, x: Tensor) -> int:  # noqa: ARG002
        """Estimate how many numbers a model makes of one sample.

        They are those of one sample of `x`, over all layers. Override it if they are many.
        """
        return 1


class Model(Plugin):
    """Classifier over the outputs of fixed, public feature maps."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        refuse_hooks(cls, "a model, which must not depend on earlier rounds,")

    features: Annotated[tuple[Annotated[FeatureMap, PluginField("feature-map")], ...], BeforeValidator(as_list)] = (
        Field((), description="feature maps between input and model, in order; none: the scaled input itself")
    )

    start: Literal["zeros", "random", "reserve"] | UserPath | None = Field(
        None,
        description="the model before the first round: 'zeros', 'random', 'reserve' (trained by the server on its "
        "labelled reserve.root and reserve.curator), or a safetensors file, such as that of another run; unset: the "
        "default of the model",
    )

    @abstractmethod
    def build(self, facts: DataFacts) -> BoundModel:
        """Return the model for inputs and classes like these.

        Inputs come from behind the feature maps. Raises `OptionError`.
        """
