"""Where the documentation uses a public name in code that the tests run."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.generate.markdown import DOCS, ROOT, anchor

DOORS = ("crfl_core", "crfl_core.extend")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
REFERENCE = DOCS / "reference"
MOST = 3


@dataclass(frozen=True)
class Use:
    """A section of a page whose code uses a name."""

    page: Path
    title: str
    anchor: str

    @property
    def link(self) -> str:
        """The section, as a link from a page of the reference."""
        return f"[{self.title}]({Path(os.path.relpath(self.page, REFERENCE)).as_posix()}{self.anchor})"


@dataclass(frozen=True)
class Examples:
    """The first use of every name on every page, pages for people who begin first."""

    uses: Mapping[str, tuple[Use, ...]]

    @staticmethod
    def of(pages: Mapping[Path, str]) -> Examples:
        """The uses in these pages, given by their text."""
        found: dict[str, list[Use]] = {}
        for page in sorted(pages, key=lambda path: (len(path.relative_to(ROOT).parts), path)):
            if page.parent != REFERENCE:
                for name, use in uses(page, pages[page]).items():
                    found.setdefault(name, []).append(use)
        return Examples({name: tuple(all_of) for name, all_of in found.items()})

    def links(self, name: str) -> str:
        """A sentence that leads to the first few uses; empty if there are none."""
        links = [use.link for use in self.uses.get(name, ())[:MOST]]
        return f"Used in {', '.join(links)}." if links else ""


def uses(page: Path, text: str) -> dict[str, Use]:
    """The public names that the code of a page uses, each with the section of its first use."""
    title = "README" if page.parent == ROOT and page.name == "README.md" else HEADING.findall(text)[0].replace("`", "")
    imported: set[str] = set()
    found: dict[str, Use] = {}
    for block in PYTHON.finditer(text):
        tree = ast.parse(block[1])
        imported.update(public_imports(tree))
        for name in used(tree, imported):
            found.setdefault(name, Use(page, title, section_of(text, block.start())))
    return found


def public_imports(tree: ast.Module) -> Iterator[str]:
    """The names that code imports from a door."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in DOORS:
            yield from (alias.name for alias in node.names)


def used(tree: ast.Module, imported: set[str]) -> Iterator[str]:
    """The imported names that code does something with, and `module.name` for what it takes from a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in imported:
            yield node.id
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            yield f"{node.value.id}.{node.attr}"


def section_of(text: str, position: int) -> str:
    """The anchor of the section that a position is in; empty for what stands above the second heading."""
    above = FENCED.sub("", text[:position])
    headings = HEADING.findall(above)
    return f"#{anchor(headings[-1])}" if len(headings) > 1 else ""
