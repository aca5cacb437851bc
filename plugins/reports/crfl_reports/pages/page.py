"""One HTML file out of its parts: markup, data, style and scripts, and a policy that lets in nothing else."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Any

from crfl_reports.pages.markup import Html, data_block, element, joined

ASSETS = Path(__file__).with_name("assets")
STYLES = ("vendored/uPlot.min.css", "page.css")
LIBRARY = ("vendored/LICENSE", "vendored/uPlot.iife.min.js")
"""What draws the plots; its licence has to go with it."""

SCRIPTS = (
    "elements.js",
    "charts.js",
    "grids.js",
    "figures.js",
    "explorer.js",
    "samples.js",
    "folder.js",
    "start.js",
)
"""In the order in which they run, inside of one function."""

Section = tuple[str, str, Html]


def page(title: str, note: str, sections: Iterable[Section], data: Mapping[str, Any]) -> str:
    """The whole file. `note` stands below the title, `sections` are names, titles and contents."""
    parts = list(sections)
    links = [element("li", element("a", heading, href=f"#{name}")) for name, heading, _ in parts]
    body = [
        element(
            "section", element("h2", heading, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title"
        )
        for name, heading, content in parts
    ]
    licence, library = map(asset, LIBRARY)
    style = joined_assets(STYLES)
    script = f'/*\n{licence}*/\n{library}\n(() => {{\n"use strict";\n{joined_assets(SCRIPTS)}}})();\n'
    return Template(asset("page.html")).substitute(
        policy=policy(style, script),
        title=element("title", title),
        heading=element("h1", title),
        note=element("p", note, class_="note"),
        navigation=element("ul", *links),
        sections=joined(body),
        data=data_block("data", data),
        style=style,
        script=script,
    )


def policy(style: str, script: str) -> str:
    """What a browser may do with the page: run this script and apply this style, show pictures in it, nothing else."""
    return (
        f"default-src 'none'; script-src '{fingerprint(script)}'; style-src '{fingerprint(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def fingerprint(text: str) -> str:
    """The digest of a script or a style as a Content-Security-Policy writes it."""
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def joined_assets(names: Iterable[str]) -> str:
    """Several assets, one after the other."""
    return "\n".join(map(asset, names))


@cache
def asset(name: str) -> str:
    """A file that comes with this package."""
    return (ASSETS / name).read_text(encoding="utf-8")
