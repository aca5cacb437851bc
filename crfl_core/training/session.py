"""Session: a federation with its engine and hooks, and the plan of each round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from crfl_core.plugin_api.aggregator import CapStage, FixedStage, LinearAggregator, mix_clients
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_api.server_optimiser import FixedRate
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.records import schedules
from crfl_core.records.round import Clients, Round, RoundFacts
from crfl_core.records.run_context import RunContext
from crfl_core.training import aggregator_contract as contract
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.models import bind_model
from crfl_core.training.server_optimiser import ask_rate

if TYPE_CHECKING:
    from crfl_core.plugin_api.engine import Engine
    from crfl_core.training.client_sampling import ClientBehaviour
    from crfl_core.training.federation import Federation
    from crfl_core.training.groups import ServerSteps


@dataclass(frozen=True)
class RoundPlan:
    """Plan of one round for one group: participants, behaviour of attackers, clip norm and noise.

    `clip_norm` is rho_t, `noise_std` is sigma_t, 0 in the final round. `server` has the steps of the aggregation and
    the server's optimiser. `rows` is the place of the group among all participants of the round, `group` its number,
    None if it is the only one. `is_run` tells the run itself, which attackers and hooks take part in, from its honest
    continuations and its clean twin. Plugins are shown `facts`; only local training and the ledger see the `behaviour`.
    """

    facts: RoundFacts
    server: ServerSteps
    behaviour: ClientBehaviour
    is_run: bool
    clip_norm: float
    noise_std: float
    rows: slice
    group: int | None = None

    @property
    def number(self) -> int:
        """Return the number of the round, 1 to T."""
        return self.facts.number

    @property
    def clients(self) -> Clients:
        """Return the participants."""
        return self.facts.clients

    def seen_from(self, start: Tensor) -> Round:
        """Return the round as plugins see it.

        `start`, (P,), is one of its models.
        """
        return Round(**vars(self.facts), start=start)


@dataclass(frozen=True)
class Session:
    """Session in which rounds are played: one instance of each plugin of `federation.config` for all of them."""

    federation: Federation
    engine: Engine
    hooks: Hooks
    context: RunContext

    @classmethod
    def of(cls, federation: Federation, path: Path, hooks: Hooks | None = None) -> Session:
        """Create a session with the plugins that the config names.

        `hooks` may be those of more plugins.
        """
        config = federation.config
        context = RunContext(
            name=config.name,
            path=path,
            rounds=config.rounds,
            resumed_from=0,
            data=federation.data,
            model=bind_model(config, federation.maps, federation.data.facts),  # hooks may change theirs
            feature_rows=federation.features,
        )
        return cls(federation, config.engine, hooks or Hooks(config.named_plugins()), context)

    def resume_after(self, played: int) -> Session:
        """Return the same session after this number of rounds."""
        return replace(self, context=replace(self.context, resumed_from=played))

    @contextmanager
    def open_engine(self) -> Iterator[None]:
        """Open the engine for local training, and close it afterwards."""
        with errors_of("engine", self.engine):
            self.engine.open(LocalTraining(self.federation))
        try:
            yield
        finally:
            self.engine.close()

    def ask_fixed_answers(self) -> None:
        """Ask steps that see no update for all rounds' answers.

        So no later answer can differ.
        """
        federation = self.federation
        before: Clients | None = None
        for number in range(1, federation.config.rounds + 1):
            clients = federation.participation.participants(number)
            if clients is before and not asks_for_rounds(federation.servers[0]):
                continue
            before = clients
            for plan in self.plan_round(number, is_run=False):
                ask_fixed_steps(plan.server, plan.facts)

    def plan_round(self, number: int, *, is_run: bool) -> tuple[RoundPlan, ...]:
        """Plan round `number` for every group.

        If it is not a round of the run itself, all clients are honest.
        """
        federation = self.federation
        server = federation.config.server
        total = federation.config.rounds
        participation = federation.participation
        groups = len(participation.members)
        clients = participation.participants(number)
        behaviour = participation.behaviour(number, attacked=is_run)
        ends = np.searchsorted(clients.group, np.arange(groups + 1))
        plans = []
        for index in range(groups):
            group = index if groups > 1 else None
            rows = slice(int(ends[index]), int(ends[index + 1]))
            # Not all streams: those of the attack say who attacks, those of noise and votes what is hidden.
            streams = federation.streams.only("aggregation", group)
            plan = RoundPlan(
                facts=RoundFacts(number, total, clients.take(rows), federation.model.layout, streams),
                server=federation.servers[index],
                behaviour=behaviour.take(rows),
                is_run=is_run,
                clip_norm=schedules.value_at(server.clip_norm, number),
                noise_std=schedules.value_at(server.noise_std, number) if number < total else 0.0,
                rows=rows,
                group=group,
            )
            plans.append(plan)
        return tuple(plans)


def asks_for_rounds(server: ServerSteps) -> bool:
    """Ask whether a step may answer differently in every round.

    Only steps that do not see the updates count.
    """
    return isinstance(server.optimiser, FixedRate) or any(isinstance(step, FixedStage) for step in server.aggregation)


def ask_fixed_steps(server: ServerSteps, facts: RoundFacts) -> None:
    """Ask a round's steps and the server's rate for their answers.

    Only steps before all those that look at the updates are asked.
    """
    for step in server.aggregation:
        if isinstance(step, CapStage):
            contract.ask_caps(step, facts.clients, server.answers)
        elif isinstance(step, FixedStage):
            mixing = contract.ask_mixing(step, facts, server.answers)
            facts = replace(facts, clients=mix_clients(facts.clients, mixing.matrix))
        elif isinstance(step, LinearAggregator):
            contract.ask_weights(step, facts.clients, server.answers)
        else:
            break
    if isinstance(server.optimiser, FixedRate):
        ask_rate(server.optimiser, facts, server.answers)
