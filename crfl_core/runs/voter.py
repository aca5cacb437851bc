"""Votes of a trained run: from its files if they are there, else from its model and data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crfl_core.certification.voting import VotingModels, collect_votes
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.vote_counting import CountingTask, NoisyModels, PartialCount
from crfl_core.runs.checkpoints import progress_from_arrays
from crfl_core.runs.stored_models import read_parameters, write_models
from crfl_core.runs.stored_votes import has_votes, read_votes, vote_streams, write_votes
from crfl_core.training.continuations import add_test_noise, train_continuations

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger
    from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
    from crfl_core.runs.run_directory import RunDirectory
    from crfl_core.training.session import Session


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
        """Return the answer to a request on every test set, by name."""
        digest = self.directory.model_digest
        for directory in (self.directory, self.target):
            if has_votes(directory, request):
                return read_votes(directory, self.ledger.facts, request, settings, digest)
        report_progress = self.session.hooks.report_progress
        drawn = vote_streams(self.session.federation.config, self.directory)
        federation = replace(self.session.federation, streams=drawn)
        models = VotingModels(
            federation.new_model(),
            read_parameters(self.directory, federation),
            drawn,
            cache(partial(self._train_continuations, replace(self.session, federation=federation))),
            self.ledger.failed_groups,
            partial(report_progress, "votes"),
        )
        report_progress("votes")
        if self.is_open:
            models = replace(models, remote=self._count_remotely)
        sets = {name: (chosen.features, chosen.labels) for name, chosen in federation.test_sets.items()}
        answers = collect_votes(models, sets, request, settings)
        write_votes(self.target, self.ledger.facts, request, answers, digest)
        self.target.record_files()
        report_progress("certificates")
        return answers

    def _train_continuations(self, session: Session, request: VoteRequest) -> Tensor:
        """Train all continuations as one batch.

        Return their noisy final models, and keep these for predictions.
        """
        assert request.resample_from is not None
        tensors = self.directory.read_resampled(request.resample_from)
        (kept,) = progress_from_arrays(request.resample_from, tensors, {}, session.federation)
        total = request.selection_models + request.models
        with nullcontext() if self.is_open else session.open_engine():
            on_progress = partial(session.hooks.report_progress, "continuations")
            batches = list(train_continuations(session, kept, total, self.ledger, on_progress))
        models = add_test_noise(torch.cat(batches), request.noise_std, session)
        write_models(self.target, request, models)
        return models

    def _count_remotely(self, name: str, voters: NoisyModels) -> Iterator[PartialCount]:
        """Let the engine count the votes on a test set."""
        engine = self.session.engine
        samples = len(self.session.federation.test_sets[name].labels)
        with errors_of("engine", engine), guard_inputs(f"engine {engine.full_name}: count_votes()", voters):
            yield from engine.count_votes(CountingTask(name, samples, voters))
