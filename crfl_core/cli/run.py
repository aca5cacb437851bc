"""`crfl run`: from a config to a certified model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import arguments, consent, output

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run directory; default: runs/<name of the config>.", show_default=False),
]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN", help="Start at the trained model of another run.", show_default=False),
]
Twin = Annotated[
    Path | None,
    typer.Option(
        "--twin", metavar="RUN", help="Keep distances to this run, which kept its models.", show_default=False
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing run.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Try pieces of the run and print what it would take; write nothing."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start without asking, however long it takes.")]


def run(
    config: arguments.ConfigArgument = None,
    overrides: arguments.SetOption = None,
    start_from: From = None,
    twin: Twin = None,
    out: Out = None,
    force: Force = False,
    full: arguments.FullOption = False,
    json: arguments.JsonOption = False,
    quiet: arguments.QuietOption = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Train, attack, aggregate and certify as CONFIG says; resumes if its directory holds an unfinished run."""
    output.starting(quiet)
    with output.loading():
        from crfl_core.cli.early_results import Results
        from crfl_core.config import load_config
        from crfl_core.plugin_loading.registry import Registry
        from crfl_core.runs import run as execution
        from crfl_core.runs.results import load

    refuse_sweep(config)
    results = Results(full=full, json=json, quiet=quiet)
    with output.plugins_at_work():
        registry = Registry()
        changes = [*(overrides or ()), *([] if start_from is None else [execution.start_at(start_from)])]
        loaded = load_config(config, overrides=changes, registry=registry)
        path = out or execution.default_path(loaded.config)
        try:
            with execution.located(loaded):
                started = time.perf_counter()
                session = execution.prepare(loaded.config, path, [] if dry_run else results.trackers)
                if dry_run:
                    estimate = consent.estimate(session, time.perf_counter() - started)
                else:
                    consent.agree(session, yes=yes)
                    clean = None if twin is None else load(twin)
                    result = execution.execute(session, registry, loaded.origins, force=force, twin=clean)
        except KeyboardInterrupt as stop:
            raise output.interrupted(path, stop) from None
    if dry_run:
        consent.show(estimate, json=json)
    else:
        results.show(result)


def refuse_sweep(config: Path | None) -> None:
    """A file that describes many runs is for another command."""
    from crfl_core.config.loading import read_source
    from crfl_core.errors import ConfigError

    if config is not None and "sweep" in read_source(config)[0]:
        raise ConfigError(f"{config}: sweep: describes many runs: start them with `crfl sweep {config}`")
