"""Results of certification and finished runs, as people read them in Python.

`Results` holds what all certificates say: audits, guarantees and curves. `certify_all` asks the certificates.
`RunResult` is a finished run, read from its directory; `load` opens one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from crfl_core.certification.certifier import Audit, CertificateQuestion, Certifier, VoteSource, build_certifier
from crfl_core.config import RunConfig, load_config
from crfl_core.errors import CrflError, PluginError, StoreError
from crfl_core.plugin_api.certificate import CertificateResult
from crfl_core.plugin_loading.missing_plugins import LenientRegistry, missing_plugin_messages
from crfl_core.plugin_loading.registry import Registry
from crfl_core.printable_text import printable
from crfl_core.records.inputs import DataFacts, Domain
from crfl_core.records.ledger import Ledger, LedgerRecord
from crfl_core.reporting.csv_files import audit_entries, certificate_csv, collective_csv, metrics_json, trigger_csv
from crfl_core.reporting.metrics import CollectiveCurve, Curve, Metrics, collective_curve, compute_curves
from crfl_core.reporting.verdict import run_verdict
from crfl_core.runs.environment import used_plugins
from crfl_core.runs.run_directory import CONFIG, RunDirectory
from crfl_core.runs.stored_models import flat_parameters, read_fitted_maps, read_models
from crfl_core.runs.stored_votes import read_votes
from crfl_core.training.models import build_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from crfl_core.plugin_loading.registry import LocalPlugin
    from crfl_core.records.round import Layout
    from crfl_core.records.threat import Threat
    from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
    from crfl_core.training.features import FittedMaps

AUDITS = TypeAdapter(tuple[Audit, ...])
RowKind = Literal["curves", "samples", "rounds", "clients"]
"""Kinds of rows of a data frame, see `RunResult.to_pandas`."""


class CurveMetrics(LedgerRecord):
    """The `metrics.json` of a what-if question, which measures no model: a part of a run's."""

    curves: tuple[Curve, ...]
    collective: tuple[CollectiveCurve, ...] = ()
    refused: dict[str, str]


class WhatIfAnswer(CurveMetrics):
    """The same with what was assumed, and what had to be computed: what `crfl certify --json` prints."""

    threat: dict[str, Any]
    needs: str


@dataclass(frozen=True)
class Results:
    """Audits of all certificates, their guarantees, the curves of these, and collective certified accuracy."""

    audits: tuple[Audit, ...]
    certified: tuple[CertificateResult, ...]
    curves: tuple[Curve, ...]
    collective: tuple[CollectiveCurve, ...]

    @property
    def refused(self) -> dict[str, str]:
        """Return the reason of every refusal.

        The keys are the names of certificates or levels.
        """
        return {name: reason for audit in self.audits for name, reason in audit.refusals.items()}

    def plot(self) -> Figure:
        """Plot certified accuracy and rate against radius or number of clients."""
        from crfl_reports.gallery.curves import answer_curves

        return answer_curves(self.curves).figure()

    def to_pandas(self, rows: Literal["curves", "samples"] = "curves") -> DataFrame:
        """Return the answers as a data frame.

        It has one row per point of a curve, or per guarantee of a sample. Needs the extra `crfl[pandas]`.
        """
        from crfl_core.reporting.notebooks import answers_frame

        return answers_frame(self, rows)

    def _repr_html_(self) -> str:
        from crfl_core.reporting.notebooks import results_html

        return results_html(self.curves, self.refused, self.collective)

    def write(self, directory: RunDirectory, metrics: LedgerRecord | None = None) -> None:
        """Write the tables of every certificate, audit.json and metrics.json.

        metrics.json holds `metrics`, by default only the curves.
        """
        for audit in self.audits:
            if found := [one for one in self.certified if one.certificate == audit.certificate]:
                directory.write(f"certificates/{audit.certificate}.csv", certificate_csv(found))
            if by_clients := [one for one in self.curves if one.certificate == audit.certificate and one.by_clients]:
                directory.write(f"certificates/{audit.certificate}-by-clients.csv", trigger_csv(by_clients))
            if together := [one for one in self.collective if one.certificate == audit.certificate]:
                directory.write(f"collective/{audit.certificate}.csv", collective_csv(together))
        directory.write_json("audit.json", {"certificates": audit_entries(self.audits)})
        shown = metrics or CurveMetrics(curves=self.curves, collective=self.collective, refused=self.refused)
        directory.write("metrics.json", metrics_json(shown).encode() + b"\n")


