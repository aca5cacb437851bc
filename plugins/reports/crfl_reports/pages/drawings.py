"""Figures of the gallery that need the data or other runs: numbers for the page's script, and pictures of inputs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from crfl_core.errors import CrflError
from crfl_core.runs.results import RunResult
from crfl_reports.figures import Grid, Panels, image_of
from crfl_reports.gallery import FIGURES
from crfl_reports.pages.markup import Html, drawn, element, joined
from crfl_reports.pages.shapes import shape_data

BACKDOOR = {
    "samples": "The trigger, inputs with it, and what attackers train on",
    "flips": "What the trigger turns predictions into",
}
CLOSENESS = {"closeness": "Distance to the clean twin in every round"}
TOGETHER = {
    "matrix": "Attacks against defences",
    "rounds": "Accuracy and attack success in every round",
    **CLOSENESS,
}


class Shown(NamedTuple):
    """Figures of a section: the data of those that a script draws, and the markup of all."""

    data: dict[str, Any]
    content: Html


def backdoor(run: RunResult, *, trust: bool) -> Shown:
    """What the attack does to inputs and predictions. Its data and its attack are code of the run's plugins."""
    if run.directory.is_made_by_others and not trust:
        told = "This run was not made here, and drawing needs its data: `crfl report RUN --trust` draws it."
        return Shown({}, note(told))
    return shown([run], BACKDOOR)


def closeness(run: RunResult) -> Shown:
    """How far the attack carried the model, as the run kept it. Nothing but the ledger is read."""
    return shown([run], CLOSENESS)


def together(runs: Sequence[RunResult]) -> Shown:
    """What is seen only beside other runs: other attacks and defences, and a clean twin."""
    return shown(runs, TOGETHER)


def shown(runs: Sequence[RunResult], titles: Mapping[str, str]) -> Shown:
    """Every figure that can be drawn, and why the others cannot."""
    data = {}
    parts = []
    left_out = []
    for name, title in titles.items():
        try:
            found = FIGURES[name].shows(runs)
        except CrflError as error:
            left_out.append(note(f"{title}: {error}."))
            continue
        parts.append(element("h3", title))
        if isinstance(found, Panels | Grid):
            data[name] = shape_data(found)
            parts.append(drawn(name, title))
        else:
            parts.append(picture(image_of(found, "svg"), FIGURES[name].description))
    return Shown(data, joined([*parts, *left_out]))


def picture(image: bytes, description: str) -> Html:
    """A picture, as it would be printed."""
    address = f"data:image/svg+xml;base64,{b64encode(image).decode()}"
    shown = element("img", src=address, alt=description, class_="printed")
    return element("figure", element("div", shown, class_="scroll"))


def note(text: str) -> Html:
    """A remark in place of a figure."""
    return element("p", text, class_="note")
