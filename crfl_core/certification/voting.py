"""Algorithm 2's first half: the votes of many noisy models, with memory bounded by a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce

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


def vote(
    electorate: Electorate, features: Tensor, labels: Tensor, request: VoteRequest, settings: VoteSettings
) -> Votes:
    """The answer to a request on one test set. The same noisy models vote on every set and sample."""
    norms: NDArray[np.float64] = features.norm(dim=1, dtype=torch.float64).cpu().numpy()
    return VOTING[request.kind](electorate, features, Votes(request, settings, labels.cpu().numpy(), norms))


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


def noisy_copies(electorate: Electorate, features: Tensor, asked: Votes) -> CountVotes:
    """The votes of noisy copies of the model."""
    request = asked.request

    def copies(number: int, purpose: str) -> Iterator[Tensor]:
        return noisy_models(electorate.parameters, request.noise_std, number, electorate.streams, purpose)

    counted, chosen = copies(request.models, "votes"), copies(request.selection_models, "votes/selection")
    return counts_of(electorate, counted, chosen, features, asked)


def continued_runs(electorate: Electorate, features: Tensor, asked: Votes) -> CountVotes:
    """The votes of continuations, one each; the first of them select the class."""
    models, first = electorate.continued(asked.request), asked.request.selection_models
    counted, chosen = models[first:].split(MODELS_AT_ONCE), models[:first].split(MODELS_AT_ONCE)
    return counts_of(electorate, counted, chosen, features, asked)


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
    "monte-carlo": noisy_copies,
    "continuations": continued_runs,
    "groups": group_models,
}


def counts_of(
    electorate: Electorate, counted: Iterable[Tensor], chosen: Iterable[Tensor], features: Tensor, asked: Votes
) -> CountVotes:
    """The votes of two groups of models, the second of which may be empty."""
    model, request = electorate.model, asked.request

    def shown(chunks: Iterable[Tensor], before: int) -> Iterator[Tensor]:
        for models in chunks:
            yield models
            before += len(models)
            electorate.shown(before, request.models + request.selection_models)

    counts = count(model, shown(counted, 0), features)
    separate = request.selection_models > 0
    selection = count(model, shown(chosen, request.models), features) if separate else np.zeros_like(counts)
    return CountVotes(**vars(asked), counts=counts, selection=selection)


def count(model: BoundModel, chunks: Iterable[Tensor], features: Tensor) -> NDArray[np.int64]:
    """How many of the models in all chunks choose each class, (m, C). There is at least one model."""
    return reduce(np.add, (model.counts(models, features).cpu().numpy() for models in chunks))


def noisy_models(parameters: Tensor, std: float, count: int, streams: Streams, purpose: str) -> Iterator[Tensor]:
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
