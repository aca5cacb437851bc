"""The packages in examples/third_party stand on what is public, and add what does not come with crfl."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from crfl_core.extend import Registry
from crfl_core.plugin_api import KINDS

FOLDER = Path(__file__).parents[2] / "examples" / "third_party"
PACKAGES = sorted(path.parent for path in FOLDER.glob("*/pyproject.toml"))

PUBLIC = {"crfl_core.extend"}
IN_TESTS = PUBLIC | {"crfl", "crfl_core", "crfl_core.testing"}


def imported(source: Path) -> Iterator[str]:
    """Every module that a file imports something from."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def ours(package: Path, folder: str) -> set[str]:
    """What the files in a folder of a package import of crfl, themselves aside."""
    own = package.name.replace("-", "_")
    names = {name for file in (package / folder).rglob("*.py") for name in imported(file)}
    return {name for name in names if name.startswith("crfl") and name != own}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_imports_what_plugin_authors_are_promised(package: Path) -> None:
    assert ours(package, "src") == PUBLIC
    assert "crfl_core.testing" in ours(package, "tests") <= IN_TESTS


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_adds_a_plugin_that_we_do_not_ship(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kinds = {kind.group: name for name, kind in KINDS.items()}
    for group, points in project["entry-points"].items():
        shipped = Registry().names(kinds[group])
        assert shipped
        assert not set(points) & set(shipped)
    assert project["name"] == package.name


def test_they_cover_what_papers_bring() -> None:
    groups = {
        group
        for package in PACKAGES
        for group in tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    }
    assert groups == {"crfl.aggregators", "crfl.attacks", "crfl.datasets", "crfl.certificates"}


def test_the_overview_lists_them_all() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for package in PACKAGES:
        assert f"| [{package.name}]({package.name}/README.md) |" in page
