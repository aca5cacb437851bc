"""Rounds that one run has played, put into the directory of another that would play the same ones.

What is planted is a checkpoint like any other: the run resumes from it, and the core compares it as always. Before that
the facts of both runs are compared: same data, same clients, same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from crfl_core.extend import ClientColumns, Ledger, RoundRecord, RunDirectory, RunFacts, RunResult

FACTS = "ledger.json"
ENVIRONMENT = "environment.json"
ABOUT_ROUNDS = {"rounds", "attack_rounds", "resampled", "test_noise_std", "secret_votes"}
"""Facts that may differ between runs that play the same rounds for a while."""


class Played(NamedTuple):
    """The first rounds of a run: where it stands behind them, and its ledger so far."""

    round: int
    tensors: dict[str, NDArray[Any]]
    records: Sequence[RoundRecord]
    clients: Sequence[ClientColumns]
    facts: RunFacts
    directory: RunDirectory


def played(path: Path) -> Played | None:
    """What a run has played, finished or saved in a checkpoint; None if that is nothing."""
    directory = RunDirectory(path)
    facts = directory.read_facts(FACTS, RunFacts)
    if directory.state == "finished":
        result = RunResult(path)
        tensors = {"parameters": result.parameters.numpy()}  # behind the last round nobody needs more
        ledger = result.ledger
        return Played(facts.rounds, tensors, ledger.rounds, [ledger.clients], facts, directory)
    saved = directory.read_checkpoint()
    if saved is None:
        return None
    return Played(saved.round, saved.tensors, saved.records, saved.clients, facts, directory)


def plant(path: Path, source: Played) -> bool:
    """Let a run that was just created continue behind what another one has played; False if it cannot.

    Votes on the same questions are taken along if they are of the same random numbers.
    """
    target = RunDirectory(path)
    with target.locked():
        facts = target.read_facts(FACTS, RunFacts)
        if not fits(facts, source) or keeps_distances(target) != keeps_distances(source.directory):
            return False
        target.start_rounds(b"")
        for _, records in groupby(source.records, key=lambda record: record.round):
            target.append_rounds(list(records))
        for number in facts.resampled:
            if number <= source.round:
                target.write_resampled(number, source.directory.read_resampled(number))
        if source.round == facts.rounds:
            take_votes(target, facts, source)
        target.write_json(ENVIRONMENT, source.directory.read_json(ENVIRONMENT))
        target.write_checkpoint(source.round, source.tensors, source.clients)
    return True


def fits(facts: RunFacts, source: Played) -> bool:
    """Whether a run of these facts plays the same rounds, and needs nothing that was not kept."""
    if any(value != getattr(facts, name) for name, value in source.facts if name not in ABOUT_ROUNDS):
        return False
    is_final = source.round == source.facts.rounds
    if source.round > facts.rounds or is_final != (source.round == facts.rounds):  # the final model has no noise
        return False
    ours, theirs = ([number for number in one.attack_rounds if number <= source.round] for one in (facts, source.facts))
    wanted = {number for number in facts.resampled if number <= source.round}
    return ours == theirs and wanted <= set(source.facts.resampled)


def keeps_distances(directory: RunDirectory) -> bool:
    """Whether the ledger of a run says how far it is from its clean twin."""
    return RunResult(directory.path).config.storage.keep == "distances"


def take_votes(target: RunDirectory, facts: RunFacts, source: Played) -> None:
    """Copy the answers to those questions that this run will ask, and that were asked there."""
    mine, theirs = RunResult(target.path), RunResult(source.directory.path)
    if vote_seed(mine) != vote_seed(theirs) or vote_seed(mine) == "secret":
        return
    # What training will write when it resumes: the questions follow from it, and the votes must be there before.
    mine.ledger = Ledger(facts, tuple(source.records), ClientColumns.concatenate(source.clients))
    for question in mine.inquiry.questions:
        if question.is_voted_on and source.directory.has_votes(question.request):
            digest = question.request.digest
            for name in (f"votes/{digest}.npz", f"resample/models-{digest}.safetensors"):
                if source.directory.has(name):
                    target.write(name, source.directory.read(name))


def vote_seed(run: RunResult) -> int | str:
    """What the random numbers of votes come from."""
    own = run.config.seeds.votes
    return run.config.seed if own is None else own
