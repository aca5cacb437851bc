"""Gradient ascent instead of descent."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_core.extend import AttackerView, Knowledge


class SignFlip(Byzantine):
    """Submits the trained update with the opposite sign, times `scale` (Li et al., 2019)."""

    knowledge: ClassVar[Knowledge] = "own"

    def direction(self, known: AttackerView) -> Tensor:
        """Away from where training led."""
        return -known.own_updates
