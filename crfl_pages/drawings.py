"""Figures of the gallery that need the data or other runs, as pictures in a page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from crfl_core.extend import FIGURES, CrflError, RunResult, plot
from crfl_pages.markup import Html, element, joined

BACKDOOR = {
    "samples": "The trigger, inputs with it, and what attackers train on",
    "flips": "What the trigger turns predictions into",
}
CLOSENESS = {"closeness": "Distance to the clean twin in every round"}
TOGETHER = {
    **CLOSENESS,
    "matrix": "Attacks against defences",
}


def backdoor(run: RunResult, *, trust: bool) -> Html:
    """What the attack does to inputs and predictions. Its data and its attack are code of the run's plugins."""
    if run.directory.is_made_by_others and not trust:
        return note("This run was not made here, and drawing needs its data: `crfl report RUN --trust` draws it.")
    return pictures([run], BACKDOOR)


def closeness(run: RunResult) -> Html:
    """How far the attack carried the model, as the run kept it. Nothing but the ledger is read."""
    return pictures([run], CLOSENESS)


def together(runs: Sequence[RunResult]) -> Html:
    """What is seen only beside other runs: a clean twin, other attacks and other defences."""
    return pictures(runs, TOGETHER)


def pictures(runs: Sequence[RunResult], titles: dict[str, str]) -> Html:
    """Every figure that can be drawn, and why the others cannot."""
    parts, left_out = [], []
    for name, title in titles.items():
        try:
            parts.append(picture(runs, name, title))
        except CrflError as error:
            left_out.append(f"{title}: {error}.")
    return joined([*parts, *map(note, left_out)])


def picture(runs: Sequence[RunResult], name: str, title: str) -> Html:
    """One figure, as it would be printed."""
    from crfl_figures import image_of

    content = b64encode(image_of(plot(runs, name), "svg")).decode()
    image = element("img", src=f"data:image/svg+xml;base64,{content}", alt=FIGURES[name].description, class_="printed")
    return element("figure", element("figcaption", title), element("div", image, class_="scroll"))


def note(text: str) -> Html:
    """A remark in place of a figure."""
    return element("p", text, class_="note")
