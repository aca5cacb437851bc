"""Weights p_i of client updates, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_reports.figures.style import BLUE, VERMILLION, own_style, room, shorten_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crfl_reports.figures.paper_figure import PaperFigure

Numbers = NDArray[np.float64]

COLOURS = "cividis"
ROWS = 60
"""Up to this many clients have a row each; more honest ones are averaged with neighbours of about the same weight."""
NAMED = 20
WIDTH = 5.2
SHARES = 1.2
"""Inches: of both panels, and of the height of the upper one."""


def weights_figure(
    weights: ArrayLike, attacking: ArrayLike, names: Sequence[str] = (), *, first_round: int = 1, title: str = ""
) -> Figure:
    """Draw the attackers' share of the weights and every client's weight.

    The share is above, the weights p_i are below. `weights` is (clients, rounds), NaN where a client did not take part;
    `attacking` says of the same cells which client attacked.
    """
    values = np.asarray(weights, np.float64)
    bad = np.asarray(attacking, np.bool_)
    malicious: NDArray[np.bool_] = np.any(bad, axis=1)
    rows, labels, marked = arrange_rows(values, bad, list(names) or [str(number) for number in range(len(values))])
    with own_style():
        from crfl_reports.figures.paper_figure import PaperFigure

        height = min(max(1.2, 0.16 * len(rows)), 6.5)
        left = 0.75 + room(labels)
        bottom = 0.5
        top = 0.15 + 0.3 * bool(title)
        above = 0.25 + SHARES if malicious.any() else 0.0
        figure = PaperFigure(figsize=(left + WIDTH + 1.5, bottom + height + above + top))
        limits = first_round - 0.5, first_round + values.shape[1] - 0.5
        if above:
            draw_shares(figure.panel(left, bottom + height + 0.25, WIDTH, SHARES), values, bad, limits)
        heat = figure.panel(left, bottom, WIDTH, height)
        draw_heat(figure, heat, figure.panel(left + WIDTH + 0.15, bottom, 0.14, height), rows, limits)
        every = max(1, -(-len(rows) // (3 * NAMED)))
        shown = [number for number, label in enumerate(labels) if label and (number % every == 0 or len(rows) > ROWS)]
        heat.set_yticks(shown, labels=shorten_names([labels[number] for number in shown]))
        for tick in range(len(shown)):
            if shown[tick] < int(malicious.sum()):
                heat.get_yticklabels()[tick].set_color(VERMILLION)
        places = np.argwhere(marked)
        spots = places[:, 1] + first_round, places[:, 0]
        heat.scatter(*spots, s=18, marker="v", color=VERMILLION, edgecolors="white", linewidths=0.5)
        figure.heading(title, left)
    return figure


def arrange_rows(
    values: Numbers, bad: NDArray[np.bool_], names: list[str]
) -> tuple[Numbers, list[str], NDArray[np.bool_]]:
    """Return the weights, names and attack marks of the lower panel's rows.

    A row without a name has the name "".
    """
    malicious: NDArray[np.bool_] = np.any(bad, axis=1)
    attackers = np.flatnonzero(malicious)
    honest = np.flatnonzero(~malicious)
    if len(values) <= ROWS:
        order = [*attackers, *honest]
        called = [f"attacker {names[row]}" if malicious[row] else f"client {names[row]}" for row in order]
        return values[order], called, bad[order]
    first = [f"attacker {names[row]}" for row in attackers] if len(attackers) <= NAMED else [""] * len(attackers)
    if len(attackers) > NAMED:
        first[len(first) // 2] = f"{len(attackers)} attackers"
    means = np.nan_to_num(values[honest]).mean(axis=1)
    bins = np.array_split(honest[np.argsort(-means, kind="stable")], min(len(honest), ROWS))
    rows = np.stack([*values[attackers], *(mean_of(values[rows]) for rows in bins)])
    rest = [""] * len(bins)
    if rest:
        rest[0] = "largest honest"
        rest[-1] = "smallest honest"
        rest[len(rest) // 2] = f"{len(honest):,} honest"
    marks = np.concatenate([bad[attackers], np.zeros((len(bins), values.shape[1]), bool)])
    return rows, [*first, *rest], marks


def mean_of(rows: Numbers) -> Numbers:
    """Average over the participants; NaN where no client took part."""
    taking = np.isfinite(rows)
    count = taking.sum(axis=0)
    return np.where(count > 0, np.where(taking, rows, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def draw_shares(axes: Axes, values: Numbers, bad: NDArray[np.bool_], limits: tuple[float, float]) -> None:
    """Draw the attackers' share of the weights in every round.

    A second line shows the attackers' share of the participants.
    """
    sizes = np.abs(np.nan_to_num(values))
    total = sizes.sum(axis=0)
    taking = np.isfinite(values).sum(axis=0)
    rounds = np.arange(values.shape[1]) + limits[0] + 0.5
    share = np.where(bad, sizes, 0).sum(axis=0) / np.where(total > 0, total, 1)
    axes.bar(rounds, share, width=0.85, color=VERMILLION, label="of the weights")
    axes.step(rounds, bad.sum(axis=0) / np.maximum(taking, 1), where="mid", color=BLUE, label="of the participants")
    axes.set_ylabel("attackers' share")
    axes.set_ylim(0, 1 if share.max(initial=0) > 0.5 else None)
    axes.set_xlim(*limits)
    axes.tick_params(labelbottom=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), borderaxespad=0, handlelength=1.2, fontsize=7)


def draw_heat(figure: PaperFigure, heat: Axes, bar: Axes, rows: Numbers, limits: tuple[float, float]) -> None:
    """Draw the weights as colours.

    A cell is white where a client did not take part.
    """
    from matplotlib.ticker import MaxNLocator

    image = heat.imshow(
        np.ma.masked_invalid(rows),
        COLOURS,
        aspect="auto",
        interpolation="nearest",
        extent=(*limits, len(rows) - 0.5, -0.5),
        vmin=min(0.0, float(np.nanmin(rows))),
    )
    heat.spines[:].set_visible(True)
    heat.xaxis.set_major_locator(MaxNLocator(integer=True))
    heat.set_xlabel("round (triangles: attacks)")
    figure.colorbar(image, cax=bar, label="weight p_i")
