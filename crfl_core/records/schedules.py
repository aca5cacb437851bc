"""Schedules: values and sets of rounds that depend on the round number, as they are written in a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.records.table import Table

T_co = TypeVar("T_co", covariant=True)


class Linear(Table):
    """`start + slope * t` in round t = 1, 2, ..."""

    start: float
    slope: float


Schedule = float | tuple[float, ...] | Linear
"""A constant, a list with one value per round, or `{start, slope}`."""


class EqualInfluence(Table):
    """Rates that fall like `1 / (t + t0)`, so that an attack in any one round leaves the same drift in the final model.

    Under weight decay lambda, round t keeps the share `(t + t0 - 1) / (t + t0)` of a model. `start` is t0; unset, it is
    the smallest one whose rates keep the step rule of softmax regression.
    """

    type: Literal["equal-influence"]
    start: float | None = Field(None, gt=0, allow_inf_nan=False)


class PerClient(Table, Generic[T_co]):
    """One schedule for each client, in the order of their ids."""

    per_client: tuple[T_co, ...] = Field(description="a number, a list per round or {start, slope} for each client")


def value_at(schedule: Schedule, number: int) -> float:
    """Return the value in round t = 1, 2, ...

    >>> value_at(Linear(start=2.0, slope=0.1), 10)
    3.0
    >>> value_at((0.1, 0.2), 2)
    0.2
    """
    if isinstance(schedule, Linear):
        return schedule.start + schedule.slope * number
    if isinstance(schedule, tuple):
        return schedule[number - 1]
    return schedule


def values(schedule: Schedule, total: int) -> tuple[float, ...]:
    """Return the values of all rounds 1..total.

    Raises `ValueError` for a list of another length.

    >>> values((0.1, 0.2), 3)
    Traceback (most recent call last):
    ValueError: a list needs one value per round: found 2 for 3 rounds
    """
    check_length(schedule, total)
    return tuple(value_at(schedule, t) for t in range(1, total + 1))


def check_length(schedule: Schedule, total: int) -> None:
    """Raise `ValueError` unless a list has a value for every round."""
    if isinstance(schedule, tuple) and len(schedule) != total:
        raise ValueError(f"a list needs one value per round: found {len(schedule)} for {total} rounds")


def rounds_to_check(schedule: Schedule, total: int) -> Sequence[int]:
    """Return the rounds whose values decide whether a schedule is valid.

    They are among 1..total, and show whether all values are whole, positive and finite. The first round with another
    value is among them. Of a line these are the ends, and where it passes 0 or 1: a run may have more rounds than can
    be checked one by one. A list of another length is a `ValueError`.

    >>> rounds_to_check(0.1, 10**12), rounds_to_check(Linear(start=1.0, slope=-0.5), 10**12)
    ((1,), (1, 2, 3, 4, 1000000000000))
    """
    check_length(schedule, total)
    if isinstance(schedule, tuple):
        return range(1, total + 1)
    if not isinstance(schedule, Linear) or schedule.slope == 0:
        return (1,)
    crossings = ((limit - schedule.start) / schedule.slope for limit in (0.0, 1.0))
    near = {int(place) + step for place in crossings if abs(place) <= total for step in range(-1, 3)}
    return tuple(sorted({1, min(2, total), total} | {number for number in near if 1 <= number <= total}))


def client_schedules(schedule: Schedule | PerClient[Schedule]) -> tuple[Schedule, ...]:
    """Return the schedules of all clients.

    The tuple has one entry if they share a schedule.
    """
    return schedule.per_client if isinstance(schedule, PerClient) else (schedule,)


def client_values(schedule: Schedule | PerClient[Schedule], clients: int, number: int) -> NDArray[np.float64]:
    """Return the value of every client in a round.

    Rounds are counted from 1. Every client has its own schedule, or all share one.

    >>> client_values(PerClient(per_client=(0.5, (0.1, 0.2))), 2, number=2)
    array([0.5, 0.2])
    """
    each = [value_at(one, number) for one in client_schedules(schedule)]
    return np.broadcast_to(np.asarray(each, np.float64), clients).copy()


def varies(schedules: Sequence[Schedule | EqualInfluence | PerClient[Schedule] | None]) -> bool:
    """Ask whether some value differs between rounds."""
    known = [schedule for schedule in schedules if schedule is not None and not isinstance(schedule, EqualInfluence)]
    if len(known) < sum(schedule is not None for schedule in schedules):
        return True
    each = [one for schedule in known for one in client_schedules(schedule)]
    return any(len(set(one)) > 1 if isinstance(one, tuple) else isinstance(one, Linear) and one.slope for one in each)


class RoundRange(Table):
    """Rounds first, first + every, ... up to last (the final round if unset)."""

    first: int = Field(ge=1)
    every: int = Field(1, ge=1)
    last: int | None = Field(None, ge=1)


Rounds = tuple[Annotated[int, Field(ge=1)], ...] | RoundRange
"""A list of round numbers, or `{first, every, last}`."""


class AnyRounds(Table):
    """At most `any` of the rounds first, first + every, ... up to last; which ones is not known."""

    any: int = Field(ge=1)
    first: int = Field(1, ge=1)
    every: int = Field(1, ge=1)
    last: int | None = Field(None, ge=1)


ThreatRounds = Rounds | AnyRounds | Literal["any", "every"]
"""When attackers attack: in these rounds, in at most k of them, in one of all ("any") or in all ("every")."""


def max_attacked_rounds(rounds: ThreatRounds) -> int | None:
    """Return the largest number of attacked rounds, if they are unknown.

    None means that the attack may happen in all of `rounds`.

    >>> max_attacked_rounds("any"), max_attacked_rounds(AnyRounds(any=3)), max_attacked_rounds("every")
    (1, 3, None)
    """
    return 1 if rounds == "any" else rounds.any if isinstance(rounds, AnyRounds) else None


def expand_rounds(rounds: ThreatRounds, total: int) -> tuple[int, ...]:
    """Return the round numbers meant, in order.

    >>> expand_rounds(RoundRange(first=10, every=5), total=22), expand_rounds("any", total=3)
    ((10, 15, 20), (1, 2, 3))
    """
    if isinstance(rounds, str):
        return tuple(range(1, total + 1))
    if isinstance(rounds, RoundRange | AnyRounds):
        numbers = range(rounds.first, (total if rounds.last is None else rounds.last) + 1, rounds.every)
        return (*numbers[:total], *numbers[total:][-1:])  # of more than there can be, only the last
    return tuple(sorted(set(rounds)))
