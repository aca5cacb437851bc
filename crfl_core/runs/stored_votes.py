"""The votes of one run: from its files if they are there, else from its model and data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from crfl_core.certification.voting import VotingModels, collect_votes
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.ledger import Ledger, RunFacts
from crfl_core.records.ledger_validation import check_tensor
from crfl_core.records.round import Layout
from crfl_core.records.vote_counting import CountingTask, NoisyModels, PartialCount
from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
from crfl_core.runs.checkpoints import unpacked
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.runs.vote_seed import vote_streams
from crfl_core.training.continuations import continuations, with_test_noise
from crfl_core.training.federation import Federation
from crfl_core.training.session import Session

MODELS = "models"


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
            if directory.has_votes(request):
                return directory.read_votes(self.ledger.facts, request, settings, digest)
        working = self.session.hooks.report_progress
        drawn = vote_streams(self.session.federation.config, self.directory)
        federation = replace(self.session.federation, streams=drawn)
        electorate = VotingModels(
            federation.model,
            read_parameters(self.directory, federation),
            drawn,
            cache(partial(self._continued, replace(self.session, federation=federation))),
            self.ledger.failed_groups,
            partial(working, "votes"),
        )
        working("votes")
        if self.is_open:
            electorate = replace(electorate, remote=self._elsewhere)
        sets = {name: (chosen.features, chosen.labels) for name, chosen in federation.test_sets.items()}
        answers = collect_votes(electorate, sets, request, settings)
        self.target.write_votes(self.ledger.facts, request, answers, digest)
        self.target.keep()
        working("certificates")
        return answers

    def _continued(self, session: Session, request: VoteRequest) -> Tensor:
        """The noisy final models of all continuations, trained as one batch and kept for later predictions."""
        assert request.resample_from is not None
        tensors = self.directory.read_resampled(request.resample_from)
        (kept,) = unpacked(request.resample_from, tensors, {}, session.federation)
        total = request.selection_models + request.models
        with nullcontext() if self.is_open else session.opened():
            shown = partial(session.hooks.report_progress, "continuations")
            batches = list(continuations(session, kept, total, self.ledger, shown))
        models = with_test_noise(torch.cat(batches), request.noise_std, session)
        self.target.write_tensors(models_file(request), {MODELS: models.cpu().numpy()}, {})
        return models

    def _elsewhere(self, name: str, voters: NoisyModels) -> Iterator[PartialCount]:
        """What the engine counts of the votes on a test set."""
        engine = self.session.engine
        samples = len(self.session.federation.test_sets[name].labels)
        with errors_of("engine", engine), guard_inputs(f"engine {engine.full_name}: count_votes()", voters):
            yield from engine.count_votes(CountingTask(name, samples, voters))


def models_file(request: VoteRequest) -> str:
    """Where the models of a request for continuations are kept."""
    return f"resample/models-{request.digest}.safetensors"


def read_models(directory: RunDirectory, request: VoteRequest, layout: Layout, dtype: str) -> Tensor:
    """The models that voted in a request for continuations."""
    shape = (request.selection_models + request.models, layout.size)
    return checked(directory, models_file(request), {MODELS: shape}, dtype)[MODELS]


def read_parameters(directory: RunDirectory, federation: Federation) -> Tensor:
    """The final model, (P,), or those of all groups, (G, P), on the device of the federation."""
    return flat_parameters(directory, federation.model.layout, federation.facts).to(federation.device)


def flat_parameters(directory: RunDirectory, layout: Layout, facts: RunFacts) -> Tensor:
    """The final model as one vector, or one for each group."""
    groups = () if facts.groups is None else (facts.models,)
    shapes = {name: (*groups, *shape) for name, shape in layout.shapes}
    tensors = checked(directory, "model.safetensors", shapes, facts.dtype)
    return torch.cat([tensors[name].reshape(*groups, -1) for name in shapes], dim=-1)


def checked(directory: RunDirectory, file: str, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> dict[str, Tensor]:
    """Tensors of these shapes from a file; a `StoreError` says what is wrong with others."""
    arrays = directory.read_tensors(file)
    try:
        return {name: torch.from_numpy(check_tensor(arrays, name, shape, dtype)) for name, shape in shapes.items()}
    except ValueError as error:
        raise directory.damaged(file, error) from error
