"""Lines with bands, and their legend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from crfl_reports.figures import Line, Panel, image_of, lines_figure, panels_figure

from tests.reports.support import assert_presentable, texts

X = np.linspace(0, 1, 11)


def lines(count: int, points: int = 11) -> list[Line]:
    """Some lines with bands."""
    x = np.linspace(0, 1, points)
    return [
        Line(f"line {number}", x, np.exp(-number * x), np.exp(-number * x) - 0.1, np.exp(-number * x) + 0.1)
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "points"), [(1, 1), (1, 11), (8, 11), (20, 1000)])
def test_few_and_many_lines_fit_the_picture(count: int, points: int) -> None:
    figure = lines_figure(lines(count, points), x_label="radius", y_label="certified accuracy", title="digits")
    assert_presentable(figure)
    assert {"radius", "certified accuracy", "digits", *(f"line {number}" for number in range(count))} <= {
        *texts(figure)
    }


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e7])
def test_numbers_of_every_size_have_room(scale: float) -> None:
    figure = lines_figure([Line("", X * scale, (X + 0.123) * scale)], x_label="x", y_label="distance")
    assert_presentable(figure)
    figure.canvas.draw()
    assert figure.axes[0].yaxis.label.get_window_extent().x0 > 0


def test_the_legend_does_not_hide_data() -> None:
    figure = lines_figure(lines(8), x_label="x", y_label="y")
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 > figure.axes[0].get_window_extent().x1
    assert legend.x1 < figure.bbox.x1


def test_no_two_of_30_lines_have_the_same_marker_and_dashes() -> None:
    drawn = lines_figure(lines(30), x_label="x", y_label="y").axes[0].get_lines()
    looks = {(line.get_marker(), str(line.get_linestyle()), str(line._dash_pattern)) for line in drawn}  # type: ignore[attr-defined]
    assert len(looks) == 30


def test_equal_names_are_equal_lines_of_all_panels() -> None:
    figure = panels_figure([Panel(lines(3), "x", "y"), Panel(lines(3)[1:], "x", "y")])
    first, second = (axes.get_lines() for axes in figure.axes)
    assert [line.get_color() for line in first[1:]] == [line.get_color() for line in second]
    assert len(figure.legends[0].get_texts()) == 3


def test_a_band_is_drawn_from_low_to_high() -> None:
    figure = lines_figure([Line("a", [0, 1], [1, 2], [0.5, 1.5], [3, 4])], x_label="x", y_label="y")
    (band,) = figure.axes[0].collections
    corners = np.asarray(band.get_paths()[0].vertices, float)
    assert (corners[:, 1].min(), corners[:, 1].max()) == (0.5, 4)
    assert not lines_figure([Line("a", [0, 1], [1, 2])], x_label="x", y_label="y").axes[0].collections


def test_infinity_stands_at_the_end_of_the_axis_and_nan_nowhere() -> None:
    figure = lines_figure([Line("a", [0.0, 1.0, np.inf], [1.0, np.nan, 0.5])], x_label="x", y_label="y")
    (line,) = figure.axes[0].get_lines()
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
    assert y.tolist() == [1.0, 0.5]
    assert x[1] > 1
    assert "∞" in texts(figure)


def test_what_is_counted_has_whole_numbers_on_its_axis() -> None:
    figure = lines_figure([Line("a", range(4), [1, 0.5, 0.2, 0])], x_label="clients", y_label="y")
    ticks = [tick for tick in figure.axes[0].get_xticks() if 0 <= tick <= 3]
    assert ticks == [0, 1, 2, 3]


@pytest.mark.parametrize("axis", ["x", "y"])
def test_axes_can_be_logarithmic(axis: str) -> None:
    figure = lines_figure([Line("a", [1, 10, 100], [1, 10, 100])], x_label="x", y_label="y", **{f"log_{axis}": True})  # type: ignore[arg-type]
    assert getattr(figure.axes[0], f"get_{axis}scale")() == "log"


def test_between_whole_numbers_a_step_holds_the_smaller_share() -> None:
    line = Line("a", [0, 1, 3], [0.9, 0.5, 0.2], [0.8, 0.4, 0.1], [1.0, 0.6, 0.3])
    figure = panels_figure([Panel([line], "clients", "y", steps=True)])
    assert figure.axes[0].get_lines()[0].get_drawstyle() == "steps-pre"
    corners = np.asarray(figure.axes[0].collections[0].get_paths()[0].vertices, float)
    between = corners[(corners[:, 0] > 0) & (corners[:, 0] <= 1)]
    assert between[:, 1].max() == 0.6  # not the 1.0 of no clients


def test_marked_places_are_in_the_legend() -> None:
    figure = panels_figure([Panel(lines(1), "round", "y", marked=(3, 4, 9))], marked="attacked rounds")
    assert "attacked rounds" in texts(figure)
    assert len(figure.axes[0].patches) == 2  # 3 and 4 are one stripe
    assert "attacked rounds" not in texts(panels_figure([Panel(lines(1), "x", "y")], marked="attacked rounds"))


def test_fonts_of_a_pdf_are_embedded_whole_by_every_writer(tmp_path: Path) -> None:
    figure = lines_figure(lines(2), x_label="x", y_label="y")
    with matplotlib.rc_context({"pdf.fonttype": 3, "font.size": 40.0}):
        figure.savefig(tmp_path / "own.pdf")
        assert matplotlib.rcParams["font.size"] == 40.0
    for content in (image_of(figure, "pdf"), (tmp_path / "own.pdf").read_bytes()):
        assert b"/FontFile2" in content
        assert not re.search(rb"/Subtype\s*/Type3", content)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_same_data_give_the_same_bytes(suffix: Any) -> None:
    first, second = (lines_figure(lines(3), x_label="x", y_label="y") for _ in range(2))
    assert image_of(first, suffix) == image_of(first, suffix) == image_of(second, suffix)


def test_names_are_shown_as_they_are_written() -> None:
    figure = lines_figure([Line("costs $5 or $6 <b>", X, X)], x_label="x_y", y_label="$y$")
    assert {"costs $5 or $6 <b>", "x_y", "$y$"} <= {*texts(figure)}


def test_notebooks_show_a_figure_as_a_picture() -> None:
    shown = lines_figure(lines(1), x_label="x", y_label="y")._repr_png_()  # type: ignore[attr-defined]
    assert shown.startswith(b"\x89PNG")


def test_a_line_that_belongs_to_another_has_its_colour_and_no_entry() -> None:
    own = [Line("sigma = 1", X, X), Line("sigma = 2", X, 2 * X), Line("base", X, X + 1, like="sigma = 2")]
    figure = lines_figure(own, x_label="x", y_label="y")
    drawn = figure.axes[0].lines
    assert drawn[2].get_color() == drawn[1].get_color() != drawn[0].get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sigma = 1", "sigma = 2"]
    assert_presentable(figure)


def test_thin_lines_have_an_entry_of_their_own_if_it_is_named() -> None:
    own = [Line("sigma = 1", X, X), Line("base", X, X + 1, like="sigma = 1")]
    figure = panels_figure([Panel(own, "x", "y"), Panel(own[:1], "x", "y")], thin="the model itself")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sigma = 1", "the model itself"]
    assert "the model itself" not in texts(panels_figure([Panel(own[:1], "x", "y")], thin="the model itself"))


def test_dark_lines_are_black_and_take_no_colour_from_the_others() -> None:
    sound = Line("sound", X, 0 * X + 2, dark=True)
    for count in (1, 3):
        drawn = lines_figure([*lines(count), sound, Line("last", X, X)], x_label="x", y_label="y").axes[0].lines
        assert (drawn[count].get_color(), drawn[count].get_linestyle()) == ("#000000", "-")
        expected = lines_figure([*lines(count), Line("last", X, X)], x_label="x", y_label="y").axes[0].lines
        assert drawn[-1].get_color() == expected[-1].get_color()


def test_panels_may_have_legends_of_their_own() -> None:
    """Each names the lines of its panel, whose colours start again, and hides no panel."""
    figure = panels_figure(
        [Panel(lines(3), "x", "y", "a"), *[Panel([Line("other", X, X)], "x", "y", "b")] * 2], each=True
    )
    named = [[text.get_text() for text in legend.get_texts()] for legend in figure.legends]
    assert named == [["line 0", "line 1", "line 2"], ["other"], ["other"]]
    assert figure.axes[0].lines[0].get_color() == figure.axes[1].lines[0].get_color()
    figure.canvas.draw()
    boxes = [legend.get_window_extent() for legend in figure.legends]
    assert not any(box.overlaps(axes.get_window_extent()) for box in boxes for axes in figure.axes)
    assert_presentable(figure)


def test_numbers_of_logarithmic_axes_are_numbers() -> None:
    figure = lines_figure([Line("", 10.0**X, 10.0 ** (4 * X))], x_label="x", y_label="y", log_x=True, log_y=True)
    figure.canvas.draw()
    axes = figure.axes[0]
    assert {"1", "100", "10000"} <= {label.get_text() for label in axes.get_yticklabels()}
    assert not any(
        "$" in label.get_text() for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels(which="both")
    )
