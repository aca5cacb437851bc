"""Answers of the explorer: every question is put to the run's certificates beforehand, from stored votes.

A lattice has a point for every combination of the sliders. Each point is what `crfl certify RUN --set threat...`
prints, computed by the same functions: the page itself calculates nothing. Equal answers are kept once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from crfl_core.certification.certifier import Certifier, build_certifier
from crfl_core.errors import CrflError
from crfl_core.reporting.metrics import Curve, compute_curves
from crfl_core.runs.stored_votes import has_votes
from crfl_reports.pages import words
from crfl_reports.pages.figure_data import curve_basis, numbers

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import CertificateResult, Check
    from crfl_core.records.threat import Threat
    from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
    from crfl_core.runs.results import RunResult

Shown = Callable[[int, int], object]
"""Told after every point how many of how many are done."""

ATTACKERS = (1, 2, 3, 5, 10)
SCALES = (1.0, 10.0, 100.0)
RATIOS = (0.1, 1.0)
UNKNOWN = "any"
EVERY = "every"
SECONDS = 60.0
"""Time limit for computing answers, by default; only large runs reach it."""


@dataclass(frozen=True)
class Axis:
    """One slider: the key of the threat that it sets, its values, and the one that the run assumed."""

    key: str
    title: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    own: int

    def data(self) -> dict[str, Any]:
        """Return the slider for the script; rounds are written as texts."""
        plain = [value if isinstance(value, int | float) else None for value in self.values]
        return {"key": self.key, "title": self.title, "values": plain, "texts": list(self.texts), "own": self.own}


@dataclass
class Shelf:
    """Things that are kept once, in the order in which they came, each with a number."""

    items: list[Any] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def put(self, item: Any) -> int:
        """Return the number of an item and add it if new."""
        key = json.dumps(item, sort_keys=True)
        if key not in self.numbers:
            self.numbers[key] = len(self.items)
            self.items.append(item)
        return self.numbers[key]


def explorer_data(run: RunResult, seconds: float = SECONDS, shown: Shown | None = None) -> dict[str, Any]:
    """Return the explorer's sliders and the answers found in some seconds.

    If the run has no explorer, return the reason.
    """
    try:
        own = run.certifier.threat
    except CrflError as error:
        return {"refused": str(error)}
    if not run.certifier.questions:
        return {"refused": "no certificate was asked for: name some under `certificates` in the config"}
    return Lattice(run, axes(own, run.ledger.facts.rounds, run.ledger.facts.clients), seconds).data(shown)


def axes(own: Threat, rounds: int, clients: int) -> tuple[Axis, ...]:
    """Return the sliders of a run.

    Each slider includes the value that the run assumed.
    """
    return (
        number_axis("clients", "attackers", [one for one in ATTACKERS if one <= clients], own.attackers),
        number_axis("scale", "factor on malicious updates", SCALES, own.scale),
        number_axis("poison_ratio", "poisoned share of a batch", RATIOS, own.poison_ratio),
        round_axis(own, rounds),
    )


def number_axis(key: str, title: str, usual: Iterable[float], own: float) -> Axis:
    """Build a slider over some usual numbers and the run's own."""
    others = {value for value in usual if f"{value:.4g}" != f"{own:.4g}"}
    values = tuple(sorted({*others, own}))
    texts = tuple(f"{value:.4g}" for value in values)
    return Axis(key, title, values, texts, values.index(own))


def round_axis(own: Threat, rounds: int) -> Axis:
    """Build the slider over the attacked rounds.

    Its values are single rounds, one unknown round, and all rounds. The run's own rounds come first.
    """
    singles = {(1,), (rounds,)} - {own.rounds}
    known = sorted({own.rounds, *singles}) if own.rounds_at_most is None else [own.rounds, *sorted(singles)]
    values: list[Any] = [list(one) for one in known]
    texts = [own.rounds_text if one == own.rounds else f"round {one[0]}" for one in known]
    if own.rounds_at_most is not None:
        values[0] = {"any": own.rounds_at_most}
    place = known.index(own.rounds)
    for word, text in ((UNKNOWN, "one round, unknown which"), (EVERY, "every round")):
        asked = tuple(range(1, rounds + 1))
        if own.rounds != asked or (word == EVERY) != (own.rounds_at_most is None):
            values.append(word)
            texts.append(text)
    return Axis("rounds", "attacked rounds", tuple(values), tuple(texts), place)


