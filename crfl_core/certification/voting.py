"""Algorithm 2's first half: the votes of many noisy models, with memory bounded by a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.certification import formulas
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
    continued: Tensor | None = None,
) -> Votes:
    """The answer to a request on one test set. The same noisy models vote on every set and sample.

    For "continuations", `continued` holds their noisy final models, (selection_models + models, P).
    """
    norms: NDArray[np.float64] = features.norm(dim=1, dtype=torch.float64).cpu().numpy()
    answer = Votes(request, settings, labels.cpu().numpy(), norms)
    if request.kind in ("logits", "exact"):
        logits = model.logits(parameters[None].double(), features.double())[0].cpu().numpy()
        if request.kind == "logits":
            return replace(answer, logits=logits)
        noise = request.noise_std * np.hypot(norms, 1.0 if model.facts.bias else 0.0)
        exact = formulas.exact_votes(logits, noise)
        return replace(answer, logits=logits, log_p_a=exact.log_p_a, log_rest=exact.log_rest, log_p_b=exact.log_p_b)
    if request.kind == "continuations":
        assert continued is not None
        first, rest = continued[: request.selection_models], continued[request.selection_models :]
        chosen, counted = first.split(MODELS_AT_ONCE), rest.split(MODELS_AT_ONCE)
        return replace(answer, selection_counts=count(model, chosen, features), counts=count(model, counted, features))
    copies = noisy_models(parameters, request.noise_std, request.models, streams, "votes")
    counts = count(model, copies, features)
    if not request.selection_models:
        return replace(answer, counts=counts)
    others = noisy_models(parameters, request.noise_std, request.selection_models, streams, "votes/selection")
    return replace(answer, counts=counts, selection_counts=count(model, others, features))


def count(model: BoundModel, chunks: Iterable[Tensor], features: Tensor) -> NDArray[np.int64]:
    """How many of the models in all chunks choose each class, (m, C)."""
    total: Tensor | int = 0
    for models in chunks:
        total = total + model.counts(models, features)
    assert isinstance(total, Tensor)
    result: NDArray[np.int64] = total.cpu().numpy()
    return result


def noisy_models(parameters: Tensor, std: float, count: int, streams: Streams, purpose: str) -> Iterator[Tensor]:
    """Chunks of copies `w + N(0, std^2 I)`, (k, P), each valid until the next is asked for.

    Every block of copies has its own stream, so neither chunks nor threads change the draws.
    """
    base = parameters.cpu().numpy()
    copies = np.empty((min(count, MODELS_AT_ONCE), len(base)), base.dtype)

    def draw(block: int) -> None:
        first = block * BLOCK % MODELS_AT_ONCE
        rows = copies[first : min(first + BLOCK, first + count - block * BLOCK)]
        streams.generator(purpose, replica=block).standard_normal(dtype=base.dtype, out=rows)
        rows *= std
        rows += base

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # numpy lets go of the interpreter while it draws
        for first in range(0, count, MODELS_AT_ONCE):
            last = min(count, first + MODELS_AT_ONCE)
            list(threads.map(draw, range(first // BLOCK, -(-last // BLOCK))))
            yield torch.from_numpy(copies[: last - first]).to(parameters.device)
