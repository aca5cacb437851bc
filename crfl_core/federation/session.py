"""A federation at work: its engine, the hooks of its plugins, what they may look at, and the plan of each round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from crfl_core import schedules
from crfl_core.federation.local import LocalTraining
from crfl_core.federation.participants import Conduct
from crfl_core.federation.setup import Federation
from crfl_core.hooks import Hooks
from crfl_core.kinds.complaints import settings_of
from crfl_core.kinds.engine import Engine
from crfl_core.kinds.tracker import RunContext
from crfl_core.updates import Clients, Round, RoundFacts


@dataclass(frozen=True)
class Plan:
    """What is fixed about a round before it is played: who takes part, what attackers will do, clip norm and noise.

    Plugins get `facts`; nobody but local training and the ledger sees the `conduct`.
    """

    facts: RoundFacts
    conduct: Conduct
    attacked: bool
    clip_norm: float
    noise_std: float

    @property
    def number(self) -> int:
        """The round, 1 to T."""
        return self.facts.number

    @property
    def clients(self) -> Clients:
        """The participants."""
        return self.facts.clients

    def seen_from(self, start: Tensor) -> Round:
        """The round as plugins see it, from one of its models."""
        return Round(**vars(self.facts), start=start)


@dataclass(frozen=True)
class Session:
    """Everything that playing rounds needs. Plugins are those of `federation.config`: one instance for all they do."""

    federation: Federation
    engine: Engine
    hooks: Hooks
    context: RunContext

    @classmethod
    def of(cls, federation: Federation, path: Path, hooks: Hooks | None = None) -> Session:
        """A session with the plugins that a federation's config names, or with `hooks` of more than those."""
        config = federation.config
        context = RunContext(
            name=config.name,
            path=path,
            rounds=config.rounds,
            resumed_from=0,
            data=federation.data,
            model=federation.model,
            features=federation.features,
        )
        return cls(federation, config.engine, hooks or Hooks(config.named_plugins()), context)

    def resumed(self, played: int) -> Session:
        """The same after this number of rounds."""
        return replace(self, context=replace(self.context, resumed_from=played))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The engine between `open` and `close`, ready for the local training of the federation."""
        with settings_of("engine", self.engine):
            self.engine.open(LocalTraining(self.federation))
        try:
            yield
        finally:
            self.engine.close()

    def plan(self, number: int, *, attacked: bool) -> Plan:
        """The plan of round `number`; of the run itself, or of an honest continuation."""
        federation, server = self.federation, self.federation.config.server
        total, participation = federation.config.rounds, federation.participation
        # Not all streams: those of the attack say who attacks, those of noise and votes what was hidden from whom.
        streams = federation.streams.only("aggregation")
        facts = RoundFacts(number, total, participation.round(number), federation.model.layout, streams)
        return Plan(
            facts=facts,
            conduct=participation.conduct(number, attacked=attacked),
            attacked=attacked,
            clip_norm=schedules.value_at(server.clip_norm, number),
            noise_std=schedules.value_at(server.noise_std, number) if number < total else 0.0,
        )
