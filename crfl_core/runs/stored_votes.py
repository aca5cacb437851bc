"""The votes of one run: from its files if they are there, else from its model and data."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.certification.voting import VotingModels, collect_votes
from crfl_core.errors import StoreError
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.ledger_validation import read_vote_arrays
from crfl_core.records.vote_counting import CountingTask, NoisyModels, PartialCount
from crfl_core.runs.checkpoints import progress_from_arrays
from crfl_core.runs.run_directory import VOTE_SEED, RunDirectory
from crfl_core.runs.stored_models import read_parameters, write_models
from crfl_core.training.continuations import add_test_noise, train_continuations
from crfl_core.training.federation import streams_of

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.records.ledger import Ledger, RunFacts
    from crfl_core.records.random_streams import Streams
    from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
    from crfl_core.training.session import Session

MODEL = "model"
"""Name of the entry of a vote file that holds the digest of the model that voted."""

SEED_BITS = 128
AGAIN = "delete the file and resume the run"


@dataclass(frozen=True)
class Voter:
    """Answers vote requests of a trained run, and stores the answers in `target`.

    `target` is the run's own directory, or that of a what-if question, which must not change the run and has its votes
    counted here. If the engine `is_open`, it may count them.
    """

    session: Session
    directory: RunDirectory
    target: RunDirectory
    ledger: Ledger
    is_open: bool = False

    def __call__(self, request: VoteRequest, settings: VoteSettings) -> dict[str, Votes]:
        """The answer on every test set, by name."""
        digest = self.directory.model_digest
        for directory in (self.directory, self.target):
            if has_votes(directory, request):
                return read_votes(directory, self.ledger.facts, request, settings, digest)
        working = self.session.hooks.report_progress
        drawn = vote_streams(self.session.federation.config, self.directory)
        federation = replace(self.session.federation, streams=drawn)
        electorate = VotingModels(
            federation.model,
            read_parameters(self.directory, federation),
            drawn,
            cache(partial(self._train_continuations, replace(self.session, federation=federation))),
            self.ledger.failed_groups,
            partial(working, "votes"),
        )
        working("votes")
        if self.is_open:
            electorate = replace(electorate, remote=self._count_remotely)
        sets = {name: (chosen.features, chosen.labels) for name, chosen in federation.test_sets.items()}
        answers = collect_votes(electorate, sets, request, settings)
        write_votes(self.target, self.ledger.facts, request, answers, digest)
        self.target.record_files()
        working("certificates")
        return answers

    def _train_continuations(self, session: Session, request: VoteRequest) -> Tensor:
        """The noisy final models of all continuations, trained as one batch and kept for later predictions."""
        assert request.resample_from is not None
        tensors = self.directory.read_resampled(request.resample_from)
        (kept,) = progress_from_arrays(request.resample_from, tensors, {}, session.federation)
        total = request.selection_models + request.models
        with nullcontext() if self.is_open else session.open_engine():
            shown = partial(session.hooks.report_progress, "continuations")
            batches = list(train_continuations(session, kept, total, self.ledger, shown))
        models = add_test_noise(torch.cat(batches), request.noise_std, session)
        write_models(self.target, request, models)
        return models

    def _count_remotely(self, name: str, voters: NoisyModels) -> Iterator[PartialCount]:
        """What the engine counts of the votes on a test set."""
        engine = self.session.engine
        samples = len(self.session.federation.test_sets[name].labels)
        with errors_of("engine", engine), guard_inputs(f"engine {engine.full_name}: count_votes()", voters):
            yield from engine.count_votes(CountingTask(name, samples, voters))


def draw_vote_seed(config: RunConfig, directory: RunDirectory) -> None:
    """Draw and record the secret seed of the votes when training is over, once for a run, if the config wants one."""
    if config.seeds.votes == "secret" and not directory.has(VOTE_SEED):
        directory.write_json(VOTE_SEED, {"seed": hex(secrets.randbits(SEED_BITS))})
        directory.record_files()


def vote_streams(config: RunConfig, directory: RunDirectory) -> Streams:
    """Return the random streams of a trained run with those of its votes: test-time noise, noise of continuations."""
    streams = streams_of(config)
    if config.seeds.votes != "secret":
        return streams
    try:
        seed = int(directory.read_json(VOTE_SEED)["seed"], 16)
    except (KeyError, TypeError, ValueError) as error:
        raise directory.damage_error(VOTE_SEED, "it holds no seed") from error
    return replace(streams, seeds={**streams.seeds, "votes": seed})


def has_votes(directory: RunDirectory, request: VoteRequest) -> bool:
    """Return whether a request was answered already."""
    return directory.has(votes_file(request))


def write_votes(
    directory: RunDirectory, facts: RunFacts, request: VoteRequest, answers: Mapping[str, Votes], model: str
) -> None:
    """Write the answers on all test sets to one file, with the digests of the sets and of the model."""
    arrays: dict[str, NDArray[Any]] = {MODEL: np.array(model)}
    for name, votes in answers.items():
        arrays[f"{name}/digest"] = np.array(facts.test_sets[name].digest)
        arrays |= {f"{name}/{part}": getattr(votes, part) for part in request.answer_type.array_names()}
    directory.write_arrays(votes_file(request), arrays)


def read_votes(
    directory: RunDirectory, facts: RunFacts, request: VoteRequest, settings: VoteSettings, model: str
) -> dict[str, Votes]:
    """Read the stored answers by test set, checked against the digests of the ledger and of the model."""
    file = votes_file(request)
    path = directory.path / file
    arrays = directory.read_arrays(file)
    if str(arrays.pop(MODEL, "")) != model:
        raise StoreError(f"{path}: these are votes of another model: {AGAIN}")
    answers = {}
    for name, expected in facts.test_sets.items():
        parts = {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{name}/")}
        if str(parts.pop("digest", "")) != expected.digest:
            raise StoreError(f"{path}: does not belong to the {name} test set of this run: {AGAIN}")
        try:
            parts = read_vote_arrays(request, parts, expected.samples, facts.classes)
        except ValueError as error:
            raise directory.damage_error(file, error) from error
        answers[name] = request.answer_type(request=request, settings=settings, **parts)
    return answers


def votes_file(request: VoteRequest) -> str:
    """Return the name of the file with the answer to a request."""
    return f"votes/{request.digest}.npz"
