"""Algorithm 2's first half: the votes of many noisy models, with memory bounded by a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import crfl_formulas as formulas
from crfl_interface.kinds.model import BoundModel
from crfl_interface.ledger import GroupFacts
from crfl_interface.streams import Streams
from crfl_interface.votes import (
    CountVotes,
    ExactVotes,
    GroupVotes,
    LogitVotes,
    VoteKind,
    VoteRequest,
    Votes,
    VoteSettings,
)

Sets = Mapping[str, tuple[Tensor, Tensor]]
"""Features and labels of test sets, by name."""
Ballots = Sequence[tuple[Tensor, Votes]]
"""Their features, and their votes so far: what was asked, labels and norms."""
BLOCK = 8
"""Noisy copies that share a random stream: opening one costs as much as drawing two thousand numbers."""
MODELS_AT_ONCE = 32 * BLOCK
"""Noisy copies in memory at a time, if they are not large."""
NUMBERS_AT_ONCE = 2**26
"""How many numbers they may have together, if that is no less than a block."""


@dataclass(frozen=True)
class Electorate:
    """Who votes: a trained model, (P,), or those of all groups, (G, P), the streams of noise, and what answers a
    request for continuations with their noisy final models, (selection_models + models, P). `failed` groups vote for
    class 0. `shown` is told how many noisy models of how many have voted.
    """

    model: BoundModel
    parameters: Tensor
    streams: Streams
    continued: Callable[[VoteRequest], Tensor]
    failed: tuple[int, ...] = ()
    shown: Callable[[int, int], object] = lambda _done, _total: None


def vote(electorate: Electorate, sets: Sets, request: VoteRequest, settings: VoteSettings) -> dict[str, Votes]:
    """The answer to a request on every test set. The same noisy models vote on all of them, and are drawn once."""
    ballots = []
    for features, labels in sets.values():
        norms: NDArray[np.float64] = features.norm(dim=1, dtype=torch.float64).cpu().numpy()
        ballots.append((features, Votes(request, settings, labels.cpu().numpy(), norms)))
    if request.kind in COUNTING:
        return dict(zip(sets, COUNTING[request.kind](electorate, request, ballots), strict=True))
    return {name: VOTING[request.kind](electorate, *ballot) for name, ballot in zip(sets, ballots, strict=True)}


def elected(electorate: Electorate, features: Tensor, groups: GroupFacts | None) -> NDArray[np.int64]:
    """The classes that a model predicts, or that the groups elect; ties go to the lowest class."""
    if groups is None:
        parts = electorate.model.in_parts(electorate.parameters[None], features)
        return np.concatenate([logits[0].argmax(-1).cpu().numpy() for _, logits in parts])
    asked = Votes(VoteRequest("groups"), VoteSettings(), np.empty(0, np.int64), np.empty(0))
    ballots = group_models(electorate, features, asked).ballots
    winners: NDArray[np.int64] = formulas.vote_counts(ballots, int(ballots.max()) + 2, groups.votes).argmax(axis=1)
    return winners


def own_logits(electorate: Electorate, features: Tensor, asked: Votes) -> LogitVotes:
    """What the model itself says, in double precision."""
    parts = electorate.model.in_parts(electorate.parameters[None].double(), features)
    return LogitVotes(**vars(asked), logits=torch.cat([logits[0] for _, logits in parts]).cpu().numpy())


def exact_probabilities(electorate: Electorate, features: Tensor, asked: Votes) -> ExactVotes:
    """The votes of all noisy copies of a linear model, by quadrature."""
    logits = own_logits(electorate, features, asked).logits
    bias = 1.0 if electorate.model.facts.bias else 0.0
    found = formulas.exact_votes(logits, asked.request.noise_std * np.hypot(asked.input_norms, bias))
    return ExactVotes(
        **vars(asked),
        winner=logits.argmax(axis=1),
        log_p_a=found.log_p_a,
        log_p_b=found.log_p_b,
        log_rest=found.log_rest,
    )


def noisy_copies(electorate: Electorate, request: VoteRequest, ballots: Ballots) -> list[CountVotes]:
    """The votes of noisy copies of the model."""
    copies = partial(noisy_models, electorate.parameters, request.noise_std, streams=electorate.streams)
    counted, chosen = copies(request.models, "votes"), copies(request.selection_models, "votes/selection")
    return counts_of(electorate, counted, chosen, ballots)


def continued_runs(electorate: Electorate, request: VoteRequest, ballots: Ballots) -> list[CountVotes]:
    """The votes of continuations, one each; the first of them select the class."""
    models, first = electorate.continued(request), request.selection_models
    counted, chosen = models[first:].split(MODELS_AT_ONCE), models[:first].split(MODELS_AT_ONCE) if first else ()
    return counts_of(electorate, counted, chosen, ballots)


def group_models(electorate: Electorate, features: Tensor, asked: Votes) -> GroupVotes:
    """The vote of every group's own model."""
    models = electorate.parameters
    ballots = np.zeros((len(features), len(models)), np.int64)
    gaps = np.zeros(ballots.shape)
    for rows, logits in electorate.model.in_parts(models.double(), features):  # (G, b, C)
        ballots[rows] = logits.argmax(-1).T.cpu().numpy()
        best = logits.topk(2, dim=-1).values
        gaps[rows] = (best[..., 0] - best[..., 1]).T.cpu().numpy()
    ballots[:, electorate.failed] = 0
    gaps[:, electorate.failed] = 0.0
    return GroupVotes(**vars(asked), ballots=ballots, gaps=gaps)


VOTING: Mapping[VoteKind, Callable[[Electorate, Tensor, Votes], Votes]] = {
    "logits": own_logits,
    "exact": exact_probabilities,
    "groups": group_models,
}
COUNTING: Mapping[VoteKind, Callable[[Electorate, VoteRequest, Ballots], list[CountVotes]]] = {
    "monte-carlo": noisy_copies,
    "continuations": continued_runs,
}


def counts_of(
    electorate: Electorate, counted: Iterable[Tensor], chosen: Iterable[Tensor], ballots: Ballots
) -> list[CountVotes]:
    """The votes of two groups of models, the second of which may be empty, on every test set."""
    model, request, features = electorate.model, ballots[0][1].request, [features for features, _ in ballots]

    def shown(chunks: Iterable[Tensor], before: int) -> Iterator[Tensor]:
        for models in chunks:
            yield models
            before += len(models)
            electorate.shown(before, request.models + request.selection_models)

    counts = count(model, shown(counted, 0), features)
    selection = count(model, shown(chosen, request.models), features) or [np.zeros_like(one) for one in counts]
    each = zip(ballots, counts, selection, strict=True)
    return [CountVotes(**vars(asked), counts=one, selection=other) for (_, asked), one, other in each]


def count(model: BoundModel, chunks: Iterable[Tensor], features: Sequence[Tensor]) -> list[NDArray[np.int64]]:
    """How many of the models in all chunks choose each class, (m, C), on every test set; empty without a model."""
    totals: list[NDArray[np.int64]] = []
    for models in chunks:
        found = [model.counts(models, part).cpu().numpy() for part in features]
        totals = [np.add(*pair) for pair in zip(totals, found, strict=True)] if totals else found
    return totals


def noisy_models(parameters: Tensor, std: float, count: int, purpose: str, streams: Streams) -> Iterator[Tensor]:
    """Chunks of copies `w + N(0, std^2 I)`, (k, P), each valid until the next is asked for.

    Every block of copies has its own stream, so neither chunks nor threads change the draws.
    """
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
