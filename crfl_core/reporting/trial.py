"""A few pieces of a run, done to see how long they take: rounds, votes, continued rounds, certificates.

What is tried has plugins of its own and streams that no run uses, so that the run itself does not notice.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfl_core.certification.certifier import Inquiry, Question, ask
from crfl_core.certification.voting import Electorate, vote
from crfl_core.records.ledger import ClientColumns, Ledger, RoundRecord
from crfl_core.records.random_streams import Streams
from crfl_core.records.vote_counting import MODELS_AT_ONCE
from crfl_core.records.votes import VoteRequest, Votes
from crfl_core.reporting.csv_files import certificate_csv
from crfl_core.reporting.metrics import ClassHistogram, curves
from crfl_core.training import continuations, rounds
from crfl_core.training.data_loading import TestSet
from crfl_core.training.evaluation import score
from crfl_core.training.federation import Federation
from crfl_core.training.groups import server_steps
from crfl_core.training.ledger_rows import measured, record
from crfl_core.training.rounds import Progress
from crfl_core.training.session import Session

clock = time.perf_counter
"""What seconds are taken from; benchmarks on a busy machine put that of the processor in its place."""
ENOUGH = 0.5
"""Seconds after which a larger size is not tried any more: what it would take is read off a line."""
TOO_LONG = 20.0
"""Seconds after which nothing is tried a second time."""
FIRST_SIZE = 8
MOST_ROUNDS = 6
SAMPLES = 256
VOTERS = 64
"""Samples and models of the votes that certificates are tried on."""


class Played(NamedTuple):
    """A round that was tried: its seconds, without measuring the model, and what the ledger would say of it.

    `first` is by how much longer it takes at the first time.
    """

    seconds: float
    first: float
    lines: list[RoundRecord]
    rows: list[ClientColumns]
    after: tuple[Progress, ...]


@dataclass(frozen=True)
class Trial:
    """Everything that is tried of one run; `session` is its own."""

    session: Session

    @staticmethod
    def of(session: Session) -> Trial:
        """A trial with plugins of its own, watched by nobody."""
        config = session.federation.config.model_copy(update={"trackers": ()}).with_own_plugins()
        servers = server_steps(config, len(session.federation.servers))
        federation = replace(session.federation, config=config, servers=servers)
        return Trial(Session.of(federation, session.context.path))

    @property
    def federation(self) -> Federation:
        """What would be trained."""
        return self.session.federation

    def rounds(self) -> tuple[float, Ledger]:
        """The seconds of all rounds, and a ledger like the one that they would write."""
        federation = self.federation
        total = self.federation.config.rounds
        participation = federation.participation
        attacked = {number for number in participation.attack_rounds if participation.conduct(number).attacking.any()}
        usual = [number for number in range(1, total + 1) if number not in attacked]
        start = federation.start.parameters.to(federation.device, federation.dtype)
        measuring = min(elapsed(score, federation, start) for _ in range(2))
        with self.session.opened():
            progress = rounds.initial(federation)
            honest = self._played(usual[len(usual) // 2], progress, measuring) if usual else None
            poisoned = self._played(min(attacked), progress, measuring) if attacked else None
        blocks = [one for one in (poisoned if number in attacked else honest for number in range(1, total + 1)) if one]
        every = federation.config.evaluation.every
        looks = 1 if every == 0 else -(-total // every)
        ledger = repeated(federation, blocks)
        seconds = max(one.first for one in blocks) + sum(one.seconds for one in blocks)
        if federation.config.storage.keep == "distances":  # the clean twin plays on from the first attack
            seconds += (total + 1 - min(participation.attack_rounds)) * (honest or blocks[0]).seconds
        return seconds + looks * measuring + 2 * packing(ledger.clients), ledger

    def continued(self, count: int, left: int) -> float:
        """The seconds of continuations through the rounds that are left."""
        federation = self.federation
        number = max(1, federation.config.rounds - max(1, left) // 2)
        (start,) = rounds.initial(federation)
        updates = len(federation.participation.round(number)) * start.models.shape[1]
        at_once = min(count, max(1, continuations.NUMBERS_AT_ONCE // updates))

        def one_round(replicas: int) -> None:
            models = start.models.expand(replicas, -1)
            progress = Progress(number - 1, models, start.states * replicas, range(1, replicas + 1))
            rounds.play(self.session, (progress,))

        with self.session.opened():
            return left * count / at_once * extrapolated(one_round, at_once)

    def votes(self, request: VoteRequest) -> float:
        """The seconds in which all models of a request vote on all test sets."""
        models = request.models + request.selection_models
        tried = replace(request, models=min(models, MODELS_AT_ONCE), selection_models=0)
        electorate = self._electorate()

        def on_samples(test: TestSet, samples: int) -> None:
            sets = {"tried": (test.features[:samples], test.labels[:samples])}
            vote(electorate, sets, tried, self.federation.config.votes)

        sets = self.federation.test_sets.values()
        once = sum(extrapolated(partial(on_samples, test), len(test.labels)) for test in sets)
        return once * max(1.0, models / MODELS_AT_ONCE)

    def certificates(self, inquiry: Inquiry) -> float:
        """The seconds of all certificates, their tables and the figures."""
        data = self.federation.data
        shares = ClassHistogram.of(data.y.cpu().numpy(), data.partition, data.class_names, data.client_names)
        formats = self.federation.config.storage.figures
        from crfl_reports.gallery.training import partition_files

        drawing = elapsed(partition_files, shares, formats)
        return drawing + sum(self._certified(inquiry.ledger, question) for question in inquiry.questions)

    def inquiry(self, ledger: Ledger) -> Inquiry:
        """What certificates would ask such a run."""
        return ask(self.federation.config, ledger)

    def _certified(self, ledger: Ledger, question: Question) -> float:
        if not question.is_voted_on:
            return 0.0
        request = question.request
        if request.models:
            request = replace(request, models=VOTERS, selection_models=min(request.selection_models, VOTERS))
        tests = self.federation.test_sets.items()
        sets = {name: (test.features[:SAMPLES], test.labels[:SAMPLES]) for name, test in tests}
        answers = vote(self._electorate(), sets, request, question.settings)
        longest = max(len(test.labels) for test in self.federation.test_sets.values())

        def on_samples(samples: int) -> None:
            found = list(question.results(ledger, {name: spread(one, samples) for name, one in answers.items()}))
            curves(found, self.federation.config.evaluation.radii)
            certificate_csv(found)

        return extrapolated(on_samples, longest)

    def _played(self, number: int, progress: tuple[Progress, ...], measuring: float) -> Played:
        """One round, several times: the median counts, without the first, unless that alone takes too long."""
        times: list[float] = []
        before = tuple(replace(group, number=number - 1) for group in progress)
        while len(times) < MOST_ROUNDS and sum(times) < TOO_LONG and sum(times[1:]) < 2 * ENOUGH:
            started = clock()
            outcomes = rounds.play(self.session, before)
            lines, rows = zip(*(record(self.federation, outcome) for outcome in outcomes), strict=True)
            for line in lines:
                line.model_dump_json()
            times.append(clock() - started)
        looked = measuring if measured(self.federation, number) else 0.0
        after = tuple(outcome.after for outcome in outcomes)
        usual = median(times[1:] or times)
        return Played(max(0.0, usual - looked), max(0.0, times[0] - usual), list(lines), list(rows), after)

    def _electorate(self) -> Electorate:
        """Models that vote, like the trained ones in everything that takes time."""
        federation = self.federation
        starts = [federation.start_of_group(group).parameters for group in range(len(federation.servers))]
        models = torch.stack(starts).to(federation.device, federation.dtype)
        noise = torch.Generator().manual_seed(0)
        models = models + 0.1 * torch.randn(models.shape, generator=noise).to(models)

        def continued(request: VoteRequest) -> Tensor:
            copies = models[:1].expand(request.models + request.selection_models, -1)
            return copies + 0.1 * torch.randn(copies.shape, generator=noise).to(copies)

        parameters = models[0] if federation.config.groups is None else models
        return Electorate(federation.model, parameters, Streams(0), continued)


def elapsed(work: Callable[..., object], *arguments: object) -> float:
    """Seconds on the wall."""
    started = clock()
    work(*arguments)
    return clock() - started


def extrapolated(work: Callable[[int], object], total: int) -> float:
    """The seconds of work of this size: measured, if it is short; else along a line through the last two tries."""
    size = min(total, FIRST_SIZE)
    before = 0
    shorter = 0.0
    work(size)  # to warm up
    while True:
        seconds = min(elapsed(work, size) for _ in range(2 if shorter < ENOUGH / 8 else 1))
        if size == total or seconds > ENOUGH:
            break
        before = size
        shorter = seconds
        size = min(total, 4 * size)
    if size < total and before == 0 and size > 1:  # most of it may not depend on the size at all
        before = size // 4
        shorter = elapsed(work, before)
    slope = max(0.0, seconds - shorter) / (size - before)
    return seconds + slope * (total - size)


def repeated(federation: Federation, blocks: list[Played]) -> Ledger:
    """The ledger of a run whose rounds are like those that were tried."""
    lines = tuple(
        line.model_copy(update={"round": number, **({"noise_std": 0.0} if number == len(blocks) else {})})
        for number, block in enumerate(blocks, start=1)
        for line in block.lines
    )
    columns = ClientColumns.concatenate([rows for block in blocks for rows in block.rows])
    lengths = [sum(map(len, block.rows)) for block in blocks]
    numbered = replace(columns, round=np.repeat(np.arange(1, len(blocks) + 1), lengths))
    return Ledger(federation.facts, lines, numbered)


def packing(columns: ClientColumns) -> float:
    """The seconds in which the rows of clients are compressed."""

    def some(rows: int) -> None:
        np.savez_compressed(io.BytesIO(), **vars(columns.take(slice(0, rows))))

    return extrapolated(some, len(columns))


def spread(votes: Votes, samples: int) -> Votes:
    """The same votes for another number of samples, by repeating them."""
    rows = np.arange(samples) % len(votes.labels)
    return replace(votes, **{name: getattr(votes, name)[rows] for name in type(votes).stored()})


def distinct(inquiry: Inquiry) -> Iterator[VoteRequest]:
    """Every request that is answered, once."""
    yield from dict.fromkeys(question.request for question in inquiry.questions if question.is_voted_on)
