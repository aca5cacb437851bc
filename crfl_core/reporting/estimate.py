"""What a run will take: seconds of every phase, by trying pieces of it; memory and disk, by counting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crfl_core import resource_limits as room
from crfl_core.reporting.needs import CHECKPOINTS, bytes_in_words, data_memory, needs_of, time_in_words, total
from crfl_core.reporting.sizes import Asked, Sizes, asked_by
from crfl_core.reporting.trial import Trial, distinct
from crfl_core.training.session import Session

LONG = 3600
"""Seconds from which on a person is asked first."""


class Seconds(NamedTuple):
    """The time of each phase of a run."""

    data: float
    training: float
    votes: float
    continuations: float
    certificates: float


class Estimate(NamedTuple):
    """What a run will take; `memory` is what the process has at its peak."""

    seconds: Seconds
    memory: float
    disk: float
    sizes: Sizes
    asked: tuple[Asked, ...]
    path: Path

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """What, how much, and of what, for people."""
        sizes = self.sizes
        copies = sum(one.models for one in self.asked if one.rounds is None)
        again = [f"{one.models:,} x {one.rounds:,} rounds" for one in self.asked if one.rounds is not None]
        memory = room.memory()
        disk = room.disk(self.path)
        notes = (
            f"{sizes.samples:,} samples, {sizes.features:,} features",
            f"{sizes.rounds:,} rounds of {sizes.participants:,} clients, {sizes.parameters:,} parameters",
            f"{copies:,} noisy models on {sizes.tests:,} samples" if copies else "",
            " + ".join(again),
            f"{sizes.tests:,} samples",
        )
        phases = ("data and features", "training", "votes", "continuations", "certificates")
        for phase, seconds, note in zip(phases, self.seconds, notes, strict=True):
            yield phase, time_in_words(seconds), note
        yield "in all", time_in_words(sum(self.seconds)), ""
        left = "" if memory is None else f"{bytes_in_words(memory.left)} are left ({memory.limit})"
        yield "peak memory", bytes_in_words(self.memory), left
        yield "disk", bytes_in_words(self.disk), "" if disk is None else f"{bytes_in_words(disk.left)} are left"


def estimated(session: Session, data_seconds: float, *, thorough: bool = True) -> Estimate:
    """The estimate of a run that is ready to start. Unless it is `thorough`, certificates are not tried."""
    federation = session.federation
    resident = room.resident()
    found = Sizes.of_data(
        federation.config, federation.data, federation.model, federation.maps, federation.participation
    )
    sizes = found.with_tests(sum(len(test.labels) for test in federation.test_sets.values()))
    trial = Trial.of(session)
    training, ledger = trial.rounds()
    inquiry = trial.inquiry(ledger)
    asked = tuple(asked_by(inquiry.questions, sizes.rounds))
    seconds = Seconds(
        data=data_seconds,
        training=training,
        votes=sum(trial.votes(request) for request in distinct(inquiry)),
        continuations=sum(trial.continued(one.models, one.rounds) for one in asked if one.rounds),
        certificates=trial.certificates(inquiry) if thorough else 0.0,
    )
    needs = needs_of(federation.config, sizes, asked)
    there = total(part for part in data_memory(sizes) if part.key.startswith(("dataset", "model")))
    # What was tried tells what modules need beside their parameters, which nobody can count.
    memory = max(room.peak(), resident + total(needs.memory) - there)
    disk = total(part for part in needs.disk if part.what != CHECKPOINTS)
    return Estimate(seconds, memory, disk, sizes, asked, session.context.path)
