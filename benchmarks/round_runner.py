"""Whole rounds of the framework on random images, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.random_images import RandomImages
from crfl_core import load_config
from crfl_core.extend import Registry
from crfl_core.federation import rounds
from crfl_core.federation.local import LocalTraining
from crfl_core.federation.recording import record
from crfl_core.federation.session import Session
from crfl_core.federation.setup import build


class Rounds:
    """A federation that plays its next round when it is called: training, aggregation, clip, noise, ledger."""

    def __init__(self, settings: dict[str, Any]) -> None:
        registry = Registry({"random-images": RandomImages})
        self.federation = build(load_config(settings, registry=registry).config)
        self.session = Session.of(self.federation, Path())
        self.session.engine.open(LocalTraining(self.federation))
        self.progress = rounds.initial(self.federation)

    def __call__(self) -> None:
        """Play the next round."""
        outcomes = rounds.play(self.session, self.progress)
        for outcome in outcomes:
            record(self.federation, outcome)
        self.progress = tuple(outcome.after for outcome in outcomes)
