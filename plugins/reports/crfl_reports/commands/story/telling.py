"""What the demo trains, and what it says about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crfl_reports.commands.story.chart import chart

if TYPE_CHECKING:
    from crfl_core import RunResult
    from crfl_core.reporting.metrics import Curve

CONFIG = Path(__file__).with_name("demo.toml")


@dataclass(frozen=True)
class Row:
    """One federation of the story: what it is called, and how it differs from the undefended one."""

    name: str
    what: str
    overrides: tuple[str, ...] = ()


ROWS = (
    Row("undefended", "averaging"),
    Row("defended", "RFA", ('aggregation=["rfa"]',)),
    Row("certified", "vote of groups", ("groups={count=10}", 'certificates=["group-vote"]')),
)


def told(results: Sequence[RunResult], *, plain: bool) -> Iterator[str]:
    """The story, line by line."""
    yield "Ten clients learn to read digits. One of them plants a backdoor: an image with a"
    yield "small mark is to be taken for a 0."
    yield ""
    yield from table(results)
    yield ""
    curve = certified(results[-1])
    assert curve is not None
    yield "Proved: read right, whatever this many of the ten clients do, in every round:"
    yield from chart(curve.certified_accuracy, [f"{radius:g}" for radius in curve.radii], plain=plain)
    yield ""
    yield "The defence stopped this one attack. The proof covers every attack by so many."


def table(results: Sequence[RunResult]) -> Iterator[str]:
    """A row for each federation: accuracy, success of the backdoor, and what is proved against 1, 2, 3 clients."""
    yield f"{'':28}{'accuracy':>8}{'backdoor':>10}   proved against 1, 2, 3 clients"
    for row, result in zip(ROWS, results, strict=True):
        metrics = result.metrics
        assert metrics.backdoor is not None
        numbers = f"{percent(metrics.accuracy):>8}{percent(metrics.backdoor.success_rate):>10}"
        yield f"  {row.name:<11}{row.what:<15}{numbers}   {proved(certified(result))}"


def proved(curve: Curve | None) -> str:
    """What is proved against a few clients, in a row."""
    if curve is None:
        return "nothing"
    known = dict(zip(curve.radii, curve.certified_accuracy, strict=True))
    return "  ".join(percent(known[number]) for number in (1, 2, 3))


def certified(result: RunResult) -> Curve | None:
    """What is proved of the clean test images; None if nothing is."""
    return next((curve for curve in result.metrics.curves if curve.test_set == "clean"), None)


def percent(share: float) -> str:
    """A share as people read it.

    >>> percent(0.9359)
    '93.6 %'
    """
    return f"{share:.1%}".replace("%", " %")
