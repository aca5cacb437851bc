"""Addition of a plugin to an existing package: a module, its tests, an example, a line in pyproject.toml."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crfl_core.cli.scaffold.names import COMMAND, PluginNames, ScaffoldError
from crfl_core.cli.scaffold.package import TEMPLATES, check_target, fill_template, placeholders
from crfl_core.extend import Registry
from crfl_core.plugin_api import KINDS

PROJECT = "pyproject.toml"


@dataclass(frozen=True)
class Package:
    """Package of plugins on disk: its folder, its distribution, and the folder of its modules."""

    root: Path
    distribution: str
    module: str
    folder: Path
    text: str

    @property
    def points(self) -> Mapping[str, Mapping[str, str]]:
        """Return its entry points, by group and name."""
        return entry_points(tomllib.loads(self.text))


def add_to_package(names: PluginNames, root: Path, *, registry: Registry) -> Package:
    """Write a plugin into the package in `root`.

    Raises `ScaffoldError`. Then nothing is written.
    """
    names.check_name()
    package = read_package(root)
    module = f"{package.module}.{names.function_name}"
    group = KINDS[names.found_as].group
    if names.plugin in package.points.get(group, {}):
        raise ScaffoldError(
            f"{root / PROJECT}: declares the {names.found_as} {names.plugin!r} already: choose another name"
        )
    project = with_entry_point(package, group, names.plugin, f"{module}:{names.target}")
    content = {package.root / path: text for path, text in files_to_add(names, package, module, registry).items()}
    for path in content:
        if os.path.lexists(path):
            raise ScaffoldError(f"{path}: exists already and is not overwritten: choose another name")
    write_all(content, package.root / PROJECT, project)
    return package


def read_package(root: Path) -> Package:
    """Read the package in a folder. Raises `ScaffoldError` if there is none."""
    path = root / PROJECT
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
        distribution = tree["project"]["name"]
    except (OSError, UnicodeDecodeError) as error:
        raise ScaffoldError(
            f"--into {root}: {path.name} cannot be read: {error}: give the folder of a package"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ScaffoldError(f"{path}: not valid TOML: {error}") from error
    except KeyError as error:
        raise ScaffoldError(f"{path}: has no project.name: `crfl new` without --into begins a package") from error
    targets = [target for points in entry_points(tree).values() for target in points.values()]
    modules = [*(target.partition(":")[0].partition(".")[0] for target in targets), distribution.replace("-", "_")]
    for module in modules:
        for folder in (Path("src", module), Path(module)):
            if (root / folder / "__init__.py").is_file():
                return Package(root, distribution, module, folder, text)
    raise ScaffoldError(f"{root}: has no package {modules[-1]}, neither in src nor beside {PROJECT}")


def entry_points(tree: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Return the entry points of crfl that a pyproject.toml declares."""
    declared = tree.get("project", {}).get("entry-points", {})
    return {group: points for group, points in declared.items() if group.startswith("crfl.")}


def with_entry_point(package: Package, group: str, name: str, target: str) -> str:
    """Add a line or table to the text of `pyproject.toml`.

    Nothing else is changed. Raises `ScaffoldError` if that fails.
    """
    line = f'{name} = "{target}"'
    header = re.compile(rf'^\[project\.entry-points\.["\']{re.escape(group)}["\']\][^\n]*\n', re.MULTILINE)
    if header.search(package.text):
        text = header.sub(lambda found: f"{found[0]}{line}\n", package.text, count=1)
    else:
        text = f'{package.text.rstrip()}\n\n[project.entry-points."{group}"]\n{line}\n'
    wanted = {**package.points, group: {**package.points.get(group, {}), name: target}}
    try:
        added = entry_points(tomllib.loads(text)) == wanted
    except tomllib.TOMLDecodeError:
        added = False
    if not added:
        where = f'[project.entry-points."{group}"]'
        raise ScaffoldError(
            f"{package.root / PROJECT}: entry points are written in a way that a line cannot be added to: write them "
            f"as tables, such as {where} with the line {line}"
        )
    return text


def files_to_add(names: PluginNames, package: Package, module: str, registry: Registry) -> dict[Path, str]:
    """Return the new files, by their path in the package."""
    kind = names.kind.replace("-", "_")
    is_command = names.kind == COMMAND
    example = f"example-{names.plugin}.toml"
    words = placeholders(names, "none", "", registry) | {
        "crfl-my-plugin": package.distribution,
        "crfl_my_plugin": module,
        "example.toml": example,
    }
    if names.rivals(registry):
        words["MY_TYPE"] = f"{package.distribution}:{names.plugin}"
    templates = {
        package.folder / f"{names.function_name}.py": f"kinds/{kind}.py",
        Path(
            "tests", f"test_{names.function_name}.py"
        ): f"package/test_{'my_command' if is_command else 'my_plugin'}.py",
    }
    if not is_command:
        templates[Path(example)] = f"kinds/{kind}.toml"
    result = {
        path: fill_template((TEMPLATES / name).read_text(encoding="utf-8"), words) for path, name in templates.items()
    }
    check_target(names, result[package.folder / f"{names.function_name}.py"])
    return result


def write_all(content: Mapping[Path, str], project: Path, text: str) -> None:
    """Write the new files, then `pyproject.toml`.

    If an error occurs, remove them again.
    """
    written: list[Path] = []
    scratch = project.with_name(f".{project.name}.new")
    try:
        for path, source in content.items():
            path.parent.mkdir(exist_ok=True)
            written.append(path)
            path.write_text(source, encoding="utf-8")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(project)
    except OSError as error:
        for path in (*written, scratch):
            path.unlink(missing_ok=True)
        raise ScaffoldError(f"{error.filename or project}: cannot be written: {error.strerror}") from error
