"""What a run needs of memory, disk and time, from counts alone: before anything is allocated.

Every need is a sum of parts, each of which names the key that makes it large. Memory and disk are what is expected;
seconds are the least that a fast core could need, so that nothing is refused that could be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from crfl_core import resource_limits as room
from crfl_core.certification.certifier import Inquiry
from crfl_core.config import RunConfig
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.aggregator import linear
from crfl_core.records.round import clients_at_once
from crfl_core.records.vote_counting import MODELS_AT_ONCE
from crfl_core.reporting.sizes import Asked, Sizes, asked_by, asked_in, number
from crfl_core.training.continuations import NUMBERS_AT_ONCE
from crfl_core.training.federation import Fits, Found
from crfl_core.training.session import Session
from crfl_core.training.update_memory import SHARE, held_at_once

DAY = 86_400
LONGEST = 100 * DAY
"""What takes longer than this on a fast core is a slip of the finger."""

COLUMNS = 30 * 8
RECORD = 2_000
"""Bytes of the ledger in memory: of a participant of a round, and of a round of a model."""
ROW_ON_DISK = 20
LINE = 450
CELL = 140
FIGURE = 50_000
SMALL_FILES = 50_000
"""Bytes on disk: of a participant of a round (compressed), a round, a certified sample, a figure, and of the rest."""
CHECKPOINTS = "checkpoints, until training is over"
CHUNK_COPIES = 4
"""Copies of the models of clients that train together: where they start, as they train, their updates, a part more."""
CONTINUED_COPIES = 3
"""Copies of the final models of continuations: batch by batch, as one, and with the noise of the vote."""

OPERATIONS = 1e11
"""Multiplications and additions in a second."""
ROUND = 5e-4
CLIENT = 1e-5
COPY = 2e-6
NUMBER = 2e-9
"""Seconds, at least: of a round, of a client in a round, of a noisy copy, of a random number in it."""


class Part(NamedTuple):
    """A part of a need: how much, what for, and the key to lower."""

    amount: float
    what: str
    key: str


class Needs(NamedTuple):
    """What a run needs. Memory is that of the phase that needs most, beside what stays."""

    memory: tuple[Part, ...]
    disk: tuple[Part, ...]
    seconds: tuple[Part, ...]


def needs_of(config: RunConfig, sizes: Sizes, asked: Sequence[Asked]) -> Needs:
    """All needs of a run."""
    voting = needs_of_votes(sizes, asked)
    return Needs(
        memory=(*data_memory(sizes), *max(training_memory(config, sizes), voting.memory, key=total)),
        disk=(*disk_parts(config, sizes), *voting.disk),
        seconds=(training_seconds(sizes), *voting.seconds),
    )


def needs_of_votes(sizes: Sizes, asked: Sequence[Asked]) -> Needs:
    """What the models that vote need, one request after the other; not the data."""
    again = [one for one in asked if one.rounds is not None]
    copies = [one for one in asked if one.rounds is None]
    model = sizes.parameters * sizes.itemsize
    memory = [*(vote_memory(sizes, one) for one in copies), *(continuation_memory(sizes, one) for one in again)]
    return Needs(
        memory=max(memory, key=total, default=()),
        disk=tuple(Part((one.models + 1) * model, continuations(one), one.key) for one in again),
        seconds=(
            *(vote_seconds(sizes, one) for one in copies),
            *(continuation_seconds(sizes, one) for one in again),
        ),
    )


def total(parts: Iterable[Part]) -> float:
    """The sum of some parts."""
    return sum(part.amount for part in parts)


def data_memory(sizes: Sizes) -> list[Part]:
    """What stays in memory: samples, what feature maps make of them, and the ledger."""
    rows = sizes.samples + sizes.tests
    ledger = sizes.rounds * (sizes.participants * COLUMNS + sizes.groups * RECORD)
    mapped = rows * sizes.features * sizes.itemsize if sizes.maps else 0
    return [
        Part(rows * (2 * sizes.inputs * sizes.itemsize + 8), f"{rows:,} samples", "dataset.train_samples"),
        Part(mapped, f"{sizes.features:,} features of {rows:,} samples", "model.features"),
        Part(ledger, *ledger_of(sizes)),
        Part(2 * 8 * sizes.clients, f"{sizes.clients:,} clients", sizes.clients_key),
    ]


def ledger_of(sizes: Sizes) -> tuple[str, str]:
    """The ledger in words, and the key that makes it long."""
    longer = "rounds" if sizes.rounds >= sizes.participants else sizes.clients_key
    return f"the ledger of {sizes.rounds:,} rounds of {sizes.participants:,} clients", longer


def training_memory(config: RunConfig, sizes: Sizes) -> tuple[Part, ...]:
    """Models that train at the same time, their batches, and whatever the aggregation must see together."""
    chunk = sizes.participants
    if hasattr(config.engine, "chunk_clients"):
        at_once = number(config.engine, "chunk_clients") or clients_at_once(sizes.parameters, int(sizes.batch))
        chunk = min(chunk, at_once)
    model = sizes.parameters * sizes.itemsize
    batches = chunk * sizes.batch * (sizes.features * sizes.itemsize + 24 * sizes.steps)
    parts = [
        Part(chunk * CHUNK_COPIES * model, f"{chunk:,} models that train at once", "engine.chunk_clients"),
        Part(batches, "their batches", "training.batch_size"),
        Part(3 * sizes.groups * model, *models_of(config, sizes)),
    ]
    if sees_all_updates(config):
        rows = f"all {sizes.participants:,} updates of {sizes.parameters:,} parameters, which the aggregation compares"
        held = held_at_once(config.aggregation, streams=False, crafts=False)
        in_group = -(-sizes.participants // sizes.groups)
        made = sizes.groups * held.bytes_of(in_group, sizes.parameters, sizes.itemsize)
        came = sizes.participants * model
        left = room.memory()
        if left is not None and came > left.left // SHARE:
            came = 0  # they lie in a file
        parts.append(Part(came + made, rows, sizes.clients_key))
    return tuple(parts)


def models_of(config: RunConfig, sizes: Sizes) -> tuple[str, str]:
    """The trained models in words, and the key that makes them many or large."""
    if config.groups is None:
        return f"a model of {sizes.parameters:,} parameters", "model"
    return f"the models of {sizes.groups:,} groups, {sizes.parameters:,} parameters each", "groups.count"


def sees_all_updates(config: RunConfig) -> bool:
    """Whether updates are kept until all have arrived: a rule or a stage looks at them, or bad ones are dropped."""
    return not linear(config.aggregation) or config.server.bad_update == "drop"


def vote_memory(sizes: Sizes, asked: Asked) -> tuple[Part, ...]:
    """Noisy copies, some at a time, and what they are counted in."""
    copies = min(asked.models, MODELS_AT_ONCE)
    amount = 2 * copies * sizes.parameters * sizes.itemsize + 4 * 8 * sizes.tests * sizes.classes
    key = asked.key if asked.models <= MODELS_AT_ONCE else "model"  # fewer would not help
    return (Part(amount, f"the votes of {asked.models:,} noisy models", key),)


def continuation_memory(sizes: Sizes, asked: Asked) -> tuple[Part, ...]:
    """The models of all continuations, and a batch of them in training."""
    kept = CONTINUED_COPIES * asked.models * sizes.parameters * sizes.itemsize
    updates = sizes.participants * sizes.parameters
    batch = min(max(updates, NUMBERS_AT_ONCE), asked.models * updates)
    return (
        Part(kept, continuations(asked), asked.key),
        Part(CHUNK_COPIES * batch * sizes.itemsize, "updates of continuations", asked.key),
    )


def continuations(asked: Asked) -> str:
    """What is kept of continuations, in words."""
    return f"the models of {asked.models:,} continuations"


def disk_parts(config: RunConfig, sizes: Sizes) -> list[Part]:
    """The files of a run; rows of clients are there twice for a while."""
    model = sizes.parameters * sizes.itemsize
    rows = sizes.rounds * sizes.participants * ROW_ON_DISK
    levels = sum(len(one.levels or one.levels_offered) for one in config.certificates)
    return [
        Part(rows + sizes.rounds * sizes.groups * LINE, *ledger_of(sizes)),
        Part(rows + 2 * sizes.groups * model, CHECKPOINTS, ledger_of(sizes)[1]),
        Part(sizes.groups * model, *models_of(config, sizes)),
        Part(sizes.tests * CELL * levels, f"{sizes.tests:,} certified samples", "dataset.test_samples"),
        Part(SMALL_FILES + FIGURE * len(config.storage.figures), "small files", "storage.figures"),
    ]


def training_seconds(sizes: Sizes) -> Part:
    """All rounds of the run."""
    steps = sizes.steps * sizes.batch * sizes.parameters * 4 / OPERATIONS
    amount = sizes.rounds * (ROUND + sizes.participants * (CLIENT + steps))
    return Part(amount, f"{sizes.rounds:,} rounds of {sizes.participants:,} clients", "rounds")


def vote_seconds(sizes: Sizes, asked: Asked) -> Part:
    """Noise for every copy, and a product with every test sample."""
    each = COPY + sizes.parameters * (NUMBER + 2 * sizes.tests / OPERATIONS)
    return Part(asked.models * each, f"the votes of {asked.models:,} noisy models", asked.key)


def continuation_seconds(sizes: Sizes, asked: Asked) -> Part:
    """Rounds for every continuation, all of which share what does not depend on the model."""
    steps = sizes.participants * sizes.parameters * (sizes.steps * sizes.batch * 4 + 10) / OPERATIONS
    rounds = asked.rounds or 0
    what = f"{asked.models:,} continuations through {rounds:,} rounds"
    return Part(asked.models * rounds * (steps + sizes.parameters * NUMBER), what, asked.key)


def refuse(needs: Needs, path: Path) -> None:
    """Raise `ConfigError` for what does not fit into memory, on the disk at `path` or into a lifetime."""
    memory = room.memory()
    disk = room.disk(path)
    if memory is not None and total(needs.memory) > memory.left:
        raise refusal(needs.memory, "of memory", f"{bytes_in_words(memory.left)} are left ({memory.limit})")
    if disk is not None and total(needs.disk) > disk.left:
        raise refusal(needs.disk, "on disk", f"{bytes_in_words(disk.left)} are left ({disk.limit})")
    if (seconds := total(needs.seconds)) > LONGEST:
        largest = max(needs.seconds)
        raise ConfigError(
            f"this would take at least {time_in_words(seconds)}, mostly for {largest.what}, and more than "
            f"{time_in_words(LONGEST)} are refused: lower {largest.key}",
            key=largest.key,
        )


def refusal(parts: Sequence[Part], where: str, limit: str) -> ConfigError:
    """The sentence for something that does not fit, about the key that most of it comes from."""
    largest = max(parts)
    return ConfigError(
        f"this needs about {bytes_in_words(total(parts))} {where}, {bytes_in_words(largest.amount)} of it for "
        f"{largest.what}, and {limit}: lower {largest.key}",
        key=largest.key,
    )


def check_config(config: RunConfig, path: Path) -> None:
    """Refuse what cannot be, whatever the data are."""
    refuse(needs_of(config, Sizes.of_config(config), [*asked_in(config)]), path)


def fitting(config: RunConfig, path: Path) -> Fits:
    """Refuse what cannot be, whatever the data are, and later what cannot be with the data and the model there are."""
    check_config(config, path)

    def fits(*found: *Found) -> None:
        refuse(needs_of(config, Sizes.of_data(config, *found), [*asked_in(config)]), path)

    return fits


def check_questions(inquiry: Inquiry, path: Path) -> None:
    """Refuse votes and continuations of a trained run that cannot be."""
    sizes = Sizes.of_facts(inquiry.ledger.facts)
    needs = needs_of_votes(sizes, [*asked_by(inquiry.questions, sizes.rounds)])
    refuse(needs._replace(memory=(*data_memory(sizes), *needs.memory)), path)


def least_seconds(session: Session) -> float:
    """What a run that is ready to start takes at least."""
    found = session.federation
    sizes = Sizes.of_data(found.config, found.data, found.model, found.maps, found.participation)
    return total(needs_of(found.config, sizes, [*asked_in(found.config)]).seconds)


def bytes_in_words(amount: float) -> str:
    """A number of bytes as people write it.

    >>> bytes_in_words(5_242_880), bytes_in_words(1.5e12)
    ('5.2 MB', '1.5 TB')
    """
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if amount < 1000 or unit == "PB":
            break
        amount /= 1000
    return f"{amount:,.0f} {unit}" if amount >= 100 or unit == "bytes" else f"{amount:.1f} {unit}"


def time_in_words(seconds: float) -> str:
    """A time as people write it.

    >>> time_in_words(0.21), time_in_words(12.3), time_in_words(5400), time_in_words(1e9)
    ('0.2 s', '12 s', '1.5 hours', '32 years')
    """
    for unit, size in (("years", 365 * DAY), ("days", DAY), ("hours", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            amount = seconds / size
            return f"{amount:,.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
