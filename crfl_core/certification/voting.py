"""Algorithm 2, step 3: draw noisy models and count their votes on every test set.

`collect_votes` answers a vote request. Noisy models are drawn once and vote on all test sets, in chunks that bound the
memory. An engine may count the votes of some samples elsewhere; `count_on_sets` verifies a random block of its counts.
"""

from __future__ import annotations

import copy
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import crfl_core.certification.formulas as formulas
from crfl_core.errors import CrflWarning, PluginFailure
from crfl_core.plugin_api.softmax_regression import LinearModel
from crfl_core.records.input_rows import norms_of
from crfl_core.records.vote_counting import NoisyModels, PartialCount, count_votes, split_samples
from crfl_core.records.votes import (
    CountVotes,
    ExactVotes,
    GroupDistances,
    GroupRankings,
    GroupVotes,
    LogitVotes,
    VoteKind,
    VoteRequest,
    Votes,
    VoteSettings,
)

if TYPE_CHECKING:
    from crfl_core.plugin_api.model import BoundModel
    from crfl_core.records.ledger import GroupFacts
    from crfl_core.records.random_streams import Streams

LabelledSets = Mapping[str, tuple[Tensor, Tensor]]
"""Features and labels of test sets, by name."""
Ballots = Mapping[str, tuple[Tensor, Votes]]
"""Features of test sets and their votes so far (request, labels and norms), by name."""
Counts = NDArray[np.int64]
RemoteCounts = Callable[[str, NoisyModels], Iterable[PartialCount]]
"""A function that yields the counts of other processes on a test set, for as many samples as they counted."""


FARTHEST = 1e300
"""Distance of a group that no change of the input changes; a file holds finite numbers."""


@dataclass(frozen=True)
class VotingModels:
    """Trained models that vote: one model (P,), or those of all groups (G, P), and the streams of their noise.

    `continue_run` trains continuations for a request and returns their noisy final models, (selection_models + models,
    P). The groups in `failed` vote for class 0. `on_progress` receives the numbers of models that have voted and that
    will vote. `remote` yields the counts of other processes.
    """

    model: BoundModel
    parameters: Tensor
    streams: Streams
    continue_run: Callable[[VoteRequest], Tensor]
    failed: tuple[int, ...] = ()
    on_progress: Callable[[int, int], object] = lambda _done, _total: None
    remote: RemoteCounts = lambda _test_set, _voters: ()


def collect_votes(
    models: VotingModels, sets: LabelledSets, request: VoteRequest, settings: VoteSettings
) -> dict[str, Votes]:
    """Answer a vote request on every test set, by name.

    The same noisy models vote on all of them.
    """
    ballots: dict[str, tuple[Tensor, Votes]] = {}
    for name, (features, labels) in sets.items():
        ballots[name] = features, Votes(request, settings, labels.cpu().numpy(), norms_of(features))
    if request.kind in COUNTERS:
        return {**COUNTERS[request.kind](models, request, ballots)}
    return {name: ANSWERS[request.kind](models, *ballot) for name, ballot in ballots.items()}


def predict_classes(models: VotingModels, features: Tensor, groups: GroupFacts | None) -> Counts:
    """Predict a class for every sample.

    It is the model's, or the winner of the groups' vote. Ties go to the lowest class.
    """
    if groups is None:
        parts = models.model.logits_in_parts(models.parameters[None], features)
        return np.concatenate([logits[0].argmax(-1).cpu().numpy() for _, logits in parts])
    empty = Votes(VoteRequest("groups"), VoteSettings(), np.empty(0, np.int64), np.empty(0))
    if groups.voting == "condorcet":
        return formulas.condorcet_vote(group_rankings(models, features, empty).ranks, groups.votes).winner
    ballots = group_votes(models, features, empty).ballots
    winners: Counts = formulas.vote_counts(ballots, int(ballots.max()) + 2, groups.votes).argmax(axis=1)
    return winners


