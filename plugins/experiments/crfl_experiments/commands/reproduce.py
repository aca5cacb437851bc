"""`crfl paper reproduce`: the paper, figure by figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import JsonOption, QuietOption, SetOption

if TYPE_CHECKING:
    from crfl_experiments.paper import Reproduction

FAILED = 1
INTERRUPTED = 130

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FIGURE]...",
        help="A figure such as mnist/sigma, a dataset, or a figure on all datasets. Without one: all.",
        show_default=False,
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds each point is measured with.")]
Fast = Annotated[bool, typer.Option("--fast", help="Few test samples, and fewer, larger local steps.")]
Authors = Annotated[
    bool, typer.Option("--authors", help="As the authors' code does it, where the paper says something else.")
]
Sound = Annotated[bool, typer.Option(help="Put the same questions to a sound certificate as well.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for runs, pictures and the page.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes, each with one thread; default: one per core.", show_default=False)
]
List = Annotated[bool, typer.Option("--list", help="Only list the figures.")]


def reproduce(
    figures: Names = None,
    seeds: Seeds = 5,
    fast: Fast = False,
    authors: Authors = False,
    sound: Sound = True,
    overrides: SetOption = None,
    out: Out = Path("reproduction"),
    workers: Workers = None,
    listing: List = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the figures of the paper and judge its claims about them.

    One page shows each claim beside the result, and what a sound certificate answers to the same question. The same
    command again resumes. Figures without their data are skipped; the page says how to get them. Exits with 1 if a run
    failed.
    """
    from pydantic_core import to_json

    from crfl_experiments.paper.reproduction import figure_titles
    from crfl_experiments.paper.reproduction import reproduce as run_figures

    if listing:
        known = figure_titles()
        width = max(map(len, known))
        plain = "\n".join(f"{name:<{width}}  {title}" for name, title in known.items())
        echo(to_json(known, indent=2).decode() if json else plain)
        return
    try:
        result = run_figures(
            figures or (),
            seeds=seeds,
            fast=fast,
            authors=authors,
            sound=sound,
            out=out,
            overrides=overrides or (),
            workers=workers,
            quiet=quiet or json,
        )
    except KeyboardInterrupt:
        echo("interrupted: the same command resumes", err=True)
        raise typer.Exit(INTERRUPTED) from None
    echo(to_json(result.to_json(), indent=2).decode() if json else verdict_lines(result, quiet=quiet))
    if result.failures:
        raise typer.Exit(FAILED)


def verdict_lines(result: Reproduction, *, quiet: bool) -> str:
    """Return every verdict in a line, failed cells, and the path of the page."""
    if quiet:
        return str(result.path)
    lines = [
        f"{section.name}: {finding.tested}: {finding.said}"
        for section in result.sections
        for finding in section.findings
    ]
    failed = [f"failed: {name}: {reason}" for name, reason in result.failures.items()]
    return "\n".join([*lines, *failed, f"page: {result.path}"])
