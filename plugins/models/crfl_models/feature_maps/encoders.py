"""Encoders that were trained on public data and stay fixed: a frozen module, or layers stored in a file."""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import re
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from crfl_core.extend import BoundMap, FeatureMap, ImportPath, OptionError, UserPath
from crfl_models.imported_modules import Argument, Shape, module_factory

GENERATOR_LOCK = threading.RLock()
"""Modules draw their first values from one generator, that of the process."""

ROWS_PER_BATCH = 1024
Digest = Field(None, pattern=r"^[0-9a-f]{64}$", description="SHA-256 that the file must have")


class BoundFrozen(BoundMap):
    """Module in evaluation mode; its outputs are projected on a ball, `y min(1, radius / ||y||)`."""

    lipschitz = None

    def __init__(self, module: nn.Module, inputs: int, shape: Shape | None, radius: float) -> None:
        self._module = module.eval().requires_grad_(False)
        self._shape = shape
        self._radius = radius
        self._copies: dict[tuple[torch.dtype, torch.device], nn.Module] = {}
        self.digest = state_digest(module.state_dict())
        self.outputs = self._flat(torch.zeros(1, inputs)).shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Compute (..., inputs) -> (..., outputs), in batches of rows."""
        rows = x.reshape(-1, x.shape[-1])
        features = torch.cat([self._flat(some) for some in rows.split(ROWS_PER_BATCH)])
        norms: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        shortened = features * (self._radius / norms.clamp(min=self._radius))
        return shortened.reshape(*x.shape[:-1], self.outputs)

    def norm_bound(self, inputs: float) -> float:  # noqa: ARG002 - whatever the input is
        """Return the radius, by construction."""
        return self._radius

    def _flat(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            output = self._in(rows)(rows if self._shape is None else rows.reshape(-1, *self._shape))
        if not isinstance(output, Tensor) or len(output) != len(rows):
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise OptionError("path", f"must map a batch of {len(rows)} inputs to as many outputs, found {found}")
        return output.flatten(1).to(rows)

    def _in(self, rows: Tensor) -> nn.Module:
        """Return the module in the inputs' precision and on their device."""
        key = rows.dtype, rows.device
        with GENERATOR_LOCK:
            if key not in self._copies:
                self._copies[key] = deepcopy(self._module).to(rows.device, rows.dtype)
            return self._copies[key]


class FrozenModule(FeatureMap):
    """The outputs of a frozen `torch.nn.Module`, a class or function of yours, shortened to norm `radius` at most.

    `path` and `arguments` are those of the model `module`; `inputs` is handed over if it is asked for. **This runs the
    code that a config names.** Its weights are those of `weights`, a safetensors file or a state dict, or what its
    initialisation draws from `seed`. Whatever it was trained on must be public: certificates say that they rely on
    this, and the ledger has the digest of the weights. It has no Lipschitz constant, so there is no feature level.
    """

    path: ImportPath = Field(description='"package.module:Name" or "file.py:Name"; runs your code')
    arguments: dict[str, Argument] = Field({}, description="what it is called with, by name")
    weights: UserPath | None = Field(None, description="file with the state of the module")
    sha256: str | None = Digest
    seed: int = Field(0, ge=0, description="seed of the initialisation, which is public")
    shape: Shape | None = Field(None, description="shape of one input, such as [1, 28, 28]; unset: flat")
    radius: float = Field(1.0, gt=0, description="norm that no feature vector exceeds")

    def bind(self, inputs: int) -> BoundMap:
        """Build the module with its weights."""
        if self.shape is not None and torch.Size(self.shape).numel() != inputs:
            raise OptionError("shape", f"must have {inputs} entries, one per input, found {list(self.shape)}")
        make = module_factory(self.path, self.arguments, {"inputs": inputs})
        with GENERATOR_LOCK, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            module = make()
        if self.weights is not None:
            tensors = read_state(self.weights, "weights", self.sha256)
            try:
                module.load_state_dict(tensors)
            except RuntimeError as error:
                raise OptionError("weights", f"{self.weights} does not fit the module: {error}") from error
        try:
            return BoundFrozen(module, inputs, self.shape, self.radius)
        except (RuntimeError, ValueError, TypeError) as error:
            raise OptionError("path", f"{self.path} fails on {inputs} inputs: {error}") from error


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Compute a digest of names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_tensors(path: Path, option: str, expected: str | None) -> tuple[dict[str, Tensor], str]:
    """Read the tensors of a safetensors file, and its digest.

    The file holds no code. Raises `OptionError`.
    """
    content, found = read_weights_file(path, option, expected)
    try:
        return load(content), found
    except (SafetensorError, ValueError) as error:
        raise OptionError(option, f"{path} is not a safetensors file: {error}") from error


