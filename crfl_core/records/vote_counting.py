"""Votes to be counted: which models vote on which test set. Any process that has the test set may count a part."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import CrflWarning, PluginFailure
from crfl_core.records.random_streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.model import BoundModel

BLOCK = 8
"""Noisy copies that share a random stream: opening one costs as much as drawing two thousand numbers."""
MODELS_AT_ONCE = 32 * BLOCK
"""Noisy copies in memory at a time, if they are not large."""
NUMBERS_AT_ONCE = 2**26
"""How many numbers they may have together, if that is no less than a block."""
SAMPLES_AT_ONCE = 512
"""Test samples that are voted on together, by everybody: a product of another shape may round otherwise, and no vote
may depend on who counts it."""

Elsewhere = Callable[["Voters"], Iterable["Counted"]]
ElsewhereOn = Callable[[str, "Voters"], Iterable["Counted"]]
Shown = Callable[[int], object]


@dataclass(frozen=True)
class Voters:
    """Models that vote: those of `models`, (k, P), or if there are `copies`, noisy ones of the first of them.

    >>> import torch
    >>> voters = Voters(torch.zeros(1, 4), copies=20, noise_std=0.1, streams=Streams(seed=7))
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
        """The models, (k, P), some at a time, each valid until the next is asked for."""
        if self.copies:
            assert self.streams is not None
            return noisy_models(self.models[0], self.noise_std, self.copies, self.streams, self.purpose)
        return iter(self.models.split(MODELS_AT_ONCE))

    def counts(
        self, model: BoundModel, features: Tensor, elsewhere: Elsewhere = lambda _: (), shown: Shown = lambda _: None
    ) -> NDArray[np.int64]:
        """How many of the models choose each class, (m, C), on one test set."""
        return self.counts_on(model, {"": features}, lambda _, voters: elsewhere(voters), shown)[""]

    def counts_on(
        self,
        model: BoundModel,
        sets: Mapping[str, Tensor],
        elsewhere: ElsewhereOn = lambda _name, _voters: (),
        shown: Shown = lambda _: None,
    ) -> dict[str, NDArray[np.int64]]:
        """How many of the models choose each class, (m, C), on every test set. There is at least one of them.

        `elsewhere` answers with what others have counted. That is not believed: one block of every test set, which
        nobody can foresee, is counted here as well, and if it differs, so is everything else of this set. All sets are
        voted on by the same models, which are drawn once. `shown` is told how many models have voted.
        """
        found: dict[str, dict[int, NDArray[np.int64]]] = {name: {} for name in sets}
        total = sum(len(blocks_of(len(features))) for features in sets.values())
        for name, features in sets.items():
            for known in by_block(elsewhere(name, self), len(self), len(features)):
                found[name] = known
                shown(len(self) * sum(map(len, found.values())) // total)
        looked_at = {name: secrets.choice(sorted(known)) for name, known in found.items() if known}
        here = [
            (name, number)
            for name, features in sets.items()
            for number in range(len(blocks_of(len(features))))
            if number not in found[name] or number == looked_at[name]
        ]
        rows = [sets[name][blocks_of(len(sets[name]))[number]] for name, number in here]
        counted = dict(zip(here, count(model, told(self.chunks(), shown), rows), strict=True))
        return {name: self._agreed(model, name, sets[name], found[name], counted) for name in sets}

    def _agreed(
        self,
        model: BoundModel,
        name: str,
        features: Tensor,
        found: Mapping[int, NDArray[np.int64]],
        counted: Mapping[tuple[str, int], NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """All votes on a test set, from what others have counted and what was counted here."""
        blocks = blocks_of(len(features))
        wrong = [one for one in found if (name, one) in counted and not np.array_equal(counted[name, one], found[one])]
        if not wrong:
            each = (counted[name, one] if (name, one) in counted else found[one] for one in range(len(blocks)))
            return np.concatenate(list(each))
        warnings.warn(
            f"the engine has counted other votes on test samples from {blocks[wrong[0]].start} on than this process "
            "does: all votes on this test set are counted here; its machines may differ in processors or libraries",
            CrflWarning,
            stacklevel=2,
        )
        return self.counts(model, features)


@dataclass(frozen=True)
class CountingTask:
    """The votes of some models on all samples of a test set, which every job has under this name."""

    test_set: str
    samples: int
    voters: Voters

    @property
    def blocks(self) -> list[slice]:
        """The samples that are voted on together. Parts are made of whole blocks."""
        return blocks_of(self.samples)


@dataclass(frozen=True)
class Counted:
    """How many models choose each class, (samples of the part, C)."""

    part: slice
    counts: NDArray[np.int64]


def blocks_of(samples: int) -> list[slice]:
    """Samples that are voted on together.

    >>> blocks_of(600)
    [slice(0, 512, None), slice(512, 600, None)]
    """
    firsts = range(0, max(1, samples), SAMPLES_AT_ONCE)
    return [slice(first, min(first + SAMPLES_AT_ONCE, samples)) for first in firsts]


def by_block(parts: Iterable[Counted], models: int, samples: int) -> Iterator[dict[int, NDArray[np.int64]]]:
    """What was counted so far, by the number of the block, after every part.

    Raises `PluginFailure` for what cannot be the votes of so many models.
    """
    found: dict[int, NDArray[np.int64]] = {}
    blocks = blocks_of(samples)
    for one in parts:
        if not isinstance(one, Counted):
            raise PluginFailure(f"the engine must yield Counted, found {type(one).__name__}")
        rows = range(samples)[one.part]
        votes = np.asarray(one.counts)
        own = [number for number, block in enumerate(blocks) if block.start in rows]
        ends = {0, *(block.stop for block in blocks)}
        if not own or rows.step != 1 or not {rows.start, rows.stop} <= ends or found.keys() & {*own}:
            raise PluginFailure(f"the engine must count votes in whole blocks of samples, each once, found {one.part}")
        if votes.dtype != np.int64 or votes.ndim != 2 or len(votes) != len(rows):
            raise PluginFailure(f"the engine must count votes as whole numbers, (samples, classes), for {one.part}")
        if (votes < 0).any() or (votes.sum(1) != models).any():
            raise PluginFailure(f"the engine must count one vote of each of the {models} models, for {one.part}")
        for number in own:
            found[number] = votes[blocks[number].start - rows.start : blocks[number].stop - rows.start]
        yield found


def count(model: BoundModel, chunks: Iterator[Tensor], blocks: Sequence[Tensor]) -> list[NDArray[np.int64]]:
    """How many of the models in all chunks choose each class, (m, C), for every block of samples."""
    totals: list[NDArray[np.int64]] = []
    for models in chunks:
        counts = model.vote_counter(models)
        for place, block in enumerate(blocks):
            found = counts(block).cpu().numpy()
            if not totals:  # all of them now: small results that stay between large ones that go would scatter memory
                totals = [np.zeros((len(one), found.shape[1]), np.int64) for one in blocks]
            totals[place] += found
    return totals


def told(chunks: Iterator[Tensor], shown: Shown) -> Iterator[Tensor]:
    """The same chunks; `shown` is told how many models have voted when the next is asked for."""
    done = 0
    for models in chunks:
        yield models
        done += len(models)
        shown(done)


def noisy_models(parameters: Tensor, std: float, count: int, streams: Streams, purpose: str) -> Iterator[Tensor]:
    """Chunks of copies `w + N(0, std^2 I)`, (k, P), each valid until the next is asked for.

    Every block of copies has its own stream, so neither chunks nor threads change the draws.
    """
    import torch

    base = parameters.cpu().numpy()
    at_once = max(BLOCK, min(MODELS_AT_ONCE, NUMBERS_AT_ONCE // len(base) // BLOCK * BLOCK))
    copies = np.empty((min(count, at_once), len(base)), base.dtype)

    def draw(block: int) -> None:
        first = block * BLOCK % at_once
        rows = copies[first : min(first + BLOCK, first + count - block * BLOCK)]
        streams.generator(purpose, replica=block).standard_normal(dtype=base.dtype, out=rows)
        rows *= std
        rows += base

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # numpy lets go of the interpreter while it draws
        for first in range(0, count, at_once):
            last = min(count, first + at_once)
            list(threads.map(draw, range(first // BLOCK, -(-last // BLOCK))))
            yield torch.from_numpy(copies[: last - first]).to(parameters.device)
