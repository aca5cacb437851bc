"""Which samples each client sees in which local step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core.extend import Clients, ConfigError, Streams
from crfl_core.training.local_training import BatchRows, draw_batches
from tests.oracle import federation_of, tiny

STREAMS = Streams(seed=5)


def holdings(sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Disjoint rows for clients of these sizes."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def clients(sizes: Sequence[int], steps: Sequence[int], batch_size: int) -> Clients:
    """Participants with these numbers of samples and steps; what batches do not depend on is zero."""
    samples = np.asarray(sizes, np.int64)
    batch = np.minimum(batch_size, samples)
    zeros = np.zeros(len(samples))
    return Clients(
        ids=np.arange(len(samples)),
        samples=samples,
        learning_rate=zeros,
        steps=np.asarray(steps, np.int64),
        batch_size=batch,
        last_batch=samples - (-(-samples // batch) - 1) * batch,
        weight_decay=zeros,
        retention=zeros,
        update_bound=zeros,
        group=zeros.astype(np.int64),
    )


def drawn(sizes: Sequence[int], participants: Clients, number: int = 1) -> BatchRows:
    """The batches of clients who make the steps that the protocol says."""
    return draw_batches(holdings(sizes), participants, participants.steps, number, STREAMS)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
)
def test_an_epoch_shows_every_sample_of_a_client_once(sizes: list[int], batch_size: int, epochs: int) -> None:
    """Also for clients with fewer samples than a batch, and with a short last batch."""
    errors_of = clients(sizes, [epochs * -(-size // min(batch_size, size)) for size in sizes], batch_size)
    plan = drawn(sizes, errors_of)
    for position, own in enumerate(holdings(sizes)):
        per_epoch = errors_of.steps[position] // epochs
        for epoch in range(epochs):
            steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
            shown = np.concatenate([plan.rows[position, step, : plan.sizes[position, step]] for step in steps])
            np.testing.assert_array_equal(np.sort(shown), own)


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_an_epoch_is_the_permutation_that_a_clients_own_generator_draws(steps: int) -> None:
    """In part, as a whole, and one after the other."""
    plan, own = drawn([17, 12], clients([17, 12], [steps, 1], batch_size=6)), holdings([17, 12])[0]
    generator = STREAMS.generator("batches", round_number=1, client=0)
    epochs = np.concatenate([np.append(generator.permutation(own), 0) for _ in range(2)])
    np.testing.assert_array_equal(plan.rows[0].reshape(-1), epochs[: 6 * steps])


def test_the_last_batch_of_an_epoch_is_short() -> None:
    plan = drawn([10], clients([10], [6], batch_size=4))
    assert plan.sizes.tolist() == [[4, 4, 2, 4, 4, 2]]


def test_steps_beyond_a_clients_own_are_empty() -> None:
    plan = drawn([10, 10], clients([10, 10], [1, 3], batch_size=4))
    assert plan.sizes.tolist() == [[4, 0, 0], [4, 4, 2]]


def test_epochs_and_rounds_are_reshuffled() -> None:
    errors_of = clients([40], [2], batch_size=40)
    first, second = (drawn([40], errors_of, number).rows for number in (1, 2))
    assert (first[0, 0] != first[0, 1]).any()
    assert (first != second).any()


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 25), min_size=2, max_size=6),
    batch_size=st.integers(1, 9),
    data=st.data(),
)
def test_a_client_draws_the_same_beside_any_others(sizes: list[int], batch_size: int, data: st.DataObject) -> None:
    """Neither the size of a chunk nor the order of the clients changes a batch."""
    steps = data.draw(st.lists(st.integers(1, 7), min_size=len(sizes), max_size=len(sizes)))
    all_clients = clients(sizes, steps, batch_size)
    together = drawn(sizes, all_clients, 3)
    order = np.asarray(data.draw(st.permutations(range(len(sizes)))))
    for position in order:
        alone = drawn(sizes, all_clients.take(np.array([position])), 3)
        for step in range(steps[position]):
            size = together.sizes[position, step]
            assert size == alone.sizes[0, step] > 0
            np.testing.assert_array_equal(together.rows[position, step, :size], alone.rows[0, step, :size])


def test_steps_and_rates_may_differ_between_clients() -> None:
    federation = federation_of(
        tiny(
            training={
                "steps": {"per_client": [1, 2, 3, 4, 5, 6, 7, 8]},
                "learning_rate": {"per_client": [0.1] * 7 + [0.4]},
                "batch_size": 16,
            }
        )
    )
    chosen = federation.participation.participants(1)
    assert chosen.steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert chosen.learning_rate.tolist() == [0.1] * 7 + [0.4]


def test_epochs_become_as_many_steps_as_a_client_needs() -> None:
    chosen = federation_of(tiny(training={"epochs": 2, "batch_size": 16})).participation.participants(1)
    np.testing.assert_array_equal(chosen.steps, 2 * np.ceil(chosen.samples / 16))
    assert len(np.unique(chosen.steps)) > 1


def test_steps_and_rates_may_differ_between_rounds_and_clients() -> None:
    rates = {"per_client": [0.1] * 6 + [[0.4, 0.3, 0.2, 0.1], {"start": 1.0, "slope": -0.2}]}
    federation = federation_of(tiny(training={"steps": [4, 3, 2, 1], "learning_rate": rates, "weight_decay": 0.5}))
    for number in (1, 2, 3, 4):
        chosen = federation.participation.participants(number)
        expected = np.array([0.1] * 6 + [0.5 - number / 10, 1.0 - 0.2 * number])
        assert chosen.steps.tolist() == [5 - number] * 8
        np.testing.assert_allclose(chosen.learning_rate, expected)
        np.testing.assert_allclose(chosen.retention, (1 - 0.5 * expected) ** (5 - number))


@pytest.mark.parametrize("key", ["steps", "learning_rate"])
def test_schedules_of_too_few_clients_name_the_key(key: str) -> None:
    with pytest.raises(ConfigError, match="needs one entry per client: found 2 for 8 clients") as caught:
        federation_of(tiny(training={key: {"per_client": [1, 2]}}))
    assert caught.value.key == f"training.{key}"


def test_participation_draws_the_share_of_clients_anew_in_every_round() -> None:
    federation = federation_of(tiny(attack="none", training={"participation": 0.5}))
    drawn = [tuple(federation.participation.participants(number).ids.tolist()) for number in range(1, 21)]
    assert {len(ids) for ids in drawn} == {4}
    assert all(sorted(set(ids)) == list(ids) for ids in drawn)
    assert set().union(*drawn) == set(range(8))
    assert len(set(drawn)) > 1


def test_at_least_one_client_takes_part() -> None:
    federation = federation_of(tiny(attack="none", training={"participation": 0.01}))
    assert len(federation.participation.participants(1)) == 1


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4), batch_size=st.integers(1, 12), steps=st.integers(1, 9)
)
def test_without_short_batches_all_are_whole_and_an_epoch_shows_no_sample_twice(
    sizes: list[int], batch_size: int, steps: int
) -> None:
    all_clients = clients(sizes, [steps] * len(sizes), batch_size)
    whole = replace(all_clients, last_batch=all_clients.batch_size)
    plan = drawn(sizes, whole)
    for position, own in enumerate(holdings(sizes)):
        size, per_epoch = int(whole.batch_size[position]), len(own) // int(whole.batch_size[position])
        assert plan.sizes[position].tolist() == [size] * steps
        for first in range(0, steps, per_epoch):
            shown = plan.rows[position, first : min(steps, first + per_epoch), :size].ravel()
            assert len(np.unique(shown)) == len(shown)
            assert np.isin(shown, own).all()


def test_who_leaves_short_batches_out_makes_fewer_steps_in_an_epoch() -> None:
    short, whole = (
        federation_of(tiny(training={"epochs": 2, "batch_size": 16, "drop_last": drop})).participation.participants(1)
        for drop in (False, True)
    )
    np.testing.assert_array_equal(whole.steps, 2 * (whole.samples // 16))
    assert (whole.last_batch == 16).all()
    assert (short.last_batch < 16).any()
    assert (short.steps >= whole.steps).all()


def test_a_client_with_less_than_a_batch_keeps_its_only_one() -> None:
    chosen = federation_of(tiny(training={"epochs": 1, "batch_size": 1000, "drop_last": True}, attack="none"))
    all_clients = chosen.participation.participants(1)
    assert all_clients.steps.tolist() == [1] * 8
    np.testing.assert_array_equal(all_clients.last_batch, all_clients.samples)
