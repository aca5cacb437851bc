"""What the server has in the rounds that aggregation is tried on: a model of any size, and samples that it trusts."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from crfl_core.plugin_api.model import BoundModel
from crfl_core.plugin_api.server_view import Samples, ServerSide
from crfl_core.records.ledger import ModelFacts
from crfl_core.records.random_streams import Streams
from crfl_core.records.round import Clients, Layout

ROOT_SAMPLES = 20


class Slope(BoundModel):
    """Two classes, `logits = (0, w x)`: logistic regression with as many parameters as an update has."""

    def __init__(self, size: int) -> None:
        self.layout = Layout((("weight", (size,)),))
        self.facts = ModelFacts(linear=False, convex=True, bias=False)

    def initial(self, generator: np.random.Generator) -> Tensor:  # noqa: ARG002
        """All zeros."""
        return torch.zeros(self.layout.size)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """(R, P) and (b, features) -> (R, b, 2)."""
        slopes = parameters @ x.T
        return torch.stack([torch.zeros_like(slopes), slopes], dim=-1)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """`sum_b weight_b (sigmoid(w x_b) - y_b) x_b`."""
        slopes = torch.einsum("rnp,nbp->rnb", parameters, x)
        return torch.einsum("rnb,nbp->rnp", weights * (slopes.sigmoid() - y), x)


@functools.cache
def root_of(size: int) -> Samples:
    """Samples of two classes, in double precision: each on its side of the origin."""
    generator = np.random.default_rng(11)
    labels = np.arange(ROOT_SAMPLES) % 2
    inputs = generator.standard_normal((ROOT_SAMPLES, size)) + (2 * labels - 1)[:, None]
    return Samples(torch.from_numpy(inputs / np.sqrt(size)), torch.from_numpy(labels))


def server_of(size: int, everybody: Clients, streams: Streams) -> ServerSide:
    """The server of rounds with updates of this size, in a federation of these clients."""
    return ServerSide(Slope(size), everybody, 9, streams, root_of(size))