def certify_all(
    certifier: Certifier,
    source: VoteSource,
    radii: Sequence[float] | None = None,
    on_certified: Callable[[CertificateResult], None] | None = None,
    *,
    together: bool = True,
) -> Results:
    """Answer all questions of a certifier, one after the other.

    `on_certified` is called with each guarantee as soon as it exists. Without `together` there is no collective
    certified accuracy, which may take seconds.
    """
    found: list[CertificateResult] = []
    all_curves: list[Curve] = []
    collective: list[CollectiveCurve] = []
    for question in certifier.questions:
        answers = source(question.request, question.settings) if question.needs_votes else {}
        own = []
        for certified in certifier.certify(question, answers):
            if on_certified is not None:
                on_certified(certified)
            own.append(certified)
        curves = compute_curves(own, radii, question.threat.attackers)
        found += own
        all_curves += curves
        if together:
            collective += certify_together(certifier, question, own, curves, answers)
    audits = tuple(question.audit for question in certifier.questions)
    return Results(audits, tuple(found), tuple(all_curves), tuple(collective))


def certify_together(
    certifier: Certifier,
    question: CertificateQuestion,
    certified: Sequence[CertificateResult],
    curves: Sequence[Curve],
    answers: Mapping[str, Votes],
) -> Iterator[CollectiveCurve]:
    """Yield collective certified accuracy on the clean test set.

    It is taken at the numbers of clients of the curve.
    """
    for one, curve in zip(certified, curves, strict=True):
        if (one.level, one.test_set) != ("client", "clean"):
            continue
        clients = tuple(int(radius) for radius in curve.radii if 1 <= radius < math.inf and radius == int(radius))
        collective = certifier.certify_together(question, answers[one.test_set], clients)
        if collective is not None and clients:
            yield collective_curve(one, collective, certifier.ledger.facts.clients)


