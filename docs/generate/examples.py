"""Find where executed code of the documentation uses a public name."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.generate.markdown import DOCS, ROOT, anchor

DOORS = ("crfl", "crfl_core.extend")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
REFERENCE = DOCS / "reference"
MOST = 3


@dataclass(frozen=True)
class Use:
    """Section of a page whose code uses a name."""

    page: Path
    title: str
    anchor: str

    @property
    def link(self) -> str:
        """Return the section as a link from a page of the reference."""
        return f"[{self.title}]({Path(os.path.relpath(self.page, REFERENCE)).as_posix()}{self.anchor})"


@dataclass(frozen=True)
class Examples:
    """First use of each name on each page, beginner pages first."""

    uses: Mapping[str, tuple[Use, ...]]

    @staticmethod
    def of(pages: Mapping[Path, str]) -> Examples:
        """Find the uses in these pages, given by their text."""
        found: dict[str, list[Use]] = {}
        for page in sorted(pages, key=lambda path: (len(path.relative_to(ROOT).parts), path)):
            if page.parent != REFERENCE:
                for name, use in find_uses(page, pages[page]).items():
                    found.setdefault(name, []).append(use)
        return Examples({name: tuple(all_of) for name, all_of in found.items()})

    def links(self, name: str) -> str:
        """Write a sentence that links the first uses; empty if there are none."""
        links = [use.link for use in self.uses.get(name, ())[:MOST]]
        return f"Used in {', '.join(links)}." if links else ""


def find_uses(page: Path, text: str) -> dict[str, Use]:
    """Return the public names used on a page, each with its first section."""
    title = "README" if page.parent == ROOT and page.name == "README.md" else HEADING.findall(text)[0].replace("`", "")
    imported: set[str] = set()
    found: dict[str, Use] = {}
    for block in PYTHON.finditer(text):
        tree = ast.parse(block[1])
        imported.update(public_imports(tree))
        for name in used_names(tree, imported):
            found.setdefault(name, Use(page, title, section_anchor(text, block.start())))
    return found


def public_imports(tree: ast.Module) -> Iterator[str]:
    """Return the names that code imports from `crfl` or `crfl_core.extend`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in DOORS:
            yield from (alias.name for alias in node.names)


def used_names(tree: ast.Module, imported: set[str]) -> Iterator[str]:
    """Return the imported names that code uses, attributes as `module.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in imported:
            yield node.id
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            yield f"{node.value.id}.{node.attr}"


def section_anchor(text: str, position: int) -> str:
    """Return the anchor of a position; empty above the second heading."""
    above = FENCED.sub("", text[:position])
    headings = HEADING.findall(above)
    return f"#{anchor(headings[-1])}" if len(headings) > 1 else ""
