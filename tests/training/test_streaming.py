"""Updates are added up as they arrive: memory does not grow with clients, and their order changes no bit."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from crfl_engines.local import Local
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crfl_core.extend import BatchMeasurements, LocalUpdates, Plugin, Stage, TrainingTask
from crfl_core.plugin_api.aggregator import chain_dependence
from crfl_core.records.round import Submission
from crfl_core.training import rounds
from crfl_core.training.aggregation import StreamedSums
from crfl_core.training.aggregation_chain import run_chain
from crfl_core.training.client_sampling import ClientBehaviour
from crfl_core.training.continuations import continue_run
from crfl_core.training.effective_weights import row_norms
from crfl_core.training.groups import ServerSteps
from crfl_core.training.rounds import Progress
from crfl_core.training.session import RoundPlan, Session
from tests.aggregators.support import gaussian, updates_of
from tests.oracle import federation_of, played, tiny
from tests.training.test_chain import Cap, CapAtZero, Move, Pairs, Shift

STREAMED = [["fedavg"], ["update-cap", "fedavg"], ["update-cap", "bucketing", "weak-noise", "fedavg"]]
GATHERED = [["median"], ["bucketing", "update-cap", "fedavg"], ["norm-filter", "fedavg"]]
PARAMETERS = 650
held: list[int] = []


def rows_held() -> int:
    """How many vectors as long as the model are in memory, counted by the memory that they lie in."""
    vectors = [one for one in gc.get_objects() if issubclass(type(one), Tensor) and one.shape[-1:] == (PARAMETERS,)]
    memory = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() // one.element_size() for one in vectors}
    return int(sum(memory.values()) // PARAMETERS)


class Watched(Local):
    """Trains one client at a time, and looks before the last one how many updates there are."""

    chunk_clients: int = 1

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        for trained in super().train(task):
            if trained.part.stop == len(task.clients):
                held.append(rows_held())
            yield trained
            del trained


class Shuffled(Local):
    """Delivers the parts of a round in an order of its own."""

    order: int

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        parts = list(super().train(task))
        for position in np.random.default_rng((self.order, task.number)).permutation(len(parts)):
            yield parts[position]


PLUGINS: dict[str, type[Plugin]] = {"watched": Watched, "shuffled": Shuffled}


def crowd(**changes: Any) -> dict[str, Any]:
    """Forty clients on as many samples as before."""
    return tiny(partition={"type": "iid", "clients": 40}, engine={"type": "watched", "threads": 1}, **changes)


def play_and_forget(config: dict[str, Any]) -> None:
    """All rounds, none of which is kept."""
    federation = federation_of(config, PLUGINS)
    session = Session.of(federation, Path("nowhere"))
    with session.open_engine():
        deque(rounds.play_rounds(session, rounds.initial_progress(federation)), maxlen=0)


@pytest.fixture
def before() -> int:
    """What was there before: tensors of other tests."""
    held.clear()
    gc.collect()
    return rows_held()


@pytest.mark.parametrize("aggregation", STREAMED, ids="-".join)
@pytest.mark.parametrize("attack", ["none", tiny()["attack"]], ids=["honest", "attacked"])
def test_memory_does_not_grow_with_the_clients(aggregation: list[str], attack: Any, before: int) -> None:
    """A few models, the update that is being added, and the one that was just trained."""
    play_and_forget(crowd(aggregation=aggregation, attack=attack))
    assert len(held) == 4
    assert max(held) - before < 16  # of 40 clients


def test_a_norm_bound_under_weight_decay_needs_no_other_update(before: int) -> None:
    """It shortens honest updates, so certificates do not trust the weights; but each of them by itself."""
    training = tiny()["training"] | {"weight_decay": 0.01}
    play_and_forget(crowd(aggregation=["norm-bound", "fedavg"], attack="none", training=training))
    assert max(held) - before < 12


def test_nor_does_that_of_continuations(before: int) -> None:
    federation = federation_of(crowd(attack="none"), PLUGINS)
    session = Session.of(federation, Path("nowhere"))
    with session.open_engine():
        continue_run(session, Progress(2, rounds.initial_progress(federation)[0].models, ({},)), range(1, 5))
    assert len(held) == 2
    assert max(held) - before < 12 * 4


@pytest.mark.parametrize("aggregation", GATHERED, ids="-".join)
def test_a_chain_that_looks_at_all_updates_gets_all_of_them(aggregation: list[str], before: int) -> None:
    """Once: which also shows that the count above is one."""
    play_and_forget(crowd(aggregation=aggregation, attack="none"))
    assert 40 <= max(held) - before < 40 + 12


@pytest.mark.parametrize("aggregation", [*STREAMED, *GATHERED], ids="-".join)
def test_parts_in_any_order_give_the_same_bits(aggregation: list[str]) -> None:
    def final(engine: dict[str, Any]) -> tuple[Tensor, list[Any]]:
        settings = {"threads": 1, "chunk_clients": 3} | engine
        outcomes = played(federation_of(tiny(aggregation=aggregation, engine=settings), PLUGINS))
        return outcomes[-1].parameters, [(outcome.record, vars(outcome.clients)) for outcome in outcomes]

    in_order, ledger = final({"type": "local"})
    for order in (1, 2, 3):
        shuffled, other = final({"type": "shuffled", "order": order})
        assert torch.equal(in_order, shuffled)
        for (line, rows), (same, columns) in zip(ledger, other, strict=True):
            assert line == same
            assert all(np.array_equal(rows[name], columns[name], equal_nan=True) for name in rows)


def summed(steps: Sequence[Any], values: Tensor, updates: Any, cuts: list[int]) -> StreamedSums:
    """The sums of a linear chain over updates that come in parts."""
    current = updates.round
    no_attackers = ClientBehaviour(
        np.zeros(len(values), np.bool_), current.clients.learning_rate, current.clients.steps
    )
    server = ServerSteps(tuple(steps), None)
    plan = RoundPlan(
        current.facts, server, no_attackers, is_run=True, clip_norm=1.0, noise_std=0.0, rows=slice(0, len(values))
    )
    sums = StreamedSums(plan, current.start[None], [{}])
    for first, last in zip([0, *cuts], [*cuts, len(values)], strict=True):
        rows = values[None, first:last]
        good = torch.zeros(1, last - first, dtype=torch.bool)
        sums.add(
            Submission(
                slice(first, last), rows, row_norms(rows), good, np.ones(last - first), BatchMeasurements.clean(0)
            )
        )
    return sums


@settings(deadline=None, max_examples=150)
@given(
    caps=st.lists(
        st.sampled_from([Cap(bound=2.0), Cap(bound=0.5), Cap(bound=50.0), CapAtZero(bound=0.9), CapAtZero(bound=3.0)]),
        max_size=3,
    ),
    fixed=st.lists(st.sampled_from([Pairs(), Shift(), Move()]), max_size=3),
    weighting=st.sampled_from(["samples", "uniform"]),
    retention=st.sampled_from([1.0, 0.8]),
    cuts=st.sets(st.integers(1, 7)),
    seed=st.integers(0, 999),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_sums_of_parts_are_what_the_chain_makes_of_the_whole(
    caps: list[Stage],
    fixed: list[Stage],
    weighting: str,
    retention: float,
    cuts: set[int],
    seed: int,
    dtype: torch.dtype,
) -> None:
    """Two ways to the same update, weights, caps and residuals, which differ by rounding: less than the ledger says."""
    values = torch.from_numpy(gaussian(8, 6, seed)).to(dtype)
    updates = updates_of(values, start=torch.linspace(-1, 1, 6, dtype=dtype), retention=np.full(8, retention))
    steps = [*caps, *fixed, FedAvg.model_validate({"weighting": weighting})]
    shortens = retention < 1 and any(isinstance(cap, CapAtZero) for cap in caps)
    assert chain_dependence(steps, updates.round.clients) == ("all" if shortens else "own" if caps else "fixed")
    whole = run_chain(steps, updates, {})
    (streamed,) = summed(steps, values, updates, sorted(cuts)).results()
    gap = float((whole.update.double() - streamed.update.double()).norm())
    assert gap <= whole.rounding + streamed.rounding
    loose = 1e-5 if dtype == torch.float32 else 1e-12
    for name in ("weights", "weight_bound", "cap", "residual"):
        torch.testing.assert_close(getattr(whole, name), getattr(streamed, name), rtol=loose, atol=loose)
    assert (whole.depends, whole.has_offset) == (streamed.depends, streamed.has_offset)
    assert whole.keeps_bounds == streamed.keeps_bounds
