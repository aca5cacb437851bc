"""A small run that writes whatever a directory can hold: finished, or interrupted in its last round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import crfl_core
from crfl_core.extend import RoundRecord, Tracker, hookimpl
from tests.oracle import tiny

CONFIG = tiny(
    dtype="float64",
    rounds=3,
    training={"learning_rate": 0.05, "steps": 3, "batch_size": 16},
    model={"type": "softmax", "features": ["unit-ball"]},
    certificates=["paper", {"type": "tail", "continuations": 10, "selection": 5}],
    storage={"figures": [], "checkpoint_seconds": 0},
)


class Impatient(Tracker):
    """Stops a run in its third and last round, as Ctrl-C does."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt


def finished(path: Path) -> Path:
    """A finished run with votes, continuations and an answer to a what-if question."""
    run = crfl_core.run(CONFIG, out=path)
    crfl_core.certify(run, ["threat.clients=2", "votes.models=32"], save="two")
    return run.path


def interrupted(path: Path, config: Mapping[str, Any] = CONFIG) -> Path:
    """A run that was interrupted in its third round, with a checkpoint of the second."""
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=path, trackers=[Impatient()])
    return path
