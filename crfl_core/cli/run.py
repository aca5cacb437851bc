"""`crfl run`: from a config to a certified model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import arguments, output

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run directory; default: runs/<name of the config>.", show_default=False),
]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN", help="Start at the trained model of another run.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing run.")]


def run(
    config: arguments.ConfigArgument = None,
    overrides: arguments.SetOption = None,
    start_from: From = None,
    out: Out = None,
    force: Force = False,
    quiet: arguments.QuietOption = False,
) -> None:
    """Train, attack, aggregate and certify as CONFIG says; resumes if its directory holds an unfinished run."""
    from crfl_core import api
    from crfl_core.api.execution import default_path, start_at
    from crfl_core.config import load_config

    refuse_sweep(config)
    with output.plugins_at_work():
        try:
            changes = [*(overrides or ()), *([] if start_from is None else [start_at(start_from)])]
            result = api.run(config, overrides=changes, out=out, force=force, trackers=output.progress(quiet))
        except KeyboardInterrupt as stop:
            path = out or default_path(load_config(config, overrides=overrides or ()).config)
            raise output.interrupted(path, stop) from None
    output.report(result, quiet=quiet)


def refuse_sweep(config: Path | None) -> None:
    """A file that describes many runs is for another command."""
    from crfl_core.config.loading import read_source
    from crfl_interface.errors import ConfigError

    if config is not None and "sweep" in read_source(config)[0]:
        raise ConfigError(f"{config}: sweep: describes many runs: start them with `crfl sweep {config}`")
