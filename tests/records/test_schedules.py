"""Values and sets of rounds that depend on the round number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfl_core import load_config
from crfl_core.extend import ConfigError
from crfl_core.records.schedules import (
    Linear,
    PerClient,
    RoundRange,
    client_values,
    expand_rounds,
    rounds_to_check,
    value_at,
    values,
    varies,
)


@given(value=st.floats(-5, 5), total=st.integers(1, 20))
def test_a_number_is_the_same_in_every_round(value: float, total: int) -> None:
    assert values(value, total) == (value,) * total


@given(start=st.floats(-5, 5), slope=st.floats(-5, 5), total=st.integers(1, 20))
def test_a_line_starts_counting_at_round_one(start: float, slope: float, total: int) -> None:
    expected = tuple(start + slope * number for number in range(1, total + 1))
    assert values(Linear(start=start, slope=slope), total) == expected


def test_a_list_has_one_value_per_round() -> None:
    assert [value_at((0.3, 0.2, 0.1), number) for number in (1, 2, 3)] == [0.3, 0.2, 0.1]
    with pytest.raises(ValueError, match="found 3 for 2 rounds"):
        values((0.3, 0.2, 0.1), 2)


@given(start=st.floats(-50, 50), slope=st.floats(-5, 5), total=st.integers(1, 40), limit=st.sampled_from([0.0, 1.0]))
def test_a_few_rounds_tell_the_first_value_of_a_line_that_is_too_small(
    start: float, slope: float, total: int, limit: float
) -> None:
    line = Linear(start=start, slope=slope)
    first, telling = (
        next((number for number in numbers if value_at(line, number) <= limit), None)
        for numbers in (range(1, total + 1), rounds_to_check(line, total))
    )
    assert first == telling


@given(start=st.integers(-8, 8), slope=st.integers(-8, 8), total=st.integers(1, 20))
def test_a_few_rounds_tell_whether_all_values_of_a_line_are_whole(start: int, slope: int, total: int) -> None:
    line = Linear(start=start / 4, slope=slope / 4)
    every, telling = (
        all(value_at(line, number) % 1 == 0 for number in numbers)
        for numbers in (range(1, total + 1), rounds_to_check(line, total))
    )
    assert every == telling


def test_more_rounds_than_there_can_be_are_not_listed() -> None:
    assert expand_rounds(RoundRange(first=2, every=3, last=10**30), total=4) == (2, 5, 8, 11, 10**30 - 2)


@pytest.mark.parametrize(
    ("key", "schedule", "message"),
    [
        ("clip_norm", [1.0, 2.0], "a list needs one value per round: found 2 for 3 rounds"),
        ("clip_norm", {"start": 1.0, "slope": -0.5}, "must be above 0 in every round, found 0 in round 2"),
        ("noise_std", [0.1, -0.1, 0.1], "at least 0 in every round, found -0.1 in round 2"),
    ],
)
def test_a_schedule_that_leaves_its_range_is_refused_before_training(key: str, schedule: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"server\.{key}.*{message}"):
        load_config({"rounds": 3, "server": {key: schedule}})


def test_a_list_of_rates_that_is_no_schedule_says_how_rates_per_client_are_written() -> None:
    for key, found in (("learning_rate", [0.1, 0.2]), ("steps", [1, 2])):
        with pytest.raises(ConfigError, match=rf"{key}.*found 2 for 3 rounds; one value per client is written"):
            load_config({"rounds": 3, "training": {key: found}})


def test_every_client_may_have_a_schedule_of_its_own() -> None:
    schedule: PerClient[Any] = PerClient(per_client=(0.5, (0.1, 0.2, 0.3), Linear(start=1.0, slope=-0.25)))
    assert client_values(schedule, 3, 2).tolist() == [0.5, 0.2, 0.5]
    assert client_values(0.5, 3, 2).tolist() == [0.5] * 3


def test_only_what_differs_between_rounds_is_a_change() -> None:
    assert not varies((0.5, (1.0, 1.0), None, PerClient(per_client=(0.1, 0.2)), Linear(start=1.0, slope=0.0)))
    differing: list[Any] = [(1.0, 2.0), Linear(start=1.0, slope=0.1), PerClient(per_client=(1.0, (1.0, 2.0)))]
    for schedule in differing:
        assert varies([schedule])


def test_no_noise_at_all_is_allowed() -> None:
    assert load_config({"rounds": 3, "server": {"noise_std": 0.0}}).config.server.noise_std == 0.0


@given(first=st.integers(1, 30), every=st.integers(1, 7), last=st.integers(1, 30))
def test_a_range_of_rounds_counts_from_first_to_last(first: int, every: int, last: int) -> None:
    expected = tuple(number for number in range(1, 31) if number >= first and not (number - first) % every)
    assert expand_rounds(RoundRange(first=first, every=every), total=30) == expected
    assert expand_rounds(RoundRange(first=first, every=every, last=last), total=30) == tuple(
        number for number in expected if number <= last
    )


def test_a_list_of_rounds_is_sorted_and_each_counts_once() -> None:
    assert expand_rounds((7, 2, 7), total=10) == (2, 7)
