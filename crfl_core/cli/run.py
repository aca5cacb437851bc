"""`crfl run`: from a config to a certified model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import arguments, output, passing

if TYPE_CHECKING:
    from crfl_core.runs.resource_needs import Estimate

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
    typer.Option("--dry-run", help="Check the config, load the data, print sizes, memory and disk; write nothing."),
]


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
) -> None:
    """Train, attack, aggregate and certify as CONFIG says; resumes if its directory holds an unfinished run."""
    output.show_start(quiet)
    with output.pause_garbage_collection():
        from crfl_core.cli.early_results import RunDisplay
        from crfl_core.config import load_config
        from crfl_core.plugin_loading.registry import Registry
        from crfl_core.runs import run as execution
        from crfl_core.runs.resource_needs import estimate_run
        from crfl_core.runs.results import load

    refuse_sweep(config)
    results = RunDisplay(full=full, json=json, quiet=quiet)
    with output.redirect_plugin_output():
        registry = Registry()
        changes = [*(overrides or ()), *([] if start_from is None else [execution.start_override(start_from)])]
        loaded = load_config(config, overrides=changes, registry=registry)
        path = out or execution.default_path(loaded.config)
        try:
            with execution.locate_errors(loaded):
                session = execution.prepare(loaded.config, path, [] if dry_run else results.trackers)
                if dry_run:
                    estimate = estimate_run(session)
                else:
                    clean = None if twin is None else load(twin)
                    result = execution.execute(session, registry, loaded.origins, force=force, twin=clean)
        except KeyboardInterrupt as stop:
            raise output.report_interrupt(path, stop) from None
    if dry_run:
        show_estimate(estimate, path, json=json)
    else:
        results.show(result)


def show_estimate(estimate: Estimate, path: Path, *, json: bool) -> None:
    """Print what a run would do and need; as JSON in counts and bytes."""
    passing("")
    if json:
        from pydantic_core import to_json

        numbers = {
            **vars(estimate.sizes),
            "votes": [load._asdict() for load in estimate.loads],
            "memory": estimate.memory,
            "disk": estimate.disk,
        }
        typer.echo(to_json(numbers, indent=2))
        return
    for name, text in estimate_lines(estimate, path):
        typer.echo(f"{name:<15}{text}")


def estimate_lines(estimate: Estimate, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of `crfl run --dry-run`: a name, and the sizes or bytes behind it."""
    from crfl_core import resource_limits
    from crfl_core.runs.resource_needs import format_bytes

    sizes = estimate.sizes
    yield "data", f"{sizes.samples:,} training samples of {sizes.clients:,} clients, {sizes.features:,} features"
    models = "" if sizes.groups == 1 else f"{sizes.groups:,} models of "
    participants = f"{sizes.participants:,} participants"
    yield "training", f"{sizes.rounds:,} rounds of {participants}, {models}{sizes.parameters:,} parameters"
    for load in estimate.loads:
        if load.rounds is None:
            yield "votes", f"{load.models:,} noisy models on {sizes.tests:,} test samples"
        else:
            yield "continuations", f"{load.models:,} models through {load.rounds:,} rounds"
    memory = resource_limits.free_memory()
    left = "" if memory is None else f"; {format_bytes(memory.left)} are left ({memory.limit})"
    yield "memory", f"about {format_bytes(estimate.memory)} at the peak{left}"
    disk = resource_limits.free_disk(path)
    left = "" if disk is None else f"; {format_bytes(disk.left)} are left ({disk.limit})"
    yield "disk", f"about {format_bytes(estimate.disk)}{left}"


def refuse_sweep(config: Path | None) -> None:
    """Refuse a config that describes many runs; name the command for it."""
    from crfl_core.config.loading import read_source
    from crfl_core.errors import ConfigError

    if config is not None and "sweep" in read_source(config)[0]:
        raise ConfigError(f"{config}: sweep: describes many runs: start them with `crfl sweep {config}`")
