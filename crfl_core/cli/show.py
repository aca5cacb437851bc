"""`crfl show`: the figures of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import arguments, echo, output


def show(
    run: arguments.RunArgument,
    full: arguments.FullOption = False,
    json: arguments.JsonOption = False,
    clean: Annotated[
        Path | None,
        typer.Option(help="Compare with this run, the same without the attack.", show_default=False),
    ] = None,
    trust: arguments.TrustOption = False,
) -> None:
    """Show what a run measured and certified.

    The summary has accuracy, backdoor success and certified accuracy; --full adds every table and assumption.
    """
    from crfl_core.errors import StoreError
    from crfl_core.runs.results import load
    from crfl_core.training.clean_twin import attack_effect

    if (run / "sweep.toml").is_file():
        raise StoreError(f"{run}: holds a sweep: see it with `crfl compare {run}`, or one of its cells")
    result = load(run, trust=trust)
    if clean is not None:
        with output.redirect_plugin_output():
            effect = attack_effect(result, load(clean, trust=trust))
        if json:
            echo(effect.model_dump_json(indent=2))
        else:
            output.show_effect(effect)
    else:
        output.show_run(result, full=full, json=json)
