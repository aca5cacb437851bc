"""Encoders that were made elsewhere, on public data, and do not change any more."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from crfl_core.extend import BoundMap, FeatureMap, ImportPath, OptionError, UserPath
from crfl_models.imported import Argument, Shape, maker

MAKING = threading.RLock()
"""Modules draw their first values from one generator, that of the process."""

ROWS = 1024
Digest = Field(None, pattern=r"^[0-9a-f]{64}$", description="SHA-256 that the file must have")


class BoundFrozen(BoundMap):
    """A module in evaluation mode, whose outputs are projected on a ball: `y min(1, radius / ||y||)`."""

    lipschitz = None

    def __init__(self, module: nn.Module, inputs: int, shape: Shape | None, radius: float) -> None:
        self._module = module.eval().requires_grad_(False)
        self._shape = shape
        self._radius = radius
        self._copies: dict[tuple[torch.dtype, torch.device], nn.Module] = {}
        self.digest = digest_of(module.state_dict())
        self.outputs = self._flat(torch.zeros(1, inputs)).shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs), some rows at a time."""
        rows = x.reshape(-1, x.shape[-1])
        features = torch.cat([self._flat(some) for some in rows.split(ROWS)])
        norms: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        shortened = features * (self._radius / norms.clamp(min=self._radius))
        return shortened.reshape(*x.shape[:-1], self.outputs)

    def norm_bound(self, inputs: float) -> float:  # noqa: ARG002 - whatever the input is
        """The radius, by construction."""
        return self._radius

    def _flat(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            output = self._in(rows)(rows if self._shape is None else rows.reshape(-1, *self._shape))
        if not isinstance(output, Tensor) or len(output) != len(rows):
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise OptionError("path", f"must map a batch of {len(rows)} inputs to as many outputs, found {found}")
        return output.flatten(1).to(rows)

    def _in(self, rows: Tensor) -> nn.Module:
        """The module in the precision and on the device of the inputs."""
        key = rows.dtype, rows.device
        with MAKING:
            if key not in self._copies:
                self._copies[key] = deepcopy(self._module).to(rows.device, rows.dtype)
            return self._copies[key]


class FrozenModule(FeatureMap):
    """The outputs of a frozen `torch.nn.Module`, a class or function of yours, shortened to norm `radius` at most.

    `path` and `arguments` are those of the model `module`; `inputs` is handed over if it is asked for. **This runs the
    code that a config names.** Its weights are those of `weights`, a safetensors file with its state, or what its
    initialisation draws from `seed`. Whatever it was trained on must be public: certificates say that they rely on
    this, and the ledger has the digest of the weights. It has no Lipschitz constant, so there is no feature level.
    """

    path: ImportPath = Field(description='"package.module:Name" or "file.py:Name"; runs your code')
    arguments: dict[str, Argument] = Field({}, description="what it is called with, by name")
    weights: UserPath | None = Field(None, description="safetensors file with the state of the module")
    sha256: str | None = Digest
    seed: int = Field(0, ge=0, description="seed of the initialisation, which is public")
    shape: Shape | None = Field(None, description="shape of one input, such as [1, 28, 28]; unset: flat")
    radius: float = Field(1.0, gt=0, description="norm that no feature vector exceeds")

    def bind(self, inputs: int) -> BoundMap:
        """The module with its weights."""
        if self.shape is not None and torch.Size(self.shape).numel() != inputs:
            raise OptionError("shape", f"must have {inputs} entries, one per input, found {list(self.shape)}")
        make = maker(self.path, self.arguments, {"inputs": inputs})
        with MAKING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            module = make()
        if self.weights is not None:
            tensors, _ = read_tensors(self.weights, "weights", self.sha256)
            try:
                module.load_state_dict(tensors)
            except RuntimeError as error:
                raise OptionError("weights", f"{self.weights} does not fit the module: {error}") from error
        try:
            return BoundFrozen(module, inputs, self.shape, self.radius)
        except (RuntimeError, ValueError, TypeError) as error:
            raise OptionError("path", f"{self.path} fails on {inputs} inputs: {error}") from error


def digest_of(state: Mapping[str, Tensor]) -> str:
    """A digest of names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_tensors(path: Path, option: str, expected: str | None) -> tuple[dict[str, Tensor], str]:
    """The tensors of a safetensors file, which holds no code, and its digest. Raises `OptionError`."""
    try:
        content = path.read_bytes()
        tensors = load(content)
    except OSError as error:
        raise OptionError(option, f"{path} cannot be read: {error.strerror}") from error
    except (SafetensorError, ValueError) as error:
        raise OptionError(option, f"{path} is no safetensors file: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if expected not in (None, found):
        raise OptionError("sha256", f"{path} has SHA-256 {found}: it is another file, or was changed")
    return tensors, found
