"""`crfl data`: which data files there are, where to get them, and whether they are right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.extend import JsonOption

if TYPE_CHECKING:
    from crfl_core.cli.catalogue import CatalogueEntry

WRONG_FILE = 2

data = typer.Typer(no_args_is_help=True, help="Find, fetch and verify the files of datasets.")


@data.command("list")
def list_(json: JsonOption = False) -> None:
    """List every dataset: what it is, where its files were found, their sizes, checksums and licence."""
    from crfl_core.cli.catalogue import catalogue

    entries = catalogue()
    if json:
        from pydantic_core import to_json

        typer.echo(to_json(entries, indent=2).decode())
        return
    for entry in entries:
        typer.echo("\n".join(lines(entry)))


def lines(entry: CatalogueEntry) -> Iterator[str]:
    """What a person should know about a dataset, file by file if it has any."""
    yield f"{entry.name}: {entry.problem or entry.summary}"
    if entry.source is not None:
        found = sum(state.path is not None for state in entry.files)
        missing = "" if found == len(entry.files) else f"; for the missing ones: {entry.source.how_to_get}"
        yield f"  {found} of {len(entry.files)} files found{missing}"
        yield f"  licence: {entry.source.licence}; {entry.source.homepage}"
    for state in entry.files:
        known = state.file.size or (state.path.stat().st_size if state.path else None)
        size = "" if known is None else f"{known:,}"
        digest = "no checksum" if state.file.sha256 is None else state.file.sha256[:12]
        yield f"  {state.status:<8}{size:>12}  {digest:<12} {state.path or state.file.name}"
    yield ""


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name of the dataset.", show_default=False)],
    to: Annotated[Path | None, typer.Option(help="Data directory; the user's cache if not given.")] = None,
) -> None:
    """Download the files of a dataset: mirrors in turn, resumed, and verified before they are put in place."""
    from crfl_core.cli.catalogue import fetch_dataset

    fetch_dataset(name, to, report=typer.echo)


@data.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="Name of a dataset; default: all.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """Compare the files that were found with their published sizes and checksums; exit with 2 if one is wrong."""
    from crfl_core.cli.catalogue import verify_datasets

    states = [(entry.name, state) for entry in verify_datasets(name) for state in entry.files]
    if json:
        from pydantic_core import to_json

        found = [{"dataset": dataset, "status": state.status, "path": state.path} for dataset, state in states]
        typer.echo(to_json(found, indent=2).decode())
    for dataset, state in () if json else states:
        typer.echo(f"{state.status:<8} {dataset}: {state.path or state.file.name}")
    if any(state.status == "wrong" for _, state in states):
        raise typer.Exit(WRONG_FILE)
