"""PoisonedFL for crfl: attackers who push in the same direction in every round, and remember how well it worked."""

from __future__ import annotations

from dataclasses import replace

import torch
from crfl_core.extend import Attack, FederatedData, AttackerView, AttackerObservation, Round, State, Streams
from pydantic import Field
from scipy.stats import binom
from torch import Tensor


class PoisonedFL(Attack):
    """Attackers who never take back what they pushed: the same signs in every round (Xie, Fang and Gong, 2025).

    All submit `c ||g|| v * s`. The signs s are drawn once, so the pushes of all rounds add up. g is how the broadcast
    model changed in the last round; v, of length 1, is how much of that change others are to be thanked for,
    `|g - ||g|| m / ||m|| |` with the push m of that round. Every `window` attacked rounds they test whether the model
    moved along s: if that might be chance, the push was filtered, and c shrinks. They know nothing but the models that
    the server broadcasts. Before they have seen a change, they are honest.
    """

    factor: float = Field(8.0, gt=0, description="c at first: pushes are this many times the last change of the model")
    shrink: float = Field(0.7, gt=0, lt=1, description="what c is multiplied by when the push was filtered")
    least: float = Field(0.5, ge=0, description="c does not fall below this")
    window: int = Field(10, ge=1, description="attacked rounds between two tests")
    significance: float = Field(0.01, gt=0, lt=1, description="probability with which chance passes for success")

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - their data stay as they are
        """Return the state before any round was seen."""
        return {"factor": torch.tensor(self.factor, dtype=torch.float64), "age": torch.tensor(0)}

    def learn(self, seen: AttackerObservation, state: State) -> State:
        """Learn about the others from the model's last change, and about c when a window is over."""
        change = (seen.following - seen.round.start).double()
        length = torch.linalg.vector_norm(change)
        pushed = seen.submitted.double().mean(0) if seen.attacked and len(seen.submitted) else torch.zeros_like(change)
        others = (change - length * normalised(pushed)).abs()
        found = {**state, "magnitude": (length * normalised(others)).to(seen.following)}
        return self._tested(found, seen) if seen.attacked else found

    def _tested(self, state: dict[str, Tensor], seen: AttackerObservation) -> State:
        """Return the state with the window's age; at its end, a smaller factor if the model did not move along s."""
        first = state.get("window_start", seen.round.start)
        age = int(state["age"]) + 1
        if age < self.window:
            return {**state, "window_start": first, "age": torch.tensor(age)}
        signs = signs_of(seen.round).to(first)
        aligned = int(((seen.following - first).sign() == signs).sum())
        chance = float(binom.sf(aligned - 1, len(signs), 0.5))
        smaller = state["factor"] * self.shrink
        filtered = chance >= self.significance and float(smaller) >= self.least
        return {
            **state,
            "factor": smaller if filtered else state["factor"],
            "window_start": seen.following,
            "age": torch.tensor(0),
        }

    def craft(self, known: AttackerView, state: State) -> Tensor:
        """Return the same push from all of them, times their scale."""
        if "magnitude" not in state:
            return known.own_updates
        push = (
            float(state["factor"])
            * state["magnitude"].to(known.own_updates)
            * signs_of(known.round).to(known.own_updates)
        )
        return super().craft(replace(known, own_updates=push.expand_as(known.own_updates)), state)


def signs_of(current: Round) -> Tensor:
    """Return s, drawn from a stream without rounds, so there is no need to remember it."""
    generator = current.streams.generator("attack/poisonedfl")
    return torch.from_numpy(generator.choice([-1.0, 1.0], current.layout.size))


def normalised(vector: Tensor) -> Tensor:
    """Return the vector at length 1; zero stays zero."""
    length = torch.linalg.vector_norm(vector)
    return vector / length if bool(length > 0) else vector
