"""Models from any `torch.nn.Module`: logits and per-client gradients through `torch.func`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from crfl_core import resource_limits
from crfl_core.errors import OptionError
from crfl_core.plugin_api.model import BoundModel
from crfl_core.records.ledger import ModelFacts
from crfl_core.records.round import Layout

STOCHASTIC = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.RReLU)

COPIES = 2
"""Modules in memory before training: two are built and compared."""
INITIALISING = threading.RLock()
"""Lock of PyTorch's global generator, from which modules draw their first values."""


class ModuleModel(BoundModel):
    """Model of a module that maps (b, features) to (b, classes), built with PyTorch's own initialisation.

    Buffers (batch normalisation) would be aggregated as if they were weights, and stochastic layers break the
    comparison of two training runs: both are refused. Several threads may use a model: each has its own
    module, so `build` has to make a new module in every call.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        self._threads = threading.local()
        self._check_room()
        module = self._fresh(0)
        another = self._fresh(0)  # compared by shape, not by value
        for name, _ in module.named_buffers():
            raise OptionError("type", f"the module has the buffer {name!r}: use layers without buffers")
        for layer in module.modules():
            if isinstance(layer, STOCHASTIC):
                raise OptionError("type", f"the module has a stochastic layer, {type(layer).__name__}: remove it")
        if {id(parameter) for parameter in module.parameters()} & {id(parameter) for parameter in another.parameters()}:
            raise OptionError("type", "two modules share parameters: make all layers anew in every call of build()")
        self.layout = Layout(tuple((name, tuple(p.shape)) for name, p in module.named_parameters()))
        self.facts = ModelFacts(linear=False, convex=False, bias=True)

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        """Return the parameters of a fresh module; PyTorch's global generator stays as it was."""
        module = self._fresh(int(generator.integers(2**63)))
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return logits: (R, P) and (b, features) -> (R, b, C)."""
        with torch.no_grad():
            result: Tensor = self._own.logits(parameters, x)
        return result

    def numbers_per_sample(self, x: Tensor) -> int:
        """Count the numbers of the input and of every layer's output."""
        return self._own.numbers_per_sample(x)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return gradients: (R, n, P), (n, b, features), (n, b), (n, b) -> (R, n, P)."""
        result: Tensor = self._own.gradient(parameters, x, y, weights)
        return result

    def sample_gradients(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return one gradient per sample: (R, n, P), (n, b, features), (n, b) -> (R, n, b, P)."""
        result: Tensor = self._own.sample_gradients(parameters, x, y)
        return result

    @property
    def _own(self) -> ModuleCalls:
        """Return the module of this thread."""
        if not hasattr(self._threads, "calls"):
            self._threads.calls = ModuleCalls(self._fresh(0), self.layout)
        calls: ModuleCalls = self._threads.calls
        return calls

    def _check_room(self) -> None:
        """Refuse a module that does not fit into memory, counted without allocating its values."""
        try:
            with torch.device("meta"):
                parameters = list(self._fresh(0).parameters())
        except Exception:  # a module may fail on values that do not exist; then it is built uncounted
            return
        needed = COPIES * sum(one.numel() * one.element_size() for one in parameters)
        left = resource_limits.free_memory()
        if left is not None and needed > left.left:
            count = sum(one.numel() for one in parameters)
            raise OptionError(
                "type",
                f"the module has {count:,} parameters, which need at least {needed / 1e9:,.1f} GB of memory, and "
                f"{left.left / 1e9:,.1f} GB are left ({left.limit}): make it smaller",
            )

    def _fresh(self, seed: int) -> nn.Module:
        with INITIALISING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._build()


class ModuleCalls:
    """Batched functions of one module. Only one call at a time: it puts parameters into the module."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._module = module
        self._layout = layout
        self.gradient = vmap(
            vmap(grad(self._loss), in_dims=(0, 0, 0, 0)),
            in_dims=(0, None, None, None),
        )
        one = vmap(grad(self._loss_of_one), in_dims=(None, 0, 0))
        self.sample_gradients = vmap(vmap(one, in_dims=(0, 0, 0)), in_dims=(0, None, None))
        self.logits = vmap(self._call, in_dims=(0, None))
        self._numbers: dict[int, int] = {}

    def numbers_per_sample(self, x: Tensor) -> int:
        """Count the numbers of the input and all layer outputs, once, on one sample."""
        if x.shape[1] not in self._numbers and len(x):
            found = [x.shape[1]]

            def count(_: nn.Module, __: object, output: object) -> None:
                found.append(output.numel() if isinstance(output, Tensor) else 0)

            layers = [layer for layer in self._module.modules() if not any(True for _ in layer.children())]
            hooks = [layer.register_forward_hook(count) for layer in layers]
            weights = next(self._module.parameters())
            with torch.no_grad():
                self._module(x[:1].to(weights.device, weights.dtype))
            for hook in hooks:
                hook.remove()
            self._numbers[x.shape[1]] = sum(found)
        return self._numbers.get(x.shape[1], 1)

    def _call(self, flat: Tensor, x: Tensor) -> Tensor:
        output: Tensor = functional_call(self._module, self._layout.unflatten(flat), (x,))
        return output

    def _loss(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(self._call(flat, x), y, reduction="none")
        return (losses * weights).sum()

    def _loss_of_one(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self._call(flat, x[None]), y[None])
