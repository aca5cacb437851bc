"""Gradient ascent instead of descent."""

from __future__ import annotations

from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_core.extend import ClientUpdates


class SignFlip(Byzantine):
    """Submits the trained update with the opposite sign, times `scale` (Li et al., 2019)."""

    def direction(self, honest: ClientUpdates, own: Tensor) -> Tensor:  # noqa: ARG002 - needs its own update only
        """Away from where training led."""
        return -own
