"""What a person sees while a sweep runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from crfl_experiments.sweeps.cells import define
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.overview import Overview, estimate_remaining
from crfl_experiments.sweeps.pool import Event
from crfl_experiments.sweeps.schedule import Schedule, plan_cells
from rich.console import Console

from tests.experiments.support import small


@pytest.fixture
def schedule(tmp_path: Path) -> Schedule:
    definition = define(small(grid={"rounds": [3, 4], "votes.models": [8, 16]}))
    return Schedule(SweepFolder.open_or_create(tmp_path / "sweep", definition), plan_cells(definition.cells()))


def seen(overview: Overview) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(overview.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_cells_wait_for_those_they_take_from(schedule: Schedule) -> None:
    (first,) = schedule.start_next()
    (longer,) = schedule.start_next()
    assert first.source is longer.source is None
    assert not schedule.start_next()
    schedule.record(Event(first.name, "finished", {"shares": "nothing"}))
    (other,) = schedule.start_next()
    assert other.source == first.path
    schedule.record(Event(longer.name, "failed", {"reason": "it was so"}))
    (last,) = schedule.start_next()
    assert last.source is None  # nothing to take from a cell that failed
    assert not schedule.is_over
    for job in (other, last):
        schedule.record(Event(job.name, "finished", {"shares": "nothing"}))
    assert schedule.is_over
    assert schedule.folder.note(longer.name).reason == "it was so"


def test_the_picture_says_what_runs_and_how_far_it_is(schedule: Schedule) -> None:
    with Overview(schedule, workers=1, quiet=True) as overview:
        assert "0/4 cells" in seen(overview)
        (job,) = schedule.start_next()
        assert "starting        rounds-3_models-8_" in seen(overview)
        schedule.record(Event(job.name, "round", {"round": 1, "rounds": 3}))
        assert "round 1/3" in seen(overview)
        assert "left" in overview.counts()
        schedule.record(Event(job.name, "round", {"round": 3, "rounds": 3}))
        assert "certifying" in seen(overview)
        event = Event(job.name, "failed", {"reason": "no memory"})
        schedule.record(event)
        assert overview.line(event) == "0/4 cells, 1 failed  rounds=3, votes.models=8: failed: no memory"


def test_time_left_is_that_of_cells_of_the_same_kind(schedule: Schedule) -> None:
    assert estimate_remaining(schedule, now=0.0) is None
    (job,) = schedule.start_next()
    started = schedule.running[job.name]
    schedule.rounds[job.name] = (1, 4)
    assert estimate_remaining(schedule, now=started + 5.0) == pytest.approx(3 * 20.0 + 15.0)
    schedule.record(Event(job.name, "finished", {"shares": "nothing"}))
    schedule.notes[job.name] = schedule.notes[job.name]._replace(seconds=8.0)
    assert estimate_remaining(schedule, now=started) == pytest.approx(3 * 8.0)
