"""Feature maps: public functions between scaled input and model, fixed before any client's data are seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, final

from crfl_core.errors import OptionError, PluginFailure, wrap_failures
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.records.inputs import DataFacts
from crfl_core.records.round import State

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


class BoundMap(ABC):
    """Feature map for inputs of a known size.

    `outputs` is the number of features, `lipschitz` the Lipschitz constant (None if there is none). `image_shape` is
    (channels, height, width) if the features are an image of another shape than the inputs were. A map from
    a file or from training gives its `digest`, which the ledger records.
    """

    outputs: int
    lipschitz: float | None
    digest: str = ""
    image_shape: Shape | None = None

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Map inputs, (..., inputs), to features, (..., outputs)."""

    @abstractmethod
    def norm_bound(self, inputs: float) -> float:
        """Bound the norm of an output, given that of an input.

        The bound on the norm of an input may be infinite.
        """


class FeatureMap(Plugin):
    """Public function, known before the data are seen: it leaks and learns nothing."""

    slow: ClassVar[bool] = False
    """Whether it takes long: features of a chain with such a map are kept in the user's cache."""
    batch_independent: ClassVar[bool] = False
    """Whether an input is mapped to the same bits in every batch. If such a map comes first, its outputs are kept in
    the user's cache input by input, so that runs with other partitions, reserves or seeds share them."""

    @abstractmethod
    def bind(self, inputs: int) -> BoundMap:
        """Return the map for inputs of this size. Raises `OptionError`."""


class ImageMap(FeatureMap):
    """Feature map that must know the shape of its inputs, which are images."""

    @abstractmethod
    def bind_image(self, shape: Shape) -> BoundMap:
        """Return the map for images of this shape.

        The shape is (channels, height, width). Raises `OptionError`.
        """

    @final
    def bind(self, inputs: int) -> BoundMap:
        """Refuse inputs without a shape."""
        raise OptionError(
            "type",
            f"{self.configured_as!r} needs images, found {inputs} features of no shape: put it in front of maps that "
            "make vectors, or set the dataset's image_shape",
        )


class FittedMap(FeatureMap):
    """Feature map with numbers that are computed once from inputs that no client holds, and kept with the run."""

    def public_inputs(self, facts: DataFacts) -> Tensor | None:  # noqa: ARG002
        """Return inputs to fit to, (m, inputs), in front of all maps.

        None stands for the inputs of the trusted curator. A map's own inputs depend on options alone, so they need no
        trust.
        """
        return None

    @abstractmethod
    def fit(self, samples: Tensor) -> State:
        """Return the numbers to keep, fitted to samples, (m, inputs).

        The samples are those at this place of the chain.
        """

    @abstractmethod
    def bind_fitted(self, inputs: int, fitted: State) -> BoundMap:
        """Return the map for inputs of this size.

        It has the numbers of `fit`.
        """

    @final
    def bind(self, inputs: int) -> BoundMap:
        """Raise: the map must be fitted first."""
        raise PluginFailure(f"feature map {self.full_name} was not fitted: call fit(), then bind_fitted({inputs}, ...)")


class FeatureMaps(BoundMap):
    """Several maps, one after the other; no map is the identity.

    `fitted` has the fitted numbers, by the place in the chain.
    """

    def __init__(
        self,
        maps: Sequence[FeatureMap],
        inputs: int,
        image_shape: Shape | None = None,
        fitted: Mapping[int, State] | None = None,
    ) -> None:
        self.maps = tuple(maps)
        self.fitted = dict(fitted or {})
        self.links: list[BoundMap] = []
        self.outputs = inputs
        self.lipschitz = 1.0
        self.image_shape = image_shape
        for place, feature_map in enumerate(maps):
            with errors_of(f"model.features.{place}", feature_map):
                link = bind_map(feature_map, self.outputs, self.image_shape, self.fitted.get(place))
            self.links.append(link)
            # Features of unchanged number keep the image shape.
            kept = self.image_shape if link.outputs == self.outputs else None
            self.outputs = link.outputs
            self.image_shape = link.image_shape or kept
            known = self.lipschitz is not None and link.lipschitz is not None
            self.lipschitz = self.lipschitz * link.lipschitz if known else None  # type: ignore[operator]

    @property
    def names(self) -> str:
        """Return the names of the maps, in order."""
        return ", ".join(feature_map.full_name for feature_map in self.maps)

    @property
    def widest(self) -> int:
        """Return the largest number of features anywhere in the chain."""
        return max((link.outputs for link in self.links), default=1)

    def __call__(self, x: Tensor) -> Tensor:
        """Map inputs, (..., inputs), to features, (..., outputs)."""
        if not self.links:
            return x
        with wrap_failures(f"feature map {self.maps[0].full_name} failed"):
            x = self.links[0](x)
        return self.after_first(x)

    def after_first(self, x: Tensor) -> Tensor:
        """Apply all maps but the first one."""
        for feature_map, link in zip(self.maps[1:], self.links[1:], strict=True):
            with wrap_failures(f"feature map {feature_map.full_name} failed"):
                x = link(x)
        return x

    def norm_bound(self, inputs: float) -> float:
        """Bound the output of the last map, map by map."""
        for link in self.links:
            inputs = link.norm_bound(inputs)
        return inputs


def bind_map(feature_map: FeatureMap, inputs: int, shape: Shape | None, fitted: State | None) -> BoundMap:
    """Bind a map to what is known about its inputs.

    This is the size, image shape and fitted numbers.
    """
    if isinstance(feature_map, FittedMap) and fitted is not None:
        return feature_map.bind_fitted(inputs, fitted)
    if isinstance(feature_map, ImageMap) and shape is not None:
        return feature_map.bind_image((1,) * (3 - len(shape)) + shape)
    return feature_map.bind(inputs)
