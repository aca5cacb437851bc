"""Algorithm 2's first half: the votes of many noisy copies of a model, with memory bounded by a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import RunError
from crfl_core.kinds.model import BoundModel
from crfl_core.streams import Streams
from crfl_core.votes import VoteRequest, Votes, VoteSettings

BLOCK = 8
"""Noisy copies that share a random stream: opening one costs as much as drawing two thousand numbers."""
MODELS_AT_ONCE = 32 * BLOCK
"""Noisy copies in memory at a time."""


def vote(
    model: BoundModel,
    parameters: Tensor,
    features: Tensor,
    labels: Tensor,
    request: VoteRequest,
    settings: VoteSettings,
    streams: Streams,
) -> Votes:
    """The answer to a request on one test set. The same noisy models vote on every set and sample."""
    norms = features.norm(dim=1, dtype=torch.float64).cpu().numpy()
    if request.kind == "logits":
        logits = model.logits(parameters[None], features)[0].double().cpu().numpy()
        return Votes(request, settings, labels.cpu().numpy(), norms, logits=logits)
    if request.kind == "monte-carlo":
        counts = monte_carlo(model, parameters, features, request, streams)
        return Votes(request, settings, labels.cpu().numpy(), norms, counts=counts)
    raise RunError(f"votes of kind {request.kind!r} cannot be computed by this version")


def monte_carlo(
    model: BoundModel, parameters: Tensor, features: Tensor, request: VoteRequest, streams: Streams
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """How many of M models `w + N(0, sigma^2 I)` choose each class, (m, C)."""
    total: Tensor | None = None
    for models in noisy_models(parameters, request.noise_std, request.models, streams):
        counts = model.counts(models, features)
        total = counts if total is None else total.add_(counts)
    assert total is not None
    result: np.ndarray[tuple[int, int], np.dtype[np.int64]] = total.cpu().numpy()
    return result


def noisy_models(parameters: Tensor, std: float, count: int, streams: Streams) -> Iterator[Tensor]:
    """Chunks of noisy copies, (k, P), each valid until the next is asked for.

    Every block of copies has its own stream, so neither chunks nor threads change the draws.
    """
    base = parameters.cpu().numpy()
    copies = np.empty((min(count, MODELS_AT_ONCE), len(base)), base.dtype)

    def draw(block: int) -> None:
        first = block * BLOCK % MODELS_AT_ONCE
        rows = copies[first : min(first + BLOCK, first + count - block * BLOCK)]
        streams.generator("votes", replica=block).standard_normal(dtype=base.dtype, out=rows)
        rows *= std
        rows += base

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # numpy lets go of the interpreter while it draws
        for first in range(0, count, MODELS_AT_ONCE):
            last = min(count, first + MODELS_AT_ONCE)
            list(threads.map(draw, range(first // BLOCK, -(-last // BLOCK))))
            yield torch.from_numpy(copies[: last - first]).to(parameters.device)
