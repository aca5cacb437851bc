"""`crfl verify`: whether a run is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.extend import JsonOption, RunArgument, TrustOption

if TYPE_CHECKING:
    from crfl_core.cli.run_checks import Findings

    Found = dict[str, Findings | list[str]]

NOT_AS_WRITTEN = 2
GOOD = {"written": "files are what the run wrote", "repeated": "files come out the same when the run is repeated"}

Recompute = Annotated[bool, typer.Option("--recompute", help="Also train again, and compare the bits of every file.")]
ReceiptFile = Annotated[
    Path | None, typer.Option("--receipt", help="Also compare with this receipt, and check who signed it.")
]


def verify(
    run: RunArgument,
    recompute: Recompute = False,
    receipt: ReceiptFile = None,
    json: JsonOption = False,
    trust: TrustOption = False,
) -> None:
    """Compare every file of RUN with what the run wrote; exit with 2 if one is missing or another.

    Without a receipt this tells damage, not forgery: whoever can write to RUN can write a list that fits. A run of
    somebody else's is trained again with --trust only.
    """
    from crfl_core.cli import run_checks as checking
    from crfl_core.cli.receipts import compared
    from crfl_core.errors import StoreError
    from crfl_core.runs.run_directory import RunDirectory

    directory = RunDirectory(run)
    if recompute and directory.is_made_by_others and not trust:
        raise StoreError(f"{run}: was not made here: read its config.toml, then give --trust to train it again")
    found: Found = {"written": checking.check(directory)}
    if receipt is not None and not problems_in(found):
        found["receipt"] = list(compared(directory, receipt))
    if recompute and not problems_in(found):
        found["repeated"] = checking.recompute(directory)
    if json:
        from pydantic_core import to_json

        typer.echo(to_json(found, indent=2).decode())
    else:
        tell(found)
    if problems_in(found):
        raise typer.Exit(NOT_AS_WRITTEN)


def problems_in(found: Found) -> list[str]:
    """Everything that is wrong."""
    return [problem for one in found.values() if not isinstance(one, list) for problem in one.problems]


def tell(found: Found) -> None:
    """Say what was found, in sentences."""
    for name, one in found.items():
        if isinstance(one, list):
            typer.echo("\n".join(one))
            continue
        for remark in one.remarks:
            typer.echo(remark)
        for problem in one.problems:
            typer.echo(f"error: {problem}", err=True)
        if not one.problems:
            typer.echo(f"{one.files} {GOOD[name]}")