class Lattice:
    """All questions of the sliders to one run."""

    def __init__(self, run: RunResult, sliders: Sequence[Axis], seconds: float) -> None:
        self.run = run
        self.sliders = sliders
        self.seconds = seconds
        self.curves = Shelf()
        self.checks = Shelf()
        self.answers = Shelf()
        self._votes: dict[tuple[str, str], Mapping[str, Votes]] = {}

    def data(self, shown: Shown | None = None) -> dict[str, Any]:
        """Return all data that the script needs.

        Each point has the number of every certificate's answer. The last slider varies fastest. The points nearest to
        the threat of the run are asked first, so that little is missed if time runs out.
        """
        places = sorted(product(*(range(len(slider.values)) for slider in self.sliders)), key=self.distance)
        answers: dict[tuple[int, ...], list[int]] = {}
        started = time.monotonic()
        for done, place in enumerate(places, 1):
            if time.monotonic() - started > self.seconds:
                break
            answers[place] = self.answers_at(place)
            if shown is not None:
                shown(done, len(places))
        points = [answers.get(place) for place in sorted(places)]
        return {
            "axes": [slider.data() for slider in self.sliders],
            "certificates": [question.certificate.title for question in self.run.certifier.questions],
            "points": points,
            "answers": self.answers.items,
            "curves": self.curves.items,
            "checks": self.checks.items,
            "seconds": self.seconds,
        }

    def distance(self, place: tuple[int, ...]) -> int:
        """Count the sliders that are not where the run has them."""
        return sum(one != slider.own for one, slider in zip(place, self.sliders, strict=True))

    def answers_at(self, place: tuple[int, ...]) -> list[int]:
        """Return the answers of all certificates at one point."""
        certifier = self.ask_at(
            {slider.key: slider.values[one] for one, slider in zip(place, self.sliders, strict=True)}
        )
        return [self.answers.put(self.answer(certifier, place)) for place in range(len(certifier.questions))]

    def ask_at(self, values: Mapping[str, Any]) -> Certifier:
        """Ask the questions under one threat.

        The attackers that the run names stay the same.
        """
        config = self.run.config
        own = self.run.certifier.threat
        settings = dict(values)
        if settings["clients"] == own.attackers:
            settings["clients"] = own.clients
        if settings["rounds"] == list(own.rounds) and config.threat.rounds is not None:
            settings["rounds"] = config.threat.rounds
        threat = type(config.threat).model_validate({**dict(config.threat), **settings})
        return build_certifier(config.model_copy(update={"threat": threat}), self.run.ledger)

    def answer(self, certifier: Certifier, place: int) -> dict[str, Any]:
        """Return the answer of one certificate and what it rests on.

        If the certificate refuses, the answer has the reason.
        """
        question = certifier.questions[place]
        checks = [self.checks.put(check_data(check)) for check in question.audit.checks]
        counted = words.count_checks(question.audit.checks)
        told: dict[str, Any] = {"checks": checks, "counted": counted, "levels": {}}
        if question.audit.refusal:
            return told | {"refused": question.audit.refusal}
        if not has_votes(self.run.directory, question.request):
            return told | {"refused": missing_votes(question.request)}
        found = list(certifier.certify(question, self.votes(question.request, question.settings)))
        for level in question.audit.levels:
            if why := question.audit.refusal_at(level):
                told["levels"][level] = {"refused": why}
        for curve in self.answer_curves(found):
            level = told["levels"].setdefault(curve.level, {**curve_basis(curve), "sets": {}})
            level["sets"][curve.test_set] = self.curves.put(steps(curve))
        return told

    def votes(self, request: VoteRequest, settings: VoteSettings) -> Mapping[str, Votes]:
        """Read stored votes, once."""
        key = request.digest, settings.model_dump_json()
        if key not in self._votes:
            self._votes[key] = self.run.votes(request, settings)
        return self._votes[key]

    def answer_curves(self, found: Sequence[CertificateResult]) -> list[Curve]:
        """Return the curves of guarantees.

        They are read at their usual radii and at those of the sliders.
        """
        marks = {"client": self.sliders[0].values, "sample": self.sliders[2].values}
        shown: list[Curve] = []
        for level in dict.fromkeys(one.level for one in found):
            own = [one for one in found if one.level == level]
            usual = {
                radius for curve in compute_curves(own, self.run.config.evaluation.radii) for radius in curve.radii
            }
            shown += compute_curves(own, sorted(usual | {float(mark) for mark in marks.get(level, ())}))
        return shown


def missing_votes(request: VoteRequest) -> str:
    """Say why stored votes do not answer a question."""
    if request.needs_training:
        return f"needs continuations from round {request.resample_from}, which the run did not store"
    return "needs votes that the run did not store: `crfl certify` can count them"


def steps(curve: Curve) -> dict[str, Any]:
    """Return a curve as counts of samples, which are exact and short."""
    total = curve.samples
    return {
        "samples": total,
        "radii": numbers(curve.radii),
        "right": [round(share * total) for share in curve.certified_accuracy],
        "certified": [round(share * total) for share in curve.certified_rate],
    }


def check_data(check: Check) -> list[str]:
    """Return an assumption and what was found."""
    of = " and ".join(filter(None, (check.level and f"{check.level} level", check.direction)))
    return [check.name, check.status, check.measured, of, words.outcome(check)]
