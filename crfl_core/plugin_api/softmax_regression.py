"""Softmax regression: the linear model of the paper, convex, with gradients in closed form.

Certificates rest on the form of these logits, gradients and local steps. Therefore the base class owns them, with the
batched kernels of local training and of counting votes, and a plugin may only choose where training starts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from crfl_core.plugin_api.model import BoundModel, LocalModels
from crfl_core.records.ledger import ModelFacts
from crfl_core.records.round import Layout

SINCE_3_13 = frozenset({"__firstlineno__", "__static_attributes__"})
USUAL = frozenset(dir(object)) | {"__module__", "__dict__", "__weakref__", "__abstractmethods__"} | SINCE_3_13
LOGITS_AT_ONCE = 2**23
STEP_NUMBERS_AT_ONCE = 2**19
"""Numbers of a first step that are computed before they are copied to their places: few enough for a cache."""
BYTES_PER_WORD = 8
MOST_PER_BYTE = 255


class LinearModel(BoundModel):
    """`logits = W x + b` with W of shape (C, d), trained by cross-entropy: multi-class logistic regression.

    Certificates rest on the form of these logits and gradients, so they belong to the core: a subclass may only
    choose where to start. Changes of the inputs belong into a feature map.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if changed := {name for name in vars(cls) if name != "initial_parameters" and name in dir(LinearModel)} - USUAL:
            raise TypeError(
                f"{cls.__name__} overrides {min(changed)}() of LinearModel: certificates rest on it; override "
                "initial_parameters(), write a feature map, or derive from BoundModel"
            )

    def __init__(self, inputs: int, classes: int, *, bias: bool) -> None:
        self._inputs = inputs
        self._classes = classes
        shapes: tuple[tuple[str, tuple[int, ...]], ...] = (("weight", (classes, inputs)),)
        self.layout = Layout((*shapes, ("bias", (classes,))) if bias else shapes)
        self.facts = self.facts_of(self)

    @staticmethod
    def facts_of(model: BoundModel) -> ModelFacts:
        """Return the facts of a linear model with this layout."""
        return ModelFacts(linear=True, convex=True, bias="bias" in dict(model.layout.shapes))

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:  # noqa: ARG002 - convex: any start will do
        """Return zeros."""
        return torch.zeros(self.layout.size)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Compute one matrix product for all replicas."""
        weight, bias = self._blocks(parameters)
        flat = affine(x, weight.reshape(-1, self._inputs), None if bias is None else bias.reshape(-1))
        return flat.view(len(x), len(parameters), self._classes).transpose(0, 1)

    def gradient(
        self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor, longest: float | None = None
    ) -> Tensor:
        """Return all models' gradients by two batched products.

        The gradient is `sum_b weight_b (softmax(W x_b) - e_{y_b}) (+) x_b`. With `longest` the gradient of every sample
        is first shortened to this norm.
        """
        replicas, clients, _ = parameters.shape
        weight, bias = self._blocks(parameters)
        if replicas > 1:  # clients share their data among replicas: more columns in the same product
            weight = weight.transpose(0, 1)
        stacked = weight.reshape(clients, replicas * self._classes, self._inputs)
        turned = x.transpose(1, 2)
        if bias is None:
            logits = stacked.bmm(turned)
        else:
            logits = bias.transpose(0, 1).reshape(clients, -1, 1).baddbmm(stacked, turned)
        residual = logits.view(clients, replicas, self._classes, -1).softmax(2)
        index = y[:, None, None].expand(-1, replicas, 1, -1)
        residual.scatter_add_(2, index, residual.new_full((1, 1, 1, 1), -1.0).expand(index.shape))
        if longest is not None:
            residual.mul_(clip_factors(residual, x, longest, classes=2, bias=bias is not None))
        residual = residual.mul_(weights[:, None, None]).flatten(1, 2)
        product = residual.bmm(x).view(clients, replicas, -1).transpose(0, 1)
        if bias is None:
            return product.contiguous()
        return torch.cat([product, residual.sum(2).view(clients, replicas, -1).transpose(0, 1)], dim=-1)

    def local_models(self, start: Tensor) -> LocalModels:
        """Begin local training in the layout of `LinearSteps`, or of `SingleLinearSteps` for one client."""
        steps = SingleLinearSteps if start.shape[:2] == (1, 1) else LinearSteps
        return steps(self.layout, start)

    def gradient_bound(self, input_norm: float) -> float:
        """Return `sqrt(2) ||(x, 1)||`, the bound for softmax regression.

        It holds because `||softmax - e_y|| <= sqrt(2)`. Without bias the 1 is left out.
        """
        return math.sqrt(2.0) * math.hypot(input_norm, 1.0 if self.facts.bias else 0.0)

    def count_votes(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Count the winners of one matrix product."""
        return self.vote_counter(parameters)(x)

    def vote_counter(self, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        """Prepare weights and buffers to count votes.

        The weights are in the order of multiplication, and all samples share the buffers for logits.
        """
        models = min(len(parameters) // BYTES_PER_WORD, MOST_PER_BYTE) * BYTES_PER_WORD
        if models == 0:
            return partial(super().count_votes, parameters)
        if models == len(parameters):
            return partial(self._count_winners, parameters, CountBuffers(*self._blocks(parameters)))
        count_first = self.vote_counter(parameters[:models])
        count_others = self.vote_counter(parameters[models:])
        return lambda x: count_first(x) + count_others(x)

    def _count_winners(self, parameters: Tensor, buffers: CountBuffers, x: Tensor) -> Tensor:
        """Count the winners, with classes ahead of models.

        So all comparisons run along models. Counting adds up eight comparisons at a time: each is a byte of a 64-bit
        word, and no byte can overflow as long as it counts fewer than 256 models.
        """
        models = len(parameters)
        counts = torch.empty(len(x), self._classes, dtype=torch.int64, device=x.device)
        for piece, count in zip(x.split(buffers.rows), counts.split(buffers.rows), strict=True):
            logits, wins = buffers.for_samples(len(piece))
            by_class = affine(piece, buffers.weight, buffers.bias, out=logits).view(len(piece), self._classes, models)
            won = equal(by_class, by_class.amax(1, keepdim=True), out=wins)
            words = won.view(torch.int64).sum(-1)
            torch.sum(words.view(torch.uint8).view(len(piece), self._classes, BYTES_PER_WORD), -1, out=count)
        tied = counts.sum(1) != models
        if tied.any():
            counts[tied] = super().count_votes(parameters, x[tied])
        return counts

    def operator_norm(self, parameters: Tensor) -> float:
        """Return the spectral norm of the weights without their mean row.

        The mean row changes no vote.
        """
        weight = self._blocks(parameters[None])[0][0].double()
        centred = weight - weight.mean(0)
        return float(torch.linalg.eigvalsh(centred @ centred.T)[-1].clamp(min=0).sqrt())

    def _blocks(self, parameters: Tensor) -> tuple[Tensor, Tensor | None]:
        blocks = self.layout.unflatten(parameters)
        return blocks["weight"], blocks.get("bias")


class StartedLinear(LinearModel):
    """Linear model of the core that takes nothing but its start from the model of a plugin."""

    def __init__(self, model: LinearModel, inputs: int, classes: int) -> None:
        super().__init__(inputs, classes, bias=model.facts.bias)
        self._model = model

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        """Return the start of the plugin's model."""
        return self._model.initial_parameters(generator)


def find_changed_method(model: LinearModel) -> str | None:
    """Return a method of `LinearModel` that was replaced, or None.

    A mixin, an assignment or `__getattribute__` replaced it. `__init_subclass__` refuses only replacements in the body
    of a class.
    """
    names = {name for name in dir(LinearModel) if callable(inspect.getattr_static(LinearModel, name))}
    for name in sorted(names - USUAL - {"initial_parameters", "__init_subclass__"} | {"__getattribute__"}):
        if inspect.getattr_static(model, name) is not inspect.getattr_static(LinearModel, name):
            return name
    return None


class CountBuffers:
    """Weights of all classes of all models, (C R, d), and large buffers for counting votes.

    The buffers are reused for all samples: fresh memory costs more than the comparisons.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        models, classes, inputs = weight.shape
        self.weight = weight.transpose(0, 1).reshape(-1, inputs)
        self.bias = None if bias is None else bias.T.reshape(-1)
        self.rows = max(1, LOGITS_AT_ONCE // len(self.weight))
        self._logits = weight.new_empty(0, len(self.weight))
        self._wins = torch.empty(0, classes, models, dtype=torch.bool, device=weight.device)

    def for_samples(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return buffers for logits and for which are the largest.

        They are (samples, C R) and (samples, C, R).
        """
        if len(self._logits) < samples:
            self._logits = self.weight.new_empty(samples, len(self.weight))
            self._wins = self._wins.new_empty(samples, *self._wins.shape[1:])
        return self._logits[:samples], self._wins[:samples]


def equal(one: Tensor, other: Tensor, out: Tensor) -> Tensor:
    """Compare two tensors.

    On processors it uses NumPy, which takes a fraction of the time.
    """
    if one.device.type != "cpu":
        return torch.eq(one, other, out=out)
    np.equal(one.numpy(), other.numpy(), out=out.numpy())
    return out


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return `x weight^T + bias`."""
    return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


def clip_factors(residual: Tensor, x: Tensor, longest: float, *, classes: int, bias: bool) -> Tensor:
    """Return `min(1, longest / ||g_b||)` of every sample.

    It follows from `||g_b|| = ||softmax - e_y|| ||(x_b, 1)||`.
    """
    squares = x.square().sum(-1)[:, None, None]
    inputs = (squares + 1.0 if bias else squares).sqrt()
    norms = torch.linalg.vector_norm(residual, dim=classes, keepdim=True) * inputs
    factors: Tensor = (longest / norms).clamp(max=1.0)
    return factors


class LinearSteps(LocalModels):
    """Local training in place, for all clients and replicas at once.

    Weights lie as (clients, classes x replicas, features), so both products of a step are single batched ones, and the
    second adds to the weights directly. Logits lie as (clients, classes, replicas, batch): that product is the faster
    one, and softmax runs along contiguous samples. A model that all clients start from exists once until the first
    step. With `longest` the gradient of every sample is shortened to this norm.
    """

    def __init__(self, layout: Layout, start: Tensor, longest: float | None = None) -> None:
        self._longest = longest
        self._layout = layout
        self._replicas, self._clients = start.shape[:2]
        self._is_shared = self._clients > 1 and start.stride(1) == 0
        blocks = layout.unflatten(start[:, :1] if self._is_shared else start)
        weight = blocks["weight"]
        bias = blocks.get("bias")  # (replicas, clients, classes, features) without the last
        self._classes, self._inputs = weight.shape[2:]
        turned = weight.permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format)
        self._weight = turned.view(len(turned), -1, self._inputs)
        self._bias = None if bias is None else bias.permute(1, 2, 0).reshape(len(turned), -1, 1).clone()
        self._minus_one = start.new_full((1, 1, 1, 1), -1.0)

    def step(self, x: Tensor, y: Tensor, weights: Tensor, rates: Tensor, decay: Tensor | None) -> None:
        """Make a step for all models, with weight decay.

        The step is `W <- (1 - rate decay) W - rate sum_b weight_b (softmax(W x_b) - e_{y_b}) (+) x_b`.
        """
        residual = self._residual(x, y, weights * rates[:, None])
        self._unshare()
        kept = 1.0
        if decay is not None:
            keeps = 1.0 - rates * decay
            kept = float(keeps[0])
            if not bool((keeps == keeps[0]).all()):
                kept = 1.0
                self._weight.mul_(keeps[:, None, None])
            if self._bias is not None:
                self._bias.mul_(keeps[:, None, None])
        self._weight.baddbmm_(residual, x, beta=kept, alpha=-1)
        if self._bias is not None:
            self._bias.sub_(residual.sum(2, keepdim=True))

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
        """Make the last step.

        If it is also the first step, write it into `out` without making models.
        """
        if not self._is_shared or decay is not None:
            self.step(x, y, weights, rates, decay)
            self.write_updates(start, out)
            return
        residual = self._residual(x, y, weights * -rates[:, None])
        after = self._layout.unflatten(out)
        each = self._classes, self._replicas
        together = max(1, STEP_NUMBERS_AT_ONCE // (residual.shape[1] * self._inputs))
        buffer = residual.new_empty(min(together, self._clients), residual.shape[1], self._inputs)
        for first in range(0, self._clients, together):
            part = slice(first, first + together)
            step = torch.bmm(residual[part], x[part], out=buffer[: len(residual[part])])
            after["weight"][:, part] = replicas_first(step.unflatten(1, each))
        if self._bias is not None:
            after["bias"].copy_(replicas_first(residual.sum(2).unflatten(1, each)))

    def _residual(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the factor of every sample's input, (clients, classes x replicas, batch)."""
        clients, batch = y.shape
        residual: Tensor = self._logits(x).view(clients, self._classes, self._replicas, batch).softmax(1)
        index = y.view(clients, 1, 1, batch).expand(-1, 1, self._replicas, -1)
        residual.scatter_add_(1, index, self._minus_one.expand(index.shape))
        if self._longest is not None:
            residual.mul_(clip_factors(residual, x, self._longest, classes=1, bias=self._bias is not None))
        return residual.mul_(weights.view(clients, 1, 1, batch)).view(clients, -1, batch)

    def _logits(self, x: Tensor) -> Tensor:
        """Return logits, (clients, classes x replicas, batch).

        There is one product while clients share a model.
        """
        if self._is_shared:
            weight = self._weight[0]
            turned = x.flatten(0, 1).T
            logits = weight.mm(turned) if self._bias is None else self._bias[0].addmm(weight, turned)
            return logits.view(-1, *x.shape[:2]).transpose(0, 1)
        turned = x.transpose(1, 2)
        return self._weight.bmm(turned) if self._bias is None else self._bias.baddbmm(self._weight, turned)

    def _unshare(self) -> None:
        """Give every client its own model."""
        if self._is_shared:
            self._is_shared = False
            each = (self._clients, 1, 1)
            self._weight = self._weight.repeat(each)
            self._bias = None if self._bias is None else self._bias.repeat(each)

    def parameters(self) -> Tensor:
        """Return flat vectors, (R, n, P)."""
        blocks = [block.flatten(2) for block in self._blocks().values()]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)

    def write_updates(self, start: Tensor, out: Tensor) -> None:
        """Write the updates block by block, without flat vectors in between."""
        before = self._layout.unflatten(start)
        after = self._layout.unflatten(out)
        for name, now in self._blocks().items():
            torch.sub(now, before[name], out=after[name])

    def _blocks(self) -> dict[str, Tensor]:
        """Return weight and bias as (replicas, clients, ...)."""
        self._unshare()
        shape = self._clients, self._classes, self._replicas
        blocks = {"weight": replicas_first(self._weight.view(*shape, self._inputs))}
        return blocks if self._bias is None else blocks | {"bias": replicas_first(self._bias.view(shape))}


def replicas_first(block: Tensor) -> Tensor:
    """Turn (clients, classes, replicas, ...) into (replicas, clients, classes, ...)."""
    return block.movedim(2, 0)


class SingleLinearSteps(LocalModels):
    """Local training in place of one model of one client, without axes of clients and replicas.

    Its products are so small that every operation around them counts. Logits lie as (classes, batch).
    """

    def __init__(self, layout: Layout, start: Tensor) -> None:
        self._parameters = start.clone(memory_format=torch.contiguous_format)
        blocks = layout.unflatten(self._parameters[0, 0])  # views
        self._weight = blocks["weight"]
        self._bias = blocks["bias"][:, None] if "bias" in blocks else None
        self._minus_one = start.new_full((1, 1), -1.0)

    def step(self, x: Tensor, y: Tensor, weights: Tensor, rates: Tensor, decay: Tensor | None) -> None:
        """Step as `LinearSteps` does."""
        samples = x[0]
        weight = self._weight
        logits = weight.mm(samples.T) if self._bias is None else self._bias.addmm(weight, samples.T)
        residual = logits.softmax(0)
        residual.scatter_add_(0, y, self._minus_one.expand_as(y)).mul_(weights * rates)
        kept = 1.0 if decay is None else float(1.0 - rates * decay)
        weight.addmm_(residual, samples, beta=kept, alpha=-1)
        if self._bias is not None:
            self._bias.mul_(kept).sub_(residual.sum(1, keepdim=True))

    def parameters(self) -> Tensor:
        """Return the model as a flat vector, (1, 1, P)."""
        return self._parameters
