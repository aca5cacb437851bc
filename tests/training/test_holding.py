"""Updates that must be seen all at once: in a file if memory is short, which changes no bit, or refused."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crfl_aggregators.centered_clipping import CenteredClipping
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.krum import Krum
from crfl_aggregators.mixing import NearestNeighbourMixing
from crfl_aggregators.norm_caps import UpdateCap
from crfl_aggregators.trimmed_mean import Median
from crfl_engines.local import Local

from crfl_core import CrflError, resource_limits, run
from crfl_core.extend import ConfigError, LocalUpdates, RunError, TrainingTask
from crfl_core.runs import resource_needs
from crfl_core.training import spill
from crfl_core.training.update_memory import Held, check_held, held_at_once, new_rows
from tests.oracle import federation_of, played, tiny

IN_BLOCKS: list[list[Any]] = [["krum"], ["update-cap", "multi-krum"], ["rfa"], ["flame"], ["centered-clipping"]]


class Broken(Local):
    """One of its clients never sends anything that could be used."""

    chunk_clients: int = 3

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        for trained in super().train(task):
            if trained.part.start == 3:
                trained.updates[:, 1] = torch.nan
            yield trained


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all files that updates were put into."""
    made: list[int] = []
    whole = spill.space

    def space(size: int) -> mmap.mmap:
        made.append(size)
        return whole(size)

    monkeypatch.setattr(spill, "space", space)
    return made


def leave(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    """Let memory have this number of bytes left."""
    monkeypatch.setattr(resource_limits, "memory_left", lambda: resource_limits.Headroom(left, "memory of this test"))


@pytest.mark.parametrize("aggregation", IN_BLOCKS, ids="-".join)
@pytest.mark.parametrize("engine", ["local", "broken"])
def test_where_updates_lie_changes_no_bit(
    aggregation: list[Any], engine: str, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = tiny()["training"] | {"weight_decay": 0.02}
    engines = {"type": engine, "threads": 1, "chunk_clients": 3}
    federation = federation_of(tiny(aggregation=aggregation, engine=engines, training=training), {"broken": Broken})
    usual = played(federation)
    assert not files
    leave(monkeypatch, 60_000)
    spilled = played(federation)
    assert files
    assert set(files) <= {rows * federation.model.layout.size * 4 for rows in (7, 8)}
    for one, other in zip(usual, spilled, strict=True):
        assert torch.equal(one.parameters, other.parameters)
        assert one.record == other.record


def test_chains_that_add_up_need_no_room(files: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave(monkeypatch, 1)
    monkeypatch.setattr(resource_needs, "refuse_too_large", lambda *_: None)  # which would count the data, too
    run(tiny(aggregation=["update-cap", "fedavg"], attack="none", certificates=[]), out=tmp_path / "run")
    assert not files


def test_a_rule_that_keeps_all_updates_is_refused_if_they_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave(monkeypatch, 30_000)
    monkeypatch.setattr(resource_needs, "refuse_too_large", lambda *_: None)
    with pytest.raises(ConfigError, match=r"aggregation: median must see the updates of all 8 participants at once"):
        run(tiny(aggregation=["median"]), out=tmp_path / "run")


def test_the_refusal_says_what_is_needed_and_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 2 * 10**9)
    steps: list[Any] = [Median().with_name("median")]
    with pytest.raises(
        ConfigError, match=r"take 8\.0 GB, and 2\.0 GB are left \(memory of this test\): lower training"
    ):
        check_held(steps, held_at_once(steps, streams=False, crafts=False), 10_000, 100_000, 4)
    krum: list[Any] = [Krum(f=1).with_name("krum")]
    check_held(krum, held_at_once(krum, streams=False, crafts=False), 10_000, 100_000, 4)


@pytest.mark.parametrize(
    ("steps", "crafts", "held"),
    [
        ([FedAvg()], False, Held(0, products=False)),
        ([UpdateCap(), FedAvg()], False, Held(0, products=False)),
        ([UpdateCap(), FedAvg()], True, Held(2, products=False)),
        ([Krum()], False, Held(0, products=True)),
        ([UpdateCap(), Krum()], True, Held(2, products=True)),
        ([CenteredClipping()], False, Held(0, products=False)),
        ([Median()], False, Held(2, products=False)),
        ([NearestNeighbourMixing(), Krum()], False, Held(3, products=True)),
    ],
)
def test_what_is_held(steps: list[Any], crafts: bool, held: Held) -> None:
    streams = steps[-1].depends == "fixed"
    assert held_at_once(steps, streams=streams, crafts=crafts) == held


def test_a_full_disk_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> mmap.mmap:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), size)

    leave(monkeypatch, 100)
    monkeypatch.setattr(spill, "space", full)
    with pytest.raises(RunError, match=r"No space left on device\): set TMPDIR to a folder on a disk with room"):
        new_rows(torch.zeros(1), 10, 10)


def test_the_file_has_no_name_and_lies_where_temporary_files_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert spill.folder() == tmp_path
    rows = torch.frombuffer(spill.space(400), dtype=torch.float32)
    rows[:] = 2.0
    assert float(rows.sum()) == 200.0
    assert not list(tmp_path.iterdir())


def test_a_refusal_is_no_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave(monkeypatch, 30_000)
    monkeypatch.setattr(resource_needs, "refuse_too_large", lambda *_: None)
    with pytest.raises(CrflError):
        run(tiny(aggregation=["bulyan"]), out=tmp_path / "run")
