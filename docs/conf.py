"""Configuration of the site. `make site` copies this folder to `build/docs`, adds generated pages, and builds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from crfl_core import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

DOCS = Path(__file__).parent
UNSEARCHED = ("decisions",)
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)[^)\s]*\)")

project = "crfl"
release = version = __version__
extensions = ["myst_parser"]
suppress_warnings = ["toc.not_included"]  # pages of a chapter are listed by its first page
myst_heading_anchors = 4
smartquotes = False  # commands in plain text keep their quotes and dashes
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"crfl {release}"
html_show_copyright = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """Replace links that leave the documentation, and keep pages that answer no question out of the search."""
    app.connect("source-read", without_outside_links)
    app.connect("env-updated", leave_out_of_search)


def leave_out_of_search(_app: Sphinx, environment: BuildEnvironment) -> None:
    """Keep the text of pages that would come first and rarely answer out of the search."""
    for name in UNSEARCHED:
        environment.metadata[name]["nosearch"] = ""


def without_outside_links(_app: Sphinx, name: str, source: list[str]) -> None:
    """Turn links of a page that leave the documentation into text."""
    folder = (DOCS / name).parent

    def kept(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).resolve().is_relative_to(DOCS) else link[1]

    source[0] = LINK.sub(kept, source[0])
