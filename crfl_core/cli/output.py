"""Output of commands: tables of runs, and stdout kept free of what plugins print."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import typer

from crfl_core.cli import EXIT_REFUSED, echo, exit_status, passing, print_message
from crfl_core.errors import PluginFailure, describe_exception
from crfl_core.printable_text import PrintableOutput, printable

if TYPE_CHECKING:
    from rich.console import Console

    from crfl_core.plugin_api.tracker import Tracker
    from crfl_core.reporting.metrics import Curve
    from crfl_core.runs.certify import Needs, WhatIf
    from crfl_core.runs.results import RunResult
    from crfl_core.training.clean_twin import AttackEffect


RECOMPUTED: Mapping[Needs, str] = {
    "formulas": "certificates only",
    "votes": "votes and certificates",
    "continuations": "continuations, votes and certificates",
}
"""Words for what a what-if question recomputed, by what it needed."""

ORIGINAL_STDOUT: ContextVar[tuple[int | None, TextIO]] = ContextVar("OUTSIDE")
"""Stdout before it was redirected: a copy of its descriptor, if there is one, and the stream."""


@contextlib.contextmanager
def redirect_plugin_output() -> Iterator[None]:
    """Redirect what plugins print to stderr.

    Stdout then holds only the command's own output. The output of processes that plugins start is redirected, too.
    `sys.exit` in a plugin is its failure and does not end the command.
    """
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        stdout = None
        with contextlib.suppress(OSError):  # one of the two is closed
            stdout = os.dup(1)
            stack.callback(os.close, stdout)
            stack.callback(os.dup2, stdout, 1)
            os.dup2(2, 1)
        stack.callback(ORIGINAL_STDOUT.reset, ORIGINAL_STDOUT.set((stdout, sys.stdout)))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            yield
        except SystemExit as stop:
            frame = traceback.extract_tb(stop.__traceback__)[-1]
            raise PluginFailure(f"{frame.filename}:{frame.lineno}: {describe_exception(stop)}") from stop


@contextlib.contextmanager
def restore_stdout() -> Iterator[None]:
    """Restore stdout within `redirect_plugin_output`, for output of the command itself."""
    descriptor, stream = ORIGINAL_STDOUT.get()
    with contextlib.redirect_stdout(stream):
        if descriptor is not None:
            os.dup2(descriptor, 1)
        try:
            yield
            stream.flush()
        finally:
            if descriptor is not None:
                os.dup2(2, 1)


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while libraries are imported.

    This saves a tenth of the start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def progress(quiet: bool, title: str = "") -> list[Tracker]:
    """Return the tracker that shows progress, loaded like any plugin.

    The list is empty if `quiet` or if the tracker is blocked. `title` is put in front of every line.
    """
    from crfl_core.errors import PluginError
    from crfl_core.plugin_loading.registry import Registry

    if quiet:
        return []
    try:
        plugin = Registry().load("tracker", "crfl:progress")
        tracker = plugin.model_validate({"title": title} if title else {}).with_name("progress")
    except PluginError as error:
        sys.stderr.write(printable(f"warning: no progress is shown: {error}\n"))
        return []
    return [tracker]  # type: ignore[list-item]  # the registry checked the class


def show_start(quiet: bool) -> None:
    """Show at once that the command has started.

    Libraries take seconds to load.
    """
    if not quiet:
        passing("starting")


def show_run(result: RunResult, *, quiet: bool = False, full: bool = False, json: bool = False) -> None:
    """Print a finished run.

    Print a summary, every table, `metrics.json`, or only its path.
    """
    passing("")
    from crfl_core.reporting import terminal as summary
    from crfl_core.reporting import terminal_tables as tables
    from crfl_core.reporting.csv_files import audit_entries, metrics_json

    if json:
        echo(metrics_json(result.metrics))
    elif quiet:
        echo(str(result.path))
    else:
        show = tables.show_everything if full else summary.show_summary
        show(terminal(), result.path.name, result.metrics, audit_entries(result.audits), result.path)


def program_name() -> str:
    """Return what to type for this command line.

    It is `crfl`, or its path where the shell would not find it.
    """
    called = Path(sys.argv[0])
    found = shutil.which("crfl")
    if called.name != "crfl" or (found is not None and Path(found).resolve() == called.resolve()):
        return "crfl"
    with contextlib.suppress(ValueError):
        called = called.absolute().relative_to(Path.cwd())
    return shlex.quote(str(called))


def use_colours() -> bool:
    """Return whether stdout is a terminal of a user who wants colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def show_planned_refusals(refused: Mapping[str, str]) -> None:
    """Print the certificates that the config refuses before round 1.

    They go to stderr. The run trains with the others.
    """
    for name, why in refused.items():
        print_message(f"refused before round 1: {name}: {why}")


def exit_if_refused(curves: Sequence[Curve], refused: Mapping[str, str]) -> None:
    """End with exit status 3 if every certificate is refused.

    The run is finished nevertheless.
    """
    if refused and not curves:
        raise typer.Exit(EXIT_REFUSED)


def terminal() -> Console:
    """Return the console for tables.

    It is wide enough for a file. `NO_COLOR` leaves no escape codes at all. Removes a passing line that says what is
    being done.
    """
    passing("")
    from rich.console import Console

    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(highlight=False, color_system=colours, width=None if sys.stdout.isatty() else 110)
    console.push_render_hook(PrintableOutput())  # type: ignore[arg-type]  # a hook in all but name
    return console


def show_what_if(result: WhatIf, *, full: bool, json: bool) -> None:
    """Print the answer to a what-if question.

    The assumed threat comes first, then the guarantees.
    """
    passing("")
    from crfl_core.reporting import terminal as summary
    from crfl_core.reporting import terminal_tables as tables
    from crfl_core.reporting.csv_files import audit_entries, metrics_json
    from crfl_core.runs.results import WhatIfAnswer

    audit = audit_entries(result.audits)
    console = terminal()
    if json:
        answer = WhatIfAnswer(
            threat=result.threat.model_dump(mode="json", exclude_none=True),
            needs=result.needs,
            curves=result.curves,
            collective=result.collective,
            refused=result.refused,
        )
        echo(metrics_json(answer))
        return
    assumed = result.threat.model_dump(exclude_none=True, exclude={"rounds", "rounds_at_most"})
    threat = ", ".join(f"{key} = {value}" for key, value in assumed.items())
    shown = {curve.rounds for curve in result.curves}
    rounds = "every round" if shown == {"every round"} else result.threat.rounds_text  # what the threat says or more
    head = [f"assumed: attacks in {rounds}, {threat}", f"recomputed: {RECOMPUTED[result.needs]}"]
    if not full:
        summary.show_guarantees(console, result.curves, audit, [result.verdict, "", *head, ""], [], result.collective)
        return
    for line in (result.verdict, *head):
        console.print(line)
    tables.show_guarantees(console, result.curves, audit, result.collective)


def show_effect(effect: AttackEffect) -> None:
    """Print the attacked model beside the clean one."""
    from crfl_core.reporting.terminal_tables import effect_table

    terminal().print(effect_table(effect.model_dump()))


def report_interrupt(path: Path, stop: KeyboardInterrupt) -> typer.Exit:
    """Print how to resume after Ctrl-C, and return the exit."""
    begun = (path / "status.json").exists()
    print_message(f"interrupted: {f'resume with `crfl run {path}`' if begun else 'nothing was written yet'}")
    return typer.Exit(exit_status(stop))
