"""An encoder that is a file of numbers: fully connected layers, with all constants computed from them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import BoundMap, FeatureMap, OptionError, UserPath
from crfl_models.feature_maps.frozen import Digest, read_tensors

UPWARDS = 1.0 + 1e-9
"""Norms of matrices are rounded up by more than the error of their computation."""

Activation = Literal["relu", "tanh", "none"]


class Layer(NamedTuple):
    """`x -> W x + b` with W of shape (outputs, inputs), and bounds on the norms of both."""

    weight: Tensor
    bias: Tensor
    weight_norm: float
    bias_norm: float


class BoundLayers(BoundMap):
    """Layers with an activation between them, then the projection on a ball, if one is wanted."""

    def __init__(self, layers: Sequence[Layer], options: StoredLayers, digest: str) -> None:
        self._layers = layers
        self._options = options
        self.digest = digest
        self.outputs = len(layers[-1].weight)
        self.lipschitz = math.prod(layer.weight_norm for layer in layers)

    def __call__(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        for number, layer in enumerate(self._layers):
            x = x @ layer.weight.to(x).T + layer.bias.to(x)
            if self._options.activates(number, len(self._layers)):
                x = x.relu() if self._options.activation == "relu" else x.tanh()
        if self._options.radius is None:
            return x
        norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (self._options.radius / norms.clamp(min=self._options.radius))

    def norm_bound(self, inputs: float) -> float:
        """`||W x + b|| <= ||W|| ||x|| + ||b||`, layer by layer: no activation makes a vector longer."""
        for number, layer in enumerate(self._layers):
            inputs = (layer.weight_norm * inputs if layer.weight_norm else 0.0) + layer.bias_norm
            if self._options.activation == "tanh" and self._options.activates(number, len(self._layers)):
                inputs = min(inputs, math.sqrt(len(layer.weight)))
        return inputs if self._options.radius is None else min(inputs, self._options.radius)


class StoredLayers(FeatureMap):
    """Fully connected layers from a safetensors file, such as an encoder that was trained on public data.

    The file has a matrix `...weight` (outputs, inputs) for each layer, with or without `...bias`, in the order of the
    numbers in their names, as `torch.nn.Sequential` stores them: `0.weight`, `0.bias`, `2.weight`. It holds no code.
    The Lipschitz constant is the product of the spectral norms, and the norm bound follows layer by layer; with
    `radius` features are projected on a ball, which makes no distance larger. What the layers were trained on must be
    public: certificates say that they rely on this, and the ledger has the digest of the file.
    """

    path: UserPath = Field(description="safetensors file with the layers")
    sha256: str | None = Digest
    activation: Activation = Field("relu", description="what stands between the layers")
    last: bool = Field(False, description="the activation also behind the last layer")
    radius: float | None = Field(None, gt=0, description="norm that no feature vector exceeds; unset: as they come")

    def activates(self, number: int, layers: int) -> bool:
        """Whether the activation stands behind a layer."""
        return self.activation != "none" and (self.last or number < layers - 1)

    def bind(self, inputs: int) -> BoundMap:
        """The layers, which must fit each other and the inputs."""
        tensors, digest = read_tensors(self.path, "path", self.sha256)
        layers = layers_of(tensors, inputs)
        if isinstance(layers, str):
            raise OptionError("path", f"{self.path}: {layers}")
        return BoundLayers(layers, self, digest)


def layers_of(tensors: dict[str, Tensor], inputs: int) -> list[Layer] | str:
    """The layers of a file, in order; or what is wrong with them."""
    known = {name for name in tensors if re.fullmatch(r"(.*\.)?(weight|bias)", name)}
    weights = sorted((name for name in known if name.endswith("weight")), key=natural)
    biases = {name.removesuffix("weight") + "bias" for name in weights}
    if not weights or known - biases - set(weights) or set(tensors) - known:
        return f"must hold tensors such as 0.weight and 0.bias, found {', '.join(sorted(tensors)) or 'none'}"
    layers = []
    for name in weights:
        weight = tensors[name].double()
        bias = tensors.get(name.removesuffix("weight") + "bias", torch.zeros(len(weight))).double()
        if weight.ndim != 2 or weight.shape[1] != inputs or bias.shape != (len(weight),):
            return (
                f"{name} must have shape (outputs, {inputs}), and its bias as many outputs, found {tuple(weight.shape)}"
            )
        if not bool(weight.isfinite().all() and bias.isfinite().all()):
            return f"{name} or its bias is not finite"
        norm = float(torch.linalg.matrix_norm(weight, 2))
        layers.append(Layer(weight, bias, norm * UPWARDS, float(bias.norm()) * UPWARDS))
        inputs = len(weight)
    return layers


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in names as numbers.

    >>> sorted(["10.weight", "2.weight"], key=natural)
    ['2.weight', '10.weight']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
