"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import completion

ConfigArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Config file, TOML or YAML. Without one: the shipped digits.",
        show_default=False,
        autocompletion=completion.config_files,
    ),
]
"""A config that need not be given: `config: ConfigArgument = None`, and then `load_config(config)`."""

RunArgument = Annotated[
    Path, typer.Argument(help="Run directory.", show_default=False, autocompletion=completion.run_directories)
]
"""The directory of a run, for `load` and `resume`."""

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, e.g. training.learning_rate=0.1.",
        show_default=False,
        autocompletion=completion.settings,
    ),
]
"""Any number of overrides: `overrides: SetOption = None`, and then `load_config(config, overrides=overrides or ())`."""

TrustOption = Annotated[bool, typer.Option("--trust", help="Run third-party code that the config of RUN names.")]
"""`--trust`, for commands that read a run directory: `load(run, trust=trust)`."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""`--json`, for commands that print results."""

FullOption = Annotated[bool, typer.Option("--full", help="Every table and every assumption, not only a summary.")]
"""`--full`, for commands that show a run."""

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables: only the run directory.")]
"""`--quiet`, for commands that run something."""
