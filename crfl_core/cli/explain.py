"""`crfl explain`: the resolved config, and where each value came from."""

from __future__ import annotations

import typer

from crfl_core.cli import arguments


def explain(config: arguments.ConfigArgument = None, overrides: arguments.SetOption = None) -> None:
    """Print every setting of CONFIG as it is resolved, and where it was written."""
    from crfl_core.cli.explanation import explained
    from crfl_core.config import load_config

    loaded = load_config(config, overrides=overrides or ())
    lines = explained(loaded)
    width = max(len(setting) for setting, _ in lines)
    for setting, origin in lines:
        typer.echo(f"{setting:<{min(width, 72)}}  # {origin}")
