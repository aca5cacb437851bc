"""How large a run is, in counts: as its config says, and then as its data and its model say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from crfl_core.certification.certifier import Question
from crfl_core.config import RunConfig
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.certificate import Certificate
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_api.model import BoundModel
from crfl_core.plugin_loading.missing_plugins import StandIn
from crfl_core.records import schedules
from crfl_core.records.inputs import FederatedData
from crfl_core.records.ledger import RunFacts
from crfl_core.records.schedules import AnyRounds, RoundRange
from crfl_core.training.client_sampling import Participation


class Asked(NamedTuple):
    """Models that vote for one certificate: noisy copies of the trained one, or runs continued for some `rounds`."""

    models: int
    key: str
    rounds: int | None = None


@dataclass(frozen=True)
class Sizes:
    """The counts that memory, time and disk grow with. What is not known yet counts as 1, or 0 where none is needed.

    `participants` are those of a round, in all groups; `steps` and `batch` those of one of them. `tests` are the
    samples of all test sets together.
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
    """What to lower if there are too many participants."""

    @staticmethod
    def of_config(config: RunConfig) -> Sizes:
        """What can be said before any data are loaded."""
        clients = number(config.partition, "clients") or 1
        groups = 1 if config.groups is None else config.groups.count or 1
        members = clients if config.groups is None else max(clients, groups * (config.groups.size or 1))
        steps = config.training.steps
        return Sizes(
            rounds=config.rounds,
            clients=clients,
            participants=math.ceil(config.training.participation * members),
            groups=groups,
            samples=max(clients, number(config.dataset, "train_samples") or 1),
            tests=number(config.dataset, "test_samples") or 1,
            steps=steps if isinstance(steps, int) else 1.0,
            itemsize=8 if config.dtype == "float64" else 4,
            clients_key=clients_key(config),
        )

    @staticmethod
    def of_data(
        config: RunConfig, data: FederatedData, model: BoundModel, maps: FeatureMaps, participation: Participation
    ) -> Sizes:
        """What is known once the data are loaded and shared out, and the model is sized."""
        clients = participation.round(1)
        return Sizes(
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
            clients_key=clients_key(config),
        )

    def with_tests(self, tests: int) -> Sizes:
        """The same with as many samples in all test sets."""
        return replace(self, tests=tests)

    @staticmethod
    def of_facts(facts: RunFacts) -> Sizes:
        """Those of a run that was trained."""
        return Sizes(
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


def number(plugin: Plugin, option: str) -> int | None:
    """An option of a plugin, if it has such a one and it is a whole number."""
    value = getattr(plugin, option, None)
    return value if isinstance(value, int) else None


def clients_key(config: RunConfig) -> str:
    """The key that says how many clients take part in a round, as far as the data leave a choice."""
    if config.groups is not None and config.groups.size is not None:
        return "groups.count"
    return "partition.clients" if "clients" in type(config.partition).model_fields else "training.participation"


def asked_in(config: RunConfig) -> Iterator[Asked]:
    """The models that certificates are going to ask for, as far as their options say; equal requests count once."""
    seen: set[tuple[int, int]] = set()
    for position, certificate in enumerate(config.certificates):
        if isinstance(certificate, StandIn):
            continue  # nobody knows what its options mean
        place = f"certificates.{position}"
        again = number(certificate, "continuations")
        settings = certificate.votes.apply(config.votes)
        if again is not None:
            total = again + (number(certificate, "selection") or 0)
            yield Asked(total, f"{place}.continuations", rounds_left(config, certificate))
        elif (request := (settings.models, settings.selection_models)) not in seen:
            seen.add(request)
            yield Asked(sum(request), larger_key(certificate, place, *request))


def asked_by(questions: Iterable[Question], rounds: int) -> Iterator[Asked]:
    """The same, once certificates have been asked what they want."""
    seen = set()
    for position, question in enumerate(questions):
        request = question.request
        place = f"certificates.{position}"
        if not question.is_voted_on or request in seen or not request.models:
            continue
        seen.add(request)
        total = request.models + request.selection_models
        if request.trains:
            yield Asked(total, f"{place}.continuations", rounds - (request.resample_from or 0))
        else:
            yield Asked(total, larger_key(question.certificate, place, request.models, request.selection_models))


def larger_key(certificate: Certificate, place: str, models: int, selection: int) -> str:
    """The key that most of the votes of a certificate come from."""
    name = "models" if models >= selection else "selection_models"
    return f"{place}.votes.{name}" if getattr(certificate.votes, name) is not None else f"votes.{name}"


def rounds_left(config: RunConfig, certificate: Certificate) -> int:
    """Through how many rounds a certificate continues a run, at least, if it starts at the last attacked one."""
    start = number(certificate, "resample_from")
    if start is None:
        attack = None if config.attack is None else config.attack.rounds
        attacked = config.threat.rounds if config.threat.rounds is not None else attack
        start = last_of(attacked, config.rounds)
    return max(0, config.rounds - start)


def last_of(rounds: schedules.ThreatRounds | None, total: int) -> int:
    """The last of some rounds; the final one if there are none."""
    if isinstance(rounds, RoundRange | AnyRounds):
        return total if rounds.last is None else rounds.last
    return max(rounds, default=total) if isinstance(rounds, tuple) else total
