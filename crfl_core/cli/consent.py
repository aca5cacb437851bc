"""Whether a person wants a run that takes long: asked at a terminal, told where there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from crfl_core.cli import passing, say

if TYPE_CHECKING:
    from crfl_core.reporting.estimate import Estimate
    from crfl_core.training.session import Session

SLOWEST = {True: 100, False: 5_000}
"""By how much a run may be slower than the least that it can take: of linear models, and of others."""
DECLINED = 1


def estimate(session: Session, data_seconds: float) -> Estimate:
    """What a run that is ready to start will take."""
    from crfl_core.reporting.estimate import estimated

    return estimated(session, data_seconds)


def show(found: Estimate, *, json: bool = False) -> None:
    """Print an estimate, phase by phase; as JSON in seconds and bytes."""
    passing("")
    if json:
        from pydantic_core import to_json

        numbers = {"seconds": found.seconds._asdict(), "memory": found.memory, "disk": found.disk}
        typer.echo(to_json(numbers, indent=2))
        return
    lines = [*found.lines()]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    for what, amount, note in lines:
        typer.echo(f"{what:<{widths[0]}}  {amount:>{widths[1]}}  {note}".rstrip())


def agree(session: Session, *, yes: bool) -> None:
    """Ask before anything is written if a run takes more than an hour; leave if the answer is no.

    `yes` is the answer that was given beforehand. Pieces of a run are only tried if it could be a long one.
    """
    from crfl_core.reporting.estimate import LONG, estimated
    from crfl_core.reporting.needs import least_seconds, time_in_words

    if yes or SLOWEST[session.federation.model.facts.linear] * least_seconds(session) < LONG:
        return
    phases = estimated(session, 0.0, thorough=False).seconds._asdict()
    if (seconds := sum(phases.values())) < LONG:
        return
    longest = max(phases, key=lambda phase: phases[phase])
    told = f"this run will take about {time_in_words(seconds)}, {time_in_words(phases[longest])} of it for {longest}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        say(f"warning: {told}; `crfl run --dry-run` has the details")
        return
    passing("")
    sys.stderr.write(f"{told}. Start it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        say("not started: nothing was written; `crfl run --dry-run` has the details")
        raise typer.Exit(DECLINED)
