"""`crfl show`: the figures of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import arguments, output


def show(
    run: arguments.RunArgument,
    json: Annotated[bool, typer.Option("--json", help="Print metrics.json, or the comparison with --clean.")] = False,
    clean: Annotated[
        Path | None,
        typer.Option(help="Compare with this run, the same without the attack.", show_default=False),
    ] = None,
    trust: arguments.TrustOption = False,
) -> None:
    """Show accuracy, backdoor success, certified accuracy and the audit of a finished run."""
    from crfl_core.api import attack_effect, load
    from crfl_core.report.files import metrics_json

    result = load(run, trust=trust)
    if clean is not None:
        with output.plugins_at_work():
            effect = attack_effect(result, load(clean, trust=trust))
        if json:
            typer.echo(effect.model_dump_json(indent=2))
        else:
            output.show_effect(effect)
    elif json:
        typer.echo(metrics_json(result.metrics))
    else:
        output.show_tables(result)
