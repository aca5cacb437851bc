"""The summary of a run: on one screen, however wide it is, with the numbers of metrics.json."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crfl_core import Curve, load
from crfl_core.reporting import terminal as summary
from crfl_core.reporting.csv_files import audit_entries


def curve(**changes: object) -> Curve:
    """A curve of one certificate against clients, with some things changed."""
    settings: dict[str, object] = {
        "certificate": "some",
        "level": "client",
        "test_set": "clean",
        "statement": "pathwise",
        "directions": ("backward",),
        "clean_world": "honest",
        "label": "",
        "conditional": (),
        "samples": 100,
        "accuracy": 0.9,
        "abstained": 0.0,
        "median_radius": 1.0,
        "radii": (0.0, 1.0, 2.0),
        "certified_accuracy": (0.9, 0.8, 0.7),
        "certified_rate": (1.0, 0.9, 0.8),
        "rounds": "round 3",
    }
    return Curve.model_validate(settings | changes)


def lines(*curves: Curve, width: int = 80, audit: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """What is printed about some curves."""
    console = Console(file=io.StringIO(), width=width)
    summary.show_guarantees(console, curves, audit, [], [])
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_every_certificate_has_a_row_under_the_radii_of_all() -> None:
    shown = lines(curve(), curve(certificate="other", radii=(0.0, 2.0), certified_accuracy=(0.6, 0.5)))
    assert shown[1].split() == ["clients", "that", "attack", "0", "1", "2"]
    assert shown[2].split() == ["some", "round", "3", ".900", ".800", ".700"]
    assert shown[3].split() == ["other", "round", "3", ".600", ".500"]  # it was not asked about one client
    assert shown[3].endswith(".500")


def test_equal_columns_are_one() -> None:
    shown = lines(curve(level="sample", radii=(0.0, 0.5, 1.0), certified_accuracy=(0.7, 0.7, 0.7)))
    assert shown[1].split()[-2:] == ["to", "1"]
    assert shown[2].split()[-1:] == [".700"]


def test_any_change_at_all_is_said_in_words() -> None:
    shown = lines(curve(level="feature", radii=(0.0, 0.01, float("inf")), certified_accuracy=(0.7, 0.6, 0.5)))
    assert shown[1].split()[-3:] == ["0", ".01", "any"]


def test_unknown_rounds_come_first_and_the_known_ones_only_if_they_differ() -> None:
    same = lines(curve(any_round_accuracy=(0.9, 0.8, 0.7), any_round_rate=(1.0, 0.9, 0.8)))
    assert [line.split()[1:3] for line in same[2:3]] == [["any", "round"]]
    assert not any("round 3" in line for line in same)
    other = lines(curve(any_round_accuracy=(0.9, 0.2, 0.1), any_round_rate=(1.0, 0.9, 0.8)))
    assert other[2].split() == ["some", "any", "round", ".900", ".200", ".100"]
    assert other[3].split() == ["round", "3", ".900", ".800", ".700"]


def test_other_test_sets_are_for_the_full_report() -> None:
    assert not any("certified accuracy" in line for line in lines(curve(test_set="backdoored")))


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_twenty_certificates_fit_on_one_screen(width: int) -> None:
    many = [
        curve(certificate=f"certificate-{number}", level=level, radii=tuple(map(float, range(12))), label="not a proof",
              certified_accuracy=tuple(0.9 - number / 100 - radius / 20 for radius in range(12)),
              certified_rate=(1.0,) * 12, conditional=(f"condition {number}: " + "long " * 60,))
        for level in ("client", "sample", "feature")
        for number in range(20)
    ]  # fmt: skip
    shown = lines(*many, width=width)
    assert len(shown) <= summary.SCREEN_LINES
    assert all(len(line) <= width for line in shown)
    assert any("more rows with --full" in line for line in shown)
    assert any("more remarks with --full" in line for line in shown)
    assert any("certificate-0" in line for line in shown)


def test_refusals_conditions_and_what_is_not_checked_are_remarks() -> None:
    checks = [{"name": "preprocessing is public", "status": "declared"}, {"name": "a norm", "status": "held"}]
    entries = (
        {"certificate": "some", "refused": {}, "checks": checks},
        {"certificate": "other", "refused": {"other": "no noise"}, "checks": checks},
    )
    shown = lines(curve(conditional=("labels unchanged",), label="not a proof"), audit=entries)
    assert "refused: other: no noise" in shown
    assert "+ conditional: labels unchanged (some)" in shown
    assert "not checked: preprocessing is public (some)" in shown  # the other says nothing, whatever it assumes
    assert "* some: not a proof" in shown
    assert any("some*+" in line for line in shown)
    assert not any("a norm" in line for line in shown)


def test_numbers_are_those_of_the_run(finished_run: Path) -> None:
    result, console = load(finished_run), Console(file=io.StringIO(), width=110)
    summary.show_summary(console, "run", result.metrics, audit_entries(result.audits), result.path)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert len(text.splitlines()) <= summary.SCREEN_LINES
    assert f"accuracy          {summary.format_share(result.metrics.accuracy)}" in text
    (found,) = (one for one in result.metrics.curves if one.test_set == "clean")
    for share in found.certified_accuracy:
        assert summary.format_share(share) in text


def test_a_refusal_says_what_would_help_where_there_is_room() -> None:
    reason = f"{'a long assumption, ' * 20}set this key"
    audit = [{"certificate": "some", "refused": {"some": reason}, "checks": []}]
    console = Console(file=io.StringIO(), width=80)
    summary.show_guarantees(console, [], audit, ["head"], ["end"])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "set this key" in text.replace("\n", " ")
    assert len(text.splitlines()) <= summary.SCREEN_LINES
