"""Cells that differ in the server's part alone train as one stack, with the bits that each has by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crfl_engines.stacked import CURRENT_BARRIER, RoundBarrier, Stacked, StackInterrupted, VoteTurns
from crfl_experiments.sweeps import SweepResult, sweep
from crfl_experiments.sweeps.cells import MOST_MODELS, define

from crfl_core import load_config, run
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.engine import Job
from crfl_core.records.round import LocalUpdates, TrainingTask
from crfl_core.records.vote_counting import CountingTask, PartialCount
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.training import rounds
from crfl_core.training.federation import build
from crfl_core.training.local_training import LocalTraining
from tests.experiments.support import SMALL, different_files, small

NOISE = {"seeds.noise": [0, 1, 2]}


class Counting:
    """A job that counts, and that does something else to the updates if it is told to."""

    def __init__(self, job: Job, shift: float = 0.0) -> None:
        self._job, self._shift = job, shift
        self.trained: list[tuple[int, int, int]] = []

    @property
    def specification(self) -> str:
        return self._job.specification

    def train(self, task: TrainingTask, part: slice) -> LocalUpdates:
        self.trained.append((task.number, len(task.starts), part.start))
        found = self._job.train(task, part)
        return replace(found, updates=found.updates + self._shift)

    def train_parts(self, task: TrainingTask, parts: Sequence[slice]) -> list[LocalUpdates]:
        return [self.train(task, part) for part in parts]

    def count_votes(self, task: CountingTask, part: slice) -> PartialCount:
        return self._job.count_votes(task, part)


@pytest.fixture(scope="module")
def job() -> LocalTraining:
    return LocalTraining(build(load_config(SMALL).config))


def task_of(job: LocalTraining, number: int, seed: int) -> TrainingTask:
    """A round from a model of its own."""
    federation = job._federation
    start = rounds.initial_progress(federation)[0].models[None]
    start = start + torch.randn(start.shape, generator=torch.Generator().manual_seed(seed))
    return TrainingTask(number, start, federation.participation.participants(number), attacked=True)


def attended(jobs: dict[int, Job], tasks: dict[int, list[TrainingTask]], models: int = 3) -> dict[int, list[Any]]:
    """What each of some runs is given for its tasks."""
    barrier = RoundBarrier(list(tasks), models, most_at_once=2)
    given: dict[int, list[Any]] = {place: [] for place in tasks}

    def attend(place: int) -> None:
        CURRENT_BARRIER.set(barrier)
        engine = Stacked(models=models, place=place)
        engine.open(jobs[place])
        try:
            for task in tasks[place]:
                parts = sorted(engine.train(task), key=lambda part: part.part.start)
                given[place].append(torch.cat([part.updates for part in parts], dim=1))
        finally:
            engine.close()
            barrier.leave(place)

    threads = [threading.Thread(target=copy_context().run, args=(attend, place)) for place in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return given


def alone(job: Job, task: TrainingTask, place: int, models: int = 3) -> torch.Tensor:
    """The updates of a run by itself."""
    engine = Stacked(models=models, place=place)
    engine.open(job)
    parts = sorted(engine.train(task), key=lambda part: part.part.start)
    engine.close()
    return torch.cat([part.updates for part in parts], dim=1)


def test_a_stack_is_trained_once_and_every_cell_has_the_bits_of_its_own_run(job: LocalTraining) -> None:
    counted = {place: Counting(job) for place in range(3)}
    tasks = {place: [task_of(job, number, 10 * number + place) for number in (1, 2, 3, 4)] for place in range(3)}
    given = attended({**counted}, tasks)
    for place, own in tasks.items():
        for updates, task in zip(given[place], own, strict=True):
            assert torch.equal(updates, alone(job, task, place))
    trained = [one for counting in counted.values() for one in counting.trained]
    assert all(models == 3 for _, models, _ in trained)
    parts = len({first for _, _, first in trained})
    assert parts == 2
    checks = len(trained) - 4 * parts  # every cell trains a client once for each of the others who trained for it
    assert 0 < checks <= 2 * 3 * 2


def test_a_run_that_trains_otherwise_does_without_the_others(job: LocalTraining) -> None:
    other = Counting(job, shift=1.0)
    tasks = {place: [task_of(job, number, place) for number in (1, 2)] for place in range(2)}
    given = attended({0: job, 1: other}, tasks)
    for place, own in ((0, job), (1, other)):
        for updates, task in zip(given[place], tasks[place], strict=True):
            assert torch.equal(updates, alone(own, task, place))


def test_who_is_behind_is_served_first_and_catches_up(job: LocalTraining) -> None:
    tasks = {0: [task_of(job, number, number) for number in (3, 4)]}
    tasks[1] = [task_of(job, number, number) for number in (1, 2, 3, 4)]
    counted = {place: Counting(job) for place in range(2)}
    given = attended({**counted}, tasks)
    for place, own in tasks.items():
        for updates, task in zip(given[place], own, strict=True):
            assert torch.equal(updates, alone(job, task, place))
    together = {number for counting in counted.values() for number, *_ in counting.trained}
    assert together == {1, 2, 3, 4}


def test_an_error_of_the_training_reaches_every_cell(job: LocalTraining) -> None:
    class Broken(Counting):
        def train(self, task: TrainingTask, part: slice) -> LocalUpdates:
            raise OSError("no disk")

    errors: list[BaseException] = []
    barrier = RoundBarrier([0, 1], 2, most_at_once=1)

    def attend(place: int) -> None:
        CURRENT_BARRIER.set(barrier)
        engine = Stacked(models=2, place=place)
        engine.open(Broken(job))
        try:
            list(engine.train(task_of(job, 1, place)))
        except OSError as error:
            errors.append(error)
        finally:
            engine.close()

    threads = [threading.Thread(target=copy_context().run, args=(attend, place)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [str(error) for error in errors] == ["no disk", "no disk"]


def test_a_barrier_that_ends_sends_every_cell_away(job: LocalTraining) -> None:
    barrier = RoundBarrier([0, 1], 2, most_at_once=1)
    CURRENT_BARRIER.set(barrier)
    try:
        engine = Stacked(models=2, place=0)
        engine.open(job)
        threading.Timer(0.1, barrier.end).start()
        with pytest.raises(StackInterrupted):
            list(engine.train(task_of(job, 1, 0)))  # place 1 never comes
    finally:
        CURRENT_BARRIER.set(None)


@pytest.mark.parametrize("most_at_once", [1, 2])
def test_votes_are_counted_in_turns_by_as_many_as_there_are_hands(most_at_once: int) -> None:
    barrier, lock = RoundBarrier(range(4), 4, most_at_once), threading.Lock()
    inside: set[int] = set()
    counted: list[int] = []
    most = 0

    def vote(place: int) -> None:
        nonlocal most
        turns = VoteTurns(place=place)
        for done in range(3):
            turns.crfl_progress("votes", done, 3)
            with lock:
                inside.add(place)
                counted.append(place)
                most = max(most, len(inside))
            time.sleep(0.05)
            with lock:
                inside.discard(place)
        turns.crfl_progress("votes", 3, 3)

    CURRENT_BARRIER.set(barrier)
    try:
        threads = [threading.Thread(target=copy_context().run, args=(vote, place)) for place in range(4)]
        for busy in range(4, 4 + most_at_once):
            barrier.take_turn(busy)
        for thread in threads:
            thread.start()
        while len(barrier._queue) < 4:
            time.sleep(0.01)
        for busy in range(4, 4 + most_at_once):
            barrier.end_turn(busy)
        for thread in threads:
            thread.join(60)
    finally:
        CURRENT_BARRIER.set(None)
    assert most <= most_at_once
    assert sorted(counted) == sorted([*range(4)] * 3)
    assert set(counted[:4]) == set(range(4))  # no cell comes again before all were there


def test_who_leaves_or_ends_lets_others_count() -> None:
    barrier = RoundBarrier(range(3), 3, most_at_once=1)
    barrier.take_turn(0)
    threading.Timer(0.1, barrier.leave, [0]).start()
    barrier.take_turn(1)  # 0 failed while it counted
    threading.Timer(0.1, barrier.end).start()
    barrier.take_turn(2)  # told to stop: no cell waits


def test_cells_of_a_stack_are_the_runs_of_their_configs(tmp_path: Path) -> None:
    result = sweep(small(grid=NOISE, together=True), out=tmp_path / "sweep")
    assert result.is_finished
    engines = [one.run.config.engine.model_dump() for one in result.cells]
    assert [(engine["models"], engine["place"]) for engine in engines] == [(3, 0), (3, 1), (3, 2)]
    one = result.cells[1]
    again = run(one.run.config, out=tmp_path / "alone")
    assert different_files(RunDirectory(one.path), again.directory) == []
    ordinary = run({**SMALL, "seeds": {"noise": 1}}, out=tmp_path / "ordinary")
    torch.testing.assert_close(ordinary.parameters, again.parameters, rtol=0, atol=1e-6)


def test_who_shares_a_stack(tmp_path: Path) -> None:
    table = {"grid": {"server.noise_std": [0.01, 0.05], "rounds": [3, 4], "training.steps": [1, 2]}}
    cells = define(small(**table, together=True)).cells()
    stacks: dict[str | None, list[Any]] = {}
    for cell in cells:
        stacks.setdefault(cell.stack, []).append(cell)
    assert len(stacks) == 4
    assert None not in stacks
    for members in stacks.values():
        assert len({(cell.config.training.steps, cell.config.rounds) for cell in members}) == 1
        places = {(cell.config.server.noise_std, cell.config.engine.model_dump()["place"]) for cell in members}
        assert len(places) == len(members) == 2
    alone = define(small(grid={"seed": [0, 1], "aggregation": ["fedavg"]}, together=True)).cells()
    assert [cell.stack for cell in alone] == [None, None]
    many = define(small(grid={"seeds.noise": list(range(MOST_MODELS + 1))}, together=True)).cells()
    assert len({cell.stack for cell in many}) == 2
    assert define(small(grid=NOISE)).cells()[0].stack is None
    with pytest.raises(ConfigError, match=r"sweep\.together: must be true or false, found 'yes'"):
        define(small(together="yes")).cells()


def test_a_stack_that_is_interrupted_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(
        'name = "long"\nrounds = 120\nvotes = { models = 16 }\ncertificates = ["paper"]\n'
        'attack = { type = "model-replacement", clients = [1], rounds = [2], scale = 10.0 }\n'
        "storage = { figures = [], checkpoint_seconds = 0.1 }\n"
    )
    command = [sys.executable, "-m", "crfl_core", "sweep", str(config), "--vary", "seeds.noise=0,1", "--together"]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "sweep"), "-q"])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(list(tmp_path.glob("sweep/cells/*/checkpoint*"))) < 2:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert not SweepResult(tmp_path / "sweep").is_finished
    subprocess.run([*command, "--out", str(tmp_path / "sweep"), "-q"], check=True, timeout=300)
    result = SweepResult(tmp_path / "sweep")
    again = run(result.cells[1].run.config, out=tmp_path / "alone")
    assert different_files(RunDirectory(result.cells[1].path), again.directory) == []


def test_a_place_outside_the_stack_is_refused() -> None:
    with pytest.raises(ConfigError, match="place 2 needs at least 3 models"):
        load_config({**SMALL, "engine": {"type": "stacked", "models": 2, "place": 2}})
