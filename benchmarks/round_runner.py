"""Whole rounds of the framework on random images, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.random_images import RandomImages
from crfl_core import load_config
from crfl_core.extend import Registry
from crfl_core.training import rounds
from crfl_core.training.federation import build
from crfl_core.training.ledger_rows import record_round
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.session import Session


class Rounds:
    """A federation that plays its next round when it is called: training, aggregation, clip, noise, ledger."""

    def __init__(self, settings: dict[str, Any]) -> None:
        registry = Registry({"random-images": RandomImages})
        self.federation = build(load_config(settings, registry=registry).config)
        self.session = Session.of(self.federation, Path())
        self.session.engine.open(LocalTraining(self.federation))
        self.progress = rounds.initial_progress(self.federation)

    def __call__(self) -> None:
        """Play the next round."""
        outcomes = rounds.play_round(self.session, self.progress)
        for outcome in outcomes:
            record_round(self.federation, outcome)
        self.progress = tuple(outcome.after for outcome in outcomes)
