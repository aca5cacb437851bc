"""Heat maps, weights of clients, and inputs as pictures."""

from __future__ import annotations

import numpy as np
import pytest
from crfl_reports.figures import Heat, Row, features_figure, heat_figure, pictures_figure, weights_figure
from crfl_reports.figures.style import VERMILLION
from matplotlib.colors import to_hex

from tests.reports.support import assert_presentable, texts


def heat(rows: int, columns: int) -> Heat:
    """A table with an empty corner."""
    values = np.arange(rows * columns, dtype=float).reshape(rows, columns)
    values[0, 0] = np.nan
    return Heat(values, "samples")


class TestHeat:
    @pytest.mark.parametrize(("rows", "columns"), [(2, 1), (1, 2), (10, 8), (47, 47), (150, 100)])
    def test_small_and_large_tables_fit_the_picture(self, rows: int, columns: int) -> None:
        names = [f"row {number}" for number in range(rows)], [f"column {number}" for number in range(columns)]
        figure = heat_figure([heat(rows, columns)], *names, y_label="attack", x_label="defence", title="three runs")
        assert_presentable(figure)
        assert {"attack", "defence", "three runs", "row 0", "column 0", "samples"} <= {*texts(figure)}

    def test_numbers_are_written_where_there_is_room_and_something_to_write(self) -> None:
        table = Heat([[0.25, np.nan], [1.0, 0.0]], "share", digits=2)
        shown = texts(heat_figure([table], ["a", "b"], ["c", "d"], y_label="y", x_label="x"))
        assert [text for text in shown if text in ("0.25", "1.00", "0.00")] == ["0.25", "1.00", "0.00"]
        assert "nan" not in shown

    def test_tables_side_by_side_share_their_rows(self) -> None:
        shown = texts(heat_figure([heat(2, 2), heat(2, 2)], ["a", "b"], ["c", "d"], y_label="y", x_label="x"))
        assert (shown.count("a"), shown.count("c")) == (1, 2)


class TestWeights:
    @pytest.mark.parametrize(("clients", "rounds", "attackers"), [(1, 1, 1), (20, 30, 2), (60, 5, 0), (1000, 100, 50)])
    def test_few_and_many_clients_fit_the_picture(self, clients: int, rounds: int, attackers: int) -> None:
        weights = np.random.default_rng(0).dirichlet(np.ones(clients), rounds).T
        attacking = np.zeros((clients, rounds), bool)
        attacking[:attackers, rounds // 2] = True
        figure = weights_figure(weights, attacking, title="digits")
        assert_presentable(figure)
        assert len(figure.axes) == (3 if attackers else 2)  # without attackers, nothing is said of their share

    def test_attackers_stand_on_top_in_another_colour_and_are_marked_when_they_attack(self) -> None:
        weights, attacking = np.full((5, 4), 0.2), np.zeros((5, 4), bool)
        attacking[3, 1] = True
        figure = weights_figure(weights, attacking)
        heat = figure.axes[1]
        labels = heat.get_yticklabels()
        assert [label.get_text() for label in labels] == ["attacker 3", "client 0", "client 1", "client 2", "client 4"]
        assert to_hex(labels[0].get_color()).upper() == VERMILLION
        assert np.asarray(heat.collections[0].get_offsets()).tolist() == [[2.0, 0.0]]

    def test_the_share_of_attackers_is_that_of_the_weights(self) -> None:
        weights = np.array([[0.6, 0.2], [0.4, np.nan], [np.nan, 0.2]])
        attacking = np.array([[True, False], [False, False], [False, True]])
        bars = weights_figure(weights, attacking).axes[0].patches
        assert [round(bar.get_height(), 12) for bar in bars] == [0.6, 0.5]  # type: ignore[attr-defined]

    def test_honest_clients_beyond_60_are_averaged_and_attackers_are_not(self) -> None:
        weights, attacking = np.full((200, 3), 0.005), np.zeros((200, 3), bool)
        attacking[7] = True
        weights[7] = 0.5
        figure = weights_figure(weights, attacking, [f"state {number}" for number in range(200)])
        image = np.asarray(figure.axes[1].get_images()[0].get_array())
        assert image.shape == (61, 3)
        assert image[0].tolist() == [0.5] * 3
        assert {"attacker state 7", "199 honest"} <= {*texts(figure)}


class TestPictures:
    @pytest.mark.parametrize("shape", [(8, 8), (28, 28), (16, 16, 3)])
    def test_rows_have_their_names_and_captions(self, shape: tuple[int, ...]) -> None:
        pictures = np.random.default_rng(0).random((6, *shape))
        rows = [Row("clean", pictures, [f"taken for {n}" for n in range(6)]), Row("difference", pictures, signed=True)]
        figure = pictures_figure(rows, title="dba")
        assert_presentable(figure)
        assert {"clean", "difference", "taken for 5", "dba"} <= {*texts(figure)}
        assert len(figure.axes) == 12

    def test_rows_of_a_table_are_bars_of_the_features_that_differ(self) -> None:
        clean = np.zeros(40)
        changed = clean.copy()
        changed[[3, 7]] = 1.0, -2.0
        figure = features_figure(clean, changed, [f"feature {n}" for n in range(40)], title="loan")
        assert_presentable(figure)
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["feature 7", "feature 3"]
