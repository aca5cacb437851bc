"""Runs as data frames and as what a notebook shows."""

from __future__ import annotations

import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import crfl_core
from crfl_core import RunResult, WhatIf, certify
from crfl_core.extend import ConfigError
from tests.oracle import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return crfl_core.run(tiny(), out=tmp_path_factory.mktemp("frames") / "<run> & co")


class TestFrames:
    def test_a_row_per_point_of_a_curve(self, run: RunResult) -> None:
        frame = run.to_pandas()
        assert len(frame) == sum(len(curve.radii) for curve in run.metrics.curves)
        for curve in run.metrics.curves:
            chosen = frame[(frame.certificate == curve.certificate) & (frame.level == curve.level)]
            chosen = chosen[chosen.test_set == curve.test_set]
            assert chosen.radius.tolist() == list(curve.radii)
            assert chosen.certified_accuracy.tolist() == list(curve.certified_accuracy)
            assert chosen.any_round_rate.isna().all() == (not curve.any_round_rate)

    def test_a_row_per_guarantee_of_a_sample(self, run: RunResult) -> None:
        frame = run.to_pandas("samples")
        assert len(frame) == sum(len(certified.labels) for certified in run.certified)
        certified = run.certified[0]
        alike = frame[(frame.certificate == certified.certificate) & (frame.level == certified.level)]
        alike = alike[alike.set == certified.test_set]
        np.testing.assert_array_equal(alike.radius.to_numpy(), certified.guarantee.radius)
        assert alike.prediction.isna().tolist() == certified.guarantee.abstained.tolist()

    def test_a_row_per_round_and_per_client_of_a_round(self, run: RunResult) -> None:
        assert run.to_pandas("rounds").accuracy.tolist() == [record.accuracy for record in run.ledger.rounds]
        clients = run.to_pandas("clients")
        assert clients[clients["attacking"]][["round", "client"]].to_numpy().tolist() == [[2, 0]]
        assert clients.weight.tolist() == run.ledger.clients.weight.tolist()

    def test_other_rows_are_refused(self, run: RunResult) -> None:
        with pytest.raises(ConfigError, match="no rows 'round': did you mean 'rounds'"):
            run.to_pandas("round")  # type: ignore[arg-type]

    def test_without_pandas_its_extra_is_named(self, run: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ConfigError, match=r'need pandas: `pip install "crfl\[pandas\]"`'):
            run.to_pandas()


class Tags(HTMLParser):
    """Counts what is open, and keeps the texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class TestNotebook:
    def test_a_run_shows_its_numbers_and_what_they_hang_on(self, run: RunResult) -> None:
        page = Tags(run._repr_html_())
        assert not page.open
        assert f"{run.metrics.accuracy:.3f}" in page.texts
        assert run.path.name in page.texts  # escaped on the page
        curve = run.metrics.curves[0]
        assert f"{curve.certified_accuracy[0]:.3f}" in page.texts
        assert any("compared with" in text for text in page.texts)

    def test_what_was_refused_is_said(self, tmp_path: Path) -> None:
        run = crfl_core.run(tiny(certificates=["pathwise-linear"]), out=tmp_path / "run")
        assert "certificate pathwise-linear refused: local steps are non-expansive" in run._repr_html_()


@pytest.fixture(scope="module")
def answer(run: RunResult) -> WhatIf:
    return certify(run, ["threat.clients=1"])


class TestAnswers:
    def test_an_answer_has_the_rows_of_a_run(self, answer: WhatIf) -> None:
        frame = answer.to_pandas()
        assert len(frame) == sum(len(curve.radii) for curve in answer.curves)
        assert len(answer.to_pandas("samples")) == sum(len(one.labels) for one in answer.certified)
        with pytest.raises(ConfigError, match="there are no rows 'rounds': there are curves, samples"):
            answer.to_pandas("rounds")  # type: ignore[arg-type]

    def test_an_answer_is_drawn_as_a_run_is(self, run: RunResult, answer: WhatIf) -> None:
        ours, theirs = answer.plot(), run.plot()
        assert [axes.get_xlabel() for axes in ours.axes] == [axes.get_xlabel() for axes in theirs.axes]
        drawn = {float(value) for axes in ours.axes for line in axes.lines for value in np.asarray(line.get_ydata())}
        assert {share for curve in answer.curves for share in curve.certified_accuracy} <= drawn

    def test_a_notebook_shows_what_is_certified_and_what_is_refused(self, answer: WhatIf) -> None:
        text = answer._repr_html_()
        assert all(f"{curve.certificate}" in text for curve in answer.curves)
        assert all(escape(reason) in text for reason in answer.refused.values())

    def test_nothing_certified_is_nothing_to_draw(self, answer: WhatIf) -> None:
        with pytest.raises(ConfigError, match="nothing was certified: `refused` says why"):
            replace(answer, curves=()).plot()
