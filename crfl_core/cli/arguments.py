"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Argument(help="Config file, TOML or YAML. Without one: the embedded digits.", show_default=False),
]
Run = Annotated[Path, typer.Argument(help="Run directory.", show_default=False)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, e.g. training.learning_rate=0.1.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables: only the run directory.")]
