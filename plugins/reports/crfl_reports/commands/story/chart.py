"""A small chart of bars for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

HEIGHT = 5
WIDTH = 6
EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart(shares: Sequence[float], labels: Sequence[str], *, plain: bool = False) -> Iterator[str]:
    """Shares between 0 and 1 as bars, with their labels below; `plain` for terminals that know ASCII alone.

    >>> print("\\n".join(chart([1.0, 0.5], ["0", "1"], plain=True)))
    100 %  ####
           ####
           ####    ####
           ####    ####
      0 %  ####    ####
            0       1
    """
    for level in reversed(range(HEIGHT)):
        axis = {HEIGHT - 1: "100 %", 0: "  0 %"}.get(level, "     ")
        bars = (block(share * HEIGHT - level, plain=plain) * (WIDTH - 2) for share in shares)
        yield f"{axis}  {'    '.join(bars)}".rstrip()
    yield " " * 7 + "    ".join(f"{label:^{WIDTH - 2}}" for label in labels).rstrip()


def block(height: float, *, plain: bool) -> str:
    """One sign of a bar: how much of its line is filled."""
    filled = min(1.0, max(0.0, height))
    return ("#" if filled >= 0.5 else " ") if plain else EIGHTHS[round(filled * 8)]
