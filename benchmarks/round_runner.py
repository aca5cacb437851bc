"""Whole rounds of the framework on random images, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.random_images import RandomImages
from crfl_core import load_config
from crfl_core.extend import Registry, RunContext
from crfl_core.federation import rounds
from crfl_core.federation.local import LocalTraining
from crfl_core.federation.setup import build
from crfl_core.hooks import Hooks


class Rounds:
    """A federation that plays its next round when it is called: training, aggregation, clip, noise, ledger."""

    def __init__(self, settings: dict[str, Any]) -> None:
        registry = Registry({"random-images": RandomImages})
        self.federation = build(load_config(settings, registry=registry).config)
        self.hooks = Hooks([])
        self.engine = self.federation.config.engine
        self.engine.open(LocalTraining(self.federation))
        self.run = RunContext(
            "benchmark", Path(), 1000, 0, self.federation.data, self.federation.model, self.federation.features
        )
        self.progress = rounds.initial(self.federation)

    def __call__(self) -> None:
        """Play the next round."""
        number = self.progress.round + 1
        self.progress = rounds.play(self.federation, self.engine, self.hooks, self.run, self.progress, number).progress
