"""Random streams: a draw depends on the seed and on what it is for, on nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.extend import Streams
from crfl_core.records import random_streams
from crfl_core.records.random_streams import PURPOSES

counts = st.integers(min_value=0, max_value=10**6)


@settings(deadline=None, max_examples=30)
@given(seed=counts, purpose=st.sampled_from(PURPOSES), number=counts, client=counts, replica=counts)
def test_equal_arguments_give_equal_draws(seed: int, purpose: str, number: int, client: int, replica: int) -> None:
    first, second = (
        Streams(seed).generator(purpose, round_number=number, client=client, replica=replica).standard_normal(8)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_what_was_drawn_before_changes_nothing() -> None:
    streams = Streams(seed=3)
    expected = streams.generator("noise", round_number=5).standard_normal(4)
    for purpose in PURPOSES:
        streams.generator(purpose, round_number=5).standard_normal(1000)
    np.testing.assert_array_equal(streams.generator("noise", round_number=5).standard_normal(4), expected)


def test_every_argument_makes_another_stream() -> None:
    streams = Streams(seed=3)
    keys = itertools.product((*PURPOSES, "data/partition", "data/subset"), (0, 1, 11), (0, 1, 11), (0, 1))
    draws = [
        streams.generator(purpose, round_number=current, client=client, replica=replica).integers(2**63)
        for purpose, current, client, replica in keys
    ]
    assert len(set(draws)) == len(draws)
    assert Streams(4).generator("noise").integers(2**63) != streams.generator("noise").integers(2**63)


def test_two_streams_are_uncorrelated() -> None:
    """Neighbouring keys must not give related sequences: 10,000 pairs have a correlation within four deviations."""
    streams = Streams(seed=0)
    one, other = (streams.generator("batches", client=client).standard_normal(10_000) for client in (0, 1))
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.04


def test_a_seed_of_its_own_moves_one_purpose_and_all_that_belongs_to_it() -> None:
    plain, moved = Streams(seed=3), Streams(seed=3, seeds={"data": 9})
    for purpose in ("data", "data/partition"):
        assert plain.generator(purpose).integers(2**63) != moved.generator(purpose).integers(2**63)
    for purpose in set(PURPOSES) - {"data"}:
        assert plain.generator(purpose).integers(2**63) == moved.generator(purpose).integers(2**63)


def test_an_unknown_purpose_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown purpose 'luck': start it with one of data, initial"):
        Streams(seed=0).generator("luck")


def test_plugins_of_a_round_draw_from_streams_of_their_own_alone() -> None:
    """With the others they could tell who attacks, and subtract the noise that hides the model from them."""
    whole = Streams(seed=3)
    own = whole.only("aggregation")
    drawn, expected = (
        streams.generator("aggregation/mine", round_number=2).integers(2**63) for streams in (own, whole)
    )
    assert drawn == expected
    for purpose in ("attack/clients", "noise", "votes/continuation", "batches"):
        with pytest.raises(ValueError, match=f"'{purpose}' is not drawn here: start it with 'aggregation'"):
            own.generator(purpose)
    assert Streams(own.seed).generator("attack/clients").integers(2**63) != whole.generator("attack/clients").integers(
        2**63
    )


@settings(deadline=None, max_examples=30)
@given(seed=counts, number=counts, clients=st.lists(counts, max_size=20))
def test_many_clients_draw_together_what_each_draws_alone(seed: int, number: int, clients: list[int]) -> None:
    """Also of a family, which must not share the draws of another."""
    for streams in (Streams(seed), Streams(seed).only("batches"), Streams(seed, {"batches": 5})):
        together = [
            generator.permutation(7) for generator in streams.generators("batches", clients, round_number=number)
        ]
        alone = [streams.generator("batches", round_number=number, client=client).permutation(7) for client in clients]
        np.testing.assert_array_equal(together, alone)


@given(keys=st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=8))
def test_states_are_those_of_numpy(keys: list[bytes]) -> None:
    """Also of keys that begin or end with zeros."""
    keys = [*keys, bytes(16), keys[0][:3] + bytes(13), bytes(13) + keys[0][:3]]
    found = random_streams.sfc64_states(np.frombuffer(b"".join(keys), "<u4").reshape(-1, 4).astype(np.uint32))
    for key, state in zip(keys, found, strict=True):
        expected = np.random.SFC64(int.from_bytes(key, "little")).state["state"]["state"]
        np.testing.assert_array_equal(state, expected)


def test_another_numpy_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(3)
    expected = [generator.random() for generator in streams.generators("batches", range(5))]
    known = random_streams.sfc64_states
    monkeypatch.setattr(random_streams, "sfc64_states", lambda keys: known(keys) + np.uint64(1))
    assert [generator.random() for generator in streams.generators("batches", range(5))] == expected
