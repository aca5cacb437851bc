"""The votes of one run: from its files if they are there, else from its model and data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.api.vote_seed import vote_streams
from crfl_core.certification.voting import Electorate, vote
from crfl_core.errors import StoreError
from crfl_core.federation.continuations import continuations
from crfl_core.federation.local import LocalTraining
from crfl_core.federation.rounds import Progress
from crfl_core.federation.server import add_noise
from crfl_core.federation.setup import Federation
from crfl_core.hooks import Hooks
from crfl_core.kinds.engine import Engine
from crfl_core.kinds.tracker import RunContext
from crfl_core.ledger import Ledger
from crfl_core.store import RunDirectory
from crfl_core.votes import VoteRequest, Votes, VoteSettings

PARAMETERS = "parameters"
MODELS = "models"


@dataclass(frozen=True)
class Voter:
    """Answers vote requests of a trained run, and stores the answers in `target`.

    `target` is the run's own directory, or that of a what-if question, which must not change the run.
    """

    federation: Federation
    engine: Engine
    hooks: Hooks
    context: RunContext
    directory: RunDirectory
    target: RunDirectory
    ledger: Ledger

    def __call__(self, request: VoteRequest, settings: VoteSettings) -> dict[str, Votes]:
        """The answer on every test set, by name."""
        digest = self.directory.model_digest
        for directory in (self.directory, self.target):
            if directory.has_votes(request):
                return directory.read_votes(self.ledger.facts, request, settings, digest)
        federation = replace(self.federation, streams=vote_streams(self.federation.config, self.directory))
        electorate = Electorate(
            federation.model,
            read_parameters(self.directory, federation),
            federation.streams,
            cache(partial(self._continued, federation)),
        )
        answers = {
            name: vote(electorate, chosen.features, chosen.labels, request, settings)
            for name, chosen in federation.test_sets.items()
        }
        self.target.write_votes(self.ledger.facts, request, answers, digest)
        return answers

    def _continued(self, federation: Federation, request: VoteRequest) -> Tensor:
        """The noisy final models of all continuations, trained as one batch and kept for later predictions."""
        assert request.resample_from is not None
        tensors = self.directory.read_resampled(request.resample_from)
        aggregate = unpacked(request.resample_from, tensors, federation)
        total = request.selection_models + request.models
        with opened(self.engine, federation):
            batches = list(continuations(federation, self.engine, self.hooks, self.context, aggregate, total))
        noisy = [
            add_noise(model, request.noise_std, federation.streams, federation.config.rounds, replica)
            for replica, model in enumerate(torch.cat(batches), start=1)
        ]
        models = torch.stack(noisy)
        self.target.write_tensors(models_file(request), {MODELS: models.cpu().numpy()}, {})
        return models


def models_file(request: VoteRequest) -> str:
    """Where the models of a request for continuations are kept."""
    return f"resample/models-{request.digest}.safetensors"


def read_models(directory: RunDirectory, request: VoteRequest) -> Tensor:
    """The models that voted in a request for continuations."""
    return torch.from_numpy(directory.read_tensors(models_file(request))[MODELS])


def read_parameters(directory: RunDirectory, federation: Federation) -> Tensor:
    """The final model, (P,), on the device of the federation."""
    return flat_parameters(directory, [name for name, _ in federation.model.layout.shapes]).to(federation.device)


def flat_parameters(directory: RunDirectory, names: list[str]) -> Tensor:
    """The final model as one vector."""
    tensors = directory.read_tensors("model.safetensors")
    missing = [name for name in names if name not in tensors]
    if missing:
        raise StoreError(
            f"{directory.path / 'model.safetensors'}: has no tensor {missing[0]!r}: it belongs to another config"
        )
    return torch.from_numpy(np.concatenate([tensors[name].ravel() for name in names]))


def packed(progress: Progress) -> dict[str, NDArray[Any]]:
    """Model and plugin states under names, for a file."""
    tensors = {PARAMETERS: progress.parameters}
    for owner, state in progress.states.items():
        tensors |= {f"{owner}/{name}": tensor for name, tensor in state.items()}
    return {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}


def unpacked(number: int, arrays: dict[str, NDArray[Any]], federation: Federation) -> Progress:
    """The inverse of `packed`."""
    tensors = {name: torch.from_numpy(array).to(federation.device) for name, array in arrays.items()}
    parameters = tensors.pop(PARAMETERS)
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        owner, _, name = key.partition("/")
        states.setdefault(owner, {})[name] = tensor
    return Progress(number, parameters, states)


@contextmanager
def opened(engine: Engine, federation: Federation) -> Iterator[None]:
    """An engine between `open` and `close`, ready for the local training of a federation."""
    engine.open(LocalTraining(federation))
    try:
        yield
    finally:
        engine.close()
