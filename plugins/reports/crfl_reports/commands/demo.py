"""`crfl demo`: an attack, a defence and a certificate, in a minute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.arguments import JsonOption, QuietOption

if TYPE_CHECKING:
    from crfl_core import RunResult

EXPLORE = 10.0
"""Seconds for the explorer of the report."""

Out = Annotated[Path, typer.Option("--out", help="Folder for the three runs of the demo.")]


def demo(out: Out = Path("runs/demo"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """See a backdoor, a defence and a proof, in a minute.

    The same federation is attacked without a defence, with one, and with a certificate.
    """
    if not quiet:
        passing("starting")
    import crfl_reports.pages
    from crfl_core import run
    from crfl_core.cli.output import program_name, progress, redirect_plugin_output, use_colours
    from crfl_reports.commands.demo_story import CONFIG, ROWS, story_lines
    from crfl_reports.commands.pages import write_with_progress

    results: list[RunResult] = []
    for number, row in enumerate(ROWS, 1):
        trackers = progress(quiet, f"{number}/{len(ROWS)} {row.name}")
        results.append(run(CONFIG, overrides=row.overrides, out=out / row.name, force=True, trackers=trackers))
    passing("")
    if json:
        from pydantic_core import to_json

        echo(to_json({row.name: result.metrics for row, result in zip(ROWS, results, strict=True)}, indent=2))
        return
    if quiet:
        crfl_reports.pages.write_report(out / "certified", explore=EXPLORE)
        echo(str(out))
        return
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    for line in story_lines(results, plain=plain, colours=use_colours()):
        typer.echo(line)
    with redirect_plugin_output():
        report = write_with_progress(out / "certified", explore=EXPLORE)
    for line in ending(report, program_name()):
        echo(line)


def ending(report: Path, program: str = "crfl") -> Iterator[str]:
    """Yield the path of the report, and commands to paste next."""
    following = {
        f"{program} open {report.parent}": "the report, in a browser",
        f"{program} show {report.parent}": "what is proved",
        f"{program} advise": "a config for your own question",
        f"{program} --help": "all commands",
    }
    width = max(map(len, following))
    yield ""
    yield f"Report: {report}"
    for number, (command, what) in enumerate(following.items()):
        yield f"{'' if number else 'Next:':<6}{command:<{width}}  {what}"
