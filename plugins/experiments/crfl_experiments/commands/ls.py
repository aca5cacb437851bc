"""`crfl ls`: the runs below a folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.output import terminal


class Sort(StrEnum):
    """Order in which runs are listed."""

    NAME = "name"
    ACCURACY = "accuracy"
    BACKDOOR = "backdoor"
    CERTIFIED = "certified"
    AGE = "age"
    SIZE = "size"


Folder = Annotated[Path, typer.Argument(help="Folder with runs, sweeps, or folders of them.")]
Order = Annotated[Sort, typer.Option("--sort", help="The best, newest or largest first; or by name.")]
Json = Annotated[bool, typer.Option("--json", help="Print the list as JSON.")]


def ls(folder: Folder = Path("runs"), sort: Order = Sort.NAME, json: Json = False) -> None:
    """List runs with their main numbers and differing settings.

    `backdoor` is how often triggered inputs are taken for the target; `certified` is the accuracy on clean inputs that
    no single malicious client can have changed, by the best certificate of the run.
    """
    passing("starting")
    from crfl_experiments.run_list import as_json, list_runs, list_table

    listed = list_runs(folder, sort.value)
    passing("")
    if json:
        echo(as_json(listed))
    elif listed:
        console = terminal()
        console.print(list_table(listed, console.width))
    else:
        echo(f"{folder}: no runs here")
