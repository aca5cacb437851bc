"""Engines: where clients train must not change what they learn."""

from __future__ import annotations

import gc
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from crfl_certificates.paper import Paper
from crfl_engines.local import Local

import crfl_core
from crfl_core import extend
from crfl_core.extend import (
    BatchMeasurements,
    CountingTask,
    LocalUpdates,
    PartialCount,
    Plugin,
    RunContext,
    Tracker,
    TrainingTask,
    hookimpl,
)
from crfl_core.records import round as updates
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from tests.engines.process_engine import ProcessEngine
from tests.oracle import OTHER_ENGINE, Median, contents, federation_of, tiny


def task_of(federation: Federation, number: int = 2) -> TrainingTask:
    """The local training of an attacked round of a federation, from some model."""
    start = torch.from_numpy(np.random.default_rng(0).standard_normal(federation.facts.parameters)) * 0.1
    clients = federation.participation.participants(number)
    return TrainingTask(number, start.to(federation.dtype)[None, None], clients, attacked=True)


def test_two_processes_give_bit_for_bit_what_one_gives(tmp_path: Path) -> None:
    """With equal chunks and one thread each. Workers rebuild data, partition, model and attack from the job's text."""
    config = tiny(storage={"checkpoint_seconds": 0})
    local = crfl_core.run(
        config | {"engine": {"type": "local", "threads": 1, "chunk_clients": 3}}, out=tmp_path / "one"
    )
    apart = crfl_core.run(
        config | {"engine": {"type": "processes", "workers": 2, "chunk_clients": 3}},
        out=tmp_path / "two",
        plugins={"processes": ProcessEngine},
    )
    one, two = contents(local.path), contents(apart.path)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == OTHER_ENGINE


class Quiet(Tracker):
    """Watches and does nothing."""

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None: ...


class Mine(Paper):
    """A third party's certificate."""


SERVER_SIDE: dict[str, type[Plugin]] = {"median": Median, "quiet": Quiet, "mine": Mine, "processes": ProcessEngine}


def test_a_worker_needs_none_of_the_plugins_that_play_no_part_in_local_training() -> None:
    """The classes are known to this process only; the job's text is loaded without them."""
    config = tiny(
        aggregation=[{"type": "median"}],
        trackers=[{"type": "quiet"}],
        certificates=[{"type": "mine"}],
        engine={"type": "processes"},
    )
    federation = federation_of(config, SERVER_SIDE)
    ours = LocalTraining(federation)
    rebuilt = extend.open_job(ours.specification)
    task = task_of(federation)
    mine, theirs = (job.train(task, slice(0, 8)) for job in (ours, rebuilt))
    assert torch.equal(mine.updates, theirs.updates)
    for name, column in vars(mine.measurements).items():
        np.testing.assert_array_equal(column, getattr(theirs.measurements, name))


def test_the_specification_says_all_that_training_depends_on() -> None:
    federation = federation_of(tiny(seeds={"batches": 3}, dtype="float64"))
    stated = tomllib.loads(federation.specification)
    assert set(stated) >= {"seed", "seeds", "rounds", "dtype", "dataset", "partition", "model", "training", "attack"}
    assert (stated["seeds"], stated["dtype"]) == ({"batches": 3}, "float64")
    assert extend.open_job(federation.specification).specification == federation.specification


class Noting:
    """A job that trains no client and remembers the parts it was asked for."""

    specification = ""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []

    def train(self, task: TrainingTask, part: slice) -> LocalUpdates:
        self.parts.append((part.start, part.stop))
        clients = part.stop - part.start
        return LocalUpdates(part, task.starts.expand(-1, clients, -1), BatchMeasurements.clean(clients))

    def train_parts(self, task: TrainingTask, parts: Sequence[slice]) -> list[LocalUpdates]:
        return [self.train(task, part) for part in parts]

    def count_votes(self, task: CountingTask, part: slice) -> PartialCount:
        raise AssertionError("no model votes here")


@pytest.mark.parametrize(("chunk", "parts"), [(3, [(0, 3), (3, 6), (6, 8)]), (8, [(0, 8)]), (64, [(0, 8)])])
def test_the_local_engine_trains_every_client_once_in_chunks(chunk: int, parts: list[tuple[int, int]]) -> None:
    engine, job = Local(chunk_clients=chunk), Noting()
    engine.open(job)
    list(engine.train(task_of(federation_of(tiny()))))
    engine.close()
    assert job.parts == parts


def test_clients_of_large_models_train_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "PARAMETERS_AT_ONCE", 3 * 650 + 1)
    engine, job = Local(chunk_clients=4), Noting()
    engine.open(job)
    list(engine.train(task_of(federation_of(tiny()))))
    engine.close()
    assert job.parts == [(0, 3), (3, 6), (6, 8)]


