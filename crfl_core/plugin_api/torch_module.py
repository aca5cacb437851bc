"""Models from any `torch.nn.Module`: logits and per-client gradients through `torch.func`."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from crfl_core import resource_limits
from crfl_core.errors import CrflWarning, OptionError
from crfl_core.plugin_api.model import BoundModel
from crfl_core.records.ledger import ModelFacts
from crfl_core.records.round import Layout

DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers of which `vmap` makes one grouped convolution; on a processor that takes up to three times as long."""

COPIES = 2
"""Modules in memory before training: two are built and compared."""
INITIALISING = threading.RLock()
"""Lock of PyTorch's global generator, from which modules draw their first values."""


class ModuleModel(BoundModel):
    """Model of a module that maps (b, features) to (b, classes), built with PyTorch's own initialisation.

    Buffers that training changes (batch normalisation) would be aggregated as if they were weights, and stochastic
    layers break the comparison of two training runs: both are refused. Constant buffers that are not persistent, such
    as masks, and dropout with probability 0 are fine. Modules that `torch.func.vmap` cannot batch, such as `nn.LSTM`,
    are called once per model and client, which is slower: a warning says so. So are modules with convolutions on a
    processor, where that is faster. Several threads may use a model: each has its own module, so `build` has to make a
    new module in every call.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        self._threads = threading.local()
        self._check_room()
        module = self._fresh(0)
        another = self._fresh(0)  # compared by shape, not by value
        check_buffers(module, self._fresh)
        for layer in module.modules():
            if is_stochastic(layer):
                raise OptionError("type", f"the module has a stochastic layer, {type(layer).__name__}: remove it")
        if {id(parameter) for parameter in module.parameters()} & {id(parameter) for parameter in another.parameters()}:
            raise OptionError("type", "two modules share parameters: make new layers in every call of build()")
        self._untouched = module
        self._batching = Batching()
        self.layout = Layout(tuple((name, tuple(p.shape)) for name, p in module.named_parameters()))
        self.facts = ModelFacts(linear=False, convex=False, bias=True)

    def __deepcopy__(self, memo: dict[int, object]) -> ModuleModel:
        """Return a copy with modules of its own, which have computed nothing."""
        memo |= {id(shared): shared for shared in (self._untouched, self._batching)}
        memo[id(self._threads)] = threading.local()
        same = object.__new__(type(self))
        vars(same).update(copy.deepcopy(vars(self), memo))
        return same

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        """Return the parameters of a fresh module.

        PyTorch's global generator stays as it was.
        """
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
        """Return the gradients of all models, (R, n, P).

        Shapes are (R, n, P), (n, b, features), (n, b), (n, b) -> (R, n, P).
        """
        result: Tensor = self._own.gradient(parameters, x, y, weights)
        return result

    def sample_gradients(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return one gradient per sample.

        Shapes are (R, n, P), (n, b, features), (n, b) -> (R, n, b, P).
        """
        result: Tensor = self._own.sample_gradients(parameters, x, y)
        return result

    @property
    def _own(self) -> ModuleCalls:
        """Return the module of this thread."""
        if not hasattr(self._threads, "calls"):
            self._threads.calls = ModuleCalls(self._new_module, self.layout, self._batching)
        calls: ModuleCalls = self._threads.calls
        return calls

    def _new_module(self) -> nn.Module:
        """Return a copy of the module before any computation.

        It shares the parameters, which no computation reads.
        """
        shared: dict[int, object] = {id(parameter): parameter for parameter in self._untouched.parameters()}
        try:
            return copy.deepcopy(self._untouched, shared)
        except Exception:  # it holds something that has no copy
            return self._fresh(0)

    def _check_room(self) -> None:
        """Refuse a module that does not fit into memory.

        Its values are counted without allocating them.
        """
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


def is_stochastic(layer: nn.Module) -> bool:
    """Return whether a layer draws random numbers.

    Dropout with probability 0 does not.
    """
    if isinstance(layer, DROPPING):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.RReLU)


def check_buffers(module: nn.Module, build: Callable[[int], nn.Module]) -> None:
    """Refuse buffers that belong to a model's state.

    Refuse also buffers that differ between two modules with different seeds.
    """
    kept = {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, layer in module.named_modules()
        for name in layer._buffers.keys() - layer._non_persistent_buffers_set
    }
    others = dict(build(1).named_buffers()) if any(True for _ in module.buffers()) else {}
    for name, buffer in module.named_buffers():
        if name in kept:
            raise OptionError(
                "type",
                f"the module has the buffer {name!r}: use layers without buffers, or register a constant one with "
                "persistent=False",
            )
        if name not in others or not torch.equal(buffer, others[name]):
            raise OptionError(
                "type", f"the buffer {name!r} differs when the module is made again: only constants can be buffers"
            )


class Batching:
    """Whether `vmap` can batch a module, which all copies of a model share; None until the first call of any."""

    def __init__(self) -> None:
        self.is_possible: bool | None = None