def read_state(path: Path, option: str, expected: str | None) -> dict[str, Tensor]:
    """Read the state of a module without running code.

    The file is a safetensors file, or a state dict as `torch.save` writes it. Raises `OptionError`.
    """
    if path.suffix == ".safetensors":
        return read_tensors(path, option, expected)[0]
    content, _ = read_weights_file(path, option, expected)
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise OptionError(option, f"{path} is not a state dict of tensors: {reason}") from error
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise OptionError(option, f"{path} must hold a state dict: save module.state_dict()")
    return dict(state)


def read_weights_file(path: Path, option: str, expected: str | None) -> tuple[bytes, str]:
    """Read a file and its SHA-256.

    Raises `OptionError` if the file cannot be read, or if its SHA-256 is not the `expected` one. With `expected` None
    any is accepted.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OptionError(option, f"{path} cannot be read: {error.strerror}") from error
    found = hashlib.sha256(content).hexdigest()
    if expected not in (None, found):
        raise OptionError("sha256", f"{path} has SHA-256 {found}: it is another file, or was changed")
    return content, found


NORM_ROUNDED_UP = 1.0 + 1e-9
"""Norms of matrices are rounded up by more than the error of their computation."""

Activation = Literal["relu", "tanh", "none"]


class Layer(NamedTuple):
    """Layer `x -> W x + b` with W of shape (outputs, inputs), and bounds on the norms of both."""

    weight: Tensor
    bias: Tensor
    weight_norm: float
    bias_norm: float


class BoundLayers(BoundMap):
    """Layers with an activation between them, then a projection on a ball if configured."""

    def __init__(self, layers: Sequence[Layer], options: StoredLayers, digest: str) -> None:
        self._layers = layers
        self._options = options
        self.digest = digest
        self.outputs = len(layers[-1].weight)
        self.lipschitz = math.prod(layer.weight_norm for layer in layers)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., inputs) -> (..., outputs)."""
        for number, layer in enumerate(self._layers):
            x = x @ layer.weight.to(x).T + layer.bias.to(x)
            if self._options.activates(number, len(self._layers)):
                x = x.relu() if self._options.activation == "relu" else x.tanh()
        if self._options.radius is None:
            return x
        norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (self._options.radius / norms.clamp(min=self._options.radius))

    def norm_bound(self, inputs: float) -> float:
        """Bound the norm of outputs layer by layer.

        It applies `||W x + b|| <= ||W|| ||x|| + ||b||`. No activation makes a vector longer.
        """
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
        """Check whether the activation follows a layer."""
        return self.activation != "none" and (self.last or number < layers - 1)

    def bind(self, inputs: int) -> BoundMap:
        """Read the layers, which must fit each other and the inputs."""
        tensors, digest = read_tensors(self.path, "path", self.sha256)
        layers = read_layers(tensors, inputs)
        if isinstance(layers, str):
            raise OptionError("path", f"{self.path}: {layers}")
        return BoundLayers(layers, self, digest)


def read_layers(tensors: dict[str, Tensor], inputs: int) -> list[Layer] | str:
    """Return the layers of a file, in order.

    If something is wrong with them, return a text that says it.
    """
    known = {name for name in tensors if re.fullmatch(r"(.*\.)?(weight|bias)", name)}
    weights = sorted((name for name in known if name.endswith("weight")), key=natural_sort_key)
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
        layers.append(Layer(weight, bias, norm * NORM_ROUNDED_UP, float(bias.norm()) * NORM_ROUNDED_UP))
        inputs = len(weight)
    return layers


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names as numbers.

    >>> sorted(["10.weight", "2.weight"], key=natural_sort_key)
    ['2.weight', '10.weight']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
