"""Names beside a picture, and the room they take."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_NAME = 24
LETTER = 0.08
"""Inches of a letter at the usual size, rather too many than too few."""


def shortened(names: Sequence[str], longest: int = LONGEST_NAME) -> list[str]:
    """Names on one line that leave room for the picture; what tells long ones apart is often their end.

    >>> shortened(["Does not meet the credit policy", "paid"])
    ['Does not me…redit policy', 'paid']
    """
    half = longest // 2
    lines = ("".join(sign if sign.isprintable() else " " for sign in name) for name in names)
    return [line if len(line) <= longest else f"{line[: half - 1]}…{line[-half:]}" for line in lines]


def room(names: Sequence[str], longest: int = LONGEST_NAME) -> float:
    """Inches for the longest of some names."""
    return LETTER * max(map(len, shortened(names, longest)), default=2)