def model_logits(models: VotingModels, features: Tensor, ballot: Votes) -> LogitVotes:
    """Return the model's logits, in double precision."""
    parts = models.model.logits_in_parts(models.parameters[None].double(), features)
    return LogitVotes(**vars(ballot), logits=torch.cat([logits[0] for _, logits in parts]).cpu().numpy())


def exact_probabilities(models: VotingModels, features: Tensor, ballot: Votes) -> ExactVotes:
    """Return the class probabilities of all noisy copies of a model.

    The model is linear, and the probabilities come from quadrature.
    """
    logits = model_logits(models, features, ballot).logits
    bias = 1.0 if models.model.facts.bias else 0.0
    found = formulas.exact_votes(logits, ballot.request.noise_std * np.hypot(ballot.input_norms, bias))
    return ExactVotes(
        **vars(ballot),
        winner=logits.argmax(axis=1),
        log_p_a=found.log_p_a,
        log_p_b=found.log_p_b,
        log_rest=found.log_rest,
    )


def group_votes(models: VotingModels, features: Tensor, ballot: Votes) -> GroupVotes:
    """Return the vote of every group's model.

    Return also how far its first logit is above the second.
    """
    ballots = np.zeros((len(features), len(models.parameters)), np.int64)
    gaps = np.zeros(ballots.shape)
    for rows, groups, logits in logits_of_groups(models, features):
        ballots[rows, groups] = logits.argmax(-1).T.cpu().numpy()
        gaps[rows, groups] = lead_of_first(logits)
    ballots[:, models.failed] = 0
    gaps[:, models.failed] = 0.0
    return GroupVotes(**vars(ballot), ballots=ballots, gaps=gaps)


def group_rankings(models: VotingModels, features: Tensor, ballot: Votes) -> GroupRankings:
    """Return the vote of every group's model, and its ranking of classes.

    It ranks all classes.
    """
    gaps = np.zeros((len(features), len(models.parameters)))
    ranks = np.zeros((*gaps.shape, 0), np.uint16)
    for rows, groups, logits in logits_of_groups(models, features):
        if not ranks.size:
            ranks = np.zeros((*gaps.shape, logits.shape[-1]), np.uint16)
        ranks[rows, groups] = formulas.class_ranks(logits.cpu().numpy()).swapaxes(0, 1)
        gaps[rows, groups] = lead_of_first(logits)
    ranks[:, models.failed] = np.arange(ranks.shape[2])
    gaps[:, models.failed] = 0.0
    return GroupRankings(**vars(ballot), ballots=ranks.argmin(axis=2), gaps=gaps, ranks=ranks)


