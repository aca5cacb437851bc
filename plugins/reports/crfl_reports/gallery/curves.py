"""Certified accuracy and rate: as lines over the radius, and as colours over clients and trigger norms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.errors import ConfigError
from crfl_core.reporting.metrics import Curve, compute_curves
from crfl_reports.figures import RADIUS, Grid, Heat, Line, Panel, Panels
from crfl_reports.gallery.run_groups import Group, band_line, bands, groups, only

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult

Named = tuple[str, str, str]
"""Certificate, level and test set."""


def build_curves(runs: Sequence[RunResult]) -> Panels:
    """Return the panels of certified accuracy and rate for every level.

    Both are drawn against the radius.
    """
    together = groups(runs)
    found = [(group, align_curves(group)) for group in together]
    if not any(known for _, known in found):
        raise ConfigError(f"{runs[0].path}: nothing was certified: `crfl show {runs[0].path}` says why")
    return curve_panels(found, [bands(together), *labels(one for run in runs for one in run.metrics.curves)])


def build_collective(runs: Sequence[RunResult]) -> Panels:
    """Return the panel of collective certified accuracy.

    It shows collective certified accuracy and certified accuracy against the number of clients.
    """
    together = groups(runs)
    lines = []
    for group in together:
        stored = [{one.certificate: one for one in run.metrics.collective} for run in group.runs]
        for name in [name for name in stored[0] if all(name in one for one in stored)]:
            curves = [one[name] for one in stored]
            clients = sorted(set.intersection(*(set(one.clients) for one in curves)))
            joint = [[one.collective_accuracy[one.clients.index(number)] for number in clients] for one in curves]
            known = [place for place in range(len(clients)) if all(shares[place] is not None for shares in joint)]
            title = group.named(f"{name}, collective")
            x = [float(clients[place]) for place in known]
            lines.append(band_line(title, x, [[shares[place] or 0.0 for place in known] for shares in joint]))
        for (name, level, test_set), alike in align_curves(group).items():
            if (level, test_set) == ("client", "clean") and all(name in one for one in stored):
                title = group.named(f"{name}, each prediction")
                lines.append(band_line(title, alike[0].radii, [one.certified_accuracy for one in alike]))
    if not lines:
        raise ConfigError(f"{runs[0].path}: has no collective certified accuracy, which 'group-vote' computes")
    panel = Panel(lines, RADIUS["client"], "share of samples that stay right", y_range=(0, 1), steps=True)
    return Panels([panel], title=bands(together))


def answer_curves(stated: Sequence[Curve]) -> Panels:
    """Return the panels of one answer to a what-if question."""
    if not stated:
        raise ConfigError("nothing was certified: `refused` says why")
    return curve_panels([(Group("", ()), {key(one): [one] for one in stated})], labels(stated))


def curve_panels(found: Sequence[tuple[Group, dict[Named, list[Curve]]]], said: Iterable[str]) -> Panels:
    """Return the panels of all levels, under the remarks about their lines."""
    panels = []
    for level in (level for level in RADIUS if any(level == one[1] for _, known in found for one in known)):
        for title, label, rates in ((f"{level} level", "certified accuracy", 0), ("", "certified rate", 1)):
            lines = [line for group, known in found for line in lines_of(group, known, level, rates)]
            panels.append(
                Panel(
                    lines, RADIUS[level], f"{label} (share of samples)", title, y_range=(0, 1), steps=level == "client"
                )
            )
    return Panels(panels, title="; ".join(filter(None, said)))


def labels(stated: Iterable[Curve]) -> list[str]:
    """Return the remarks about certificates that prove nothing.

    Their lines in the figure have a star.
    """
    found = ((one.certificate, one.label) for one in stated if one.label)
    return [f"* {certificate}: {label}" for certificate, label in dict.fromkeys(found)]


def lines_of(group: Group, known: dict[Named, list[Curve]], level: str, rates: int) -> Iterable[Line]:
    """Yield the lines of one group and level."""
    for (certificate, at, test_set), alike in known.items():
        if at != level:
            continue
        name = group.named(f"{certificate}{'*' if alike[0].label else ''}, {test_set}")
        stated = [(one.certified_accuracy, one.certified_rate) for one in alike]
        any_round = [(one.any_round_accuracy, one.any_round_rate) for one in alike]
        if stated == any_round:  # two lines would lie on each other
            name = f"{name}, any round"
        yield band_line(name, alike[0].radii, [shares[rates] for shares in stated])
        if stated != any_round and all(one.any_round_rate for one in alike):
            yield band_line(f"{name}, any round", alike[0].radii, [shares[rates] for shares in any_round])


def align_curves(group: Group) -> dict[Named, list[Curve]]:
    """Return the curves of some runs at common radii.

    The runs differ only in their seeds. Runs that chose their own grids are certified again at those of the run that
    reaches farthest, from their votes.
    """
    stored = [{key(one): one for one in run.metrics.curves} for run in group.runs]
    names = [name for name in stored[0] if all(name in one for one in stored)]
    grids = {name: max((one[name].radii for one in stored), key=reach) for name in names}
    if all(one[name].radii == grids[name] for one in stored for name in names):
        return {name: [one[name] for one in stored] for name in names}
    return {
        name: [
            next(one for one in compute_curves(run.certified, grids[name]) if key(one) == name) for run in group.runs
        ]
        for name in names
    }


def key(curve: Curve) -> Named:
    """Return the certificate, level and test set of a curve."""
    return curve.certificate, curve.level, curve.test_set


def reach(radii: tuple[float, ...]) -> tuple[float, int]:
    """Return the largest finite radius of a grid, and its length."""
    return max((radius for radius in radii if math.isfinite(radius)), default=0.0), len(radii)


def backdoor(runs: Sequence[RunResult]) -> Grid:
    """Return the certified accuracy of the backdoor level as a grid.

    The axes are the norm of the trigger and the number of clients.
    """
    run = only(runs, "backdoor")
    curves = [curve for curve in run.metrics.curves if curve.by_clients and curve.test_set == "clean"]
    if not curves:
        raise ConfigError(f"{run.path}: no backdoor level was certified: add 'backdoor' to certificates, with groups")
    curve = curves[0]
    values = 100.0 * np.array(curve.by_clients)
    return Grid(
        [Heat(values, "certified accuracy (%)", limits=(0, 100))],
        [str(clients) for clients in range(len(values))],
        [f"{norm:g}" for norm in curve.radii],
        y_label="malicious clients in every round",
        x_label="norm of the trigger on the test input",
        title=f"{curve.certificate}, {curve.samples} clean test samples",
    )
