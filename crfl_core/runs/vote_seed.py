"""The seed of the votes: that of the config, or a secret one that nobody could know while the model was trained."""

from __future__ import annotations

import secrets
from dataclasses import replace

from crfl_core.config import RunConfig
from crfl_core.records.random_streams import Streams
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.training.federation import streams_of

FILE = "votes/seed.json"
BITS = 128


def draw_vote_seed(config: RunConfig, directory: RunDirectory) -> None:
    """Called when training is over: draws and records the secret seed if the config wants one, once for a run."""
    if config.seeds.votes == "secret" and not directory.has(FILE):
        directory.write_json(FILE, {"seed": hex(secrets.randbits(BITS))})
        directory.keep()


def vote_streams(config: RunConfig, directory: RunDirectory) -> Streams:
    """The random streams of a trained run, with those of its votes: test-time noise, and the noise of continuations."""
    streams = streams_of(config)
    if config.seeds.votes != "secret":
        return streams
    try:
        seed = int(directory.read_json(FILE)["seed"], 16)
    except (KeyError, TypeError, ValueError) as error:
        raise directory.damaged(FILE, "it holds no seed") from error
    return replace(streams, seeds={**streams.seeds, "votes": seed})
