"""Files of votes: the answers to vote requests, and the secret seed of the noise."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import StoreError
from crfl_core.records.ledger_validation import read_vote_arrays
from crfl_core.runs.run_directory import VOTE_SEED, RunDirectory
from crfl_core.training.federation import streams_of

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.records.ledger import RunFacts
    from crfl_core.records.random_streams import Streams
    from crfl_core.records.votes import VoteRequest, Votes, VoteSettings

MODEL = "model"
"""Name of the entry of a vote file that holds the digest of the model that voted."""

SEED_BITS = 128
AGAIN = "delete the file and resume the run"


def draw_vote_seed(config: RunConfig, directory: RunDirectory) -> None:
    """Draw and record the secret seed of the votes.

    This happens once for a run, when training is over, and only if the config wants a secret seed.
    """
    if config.seeds.votes == "secret" and not directory.has(VOTE_SEED):
        directory.write_json(VOTE_SEED, {"seed": hex(secrets.randbits(SEED_BITS))})
        directory.record_files()


def vote_streams(config: RunConfig, directory: RunDirectory) -> Streams:
    """Return the random streams of a trained run and its votes.

    Votes draw test-time noise and the noise of continuations.
    """
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
    """Write the answers on all test sets to one file.

    It also holds the digests of the sets and of the model.
    """
    arrays: dict[str, NDArray[Any]] = {MODEL: np.array(model)}
    for name, votes in answers.items():
        arrays[f"{name}/digest"] = np.array(facts.test_sets[name].digest)
        arrays |= {f"{name}/{part}": getattr(votes, part) for part in request.answer_type.array_names()}
    directory.write_arrays(votes_file(request), arrays)


def read_votes(
    directory: RunDirectory, facts: RunFacts, request: VoteRequest, settings: VoteSettings, model: str
) -> dict[str, Votes]:
    """Read the stored answers by test set.

    Raises `StoreError` unless they fit the digests of the ledger and of the model.
    """
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
