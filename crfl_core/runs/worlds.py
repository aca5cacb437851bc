"""Worlds of a finished run: the run itself, and replays of it that differ in nothing but the attackers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_core.certification.voting import VotingModels, collect_votes, predict_classes
from crfl_core.errors import CrflError
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.plugin_loading.registry import Registry
from crfl_core.records.ledger import ClientColumns, Ledger, RoundRecord
from crfl_core.runs.certify import rebuild_federation
from crfl_core.runs.stored_votes import vote_streams
from crfl_core.runs.triggers import find_triggers
from crfl_core.training import rounds
from crfl_core.training.clean_twin import read_kept_model, separate_session
from crfl_core.training.client_sampling import Participation
from crfl_core.training.continuations import add_test_noise, train_continuations
from crfl_core.training.features import FEATURE_NUMBERS_AT_ONCE
from crfl_core.training.ledger_rows import record_round
from crfl_core.training.session import Session
from crfl_core.training.threats import prepare_attack

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.attack import Attack
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.plugin_api.engine import Engine
    from crfl_core.plugin_api.tracker import Tracker
    from crfl_core.records.random_streams import Streams
    from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
    from crfl_core.runs.results import RunResult
    from crfl_core.training.federation import Federation
    from crfl_core.training.rounds import Progress


@dataclass(frozen=True)
class Replay:
    """Result of a replay: its ledger, and the clipped final model, (P,), or those of all groups, (G, P).

    `kept` are the states after chosen rounds, with the clipped model before noise; of one model, not of groups.
    """

    federation: Federation
    ledger: Ledger
    parameters: Tensor
    kept: Mapping[int, Progress]


def with_attack(federation: Federation, attack: Attack | None) -> Federation:
    """Return the same federation with another attack, or none.

    Its data, model and random streams stay the same.
    """
    config = federation.config.model_copy(update={"attack": attack})
    samples = federation.facts.samples
    members = federation.participation.members
    participation = Participation(config, samples, federation.honest, federation.streams, members)
    prepared = prepare_attack(config, federation.data, participation, federation.streams)
    return replace(federation, config=config, participation=participation, prepared=prepared)


def replay(
    session: Session, keep: Collection[int] = (), on_round: Callable[[int], object] = lambda _number: None
) -> Replay:
    """Play all rounds of a session in memory, and write nothing.

    The states after the rounds `keep` are kept; `on_round` is called with the number of every round played.
    """
    federation = replace(session.federation, resampled=tuple(sorted(keep)))
    records: list[RoundRecord] = []
    columns: list[ClientColumns] = []
    kept: dict[int, Progress] = {}
    progress = rounds.initial_progress(federation)
    with session.open_engine():
        for outcomes in rounds.play_rounds(session, progress):
            progress = tuple(outcome.after for outcome in outcomes)
            for outcome in outcomes:
                line, rows = record_round(federation, outcome)
                records.append(line)
                columns.append(rows)
            number = progress[0].number
            if number in keep:
                kept[number] = replace(progress[0], models=outcomes[0].clipped)
            on_round(number)
    models = torch.cat([group.models for group in progress])
    ledger = Ledger(federation.facts, tuple(records), ClientColumns.concatenate(columns))
    return Replay(federation, ledger, models[0] if federation.config.groups is None else models, kept)


Array = NDArray[np.float64]
Classes = NDArray[np.int64]
ENGINES_OF_THIS_PROCESS = ("local", "stacked")
"""Engines that train in this process, where replayed attackers know their aim. Other runs are replayed on `local`."""


@dataclass(frozen=True)
class World:
    """A run, attacked or not: its ledger, its votes on the clean test set, and the clipped models of its rounds."""

    ledger: Ledger
    collect: Callable[[VoteRequest, VoteSettings], Votes]
    model_of_round: Callable[[int], Array]
    _collected: dict[VoteRequest, Votes] = field(default_factory=dict)

    def votes(self, request: VoteRequest, settings: VoteSettings) -> Votes:
        """Return the answer to a vote request. Equal requests are answered once."""
        if request not in self._collected:
            self._collected[request] = self.collect(request, settings)
        return replace(self._collected[request], settings=settings)


def recorded_world(run: RunResult) -> World:
    """Return the world of a finished run, from its files."""

    def model_of_round(number: int) -> Array:
        if number == run.ledger.facts.rounds:
            return run.parameters.double().cpu().numpy()
        return read_kept_model(run, number)

    return World(run.ledger, lambda request, settings: run.votes(request, settings)["clean"], model_of_round)


def local_engine_like(engine: Engine) -> Plugin:
    """Return a local engine that cuts rounds like another one.

    It runs in this process, and its workers have one thread each.
    """
    options = {"threads": 1, "chunk_clients": getattr(engine, "chunk_clients", None)}
    return Registry().load("engine", "local").model_validate(options).with_name("local")


class Replays:
    """Replays of a finished run in memory, with its data, batches, noise and the random numbers of its votes.

    They leave out the run's trackers, and train in this process. `resampled` are the rounds that continuations start
    from.
    """

    def __init__(self, run: RunResult, resampled: Collection[int], path: Path, trackers: Sequence[Tracker]) -> None:
        self._run = run
        self._resampled = frozenset(resampled)
        self._path = path
        self._watching = Hooks([("tracker", tracker) for tracker in trackers])
        changes: dict[str, object] = {"trackers": ()}
        if run.config.engine.configured_as.rpartition(":")[2] not in ENGINES_OF_THIS_PROCESS:
            changes["engine"] = local_engine_like(run.config.engine)
        config = run.config.model_copy(update=changes).with_own_plugins()
        self._watching.report_progress("data")
        self.federation = rebuild_federation(run, config, self._watching)
        if self.federation.facts.start != run.ledger.facts.start:
            raise CrflError(f"{run.path}: the model that training started from is another one: restore its file")

    @cached_property
    def clean(self) -> World:
        """Return the world without attackers.

        Raises `CrflError` if it ends with another model than the run.
        """
        found = self._replay(None, "replay: clean")
        if self._run.config.attack is None and not torch.equal(found.parameters.cpu(), self._run.parameters):
            raise CrflError(
                f"{self._run.path}: a replay ends with another model than the run, and certificates compare runs of "
                "one machine: replay it where it was trained; `crfl verify --recompute` shows what differs"
            )
        return self._world(found)

    def attacked(self, attack: Attack, phase: str) -> World:
        """Return the world that these attackers make.

        Progress is reported as that of `phase`.
        """
        return self._world(self._replay(attack, phase))

    def predict_triggered(self, world: World, labels: Classes, norms: Array) -> Classes:
        """Return what groups of linear models predict under triggers.

        Each test input is moved by less than its norm, away from its label.
        """
        federation = self.federation
        x = federation.data.test_x
        parameters = torch.from_numpy(world.model_of_round(world.ledger.facts.rounds)).to(x.device)
        targets = torch.from_numpy(labels).to(x.device), torch.from_numpy(norms).to(x.device)
        model = federation.new_model()
        failed = world.ledger.failed_groups
        # Groups have no continuations: their vote asks for none.
        models = VotingModels(model, parameters, federation.streams, lambda _request: parameters, failed)
        numbers_per_input = max(federation.maps.widest, len(parameters) * world.ledger.facts.classes)
        rows = max(1, FEATURE_NUMBERS_AT_ONCE // numbers_per_input)
        found = []
        for some, *target in zip(x.split(rows), *(each.split(rows) for each in targets), strict=True):
            moved = find_triggers(federation.maps, model, parameters, some, *target)
            found.append(predict_classes(models, federation.maps(moved), world.ledger.facts.groups))
        return np.concatenate(found)

    def _replay(self, attack: Attack | None, phase: str) -> Replay:
        session = self._session(with_attack(self.federation, attack))
        total = session.federation.config.rounds
        return replay(session, self._resampled, lambda number: self._watching.report_progress(phase, number, total))

    def _session(self, federation: Federation) -> Session:
        """Return a session with plugins of its own.

        No replay then meets what another one left behind.
        """
        return separate_session(Session.of(federation, self._path))

    def _world(self, found: Replay) -> World:
        drawn = vote_streams(self._run.config, self._run.directory)
        tests = self.federation.test_sets["clean"]

        def collect(request: VoteRequest, settings: VoteSettings) -> Votes:
            continue_run = partial(self._continue_run, found, drawn)
            failed = found.ledger.failed_groups
            models = VotingModels(self.federation.new_model(), found.parameters, drawn, continue_run, failed)
            return collect_votes(models, {"clean": (tests.features, tests.labels)}, request, settings)["clean"]

        def model_of_round(number: int) -> Array:
            models = found.kept[number].models[0] if number in found.kept else found.parameters
            return models.double().cpu().numpy()

        return World(found.ledger, collect, model_of_round)

    def _continue_run(self, found: Replay, drawn: Streams, request: VoteRequest) -> Tensor:
        """Train the continuations of a replay, and return their noisy final models."""
        assert request.resample_from is not None
        session = self._session(replace(found.federation, streams=drawn))
        total = request.selection_models + request.models
        on_progress = partial(self._watching.report_progress, "continuations")
        with session.open_engine():
            kept = found.kept[request.resample_from]
            batches = list(train_continuations(session, kept, total, found.ledger, on_progress))
        return add_test_noise(torch.cat(batches), request.noise_std, session)