def logits_of_groups(models: VotingModels, features: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield slices of samples and groups with their logits.

    The logits are (G, b, C), in double precision. The core's own model computes every group's logits apart from the
    others'; others answer for one group at a time.
    """
    parameters = models.parameters
    together = len(parameters) if models.model.facts.linear else 1
    for first in range(0, len(parameters), together):
        groups = slice(first, first + together)
        for rows, logits in copy.deepcopy(models.model).logits_in_parts(parameters[groups].double(), features):
            yield rows, groups, logits


def lead_of_first(logits: Tensor) -> NDArray[np.float64]:
    """Return how far the largest logit exceeds the second, (b, G).

    The logits are (G, b, C).
    """
    best = logits.topk(2, dim=-1).values
    lead: NDArray[np.float64] = (best[..., 0] - best[..., 1]).T.cpu().numpy()
    return lead


def group_distances(models: VotingModels, features: Tensor, ballot: Votes) -> GroupDistances:
    """Return every group's vote and its distance to a change.

    The distance is how far features must move to change it. The prediction f of a linear model changes in favour of c
    at the distance `(z_f - z_c) / ||w_f - w_c||`.
    """
    votes = group_votes(models, features, ballot)
    distances = np.zeros(votes.ballots.shape)
    if isinstance(models.model, LinearModel):
        parameters = models.parameters.double()
        weights = models.model.layout.unflatten(parameters)["weight"]  # (G, C, d)
        apart = torch.linalg.vector_norm(weights[:, :, None] - weights[:, None], dim=-1)  # (G, C, C)
        longest = torch.linalg.vector_norm(parameters, dim=1)
        error = 4.0 * (weights.shape[-1] + 8) * torch.finfo(torch.float64).eps  # of a logit, relative to its terms
        for rows, logits in models.model.logits_in_parts(parameters, features):  # (G, b, C)
            first = logits.argmax(-1, keepdim=True)
            lengths = torch.linalg.vector_norm(features[rows].double(), dim=1) + 1.0
            lead = logits.gather(-1, first) - logits - error * longest[:, None, None] * lengths[None, :, None]
            width = apart.gather(1, first.expand(-1, -1, logits.shape[-1])) * (1.0 + 1e-12)
            reach = torch.where(lead > 0, lead / width, 0.0).scatter(-1, first, torch.inf).amin(-1)
            distances[rows] = reach.T.cpu().numpy() * (1.0 - 1e-12)
    distances[:, models.failed] = FARTHEST
    return GroupDistances(**vars(votes), distances=np.minimum(distances, FARTHEST))


def count_noisy_copies(models: VotingModels, request: VoteRequest, ballots: Ballots) -> dict[str, CountVotes]:
    """Count the votes of noisy copies of the model.

    Other copies select the class.
    """

    def copies(number: int, purpose: str) -> NoisyModels:
        return NoisyModels(models.parameters[None], number, request.noise_std, models.streams, purpose)

    voters = copies(request.models, "votes")
    selectors = copies(request.selection_models, "votes/selection")
    return count_both_samples(models, voters, selectors, ballots)


def count_continuations(models: VotingModels, request: VoteRequest, ballots: Ballots) -> dict[str, CountVotes]:
    """Count the votes of continuations, one each.

    The first of them select the class.
    """
    trained = models.continue_run(request)
    first = request.selection_models
    return count_both_samples(models, NoisyModels(trained[first:]), NoisyModels(trained[:first]), ballots)


ANSWERS: Mapping[VoteKind, Callable[[VotingModels, Tensor, Votes], Votes]] = {
    "logits": model_logits,
    "exact": exact_probabilities,
    "groups": group_votes,
    "group-rankings": group_rankings,
    "group-distances": group_distances,
}
COUNTERS: Mapping[VoteKind, Callable[[VotingModels, VoteRequest, Ballots], dict[str, CountVotes]]] = {
    "monte-carlo": count_noisy_copies,
    "continuations": count_continuations,
}


def count_both_samples(
    models: VotingModels, voters: NoisyModels, selectors: NoisyModels, ballots: Ballots
) -> dict[str, CountVotes]:
    """Count the votes of the voters and of the selectors.

    The selectors are counted if the request wants them. All test sets are counted.
    """
    request = next(iter(ballots.values()))[1].request
    sets = {name: features for name, (features, _) in ballots.items()}
    total = request.models + request.selection_models

    def count(chosen: NoisyModels, before: int) -> dict[str, Counts]:
        return count_on_sets(
            models.model, chosen, sets, models.remote, lambda done: models.on_progress(before + done, total)
        )

    counts = count(voters, 0)
    selection = count(selectors, request.models) if request.selection_models else {}
    return {
        name: CountVotes(
            **vars(ballot), counts=counts[name], selection=selection.get(name, np.zeros_like(counts[name]))
        )
        for name, (_, ballot) in ballots.items()
    }


def count_on_sets(
    model: BoundModel,
    voters: NoisyModels,
    sets: Mapping[str, Tensor],
    remote: RemoteCounts = lambda _test_set, _voters: (),
    on_progress: Callable[[int], object] = lambda _done: None,
) -> dict[str, Counts]:
    """Count how many voters choose each class on every test set.

    Counts are (m, C). There is at least one set. Counts of other processes are verified: one block of every test set,
    drawn at random so that it cannot be foreseen, is counted here as well, and if it differs, so is the whole set.
    """
    blocks = {name: split_samples(len(features)) for name, features in sets.items()}
    known: dict[str, dict[int, Counts]] = {name: {} for name in sets}
    total = sum(map(len, blocks.values()))
    for name, features in sets.items():
        for counted in verify_parts(remote(name, voters), len(voters), len(features)):
            known[name] = counted
            on_progress(len(voters) * sum(map(len, known.values())) // total)
    verified = {name: secrets.choice(sorted(counted)) for name, counted in known.items() if counted}
    local = [
        (name, number)
        for name in sets
        for number in range(len(blocks[name]))
        if number not in known[name] or number == verified[name]
    ]
    rows = [sets[name][blocks[name][number]] for name, number in local]
    counts = count_votes(model, report_chunks(voters.chunks(), on_progress), rows)
    counted_here: dict[str, dict[int, Counts]] = {name: {} for name in sets}
    for (name, number), found in zip(local, counts, strict=True):
        counted_here[name][number] = found
    return {
        name: join_counts(model, voters, features, known[name], counted_here[name]) for name, features in sets.items()
    }


def join_counts(
    model: BoundModel,
    voters: NoisyModels,
    features: Tensor,
    remote: Mapping[int, Counts],
    local: Mapping[int, Counts],
) -> Counts:
    """Join the counts of all blocks of a test set.

    If a verified block differs, the set is counted here.
    """
    blocks = split_samples(len(features))
    wrong = [number for number in remote if number in local and not np.array_equal(local[number], remote[number])]
    if not wrong:
        return np.concatenate([local[number] if number in local else remote[number] for number in range(len(blocks))])
    warnings.warn(
        f"the engine has counted other votes on test samples from {blocks[wrong[0]].start} on than this process "
        "does: all votes on this test set are counted here; its machines may differ in processors or libraries",
        CrflWarning,
        stacklevel=2,
    )
    return np.concatenate(count_votes(model, voters.chunks(), [features[block] for block in blocks]))


def verify_parts(parts: Iterable[PartialCount], models: int, samples: int) -> Iterator[dict[int, Counts]]:
    """Yield what was counted so far, after every part.

    The counts are by the number of the block. Raises `PluginFailure` for counts that cannot be the votes of that many
    models.
    """
    found: dict[int, Counts] = {}
    blocks = split_samples(samples)
    ends = {0, *(block.stop for block in blocks)}
    for part in parts:
        if not isinstance(part, PartialCount):
            raise PluginFailure(f"the engine must yield PartialCount, found {type(part).__name__}")
        rows = range(samples)[part.part]
        votes = np.asarray(part.counts)
        numbers = [number for number, block in enumerate(blocks) if block.start in rows]
        if not numbers or rows.step != 1 or not {rows.start, rows.stop} <= ends or found.keys() & {*numbers}:
            raise PluginFailure(f"the engine must count votes in whole blocks of samples, each once, found {part.part}")
        if votes.dtype != np.int64 or votes.ndim != 2 or len(votes) != len(rows):
            raise PluginFailure(f"the engine must count votes as whole numbers, (samples, classes), for {part.part}")
        if (votes < 0).any() or (votes.sum(1) != models).any():
            raise PluginFailure(f"the engine must count one vote of each of the {models} models, for {part.part}")
        for number in numbers:
            found[number] = votes[blocks[number].start - rows.start : blocks[number].stop - rows.start]
        yield found


def report_chunks(chunks: Iterator[Tensor], on_progress: Callable[[int], object]) -> Iterator[Tensor]:
    """Yield the same chunks and report progress.

    It reports how many models have voted when the next chunk is requested.
    """
    done = 0
    for models in chunks:
        yield models
        done += len(models)
        on_progress(done)
