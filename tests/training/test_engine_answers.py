"""What engines answer: each client is trained once and from every model, in a run and in its continuations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_engines.local import Local
from hypothesis import given, settings
from hypothesis import strategies as st

import crfl_core
from crfl_core.extend import BatchMeasurements, CrflError, Engine, Job, LocalUpdates, PluginFailure, TrainingTask
from crfl_core.training import rounds
from crfl_core.training.continuations import continue_run
from crfl_core.training.rounds import Progress
from crfl_core.training.session import Session
from crfl_core.training.submissions import merge_parts, train_clients
from tests.oracle import Momentum, federation_of, participants, played, tiny

Parts = list[LocalUpdates]


def spoilt(change: Callable[[LocalUpdates], Any]) -> Callable[[Parts], Iterable[Any]]:
    """The parts with something else in place of the first one."""
    return lambda parts: [change(parts[0]), *parts[1:]]


NOT_ALL = "the engine must train every participant once: client {}"
FAULTS: dict[str, tuple[Callable[[Parts], Iterable[Any]], str]] = {
    "leaves out the first clients": (lambda parts: parts[1:], NOT_ALL.format(0)),
    "leaves out the last clients": (lambda parts: parts[:-1], NOT_ALL.format(6)),
    "trains no client": (lambda _: [], NOT_ALL.format(0)),
    "trains a client twice": (lambda parts: [parts[0], *parts], NOT_ALL.format(0)),
    "trains a client again at the end": (lambda parts: [*parts, parts[1]], NOT_ALL.format(3)),
    "counts backwards": (spoilt(lambda part: replace(part, part=slice(7, None, -1))), NOT_ALL.format(0)),
    "trains another client": (spoilt(lambda part: replace(part, part=slice(20, 23))), NOT_ALL.format(0)),
    "yields no updates": (spoilt(lambda part: part.updates), "the engine must yield LocalUpdates, found Tensor"),
    "yields nothing": (spoilt(lambda _: None), "the engine must yield LocalUpdates, found NoneType"),
    "measures the poison of others": (
        spoilt(lambda part: replace(part, measurements=BatchMeasurements.clean(2))),
        "the engine must return the measurements of each participant's batches",
    ),
    "measures no poison": (
        spoilt(lambda part: replace(part, measurements=None)),  # type: ignore[arg-type]
        "the engine must return the measurements of each participant's batches",
    ),
    "returns lists": (
        spoilt(lambda part: replace(part, updates=part.updates.tolist())),  # type: ignore[arg-type]
        "'faulty' of (this process) failed: AttributeError: 'list' object has no attribute 'to'",
    ),
}
BY_MODELS: dict[str, tuple[Callable[[Parts], Iterable[Any]], str]] = {
    "trains from one of the models": (
        spoilt(lambda part: replace(part, updates=part.updates[:1])),
        "models, found 1 in round",
    ),
    "returns updates that are not finite": (
        spoilt(lambda part: replace(part, updates=part.updates * torch.nan)),
        "of a continuation or clean twin: the update of client 0 is not finite or of the wrong shape",
    ),
    "returns half of an update": (
        spoilt(lambda part: replace(part, updates=part.updates[..., ::2])),
        "of a continuation or clean twin: the update of client 0 is not finite or of the wrong shape",
    ),
    "loses an axis": (
        spoilt(lambda part: replace(part, updates=part.updates[0])),
        "of a continuation or clean twin: the update of client 0 is not finite or of the wrong shape",
    ),
}


class Faulty(Local):
    """Does its work as long as there are few models, and something else from `least` models on."""

    fault: str
    least: int = 2
    threads: int = 1
    chunk_clients: int = 3

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        parts = list(super().train(task))
        yield from parts if len(task.starts) < self.least else (FAULTS | BY_MODELS)[self.fault][0](parts)


CERTIFIED = tiny(
    model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
    server={"clip_norm": 4.0, "noise_std": 0.05},
    certificates=[{"type": "tail", "continuations": 24, "selection": 8}],
)


def test_continuations_are_played_for_a_certificate(tmp_path: Path) -> None:
    """Otherwise the tests below would show nothing."""
    result = crfl_core.run(CERTIFIED, out=tmp_path / "run")
    assert not result.metrics.refused
    assert (result.path / "certificates" / "tail.csv").exists()


@pytest.mark.parametrize("fault", [*FAULTS, *BY_MODELS])
def test_an_engine_that_fails_only_in_continuations_stops_the_run_with_a_sentence(fault: str, tmp_path: Path) -> None:
    """Nothing is certified from what was never trained."""
    config = CERTIFIED | {"engine": {"type": "faulty", "fault": fault}}
    with pytest.raises(CrflError, match=re.escape((FAULTS | BY_MODELS)[fault][1])):
        crfl_core.run(config, out=tmp_path / "run", plugins={"faulty": Faulty})
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "certificates").exists()


@pytest.mark.parametrize(
    "aggregation", [["fedavg"], ["median"], ["momentum"]], ids=["streamed", "gathered", "stateful"]
)
@pytest.mark.parametrize("fault", [*FAULTS, *BY_MODELS])
def test_whatever_the_rule_needs_to_see(fault: str, aggregation: list[str]) -> None:
    engine = {"type": "faulty", "fault": fault}
    federation = federation_of(
        tiny(engine=engine, aggregation=aggregation, attack="none"), {"faulty": Faulty, "momentum": Momentum}
    )
    session = Session.of(federation, Path("nowhere"))
    kept = Progress(2, rounds.initial_progress(federation)[0].models, ({},))
    with session.open_engine(), pytest.raises(CrflError, match=re.escape((FAULTS | BY_MODELS)[fault][1])):
        continue_run(session, kept, range(1, 25))


@pytest.mark.parametrize("aggregation", [["fedavg"], ["median"]], ids=["streamed", "gathered"])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_engine_that_fails_in_the_run_itself_is_told_the_same(fault: str, aggregation: list[str]) -> None:
    engine = {"type": "faulty", "fault": fault, "least": 1}
    with pytest.raises(PluginFailure, match=re.escape(FAULTS[fault][1])):
        played(federation_of(tiny(engine=engine, aggregation=aggregation, attack="none"), {"faulty": Faulty}))


class Dealt(Engine):
    """Hands out given parts of updates that are known."""

    _parts: list[slice]
    _updates: torch.Tensor

    def open(self, job: Job) -> None: ...

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        for part in self._parts:
            rows = self._updates[:, part]
            yield LocalUpdates(part, rows, replace(BatchMeasurements.clean(rows.shape[1]), delta=rows[0, :, 0].numpy()))


@settings(deadline=None, max_examples=60)
@given(clients=st.integers(1, 12), models=st.integers(1, 3), data=st.data())
def test_parts_of_any_size_in_any_order_are_put_together_bit_for_bit(
    clients: int, models: int, data: st.DataObject
) -> None:
    ends = sorted(data.draw(st.sets(st.integers(1, clients)))) or [clients]
    ends = ends if ends[-1] == clients else [*ends, clients]
    parts = [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(models, clients, 5, generator=generator, dtype=torch.float64)
    engine = Dealt()
    engine._parts, engine._updates = data.draw(st.permutations(parts)), updates
    task = TrainingTask(1, torch.zeros(models, 1, 5, dtype=torch.float64), participants([1] * clients), attacked=True)
    received = list(train_clients(engine, task))
    assert [part.part for part in received] == parts
    whole = merge_parts(received, clients)
    assert torch.equal(whole.updates, updates)
    np.testing.assert_array_equal(whole.measurements.delta, updates[0, :, 0].numpy())
