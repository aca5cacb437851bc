"""Memory and disk that a run needs, from counts alone, and the refusal of what does not fit.

A run is checked twice before anything large is allocated: when only the config is known, and again when the data are
loaded and the model is sized. Every need is a sum of parts, each of which names the config key that makes it large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from crfl_core import resource_limits
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.aggregator import is_linear_chain
from crfl_core.plugin_loading.missing_plugins import MissingPlugin
from crfl_core.records.ledger import ClientColumns, RunFacts
from crfl_core.records.round import clients_at_once
from crfl_core.records.schedules import AnyRounds, RoundRange
from crfl_core.records.vote_counting import MODELS_PER_CHUNK
from crfl_core.training.aggregation import copies_in_memory
from crfl_core.training.continuations import UPDATE_NUMBERS_AT_ONCE

if TYPE_CHECKING:
    from crfl_core.certification.certifier import CertificateQuestion, Certifier
    from crfl_core.config import RunConfig
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.plugin_api.certificate import Certificate
    from crfl_core.plugin_api.feature_map import FeatureMaps
    from crfl_core.plugin_api.model import BoundModel
    from crfl_core.records import schedules
    from crfl_core.records.inputs import FederatedData
    from crfl_core.training.client_sampling import Participation
    from crfl_core.training.federation import Found, SizeCheck
    from crfl_core.training.session import Session

LEDGER_ROW_BYTES = 8 * len(ClientColumns.names())
"""Memory of one participant of a round in the ledger."""
ROUND_RECORD_BYTES = 2_000
"""Memory of one round of one model in the ledger."""
LEDGER_ROW_FILE_BYTES = 20
ROUND_LINE_FILE_BYTES = 450
CERTIFIED_SAMPLE_FILE_BYTES = 140
FIGURE_FILE_BYTES = 50_000
SMALL_FILES_BYTES = 50_000
"""Typical sizes on disk: a participant of a round (compressed), a round, a certified sample, a figure, the rest."""
DRAWN_SAMPLE_BYTES = 24
"""Memory of one sample that a client draws for one of its steps."""
BALANCED_SAMPLE_BYTES = 16
"""Memory that class balance adds to it: its weight in double precision, and a copy in that of the models."""
CERTIFIED_SAMPLE_BYTES = 170
"""Memory of the guarantee of one sample at one level, and of its line while the table is written."""
TRAINING_COPIES = 4
"""Copies of the models of clients that train together: start, trained, update, and a temporary one."""
CONTINUATION_COPIES = 3
"""Copies of the final models of continuations: by batch, joined, and with the noise of the vote."""


class VotingLoad(NamedTuple):
    """Models that vote for one certificate: noisy copies, or runs continued for some `rounds`.

    `key` is the config key to lower if they are too many.
    """

    models: int
    key: str
    rounds: int | None = None


@dataclass(frozen=True)
class RunSizes:
    """The counts that memory and disk grow with.

    An unknown count is 1, or 0 where nothing is needed. `participants` are those of a round, in all groups; `steps` and
    `batch` are those of one participant. `tests` are the samples of all test sets together.
    """

    rounds: int
    clients: int
    participants: int
    groups: int = 1
    parameters: int = 1
    inputs: int = 0
    features: int = 0
    classes: int = 1
    samples: int = 1
    tests: int = 1
    steps: float = 1.0
    batch: float = 1.0
    itemsize: int = 4
    maps: bool = False
    """Whether there are feature maps: their outputs are kept beside the inputs."""
    clients_key: str = "partition.clients"
    """The config key to lower if there are too many participants."""
    inputs_key: str = "dataset.train_samples"
    """The config key to lower if samples are too large."""
    classes_key: str = "dataset.test_samples"
    """The config key to lower if there are too many votes on the test samples."""

    @staticmethod
    def from_config(config: RunConfig) -> RunSizes:
        """Return what is known before any data are loaded."""
        clients = whole_number(config.partition, "clients") or 1
        groups = 1
        members = clients
        if config.groups is not None:
            groups = config.groups.count or 1
            members = max(clients, groups * (config.groups.size or 1))
        steps = config.training.steps
        features = max((whole_number(one, "outputs") or 0 for one in config.model.features), default=0)
        return RunSizes(
            rounds=config.rounds,
            clients=clients,
            participants=math.ceil(config.training.participation * members),
            groups=groups,
            samples=max(clients, whole_number(config.dataset, "train_samples") or 1),
            inputs=whole_number(config.dataset, "features") or 0,
            features=features,
            maps=features > 0,
            classes=whole_number(config.dataset, "classes") or 1,
            tests=whole_number(config.dataset, "test_samples") or 1,
            steps=steps if isinstance(steps, int) else 1.0,
            itemsize=8 if config.dtype == "float64" else 4,
            clients_key=participants_key(config),
            **dataset_keys(config),
        )

    @staticmethod
    def from_data(
        config: RunConfig, data: FederatedData, model: BoundModel, maps: FeatureMaps, participation: Participation
    ) -> RunSizes:
        """Return what is known before training.

        The data are loaded and partitioned, and the model is sized.
        """
        clients = participation.participants(1)
        return RunSizes(
            rounds=config.rounds,
            clients=data.clients,
            participants=len(clients),
            groups=len(participation.members),
            parameters=model.layout.size,
            inputs=data.facts.inputs,
            features=maps.outputs,
            classes=data.facts.classes,
            samples=len(data.y),
            tests=len(data.test_x) * (1 if config.attack is None else 2),
            steps=float(clients.steps.mean()),
            batch=float(clients.batch_size.mean()),
            itemsize=8 if config.dtype == "float64" else 4,
            maps=bool(maps.links),
            clients_key=participants_key(config),
            **dataset_keys(config),
        )

    @staticmethod
    def from_facts(facts: RunFacts) -> RunSizes:
        """Return the sizes of a trained run."""
        return RunSizes(
            rounds=facts.rounds,
            clients=facts.clients,
            participants=facts.clients,
            groups=facts.models,
            parameters=facts.parameters,
            inputs=facts.inputs,
            features=facts.features,
            classes=facts.classes,
            samples=sum(facts.samples),
            tests=sum(found.samples for found in facts.test_sets.values()),
            itemsize=8 if facts.dtype == "float64" else 4,
        )

    @property
    def model_bytes(self) -> int:
        """Return the size of one model."""
        return self.parameters * self.itemsize


class Part(NamedTuple):
    """A part of a need: how many bytes, what for, and the config key to lower."""

    bytes: float
    purpose: str
    key: str


class Needs(NamedTuple):
    """Needs of a run. Memory is that of the phase that needs most, and of what stays."""

    memory: tuple[Part, ...]
    disk: tuple[Part, ...]


class Estimate(NamedTuple):
    """Sizes of a run that is ready to start, and its needs in bytes; `memory` is the peak of the process."""

    sizes: RunSizes
    loads: tuple[VotingLoad, ...]
    memory: float
    disk: float


def whole_number(plugin: Plugin, option: str) -> int | None:
    """Return an option of a plugin that is a whole number.

    None if the plugin does not have it, or if it is something else.
    """
    value = getattr(plugin, option, None)
    return value if isinstance(value, int) else None


def dataset_keys(config: RunConfig) -> dict[str, Any]:
    """Return the keys that set the inputs and the classes.

    They are the size of a sample and the number of classes. A key is missing if the dataset has no such option.
    """
    options = {"features": "inputs_key", "classes": "classes_key"}
    return {
        name: f"dataset.{option}"
        for option, name in options.items()
        if whole_number(config.dataset, option) is not None
    }


def participants_key(config: RunConfig) -> str:
    """Return the key that sets the participants of a round.

    It is the one to change as far as the data leave a choice.
    """
    if config.groups is not None and config.groups.size is not None:
        return "groups.count"
    return "partition.clients" if "clients" in type(config.partition).model_fields else "training.participation"


def loads_of_config(config: RunConfig) -> Iterator[VotingLoad]:
    """Yield the models that will vote.

    They are counted as far as the options of certificates say. Equal requests count once.
    """
    seen: set[tuple[int, int]] = set()
    for position, certificate in enumerate(config.certificates):
        if isinstance(certificate, MissingPlugin):
            continue  # what its options mean is not known
        place = f"certificates.{position}"
        continuations = whole_number(certificate, "continuations")
        settings = certificate.votes.apply(config.votes)
        request = (settings.models, settings.selection_models)
        if continuations is not None:
            models = continuations + (whole_number(certificate, "selection") or 0)
            yield VotingLoad(models, f"{place}.continuations", count_continued_rounds(config, certificate))
        elif request not in seen:
            seen.add(request)
            yield VotingLoad(sum(request), models_key(certificate, place, *request))


def loads_of_requests(questions: Iterable[CertificateQuestion], rounds: int) -> Iterator[VotingLoad]:
    """Yield the models that certificates request from a trained run.

    Equal requests count once.
    """
    seen = set()
    for position, question in enumerate(questions):
        request = question.request
        place = f"certificates.{position}"
        if not question.needs_votes or request in seen or not request.models:
            continue
        seen.add(request)
        models = request.models + request.selection_models
        if request.needs_training:
            yield VotingLoad(models, f"{place}.continuations", rounds - (request.resample_from or 0))
        else:
            yield VotingLoad(models, models_key(question.certificate, place, request.models, request.selection_models))


def models_key(certificate: Certificate, place: str, models: int, selection: int) -> str:
    """Return the key behind most of the votes of a certificate."""
    name = "models" if models >= selection else "selection_models"
    return f"{place}.votes.{name}" if getattr(certificate.votes, name) is not None else f"votes.{name}"


def count_continued_rounds(config: RunConfig, certificate: Certificate) -> int:
    """Return the least number of rounds that a certificate continues a run.

    Continuations start at the last attacked round.
    """
    start = whole_number(certificate, "resample_from")
    if start is None:
        attack = None if config.attack is None else config.attack.rounds
        attacked = config.threat.rounds if config.threat.rounds is not None else attack
        start = last_round(attacked, config.rounds)
    return max(0, config.rounds - start)


def last_round(rounds: schedules.ThreatRounds | None, total: int) -> int:
    """Return the last of the attacked rounds.

    It is the final round if no round is attacked.
    """
    if isinstance(rounds, RoundRange | AnyRounds):
        return total if rounds.last is None else rounds.last
    return max(rounds, default=total) if isinstance(rounds, tuple) else total


def count_needs(config: RunConfig, sizes: RunSizes, loads: Sequence[VotingLoad]) -> Needs:
    """Count everything that a run needs."""
    voting = count_voting_needs(sizes, loads)
    return Needs(
        memory=(
            *data_memory(sizes),
            certified_samples(config, sizes, CERTIFIED_SAMPLE_BYTES),
            *max(training_memory(config, sizes), voting.memory, key=total_bytes),
        ),
        disk=(*disk_parts(config, sizes), *voting.disk),
    )


def count_voting_needs(sizes: RunSizes, loads: Sequence[VotingLoad]) -> Needs:
    """Count what the voting models need, without the data.

    They answer one request after the other.
    """
    memory = [vote_memory(sizes, load) if load.rounds is None else continuation_memory(sizes, load) for load in loads]
    disk = [
        Part((load.models + 1) * sizes.model_bytes, f"the models of {load.models:,} continuations", load.key)
        for load in loads
        if load.rounds is not None
    ]
    return Needs(memory=max(memory, key=total_bytes, default=()), disk=tuple(disk))


def total_bytes(parts: Iterable[Part]) -> float:
    """Add up the bytes of all parts."""
    return sum(part.bytes for part in parts)


def data_memory(sizes: RunSizes) -> list[Part]:
    """List what stays in memory.

    It holds the samples, the outputs of feature maps, and the ledger.
    """
    rows = sizes.samples + sizes.tests
    ledger = sizes.rounds * (sizes.participants * LEDGER_ROW_BYTES + sizes.groups * ROUND_RECORD_BYTES)
    mapped = rows * sizes.features * sizes.itemsize if sizes.maps else 0
    return [
        Part(rows * (2 * sizes.inputs * sizes.itemsize + 8), *samples_purpose(sizes, rows)),
        Part(mapped, f"{sizes.features:,} features of {rows:,} samples", "model.features"),
        Part(ledger, *ledger_purpose(sizes)),
        Part(2 * 8 * sizes.clients, f"{sizes.clients:,} clients", sizes.clients_key),
    ]


def samples_purpose(sizes: RunSizes, rows: int) -> tuple[str, str]:
    """Return the samples in words, and their key.

    The key is the one that makes them many or large.
    """
    many = "dataset.test_samples" if sizes.tests > sizes.samples else "dataset.train_samples"
    key = sizes.inputs_key if sizes.inputs > rows else many
    return f"{rows:,} samples of {sizes.inputs:,} inputs" if sizes.inputs else f"{rows:,} samples", key


def ledger_purpose(sizes: RunSizes) -> tuple[str, str]:
    """Return the ledger in words, and the key that makes it long."""
    key = "rounds" if sizes.rounds >= sizes.participants else sizes.clients_key
    return f"the ledger of {sizes.rounds:,} rounds of {sizes.participants:,} clients", key


def training_memory(config: RunConfig, sizes: RunSizes) -> tuple[Part, ...]:
    """List the models that train at the same time.

    Their batches, and the updates that are kept together, follow.
    """
    chunk = sizes.participants
    if hasattr(config.engine, "chunk_clients"):
        at_once = whole_number(config.engine, "chunk_clients") or clients_at_once(sizes.parameters, int(sizes.batch))
        chunk = min(chunk, at_once)
    copies = TRAINING_COPIES + config.training.toward_start  # the way from the start, along which decay pulls back
    models = chunk * copies * sizes.model_bytes
    batches = chunk * sizes.batch * sizes.features * sizes.itemsize
    each = DRAWN_SAMPLE_BYTES + config.training.class_balance * BALANCED_SAMPLE_BYTES
    drawn = chunk * sizes.batch * sizes.steps * each
    parts = [
        Part(models, f"{chunk:,} models that train at once", "engine.chunk_clients"),
        Part(batches, "their batches", "training.batch_size"),
        Part(drawn, f"the samples of {sizes.steps:,.0f} steps", f"training.{unit_of_steps(config)}"),
        Part(3 * sizes.groups * sizes.model_bytes, *models_purpose(config, sizes)),
    ]
    if compares_updates(config):
        parts.append(count_compared_updates(config, sizes))
    return tuple(parts)


def unit_of_steps(config: RunConfig) -> str:
    """Return the key that sets a client's training in a round.

    It is "steps" or "epochs".
    """
    return "steps" if config.training.epochs is None else "epochs"


def compares_updates(config: RunConfig) -> bool:
    """Return whether all updates of a round are kept.

    They are if a rule or a stage compares them, or if the server drops bad ones.
    """
    return not is_linear_chain(config.aggregation) or config.server.bad_update == "drop"


def count_compared_updates(config: RunConfig, sizes: RunSizes) -> Part:
    """Count the updates of a round that the aggregation compares.

    The copies that it makes of them count, too.
    """
    in_group = -(-sizes.participants // sizes.groups)
    copies = copies_in_memory(config.aggregation, crafts=False) * sizes.groups * in_group
    purpose = f"all {sizes.participants:,} updates of {sizes.parameters:,} parameters, which the aggregation compares"
    return Part(copies * sizes.model_bytes, purpose, sizes.clients_key)


def models_purpose(config: RunConfig, sizes: RunSizes) -> tuple[str, str]:
    """Return the trained models in words, and their key.

    The key is the one that makes them many or large.
    """
    if config.groups is None:
        return f"a model of {sizes.parameters:,} parameters", "model"
    return f"the models of {sizes.groups:,} groups, {sizes.parameters:,} parameters each", "groups.count"


def vote_memory(sizes: RunSizes, load: VotingLoad) -> tuple[Part, ...]:
    """Count the noisy copies that vote at the same time.

    Their counted votes follow.
    """
    copies = min(load.models, MODELS_PER_CHUNK)
    votes = 4 * 8 * sizes.tests * sizes.classes
    key = load.key if load.models <= MODELS_PER_CHUNK else "model"  # fewer models would not help
    counted_key = sizes.classes_key if sizes.classes > sizes.tests else "dataset.test_samples"
    return (
        Part(2 * copies * sizes.model_bytes, f"{load.models:,} noisy models", key),
        Part(votes, f"the votes on {sizes.tests:,} samples of {sizes.classes:,} classes", counted_key),
    )


def continuation_memory(sizes: RunSizes, load: VotingLoad) -> tuple[Part, ...]:
    """Count the models of all continuations, and a training batch."""
    kept = CONTINUATION_COPIES * load.models * sizes.model_bytes
    updates = sizes.participants * sizes.parameters
    batch = min(max(updates, UPDATE_NUMBERS_AT_ONCE), load.models * updates)
    return (
        Part(kept, f"the models of {load.models:,} continuations", load.key),
        Part(TRAINING_COPIES * batch * sizes.itemsize, "updates of continuations", load.key),
    )


def disk_parts(config: RunConfig, sizes: RunSizes) -> list[Part]:
    """List the files of a run.

    The rows of clients are there twice until training is over, because checkpoints hold them, too.
    """
    rows = sizes.rounds * sizes.participants * LEDGER_ROW_FILE_BYTES
    lines = sizes.rounds * sizes.groups * ROUND_LINE_FILE_BYTES
    return [
        Part(2 * rows + lines, *ledger_purpose(sizes)),
        Part(3 * sizes.groups * sizes.model_bytes, *models_purpose(config, sizes)),
        certified_samples(config, sizes, CERTIFIED_SAMPLE_FILE_BYTES),
        Part(SMALL_FILES_BYTES + FIGURE_FILE_BYTES * len(config.storage.figures), "small files", "storage.figures"),
    ]


def certified_samples(config: RunConfig, sizes: RunSizes, bytes_each: int) -> Part:
    """Count the guarantees of all test samples.

    Each sample has one for every certificate and level.
    """
    levels = sum(len(certificate.levels or certificate.levels_offered) for certificate in config.certificates)
    return Part(sizes.tests * levels * bytes_each, f"{sizes.tests:,} certified samples", "dataset.test_samples")


def refuse_too_large(needs: Needs, path: Path) -> None:
    """Raise `ConfigError` for needs that exceed memory or disk.

    The disk is that of `path`.
    """
    memory = resource_limits.free_memory()
    if memory is not None and total_bytes(needs.memory) > memory.left:
        limit = f"{format_bytes(memory.left)} are left ({memory.limit})"
        raise too_large_error(needs.memory, "of memory", limit)
    disk = resource_limits.free_disk(path)
    if disk is not None and total_bytes(needs.disk) > disk.left:
        limit = f"{format_bytes(disk.left)} are left ({disk.limit})"
        raise too_large_error(needs.disk, "on disk", limit)


def too_large_error(parts: Sequence[Part], where: str, limit: str) -> ConfigError:
    """Return the error for something that does not fit.

    It is about the key that most of the size comes from.
    """
    largest = max(parts)
    return ConfigError(
        f"this needs about {format_bytes(total_bytes(parts))} {where}, {format_bytes(largest.bytes)} of it for "
        f"{largest.purpose}, and {limit}: lower {largest.key}",
        key=largest.key,
    )


def check_config(config: RunConfig, path: Path) -> None:
    """Refuse a run that cannot fit, whatever the data are."""
    refuse_too_large(count_needs(config, RunSizes.from_config(config), [*loads_of_config(config)]), path)


def size_check(config: RunConfig, path: Path) -> SizeCheck:
    """Check the config now, and return a later check.

    The later check needs the data and the model.
    """
    check_config(config, path)

    def check_sizes(*found: *Found) -> None:
        refuse_too_large(count_needs(config, RunSizes.from_data(config, *found), [*loads_of_config(config)]), path)

    return check_sizes


def check_questions(certifier: Certifier, path: Path) -> None:
    """Refuse votes and continuations of a trained run that cannot fit."""
    sizes = RunSizes.from_facts(certifier.ledger.facts)
    voting = count_voting_needs(sizes, [*loads_of_requests(certifier.questions, sizes.rounds)])
    refuse_too_large(Needs(memory=(*data_memory(sizes), *voting.memory), disk=voting.disk), path)


def estimate_run(session: Session) -> Estimate:
    """Estimate memory and disk of a run that is ready to start.

    Its data are loaded and its model is sized.
    """
    federation = session.federation
    loaded = RunSizes.from_data(
        federation.config, federation.data, federation.model, federation.maps, federation.participation
    )
    sizes = replace(loaded, tests=sum(len(test.labels) for test in federation.test_sets.values()))
    loads = tuple(loads_of_config(federation.config))
    needs = count_needs(federation.config, sizes, loads)
    present = [part for part in data_memory(sizes) if part.key.startswith(("dataset", "model"))]
    memory = resource_limits.resident_memory() + total_bytes(needs.memory) - total_bytes(present)
    return Estimate(sizes, loads, max(memory, resource_limits.peak_memory()), total_bytes(needs.disk))


def format_bytes(amount: float) -> str:
    """Write a number of bytes for people.

    >>> format_bytes(5_242_880), format_bytes(1.5e12)
    ('5.2 MB', '1.5 TB')
    """
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if amount < 1000 or unit == "PB":
            break
        amount /= 1000
    return f"{amount:,.0f} {unit}" if amount >= 100 or unit == "bytes" else f"{amount:.1f} {unit}"
