"""`crfl plugins`: what is installed, and what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer


def plugins(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every installed plugin: kind, name, distribution, state, and the hooks it implements."""
    from crfl_core.plugins import Registry

    listing = Registry().listing()
    if json:
        import json as codec

        typer.echo(codec.dumps([asdict(plugin) for plugin in listing], indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for column in ("kind", "name", "distribution", "state", "what it does"):
        table.add_column(column, overflow="fold")
    for plugin in listing:
        style = "green" if plugin.status == "ok" else "red"
        about = plugin.reason or plugin.summary
        if plugin.hooks:
            about += f" [hooks: {', '.join(plugin.hooks)}]"
        table.add_row(
            plugin.kind,
            plugin.name,
            f"{plugin.distribution} {plugin.version}",
            Text(plugin.status, style=style),
            Text(about),
        )
    Console(highlight=False).print(table)
