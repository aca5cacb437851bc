"""Threads in one process: those of an engine, and those of PyTorch, which runs that overlap share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from crfl_engines.local import Local

import crfl_core
from crfl_core.extend import LocalUpdates, TrainingTask
from crfl_core.training.local_training import LocalTraining
from tests.oracle import OTHER_ENGINE, contents, federation_of, tiny


class InThreads(Local):
    """Trains chunks of clients in threads that share the model, as a third party might."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        job: Any = self._job
        parts = task.parts(self.chunk_clients)
        with ThreadPoolExecutor(len(parts)) as pool:
            yield from pool.map(lambda part: job.train(task, part), parts)


@pytest.mark.parametrize("model", [{"type": "mlp", "hidden": [8]}, {"type": "cnn", "channels": [3]}])
def test_clients_trained_in_threads_learn_bit_for_bit_the_same(model: dict[str, Any], tmp_path: Path) -> None:
    found = [
        contents(
            crfl_core.run(
                tiny(model=model, engine={"type": kind, "threads": 1, "chunk_clients": 1}),
                out=tmp_path / kind,
                plugins={"in-threads": InThreads},
            ).path
        )
        for kind in ("local", "in-threads")
    ]
    assert [name for name in found[0] if found[0][name] != found[1][name]] == OTHER_ENGINE


@pytest.fixture(scope="module")
def job() -> LocalTraining:
    """Local training of some federation."""
    return LocalTraining(federation_of(tiny()))


@pytest.mark.parametrize("closed_first", [0, 1])
def test_runs_that_overlap_give_threads_back_when_the_last_one_closes(job: LocalTraining, closed_first: int) -> None:
    before = torch.get_num_threads()
    engines = [Local(threads=before + 1), Local(threads=before + 2)]
    for engine in engines:
        engine.open(job)
    assert torch.get_num_threads() == before + 2
    engines.pop(closed_first).close()
    (left,) = engines
    assert torch.get_num_threads() == left.threads
    left.close()
    assert torch.get_num_threads() == before


def test_an_engine_without_a_wish_leaves_the_threads_alone(job: LocalTraining) -> None:
    before = torch.get_num_threads()
    wishing, content = Local(threads=before + 1), Local()
    wishing.open(job)
    content.open(job)
    wishing.close()
    content.close()
    assert torch.get_num_threads() == before
    content.open(job)
    torch.set_num_threads(before + 1)  # another library, during the run
    content.close()
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)
