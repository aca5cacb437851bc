"""`crfl new`: write a package for a new plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo

Kind = Annotated[
    str,
    typer.Argument(
        help="What to write: aggregator, stage, optimiser, attack, dataset, partitioner, model, feature-map, "
        "algorithm, certificate, engine, tracker or command.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(help="Its name, such as trimmed-mean.", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write; default: crfl-NAME.", show_default=False)]
INSTALL_AGAIN = "\nInstall the package again, so that the new entry point is known, run its tests, try it:\n"
Into = Annotated[
    Path | None,
    typer.Option("--into", help="Folder of a package that gets one plugin more.", show_default=False),
]
Licence = Annotated[str, typer.Option("--licence", help="apache-2.0, mit, bsd-3-clause or none.")]
Author = Annotated[str | None, typer.Option("--author", help="Who holds the copyright.", show_default=False)]
Url = Annotated[
    str | None, typer.Option("--url", help="Address of the repository, for the package's page.", show_default=False)
]


def new(
    kind: Kind,
    name: Name,
    out: Out = None,
    into: Into = None,
    licence: Licence = "apache-2.0",
    author: Author = None,
    url: Url = None,
) -> None:
    """Write a package with a working plugin, ready to publish.

    It has a module, an entry point, tests, an example config, a README, workflows and a licence.
    """
    from crfl_core.cli.scaffold import PluginNames, ScaffoldError, add_to_package, write_package
    from crfl_core.extend import Registry

    names = PluginNames(kind, name)
    registry = Registry()
    if into is None:
        target = out or Path(names.distribution)
        distribution = names.distribution
        module = "__init__"
        write_package(names, target, licence=licence, author=author, registry=registry, url=url)
        folder = Path("src", names.module)
    elif out is not None:
        raise ScaffoldError("--into adds to a package and --out begins one: give one of them")
    else:
        package = add_to_package(names, into, registry=registry)
        target = into
        distribution = package.distribution
        module = names.function_name
        folder = package.folder
    is_command = kind == "command"
    what, users = ("function", "people") if is_command else ("class", "configs")
    echo(f"{target}: the {kind} {name!r}, {what} {names.target} in {(folder / module).as_posix()}.py")
    for rival in names.rivals(registry):
        echo(f"note: {rival} declares {name!r}, too: {users} must write '{distribution}:{name}'")
    if is_command and into is not None:
        echo(f"note: `crfl {name} --help` waits for all that {(folder / '__init__.py').as_posix()} imports")
    echo("\nInstall it, run its tests, try it:\n" if into is None else INSTALL_AGAIN)
    example = "example.toml" if into is None else f"example-{name}.toml"
    trial = f"crfl {name} --help" if is_command else f"crfl run {example}"
    echo(f"  cd {target}\n  pip install --editable '.[test]'\n  pytest\n  {trial}")
