"""Small changes that hide in the spread of the honest updates."""

from __future__ import annotations

from pydantic import Field
from scipy.special import ndtri
from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_core.extend import AttackerView


class Alie(Byzantine):
    """A little is enough (Baruch et al., 2019): all attackers submit mean - z standard deviations of honest updates.

    The largest z that still hides among the clients is Phi^-1((n - m - s) / (n - m)), where m of n participants attack
    and s = floor(n / 2 + 1) - m more are needed for a majority. It is 0, and the attack harmless, if s is at least half
    of the honest clients. Here attackers see the honest updates; the paper estimates their mean and spread from the
    attackers' own.
    """

    z: float | None = Field(None, gt=0, description="standard deviations off the mean; unset: the largest that hides")

    def direction(self, known: AttackerView) -> Tensor:
        """Return the mean minus z times the spread in every coordinate."""
        values = known.honest.values
        own = known.own_updates
        if not len(values):  # no honest client to hide among
            return -own
        z = largest_z(len(values) + len(own), len(own)) if self.z is None else self.z
        return values.mean(0) - z * values.std(0, correction=0)


def largest_z(clients: int, attackers: int) -> float:
    """Compute z_max: about s honest clients are expected beyond it.

    They look as bad as the attackers then.

    >>> round(largest_z(50, 24), 2)  # s = 26 - 24 = 2 of 26 honest clients
    1.43
    """
    honest = clients - attackers
    supporters = max(1, clients // 2 + 1 - attackers)  # attackers in the majority need none
    return max(0.0, float(ndtri((honest - supporters) / honest)))
