"""`crfl sweep`: many runs of one config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.arguments import QuietOption, SetOption

if TYPE_CHECKING:
    from crfl_experiments.sweeps.cells import Definition

FAILED = 1
INTERRUPTED = 130

Config = Annotated[
    Path | None,
    typer.Argument(
        help="Config file, with or without a table `sweep`, or the folder of a sweep to resume. Without one: the "
        "shipped digits.",
        show_default=False,
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option("--vary", metavar="KEY=A,B,...", help="Values of a key, each with every other.", show_default=False),
]
Zip = Annotated[
    list[str] | None,
    typer.Option("--zip", metavar="KEY=A,B,...", help="Values of keys that change together.", show_default=False),
]
Link = Annotated[
    list[str] | None,
    typer.Option("--link", metavar="KEY=EXPRESSION", help="A key that follows from others.", show_default=False),
]
Seeds = Annotated[int | None, typer.Option(help="How many seeds each cell is run with.", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Folder; default: sweeps/<name of the config>.", show_default=False)]
Workers = Annotated[
    int | None, typer.Option(help="Processes, each with one thread; default: one per core.", show_default=False)
]
Together = Annotated[
    bool, typer.Option("--together", help="Train cells that differ in the server's part alone as one stack of models.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="local|ray",
        help="Where cells run: processes of this machine, or workers of the Ray cluster that runs here or that "
        "RAY_ADDRESS names.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the cells, and what they share.")]
Json = Annotated[bool, typer.Option("--json", help="Print cells and numbers as JSON.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run third-party code that the sweep in a folder names.")]


def sweep(
    context: typer.Context,
    config: Config = None,
    vary: Vary = None,
    zipped: Zip = None,
    link: Link = None,
    seeds: Seeds = None,
    overrides: SetOption = None,
    out: Out = None,
    workers: Workers = None,
    together: Together = False,
    engine: EngineOption = "local",
    dry_run: DryRun = False,
    json: Json = False,
    quiet: QuietOption = False,
    trust: Trust = False,
) -> None:
    """Run a config with every combination of some settings.

    The same command again resumes, and so does `crfl sweep FOLDER`.

    Example: crfl sweep my.toml --vary attack.scale=10,50 --vary aggregation=fedavg,rfa --seeds 5

    Cells that differ only in threat, votes or certificates are trained once. Exits with 1 if a cell failed: the others
    are finished, and the next call tries it again.
    """
    if not quiet:
        passing("starting")
    if engine == "local" and not dry_run and (together or workers != 1):
        from crfl_experiments.sweeps.pool import start_worker_early

        context.with_resource(start_worker_early())
    from crfl_experiments.commands.sweep_output import list_cells, open_for_resume, print_result, table_from_options
    from crfl_experiments.sweeps.sweep_runner import default_path, run_sweep

    parts = table_from_options(vary or (), zipped or (), link or (), seeds) | ({"together": True} if together else {})
    definition: Definition
    path: Path
    if config is not None and config.is_dir():
        definition, path = open_for_resume(config, changes=bool(parts or overrides or out), trust=trust)
    else:
        from crfl_experiments.sweeps.cells import define

        definition = define(config, overrides or (), parts)
        path = out or default_path(definition)
    if dry_run:
        cells = list_cells(definition, as_json=json)
        passing("")
        echo(cells)
        return
    try:
        failures: dict[str, Any] = run_sweep(definition, path, workers, quiet=quiet, engine=engine)
    except KeyboardInterrupt:
        echo(f"interrupted: continue with `crfl sweep {path}`", err=True)
        raise typer.Exit(INTERRUPTED) from None
    print_result(path, failures, as_json=json, quiet=quiet)
    if failures:
        raise typer.Exit(FAILED)
