"""Any `torch.nn.Module` as a model: logits and per-client gradients through `torch.func`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from crfl_core.errors import OptionError
from crfl_core.kinds.model import BoundModel
from crfl_core.ledger import ModelFacts
from crfl_core.updates import Layout

STOCHASTIC = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.RReLU)


class ModuleModel(BoundModel):
    """A module that maps (b, features) to (b, classes), made by `build` with PyTorch's own initialisation.

    Buffers (batch normalisation) would be aggregated as if they were weights, and stochastic layers break the
    comparison of two training runs: both are refused.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        with torch.random.fork_rng(devices=[]):  # the values play no part, only the shapes
            self._module = build()
        for name, _ in self._module.named_buffers():
            raise OptionError("type", f"the module has the buffer {name!r}: use layers without buffers")
        for layer in self._module.modules():
            if isinstance(layer, STOCHASTIC):
                raise OptionError("type", f"the module has a stochastic layer, {type(layer).__name__}: remove it")
        self.layout = Layout(tuple((name, tuple(p.shape)) for name, p in self._module.named_parameters()))
        self.facts = ModelFacts(linear=False, convex=False, bias=True)
        self._gradient = vmap(
            vmap(grad(self._loss), in_dims=(0, 0, 0, 0)),
            in_dims=(0, None, None, None),
        )
        self._logits = vmap(self._call, in_dims=(0, None))

    def initial(self, generator: np.random.Generator) -> Tensor:
        """A fresh module's parameters; PyTorch's global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator.integers(2**63)))
            module = self._build()
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """(R, P) and (b, features) -> (R, b, C)."""
        with torch.no_grad():
            result: Tensor = self._logits(parameters, x)
        return result

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """(R, n, P), (n, b, features), (n, b), (n, b) -> (R, n, P)."""
        result: Tensor = self._gradient(parameters, x, y, weights)
        return result

    def _call(self, flat: Tensor, x: Tensor) -> Tensor:
        output: Tensor = functional_call(self._module, self.layout.unflatten(flat), (x,))
        return output

    def _loss(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(self._call(flat, x), y, reduction="none")
        return (losses * weights).sum()
