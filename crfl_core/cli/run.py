"""`crfl run`: from a config to a certified model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import arguments, completion, echo, output, passing

if TYPE_CHECKING:
    from crfl_core.cli.early_results import RunDisplay
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
    typer.Option("--dry-run", help="Check the config and the data, print sizes, memory and disk; write nothing."),
]


Start = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG|RUN]",
        help="Config file, TOML or YAML, or the directory of a run to resume. Without one: the shipped digits.",
        show_default=False,
        autocompletion=completion.configs_and_runs,
    ),
]


def run(
    config: Start = None,
    overrides: arguments.SetOption = None,
    start_from: From = None,
    twin: Twin = None,
    out: Out = None,
    force: Force = False,
    full: arguments.FullOption = False,
    json: arguments.JsonOption = False,
    quiet: arguments.QuietOption = False,
    dry_run: DryRun = False,
    trust: arguments.TrustOption = False,
) -> None:
    """Train, attack, aggregate and certify; resume a stopped run.

    CONFIG is a file. If its run directory holds an unfinished run, it is resumed. RUN is the directory of a run: it is
    finished with its own config, bit for bit as if it had never stopped.
    """
    output.show_start(quiet)
    with output.pause_garbage_collection():
        from crfl_core.cli.early_results import RunDisplay
        from crfl_core.config import load_config
        from crfl_core.files.data_files import previewing
        from crfl_core.plugin_loading.registry import Registry
        from crfl_core.runs import run as execution
        from crfl_core.runs.planned_ledger import check_certificates
        from crfl_core.runs.resource_needs import estimate_run
        from crfl_core.runs.results import load

    results = RunDisplay(full=full, json=json, quiet=quiet)
    if config is not None and config.is_dir():
        given: dict[str, object] = {
            "--set": overrides,
            "--from": start_from,
            "--twin": twin,
            "--out": out,
            "--force": force,
            "--dry-run": dry_run,
        }
        refuse_options(config, [name for name, value in given.items() if value])
        resume(config, results, trust=trust)
        return
    refuse_sweep(config)
    with output.redirect_plugin_output():
        registry = Registry()
        settings = [*(overrides or ()), *([] if start_from is None else [execution.start_override(start_from)])]
        loaded = load_config(config, overrides=settings, registry=registry)
        path = out or execution.default_path(loaded.config)
        try:
            with execution.locate_errors(loaded), previewing() if dry_run else nullcontext():
                trackers = output.progress(quiet) if dry_run else results.trackers
                session = execution.prepare(loaded.config, path, trackers)
                output.show_planned_refusals(check_certificates(session.federation))
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
        output.exit_if_refused(result.metrics.curves, result.metrics.refused)


def resume(path: Path, results: RunDisplay, *, trust: bool) -> None:
    """Resume the unfinished run in a directory and print its results.

    The results of a finished run are printed as they are.
    """
    from crfl_core.runs.run import resume as resume_run

    with output.redirect_plugin_output():
        try:
            result = resume_run(path, trackers=results.trackers, trust=trust)
        except KeyboardInterrupt as stop:
            raise output.report_interrupt(path, stop) from None
    results.show(result)
    output.exit_if_refused(result.metrics.curves, result.metrics.refused)


def refuse_options(path: Path, options: Sequence[str]) -> None:
    """Refuse options that a run in a directory cannot take.

    The directory of a sweep is refused, too.
    """
    from crfl_core.errors import ConfigError

    if (path / "sweep.toml").is_file():
        raise ConfigError(f"{path}: holds a sweep: continue it with `crfl sweep {path}`")
    if options:
        raise ConfigError(
            f"{options[0]}: the run in {path} is resumed with its own config: leave the option out, or start another "
            "run with a config file"
        )


def show_estimate(estimate: Estimate, path: Path, *, json: bool) -> None:
    """Print what a run would do and need.

    As JSON, it is in counts and bytes.
    """
    passing("")
    if json:
        from pydantic_core import to_json

        numbers = {
            **vars(estimate.sizes),
            "votes": [load._asdict() for load in estimate.loads],
            "memory": estimate.memory,
            "disk": estimate.disk,
        }
        echo(to_json(numbers, indent=2))
        return
    for name, text in estimate_lines(estimate, path):
        echo(f"{name:<15}{text}")


def estimate_lines(estimate: Estimate, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of `crfl run --dry-run`.

    A line is a name, and the sizes or bytes behind it.
    """
    from crfl_core import resource_limits
    from crfl_core.runs.resource_needs import format_bytes

    sizes = estimate.sizes
    yield "data", f"{sizes.samples:,} training samples of {sizes.clients:,} clients, {sizes.features:,} features"
    models = "" if sizes.groups == 1 else f"{sizes.groups:,} models of "
    participants = f"{sizes.participants:,} participants"
    yield "training", f"{sizes.rounds:,} rounds of {participants}, {models}{sizes.parameters:,} parameters"
    if sizes.groups > 1:  # certificates of one model are refused for such a config
        yield "votes", f"{sizes.groups:,} models, one of each group, on {sizes.tests:,} test samples"
    for load in estimate.loads if sizes.groups == 1 else ():
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