@pytest.mark.parametrize(("batch", "parts"), [(6, [256, 44]), (32, [128, 128, 44]), (100, [64, 64, 64, 64, 44])])
def test_more_clients_train_at_once_if_models_and_batches_are_small(batch: int, parts: list[int]) -> None:
    """At most 4,096 samples, unless 64 clients have more."""
    clients = federation_of(tiny()).participation.participants(1).take(np.zeros(300, np.int64))
    clients = replace(clients, batch_size=np.full(300, batch))
    small, large = (TrainingTask(1, torch.zeros(1, 1, size), clients, attacked=False) for size in (7850, 100_000))
    assert [part.stop - part.start for part in small.parts()] == parts
    assert [part.stop - part.start for part in small.parts(150)] == [150, 150]
    assert [part.stop - part.start for part in large.parts()] == [64, 64, 64, 64, 44]


def grouped_task(count: int) -> tuple[Federation, TrainingTask]:
    """Training of eight clients in groups, from a model of each; two of them poison their batches."""
    attack = {"type": "model-replacement", "clients": [1, 6], "rounds": [2], "poisoned_per_batch": 3}
    federation = federation_of(tiny(groups={"count": count}, attack=attack, certificates=["group-vote"]))
    task = task_of(federation)
    starts = task.starts * torch.arange(1.0, count + 1.0)[:, None]
    return federation, replace(task, starts=starts)


def test_groups_that_train_together_train_as_they_do_alone() -> None:
    federation, task = grouped_task(6)
    job = LocalTraining(federation)
    (parts,) = task.bundles()
    assert parts == task.parts()
    assert len(parts) == 6
    together = job.train_parts(task, parts)
    assert sum(int(found.measurements.poisoned_samples.sum()) for found in together) > 0
    for part, found in zip(parts, together, strict=True):
        alone = LocalTraining(federation).train(task, part)
        assert torch.equal(found.updates, alone.updates)
        for name, column in vars(found.measurements).items():
            np.testing.assert_array_equal(column, getattr(alone.measurements, name))
    whole = job.train(task, slice(0, 8)).updates
    assert torch.equal(whole, torch.cat([found.updates for found in together], dim=1))


def test_no_more_clients_are_bundled_than_train_at_once() -> None:
    _, task = grouped_task(5)
    for at_once in (1, 2, 3, 4):
        bundles = task.bundles(at_once)
        assert [part for parts in bundles for part in parts] == task.parts(at_once)
        assert max(parts[-1].stop - parts[0].start for parts in bundles) <= at_once
    assert len(task.bundles(1)) == 8
    assert len(task.bundles(4)) < len(task.parts(4))


def test_the_local_engine_gives_threads_back() -> None:
    before = torch.get_num_threads()
    engine = Local(threads=before + 1)
    engine.open(Noting())
    during = torch.get_num_threads()
    engine.close()
    assert (during, torch.get_num_threads()) == (before + 1, before)


class Backwards(Local):
    """Delivers the parts of a round in the opposite order."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        yield from reversed(list(super().train(task)))


def test_the_order_of_delivery_does_not_matter(tmp_path: Path) -> None:
    chunks = {"threads": 1, "chunk_clients": 3}
    forwards = crfl_core.run(tiny(engine={"type": "local"} | chunks), out=tmp_path / "forwards")
    backwards = crfl_core.run(
        tiny(engine={"type": "backwards"} | chunks), out=tmp_path / "backwards", plugins={"backwards": Backwards}
    )
    assert torch.equal(forwards.parameters, backwards.parameters)
    assert (forwards.path / "clients.npz").read_bytes() == (backwards.path / "clients.npz").read_bytes()


class Doubling(Local):
    """Delivers the first part twice."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        parts = list(super().train(task))
        yield from [parts[0], *parts]


def test_a_part_that_arrives_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(extend.PluginFailure, match="must train every participant once: client 0 in round 1"):
        crfl_core.run(tiny(engine={"type": "doubling"}), out=tmp_path / "run", plugins={"doubling": Doubling})


class Failing(Local):
    """Opens something, fails, and must be closed."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        raise ConnectionError("the worker is gone")

    def close(self) -> None:
        super().close()
        CLOSED.append(self.configured_as)


CLOSED: list[str] = []


def test_an_engine_that_fails_is_closed_and_named(tmp_path: Path) -> None:
    with pytest.raises(
        extend.PluginFailure,
        match=r"engine: 'failing' of .this process. failed: ConnectionError: the worker is gone",
    ):
        crfl_core.run(tiny(engine={"type": "failing"}), out=tmp_path / "run", plugins={"failing": Failing})
    assert CLOSED == ["failing"]


@pytest.mark.parametrize("engine", ["local", {"type": "stacked", "models": 2}])
def test_a_run_lets_go_of_its_data_when_it_ends(engine: object, tmp_path: Path) -> None:
    """At once, and not when the garbage collector runs: data are large, and runs in one process follow each other."""

    def alive() -> set[int]:
        return {id(one) for one in gc.get_objects() if type(one) is Federation}

    before = alive()
    gc.disable()
    try:
        crfl_core.run(tiny(engine=engine), out=tmp_path / "run")
        assert alive() <= before
    finally:
        gc.enable()
