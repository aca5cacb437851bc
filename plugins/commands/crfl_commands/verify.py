"""`crfl verify`: whether a run is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.extend import RunArgument, TrustOption

if TYPE_CHECKING:
    from crfl_commands.checking import Findings

NOT_AS_WRITTEN = 2

Recompute = Annotated[bool, typer.Option("--recompute", help="Also train again, and compare the bits of every file.")]
ReceiptFile = Annotated[
    Path | None, typer.Option("--receipt", help="Also compare with this receipt, and check who signed it.")
]


def verify(
    run: RunArgument, recompute: Recompute = False, receipt: ReceiptFile = None, trust: TrustOption = False
) -> None:
    """Compare every file of RUN with what the run wrote; exit with 2 if one is missing or another.

    Without a receipt this tells damage, not forgery: whoever can write to RUN can write a list that fits. A run of
    somebody else's is trained again with --trust only.
    """
    from crfl_commands import checking
    from crfl_commands.receipts import compared
    from crfl_core.extend import RunDirectory, StoreError

    directory = RunDirectory(run)
    told(checking.check(directory), "files are what the run wrote")
    if receipt is not None:
        for line in compared(directory, receipt):
            typer.echo(line)
    if recompute:
        if directory.is_made_by_others and not trust:
            raise StoreError(f"{run}: was not made here: read its config.toml, then give --trust to train it again")
        told(checking.recompute(directory), "files come out the same when the run is repeated")


def told(found: Findings, good: str) -> None:
    """Say what was found; a problem ends the command."""
    for remark in found.remarks:
        typer.echo(remark)
    for problem in found.problems:
        typer.echo(f"error: {problem}", err=True)
    if found.problems:
        raise typer.Exit(NOT_AS_WRITTEN)
    typer.echo(f"{found.files} {good}")