class RunResult:
    """Finished run, whose parts are read from the run directory at first use.

    The plugins that trained it need not be installed: an operation that needs a missing plugin raises a `PluginError`
    that says what to install.
    """

    def __init__(self, path: Path, registry: Registry | None = None, *, trust: bool = False) -> None:
        self.path = path
        self.directory = RunDirectory(path)
        if self.directory.has(CONFIG):
            self.directory.read(CONFIG)  # a changed one is refused, whatever is asked
        self.registry = reading(self.directory, registry or Registry(), trust=trust)

    @property
    def verdict(self) -> str:
        """Return in one sentence what the run proves."""
        return run_verdict(self.metrics, audit_entries(self.audits))

    @cached_property
    def config(self) -> RunConfig:
        """Return the complete config."""
        self.directory.read(CONFIG)  # which compares it
        return load_config(self.path / CONFIG, registry=self.registry).config

    @cached_property
    def metrics(self) -> Metrics:
        """Return accuracy, attack success rate, certified accuracy and certified rate."""
        return self.directory.read_facts("metrics.json", Metrics)

    @cached_property
    def ledger(self) -> Ledger:
        """Return the record of training, which is all that certification reads."""
        return self.directory.read_ledger()

    @cached_property
    def audits(self) -> tuple[Audit, ...]:
        """Return every assumption of every certificate, and whether it holds."""
        content = self.directory.read_json("audit.json")
        try:
            entries = [{**entry, "levels": [*entry["directions"]]} for entry in content["certificates"]]
            return AUDITS.validate_python(entries)
        except ValidationError as error:
            raise self.directory.damage_error("audit.json", error.errors(include_url=False)[0]["msg"]) from error
        except (KeyError, TypeError) as error:
            raise self.directory.damage_error("audit.json", error) from error

    @cached_property
    def layout(self) -> Layout:
        """Return the places of the model's tensors in the parameter vector."""
        return build_model(self.config, data_facts(self.ledger), self.fitted)[1].layout

    @cached_property
    def fitted(self) -> FittedMaps:
        """Return the fitted parameters of feature maps by their place.

        They were fitted before training. The place is that in the chain.
        """
        return read_fitted_maps(self.directory, self.ledger.facts)

    @cached_property
    def parameters(self) -> Tensor:
        """Return the clipped final model before any test noise.

        It is (P,), or (G, P) if the run has groups.
        """
        return flat_parameters(self.directory, self.layout, self.ledger.facts)

    @cached_property
    def certifier(self) -> Certifier:
        """Return the questions of this run's certificates with their assumptions."""
        if missing := missing_plugin_messages(("certificate", certificate) for certificate in self.config.certificates):
            raise PluginError(missing[0])
        return build_certifier(self.config, self.ledger)

    @property
    def threat(self) -> Threat:
        """Return the threat that the certificates assume."""
        return self.certifier.threat

    def votes(self, request: VoteRequest, settings: VoteSettings | None = None) -> dict[str, Votes]:
        """Return the stored votes of a request, by test set."""
        directory = self.directory
        settings = settings or self.config.votes
        return read_votes(directory, self.ledger.facts, request, settings, directory.model_digest)

    def read_continued_models(self, request: VoteRequest) -> Tensor:
        """Return the models of the continuations that voted on a request."""
        return read_models(self.directory, request, self.layout, self.ledger.facts.dtype)

    @cached_property
    def certified(self) -> tuple[CertificateResult, ...]:
        """Return every guarantee, computed again from ledger, votes and threat."""
        return certify_all(self.certifier, self.votes, together=False).certified

    @property
    def distances(self) -> tuple[float, ...]:
        """Return the L2 distance to the clean twin after each round.

        Empty unless `storage.keep = "distances"` was set.
        """
        return self.ledger.twin_distances

    def plot(self, figure: str = "curves", others: Sequence[RunResult] = ()) -> Figure:
        """Draw one of the figures of docs/figures.md, of this run and others.

        Runs that differ in seeds become bands.
        """
        from crfl_reports.gallery import plot

        return plot([self, *others], figure)

    def to_pandas(self, rows: RowKind = "curves") -> DataFrame:
        """Return a data frame.

        It has a row per point of a curve, per guarantee of a sample, per round, or per round and client. Needs pandas,
        an extra: `pip install "crfl[pandas]"`.
        """
        from crfl_core.reporting.notebooks import run_frame

        return run_frame(self, rows)

    def __repr__(self) -> str:
        """Return the path, the verdict and the main numbers.

        For a damaged run return only the path.
        """
        try:
            text = f"{self.path}: {self.verdict} {self.metrics.summary}"
        except CrflError:
            text = str(self.path)
        return printable(f"<RunResult {text}>")

    def _repr_html_(self) -> str:
        from crfl_core.reporting.notebooks import run_html

        return run_html(self)


def load(path: str | Path, *, plugins: Mapping[str, LocalPlugin] | None = None, trust: bool = False) -> RunResult:
    """Open a finished run.

    Its directory may come from another person, so third-party code that its config names is imported only with
    `trust`. `plugins` adds classes of this program.
    """
    directory = RunDirectory(Path(path))
    if directory.state != "finished":
        raise StoreError(f"{path}: the run is not finished: continue with `crfl run {path}`")
    return RunResult(directory.path, Registry(plugins), trust=trust)


def reading(
    directory: RunDirectory, registry: Registry, *, trust: bool, needed: Collection[str] = ()
) -> LenientRegistry:
    """Return the plugins with which a run is read.

    Without `trust` no third-party code is imported: the directory may come from another person.
    """
    registry = prefer_recorded(directory, registry)
    if not trust:
        registry = registry.for_run_directory(directory.path)
    return LenientRegistry(registry, used_plugins(directory), needed)


def prefer_recorded(directory: RunDirectory, registry: Registry) -> Registry:
    """Return the same plugins, with those of the run preferred.

    If several have one name, the one that the run used counts.
    """
    return registry.with_recorded({key: used.distribution for key, used in used_plugins(directory).items()})


def data_facts(ledger: Ledger) -> DataFacts:
    """Return the ledger's facts that a model needs about its inputs."""
    facts = ledger.facts
    return DataFacts(facts.inputs, facts.classes, Domain(*facts.domain), facts.image_shape)
