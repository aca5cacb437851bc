"""The distributed backdoor attack: no attacker ever shows the whole trigger."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.model_replacement import ModelReplacement
from crfl_attacks.triggers import split_pattern
from crfl_core.extend import Batches, FederatedData, OptionError, State, Streams


class Dba(ModelReplacement):
    """Distributed backdoor attack (Xie et al., 2020).

    The trigger is cut into parts, attacker k trains with part k modulo their number, and test inputs get the whole
    trigger. What an attacker moves in its data is therefore smaller than the trigger.
    """

    parts: int | None = Field(None, ge=1, description="local parts of the trigger; unset: one for each attacker")

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        """Prepare the pattern and a row of parts for every client.

        The rows of honest clients are zero.
        """
        state = super().prepare(data, streams)
        attackers = self.attackers(data.clients, streams)
        pattern = state["pattern"]
        count = self.parts or len(attackers)
        pixels = int(torch.count_nonzero(pattern))
        pieces = split_pattern(pattern, count, data.facts)
        if not pieces.any(1).all():
            raise OptionError("parts", f"a trigger of {pixels} pixels or features cannot be cut into {count} parts")
        local = pattern.new_zeros(data.clients, len(pattern))
        local[list(attackers)] = pieces[torch.arange(len(attackers)) % count]
        return {**state, "local": local}

    def local_patterns(self, batches: Batches, state: State) -> Tensor:
        """Return each attacker's part of the trigger."""
        return state["local"][torch.from_numpy(batches.clients)][:, None, None, :]