class ModuleCalls:
    """Functions of one module for many models and clients. Only one call at a time: it puts parameters into the module.

    The first call decides whether `vmap` can batch the module; if not, or if that is slower, every model of every
    client has a call of its own.
    """

    def __init__(self, new_module: Callable[[], nn.Module], layout: Layout, batching: Batching) -> None:
        module = new_module()
        self._new_module = new_module
        self._module = module
        self._layout = layout
        self._buffers = [(buffer, buffer._version) for buffer in module.buffers()]
        self._batching = batching
        self._has_convolutions = any(isinstance(layer, CONVOLUTIONS) for layer in module.modules())
        self._batched_gradient = vmap(
            vmap(grad(self._loss), in_dims=(0, 0, 0, 0)),
            in_dims=(0, None, None, None),
        )
        one = vmap(grad(self._loss_of_one), in_dims=(None, 0, 0))
        self._batched_sample_gradients = vmap(vmap(one, in_dims=(0, 0, 0)), in_dims=(0, None, None))
        self._batched_logits = vmap(self._call, in_dims=(0, None))
        self._numbers: dict[int, int] = {}

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return logits: (R, P) and (b, features) -> (R, b, C)."""
        if not len(parameters) or self._is_faster_batched(parameters[0], x[:1]):
            found: Tensor = self._batched_logits(parameters, x)
        else:
            found = torch.stack([self._call(model, x) for model in parameters])
        self._check_constants()
        return found

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradients of all models, (R, n, P).

        Shapes are (R, n, P), (n, b, features), (n, b), (n, b) -> (R, n, P).
        """
        if not parameters.numel() or self._is_faster_batched(parameters[0, 0], x[0, :1]):
            found: Tensor = self._batched_gradient(parameters, x, y, weights)
        else:
            clients = list(zip(x, y, weights, strict=True))
            found = torch.stack(
                [
                    torch.stack([self._slope(one, *own) for one, own in zip(models, clients, strict=True)])
                    for models in parameters
                ]
            )
        self._check_constants()
        return found

    def sample_gradients(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return one gradient per sample.

        Shapes are (R, n, P), (n, b, features), (n, b) -> (R, n, b, P).
        """
        if not parameters.numel() or self.is_batched(parameters[0, 0], x[0, :1]):
            found: Tensor = self._batched_sample_gradients(parameters, x, y)
        else:
            clients = list(zip(x, y, strict=True))
            found = torch.stack(
                [
                    torch.stack([self._sample_slopes(one, *own) for one, own in zip(models, clients, strict=True)])
                    for models in parameters
                ]
            )
        self._check_constants()
        return found

    def _is_faster_batched(self, flat: Tensor, x: Tensor) -> bool:
        """Return whether models and clients are computed together.

        Samples of one client are always computed together if possible.
        """
        return not (self._has_convolutions and x.device.type == "cpu") and self.is_batched(flat, x)

    def is_batched(self, flat: Tensor, x: Tensor) -> bool:
        """Return whether `vmap` can batch the module.

        It is found out once, with one model and one sample, each twice.
        """
        if self._batching.is_possible is None and len(x):
            trial = ModuleCalls(self._new_module, self._layout, self._batching)  # the module here has no call more
            self._batching.is_possible = trial._try_batching(flat.detach(), x.detach())
        return self._batching.is_possible is not False

    def _try_batching(self, flat: Tensor, x: Tensor) -> bool:
        models = flat.expand(2, 2, -1)
        samples = x.expand(2, 2, -1)
        labels = torch.zeros(2, 2, dtype=torch.int64, device=x.device)
        try:
            self._batched_logits(models[0], samples[0])
            self._batched_gradient(models, samples, labels, torch.ones_like(labels, dtype=x.dtype))
            self._batched_sample_gradients(models, samples, labels)
        except (RuntimeError, NotImplementedError) as error:
            with INITIALISING:
                before = torch.get_rng_state()
                self._slope(flat, samples[0], labels[0], torch.ones(2, dtype=x.dtype, device=x.device))
                if not torch.equal(before, torch.get_rng_state()):
                    raise OptionError("type", "the module draws random numbers: remove dropout and noise") from error
            self._check_constants()
            message = (
                f"{type(self._module).__name__}: PyTorch cannot batch this module over clients "
                f"({str(error).splitlines()[0]}), so each client is trained alone, which is slower"
            )
            warnings.warn(message, CrflWarning, stacklevel=2)
            return False
        return True

    def _slope(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of the weighted loss of one client."""
        with torch.enable_grad():
            leaf = flat.detach().requires_grad_()
            (found,) = torch.autograd.grad(self._loss(leaf, x, y, weights), leaf)
        result: Tensor = found
        return result

    def _sample_slopes(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of every sample's loss of one client, (b, P)."""
        alone = torch.ones(1, dtype=x.dtype, device=x.device)
        return torch.stack(
            [self._slope(flat, sample[None], label[None], alone) for sample, label in zip(x, y, strict=True)]
        )

    def _check_constants(self) -> None:
        """Refuse a module that changes its buffers."""
        now = list(self._module.buffers())
        same = len(now) == len(self._buffers) and all(
            one is known and one._version == version for one, (known, version) in zip(now, self._buffers, strict=True)
        )
        if not same:
            raise OptionError("type", "the module changes its buffers: only constants can be buffers")

    def numbers_per_sample(self, x: Tensor) -> int:
        """Count the numbers of the input and all layer outputs.

        It counts them once, on one sample.
        """
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
