"""A federation at work: its engine, the hooks of its plugins, what they may look at, and the plan of each round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from crfl_core.plugin_api.engine import Engine
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_api.tracker import RunContext
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.records import schedules
from crfl_core.records.inputs import held
from crfl_core.records.round import Clients, Round, RoundFacts
from crfl_core.training.client_sampling import ClientBehaviour
from crfl_core.training.federation import Federation
from crfl_core.training.groups import ServerSteps
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.models import bind_model


@dataclass(frozen=True)
class Plan:
    """What is fixed about a round of one group: who takes part, what attackers will do, clip norm and noise.

    `server` is what becomes of updates, `rows` where the group stands among all participants of the round. Plugins get
    `facts`; nobody but local training and the ledger sees the `conduct`. `group` is None if it is the only one.
    """

    facts: RoundFacts
    server: ServerSteps
    conduct: ClientBehaviour
    attacked: bool
    clip_norm: float
    noise_std: float
    rows: slice
    group: int | None = None

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
            model=bind_model(config, federation.maps, federation.data.facts),  # whatever hooks do to it
            features=held(federation, "features"),
        )
        return cls(federation, config.engine, hooks or Hooks(config.named_plugins()), context)

    def resumed(self, played: int) -> Session:
        """The same after this number of rounds."""
        kept = held(self.context, "features")  # which may be bytes: `replace` would ask for floats
        return replace(self, context=replace(self.context, resumed_from=played, features=kept))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The engine between `open` and `close`, ready for the local training of the federation."""
        with errors_of("engine", self.engine):
            self.engine.open(LocalTraining(self.federation))
        try:
            yield
        finally:
            self.engine.close()

    def plans(self, number: int, *, attacked: bool) -> tuple[Plan, ...]:
        """The plans of round `number`, one for each group; of the run itself, or of an honest continuation."""
        federation = self.federation
        server = self.federation.config.server
        total = federation.config.rounds
        participation = federation.participation
        clients = participation.round(number)
        conduct = participation.conduct(number, attacked=attacked)
        ends = np.searchsorted(clients.group, np.arange(len(participation.members) + 1))
        clip_norm = schedules.value_at(server.clip_norm, number)
        noise_std = schedules.value_at(server.noise_std, number) if number < total else 0.0

        def plan(index: int) -> Plan:
            group = index if len(participation.members) > 1 else None
            rows = slice(int(ends[index]), int(ends[index + 1]))
            # Not all streams: those of the attack say who attacks, those of noise and votes what was hidden from whom.
            streams = federation.streams.only("aggregation", group)
            facts = RoundFacts(number, total, clients.take(rows), federation.model.layout, streams)
            server_steps = federation.servers[index]
            return Plan(facts, server_steps, conduct.take(rows), attacked, clip_norm, noise_std, rows, group)

        return tuple(map(plan, range(len(participation.members))))
