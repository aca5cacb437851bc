"""What is kept of updates as they arrive: columns of the ledger, and what attackers see of their own."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from crfl_core.errors import RunError
from crfl_core.records.round import BatchMeasurements
from crfl_core.training.session import Plan, Session
from crfl_core.training.submissions import Received


class Columns:
    """What the ledger keeps of the updates that arrived, for the first model; memory for one number per client."""

    def __init__(self, clients: int) -> None:
        self.norms = np.zeros(clients)
        self.scale = np.ones(clients)
        self.bad = np.zeros(clients, np.bool_)
        self.is_usable = False
        self.poisoning = BatchMeasurements(
            **{name: column.copy() for name, column in vars(BatchMeasurements.clean(clients)).items()}
        )

    def add(self, received: Received) -> None:
        """Some participants."""
        self.norms[received.part] = received.norms[0].numpy()
        self.scale[received.part] = received.scale
        self.bad[received.part] = received.bad[0].numpy()
        self.is_usable = self.is_usable or bool((~received.bad).all(0).any())
        for name, column in vars(self.poisoning).items():
            column[received.part] = getattr(received.poisoning, name)

    def check_usable(self, number: int) -> None:
        """A round without a single update is an error, not silence."""
        if not self.is_usable:
            raise RunError(
                f"round {number}: no usable update is left, all {len(self.bad)} are non-finite or of the wrong shape: "
                "lower training.learning_rate"
            )


class Watched:
    """What the attackers among the participants submit, attacking or not: `own` is (a, P), in order of participants."""

    def __init__(self, session: Session, plan: Plan, start: Tensor) -> None:
        self._rows = np.flatnonzero(np.isin(plan.clients.ids, session.federation.participation.attackers))
        self._places = np.arange(len(plan.clients))
        self.own = start.new_zeros(len(self._rows), len(start))

    def add(self, received: Received) -> None:
        """Some participants, of the run itself."""
        rows = self._places[received.part]
        mine = np.flatnonzero(np.isin(rows, self._rows))
        self.own[np.searchsorted(self._rows, rows[mine])] = received.updates[0, mine]
