"""Algorithm 2's first half: the votes of many noisy models, with memory bounded by a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import crfl_core.certification.formulas as formulas
from crfl_core.plugin_api.model import BoundModel
from crfl_core.records.input_rows import norms_of
from crfl_core.records.ledger import GroupFacts
from crfl_core.records.random_streams import Streams
from crfl_core.records.vote_counting import Counted, Voters
from crfl_core.records.votes import (
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
Ballots = Mapping[str, tuple[Tensor, Votes]]
"""Their features, and their votes so far: what was asked, labels and norms."""


@dataclass(frozen=True)
class Electorate:
    """Who votes: a trained model, (P,), or those of all groups, (G, P), the streams of noise, and what answers a
    request for continuations with their noisy final models, (selection_models + models, P). `failed` groups vote for
    class 0. `shown` is told how many noisy models of how many have voted. `elsewhere` answers with what others have
    counted of the votes on this test set.
    """

    model: BoundModel
    parameters: Tensor
    streams: Streams
    continued: Callable[[VoteRequest], Tensor]
    failed: tuple[int, ...] = ()
    shown: Callable[[int, int], object] = lambda _done, _total: None
    elsewhere: Callable[[str, Voters], Iterable[Counted]] = lambda _name, _voters: ()


def vote(electorate: Electorate, sets: Sets, request: VoteRequest, settings: VoteSettings) -> dict[str, Votes]:
    """The answer to a request on every test set. The same noisy models vote on all of them, and are drawn once."""
    ballots: dict[str, tuple[Tensor, Votes]] = {}
    for name, (features, labels) in sets.items():
        ballots[name] = features, Votes(request, settings, labels.cpu().numpy(), norms_of(features))
    if request.kind in COUNTING:
        return {**COUNTING[request.kind](electorate, request, ballots)}
    return {name: VOTING[request.kind](electorate, *ballot) for name, ballot in ballots.items()}


def elected(electorate: Electorate, features: Tensor, groups: GroupFacts | None) -> NDArray[np.int64]:
    """The classes that a model predicts, or that the groups elect; ties go to the lowest class."""
    if groups is None:
        parts = electorate.model.logits_in_parts(electorate.parameters[None], features)
        return np.concatenate([logits[0].argmax(-1).cpu().numpy() for _, logits in parts])
    asked = Votes(VoteRequest("groups"), VoteSettings(), np.empty(0, np.int64), np.empty(0))
    ballots = group_models(electorate, features, asked).ballots
    winners: NDArray[np.int64] = formulas.vote_counts(ballots, int(ballots.max()) + 2, groups.votes).argmax(axis=1)
    return winners


def own_logits(electorate: Electorate, features: Tensor, asked: Votes) -> LogitVotes:
    """What the model itself says, in double precision."""
    parts = electorate.model.logits_in_parts(electorate.parameters[None].double(), features)
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


def noisy_copies(electorate: Electorate, request: VoteRequest, ballots: Ballots) -> dict[str, CountVotes]:
    """The votes of noisy copies of the model."""

    def copies(number: int, purpose: str) -> Voters:
        return Voters(electorate.parameters[None], number, request.noise_std, electorate.streams, purpose)

    counted = copies(request.models, "votes")
    chosen = copies(request.selection_models, "votes/selection")
    return counts_of(electorate, counted, chosen, ballots)


def continued_runs(electorate: Electorate, request: VoteRequest, ballots: Ballots) -> dict[str, CountVotes]:
    """The votes of continuations, one each; the first of them select the class."""
    models = electorate.continued(request)
    first = request.selection_models
    return counts_of(electorate, Voters(models[first:]), Voters(models[:first]), ballots)


def group_models(electorate: Electorate, features: Tensor, asked: Votes) -> GroupVotes:
    """The vote of every group's own model."""
    models = electorate.parameters
    ballots = np.zeros((len(features), len(models)), np.int64)
    gaps = np.zeros(ballots.shape)
    for rows, logits in electorate.model.logits_in_parts(models.double(), features):  # (G, b, C)
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
COUNTING: Mapping[VoteKind, Callable[[Electorate, VoteRequest, Ballots], dict[str, CountVotes]]] = {
    "monte-carlo": noisy_copies,
    "continuations": continued_runs,
}


def counts_of(electorate: Electorate, counted: Voters, chosen: Voters, ballots: Ballots) -> dict[str, CountVotes]:
    """The votes of two groups of models, the second of which may be empty, on every test set."""
    request = next(iter(ballots.values()))[1].request
    sets = {name: features for name, (features, _) in ballots.items()}

    def counts(voters: Voters, before: int) -> dict[str, NDArray[np.int64]]:
        def shown(done: int) -> None:
            electorate.shown(before + done, request.models + request.selection_models)

        return voters.counts_on(electorate.model, sets, electorate.elsewhere, shown)

    found = counts(counted, 0)
    selection = counts(chosen, request.models) if request.selection_models else {}
    return {
        name: CountVotes(**vars(asked), counts=found[name], selection=selection.get(name, np.zeros_like(found[name])))
        for name, (_, asked) in ballots.items()
    }
