"""Stored votes: one file per request, which says of which model and of which test sets it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import StoreError
from crfl_core.records.ledger import RunFacts
from crfl_core.records.ledger_validation import read_vote_arrays
from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
from crfl_core.runs.array_files import Files

MODEL = "model"
AGAIN = "delete the file and resume the run"


class VoteFiles(Files):
    """The files of a run that hold votes."""

    def has_votes(self, request: VoteRequest) -> bool:
        """Whether a request was answered already."""
        return self.has(votes_file(request))

    @cached_property
    def model_digest(self) -> str:
        """A digest of the final model, by which stored votes are matched to it."""
        return hashlib.sha256(self.read("model.safetensors")).hexdigest()

    def write_votes(self, facts: RunFacts, request: VoteRequest, answers: Mapping[str, Votes], model: str) -> None:
        """Store the answers on all test sets in one file, with the digests of the sets and of the model."""
        arrays: dict[str, NDArray[Any]] = {MODEL: np.array(model)}
        for name, votes in answers.items():
            arrays[f"{name}/digest"] = np.array(facts.test_sets[name].digest)
            arrays |= {f"{name}/{part}": getattr(votes, part) for part in request.answer_type.array_names()}
        self.write_arrays(votes_file(request), arrays)

    def read_votes(self, facts: RunFacts, request: VoteRequest, settings: VoteSettings, model: str) -> dict[str, Votes]:
        """The stored answers by test set, checked against the digests of the ledger and of the model."""
        file = votes_file(request)
        arrays = self.read_arrays(file)
        if str(arrays.pop(MODEL, "")) != model:
            raise StoreError(
                f"{self.path / file}: these are votes of another model: delete the file and resume the run"
            )
        answers = {}
        for name, expected in facts.test_sets.items():
            parts = {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{name}/")}
            if str(parts.pop("digest", "")) != expected.digest:
                raise StoreError(f"{self.path / file}: does not belong to the {name} test set of this run: {AGAIN}")
            try:
                parts = read_vote_arrays(request, parts, expected.samples, facts.classes)
            except ValueError as error:
                raise self.damaged(file, error) from error
            answers[name] = request.answer_type(request=request, settings=settings, **parts)
        return answers


def votes_file(request: VoteRequest) -> str:
    """Where the answer to a request is stored."""
    return f"votes/{request.digest}.npz"
