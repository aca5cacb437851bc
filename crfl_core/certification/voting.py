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

LOGITS_AT_ONCE = 2**23
"""How many logits (models x samples x classes) are in memory at a time."""
MODELS_AT_ONCE = 256


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
        rows = max(64, LOGITS_AT_ONCE // (len(models) * 16))
        counts = torch.cat([model.counts(models, features[i : i + rows]) for i in range(0, len(features), rows)])
        total = counts if total is None else total.add_(counts)
    assert total is not None
    result: np.ndarray[tuple[int, int], np.dtype[np.int64]] = total.cpu().numpy()
    return result


def noisy_models(parameters: Tensor, std: float, count: int, streams: Streams) -> Iterator[Tensor]:
    """Chunks of noisy copies, (k, P). Copy k has its own stream, so the chunk size does not change it."""
    dtype = np.float64 if parameters.dtype == torch.float64 else np.float32

    def draw(first: int) -> Tensor:
        last = min(count, first + MODELS_AT_ONCE)
        noise = np.empty((last - first, len(parameters)), dtype)
        for row, copy in zip(noise, range(first, last), strict=True):
            streams.generator("votes", replica=copy).standard_normal(dtype=dtype, out=row)
        return torch.from_numpy(noise).to(parameters.device).mul_(std).add_(parameters)

    with ThreadPoolExecutor(max_workers=1) as ahead:  # numpy draws the next chunk while this one is voted on
        starts = list(range(0, count, MODELS_AT_ONCE))
        pending = ahead.submit(draw, starts[0])
        for following in [*starts[1:], None]:
            chunk = pending.result()
            if following is not None:
                pending = ahead.submit(draw, following)
            yield chunk
