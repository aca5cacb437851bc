"""View of the server for aggregation steps: the model, the whole federation, and trusted samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.model import BoundModel, GradientSteps
from crfl_core.records.random_streams import Streams
from crfl_core.records.round import Clients, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RootSamples:
    """Trusted samples behind the feature maps: `x` is (m, features), `y` is (m,). Read-only."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class ServerView:
    """The server, as aggregation steps see it.

    `clients` are all clients that train the step's model: those of the federation, or of its group if there are groups.
    Their ids are below `federation_size`, the number of clients in all groups. `root` are the samples of
    `reserve.root`, None for steps whose class does not say `needs_root`. `streams` are those of aggregation. `origin`,
    (P,), is the model toward which weight decay pulls, None if it pulls toward 0. Parameters are (P,), or (R, P) for
    several models, and answers alike.
    """

    model: BoundModel
    clients: Clients
    federation_size: int
    rounds: int
    streams: Streams
    root: RootSamples | None = None
    origin: Tensor | None = None

    @property
    def layout(self) -> Layout:
        """Return how the model's tensors lie in the parameter vector."""
        return self.model.layout

    def logits(self, parameters: Tensor) -> Tensor:
        """Return the root samples' logits, (m, C) or (R, m, C)."""
        found = self.model.logits(parameters.reshape(-1, self.layout.size), self._root(parameters).x)
        return found if parameters.ndim > 1 else found[0]

    def loss(self, parameters: Tensor) -> Tensor:
        """Return the mean cross-entropy of the root samples, () or (R,)."""
        import torch

        logits = self.logits(parameters)
        labels = self._root(parameters).y
        per_sample = torch.nn.functional.cross_entropy(
            logits.movedim(-1, 1) if logits.ndim > 2 else logits,
            labels.expand(logits.shape[:-1]),
            reduction="none",
        )
        return per_sample.mean(-1)

    def gradient(self, parameters: Tensor) -> Tensor:
        """Return the gradient of `loss`, (P,) or (R, P)."""
        root = self._root(parameters)
        weights = root.x.new_full((1, len(root.y)), 1.0 / len(root.y))
        models = parameters.reshape(-1, 1, self.layout.size)
        return self.model.gradient(models, root.x[None], root.y[None], weights).reshape(parameters.shape)

    def local_update(self, start: Tensor, *, learning_rate: float, steps: int, batch_size: int, number: int) -> Tensor:
        """Train on the root samples as a client would.

        It trains from the model `start` and returns the update, (P,). This is plain SGD with the weight decay of the
        clients; all samples weigh the same. Every epoch is a fresh order of the samples, cut into batches of which the
        last may be short; the order depends on the round alone.
        """
        import torch

        root = self._root(start)
        decay = float(self.clients.weight_decay[0])
        size = min(batch_size, len(root.y))
        per_epoch = -(-len(root.y) // size)
        generator = self.streams.generator("aggregation/root", round_number=number)
        begin = start.reshape(1, 1, -1)
        if self.origin is None:
            models = self.model.local_models(begin)
        else:
            models = GradientSteps(self.model, begin, self.origin.to(begin))
        rates = start.new_full((1,), learning_rate)
        order = torch.empty(0)
        for step in range(steps):
            position = step % per_epoch
            if position == 0:
                order = torch.from_numpy(generator.permutation(len(root.y))).to(root.y.device)
            rows = order[position * size : (position + 1) * size]
            weights = start.new_full((1, len(rows)), 1.0 / len(rows))
            models.step(
                root.x[rows][None], root.y[rows][None], weights, rates, start.new_full((1,), decay) if decay else None
            )
        return models.parameters()[0, 0] - start

    def _root(self, parameters: Tensor) -> RootSamples:
        if self.root is None:
            raise PluginFailure(
                "there are no root samples here: set `needs_root = True` on the class of the step, so that they are "
                "handed to it and a config without reserve.root is refused"
            )
        return RootSamples(self.root.x.to(parameters), self.root.y.to(parameters.device))
