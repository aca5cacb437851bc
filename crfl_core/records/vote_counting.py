"""Votes to be counted: which models vote on which test set; any process that has the test set can count a part.

An engine counts with `count_votes`, block by block; `certification.voting` verifies what it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.records.random_streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.model import BoundModel

COPIES_PER_STREAM = 8
"""Noisy copies that share a random stream: opening a stream costs as much as drawing two thousand numbers."""
MODELS_PER_CHUNK = 32 * COPIES_PER_STREAM
"""Models in memory at a time, if they are not large."""
PARAMETERS_PER_CHUNK = 2**26
"""Parameters of all noisy copies in memory at a time, unless one stream's copies have more: 256 MiB in float32."""
SAMPLES_PER_BLOCK = 512
"""Test samples in one matrix product, in every process: other shapes may round differently and so change votes."""


@dataclass(frozen=True)
class NoisyModels:
    """Models that vote: `models` (k, P) themselves, or `copies` of the first of them with noise of `noise_std`.

    >>> import torch
    >>> voters = NoisyModels(torch.zeros(1, 4), copies=20, noise_std=0.1, streams=Streams(seed=7))
    >>> len(voters), [tuple(models.shape) for models in voters.chunks()]
    (20, [(20, 4)])
    """

    models: Tensor
    copies: int = 0
    noise_std: float = 0.0
    streams: Streams | None = None
    purpose: str = "votes"

    def __len__(self) -> int:
        return self.copies or len(self.models)

    def chunks(self) -> Iterator[Tensor]:
        """Iterate over chunks of models, (k, P).

        Each chunk is valid until the next one is drawn.
        """
        if self.copies:
            assert self.streams is not None
            return draw_noisy_models(self.models[0], self.noise_std, self.copies, self.streams, self.purpose)
        return iter(self.models.split(MODELS_PER_CHUNK))


@dataclass(frozen=True)
class CountingTask:
    """Votes of `voters` on all samples of a test set, which every job knows under this name."""

    test_set: str
    samples: int
    voters: NoisyModels

    @property
    def blocks(self) -> list[slice]:
        """Return the samples of each block; a part consists of whole blocks."""
        return split_samples(self.samples)


@dataclass(frozen=True)
class PartialCount:
    """Number of models that choose each class, (samples of the part, C), for one part of a test set."""

    part: slice
    counts: NDArray[np.int64]


def split_samples(samples: int) -> list[slice]:
    """Split a test set into the blocks that are voted on together.

    >>> split_samples(600)
    [slice(0, 512, None), slice(512, 600, None)]
    """
    firsts = range(0, max(1, samples), SAMPLES_PER_BLOCK)
    return [slice(first, min(first + SAMPLES_PER_BLOCK, samples)) for first in firsts]


def count_votes(model: BoundModel, chunks: Iterator[Tensor], blocks: Sequence[Tensor]) -> list[NDArray[np.int64]]:
    """Count the models that choose each class, (m, C), per block.

    It counts the models of all chunks on every block of samples.
    """
    totals: list[NDArray[np.int64]] = []
    for models in chunks:
        counts = model.vote_counter(models)
        for place, block in enumerate(blocks):
            found = counts(block).cpu().numpy()
            if not totals:  # allocate all at once: small arrays between large temporary ones fragment the memory
                totals = [np.zeros((len(samples), found.shape[1]), np.int64) for samples in blocks]
            totals[place] += found
    return totals


def draw_noisy_models(parameters: Tensor, std: float, count: int, streams: Streams, purpose: str) -> Iterator[Tensor]:
    """Draw `count` noisy copies `w + N(0, std^2 I)` in chunks.

    A chunk is (k, P), and is valid until the next one is drawn. Every `COPIES_PER_STREAM` copies have a random stream,
    so the draws depend on neither chunks nor threads.
    """
    import torch

    base = parameters.cpu().numpy()
    fitting = PARAMETERS_PER_CHUNK // len(base) // COPIES_PER_STREAM * COPIES_PER_STREAM
    chunk = max(COPIES_PER_STREAM, min(MODELS_PER_CHUNK, fitting))
    copies = np.empty((min(count, chunk), len(base)), base.dtype)

    def draw(stream: int) -> None:
        first = stream * COPIES_PER_STREAM % chunk
        rows = copies[first : min(first + COPIES_PER_STREAM, first + count - stream * COPIES_PER_STREAM)]
        streams.generator(purpose, replica=stream).standard_normal(dtype=base.dtype, out=rows)
        rows *= std
        rows += base

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # NumPy releases the interpreter lock while it draws
        for first in range(0, count, chunk):
            last = min(count, first + chunk)
            list(threads.map(draw, range(first // COPIES_PER_STREAM, -(-last // COPIES_PER_STREAM))))
            yield torch.from_numpy(copies[: last - first]).to(parameters.device)
