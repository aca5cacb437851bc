"""How far an attack carries the model, round by round: the clean twin of a run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.records.ledger import RoundRecord
from crfl_core.training import rounds
from crfl_core.training.clean_twin import Array, kept_model
from crfl_core.training.groups import server_steps
from crfl_core.training.rounds import Outcome, Progress
from crfl_core.training.session import Session

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult


class CleanTwin:
    """The same run without the attack, as far as it is needed to know the distance to it.

    Until the first attacked round both are one. From there on the twin plays every round as well, with the engine of
    the run and plugins of its own; or its models are those that a run without the attack has `kept`. `progress` is
    where it stands, nothing as long as there is no second model.
    """

    progress: tuple[Progress, ...] = ()

    def __init__(self, session: Session, kept: RunResult | None) -> None:
        self._wanted = session.federation.config.storage.keep == "distances"
        self._kept = kept
        self._first = min(session.federation.participation.attack_rounds, default=0)
        if self._wanted and kept is None:
            self._session = apart(session)

    def measured(self, lines: Sequence[RoundRecord], outcomes: Sequence[Outcome]) -> tuple[RoundRecord, ...]:
        """The lines of a round with the distance to the twin, where it is wanted."""
        if not self._wanted:
            return tuple(lines)
        clipped = [outcome.before_noise[0].double().cpu().numpy() for outcome in outcomes]
        clean = clipped if outcomes[0].plan.number < self._first else self._clipped(outcomes)
        distances = (float(np.linalg.norm(one - other)) for one, other in zip(clipped, clean, strict=True))
        return tuple(
            line.model_copy(update={"distance": distance}) for line, distance in zip(lines, distances, strict=True)
        )

    def _clipped(self, outcomes: Sequence[Outcome]) -> list[Array]:
        """The clipped models of the twin after a round, one for each group."""
        number = outcomes[0].plan.number
        if self._kept is not None:
            return list(np.atleast_2d(kept_model(self._kept, number)))
        played: Sequence[Outcome] = ()
        while not self.progress or self.progress[0].number < number:
            played = rounds.play(self._session, self.progress or self._start(outcomes), clean=True)
            self.progress = tuple(outcome.after for outcome in played)
        return [outcome.before_noise[0].double().cpu().numpy() for outcome in played]

    def _start(self, outcomes: Sequence[Outcome]) -> tuple[Progress, ...]:
        """Where the run stood before its first attack. If that is not known any more, before the first round."""
        if outcomes[0].plan.number == self._first:
            start = tuple(outcome.before for outcome in outcomes)
        else:
            start = rounds.initial(self._session.federation)
        return tuple(replace(one, attack_state=None) for one in start)


def apart(session: Session) -> Session:
    """The same session with plugins of its own, so that the run does not notice what they remember."""
    config = session.federation.config.with_own_plugins()
    servers = server_steps(config, len(session.federation.servers))
    federation = replace(session.federation, config=config, servers=servers)
    return replace(session, federation=federation, hooks=Hooks(config.named_plugins()))
