"""A finished run, read from its directory."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from crfl_core.certification.certifier import Audit, Certifier, build_certifier
from crfl_core.config import RunConfig, load_config
from crfl_core.errors import CrflWarning, PluginError, StoreError
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.certificate import CertificateResult, Check
from crfl_core.plugin_loading.missing_plugins import LenientRegistry, missing_plugin_messages
from crfl_core.plugin_loading.registry import Registry
from crfl_core.records.inputs import DataFacts, Domain
from crfl_core.records.ledger import Ledger
from crfl_core.records.round import Layout
from crfl_core.records.threat import Threat
from crfl_core.records.votes import VoteRequest, Votes, VoteSettings
from crfl_core.reporting.metrics import Metrics
from crfl_core.runs.certify import certify_all
from crfl_core.runs.fitted_maps import read_fitted
from crfl_core.runs.recorded_environment import used_plugins
from crfl_core.runs.run_directory import CONFIG, RunDirectory
from crfl_core.runs.stored_votes import flat_parameters, read_models
from crfl_core.training.features import FittedMaps
from crfl_core.training.models import build_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

RowKind = Literal["curves", "samples", "rounds", "clients"]
"""What the rows of a data frame are, see `RunResult.to_pandas`."""


class RunResult:
    """A finished run. Its parts are read from the run directory when they are first asked for.

    Plugins that trained it need not be installed any more; whoever asks for something that only such a plugin can do
    gets a `PluginError` that says what to install.
    """

    def __init__(self, path: Path, registry: Registry | None = None, *, trust: bool = False) -> None:
        self.path = path
        self.directory = RunDirectory(path)
        self.registry = reading(self.directory, registry or Registry(), trust=trust)

    @cached_property
    def config(self) -> RunConfig:
        """The complete config."""
        self.directory.read(CONFIG)  # which compares it
        return load_config(self.path / CONFIG, registry=self.registry).config

    @cached_property
    def metrics(self) -> Metrics:
        """Accuracy, backdoor success, certified accuracy and rate."""
        return self.directory.read_facts("metrics.json", Metrics)

    @cached_property
    def ledger(self) -> Ledger:
        """What happened in training: all that certification reads."""
        return self.directory.read_ledger()

    @cached_property
    def audits(self) -> tuple[Audit, ...]:
        """Every assumption of every certificate, and whether it held."""
        content = self.directory.read_json("audit.json")
        try:
            return tuple(
                Audit(
                    entry["certificate"],
                    entry["sound"],
                    entry["label"],
                    tuple(entry["directions"]),
                    tuple(Check(**check) for check in entry["checks"]),
                )
                for entry in content["certificates"]
            )
        except (KeyError, TypeError) as error:
            raise self.directory.damaged("audit.json", error) from error

    @cached_property
    def layout(self) -> Layout:
        """How the model's tensors lie in the parameter vector."""
        return build_model(self.config, data_facts(self.ledger), self.fitted)[1].layout

    @cached_property
    def fitted(self) -> FittedMaps:
        """What feature maps were fitted to before training, by their place in the chain."""
        return read_fitted(self.directory, self.ledger.facts)

    @cached_property
    def parameters(self) -> Tensor:
        """The clipped final aggregate, (P,), before any test noise; of all groups, (G, P), if the run has groups."""
        return flat_parameters(self.directory, self.layout, self.ledger.facts)

    @cached_property
    def certifier(self) -> Certifier:
        """What the certificates of this run ask, and what they assume."""
        if missing := missing_plugin_messages(("certificate", certificate) for certificate in self.config.certificates):
            raise PluginError(missing[0])
        return build_certifier(self.config, self.ledger)

    @property
    def threat(self) -> Threat:
        """What the certificates assume about the attackers."""
        return self.certifier.threat

    def votes(self, request: VoteRequest, settings: VoteSettings | None = None) -> dict[str, Votes]:
        """The stored answer to a request, by test set."""
        directory = self.directory
        return directory.read_votes(self.ledger.facts, request, settings or self.config.votes, directory.model_digest)

    def continued(self, request: VoteRequest) -> Tensor:
        """The models of the continuations that voted on a request."""
        return read_models(self.directory, request, self.layout, self.ledger.facts.dtype)

    @cached_property
    def certified(self) -> tuple[CertificateResult, ...]:
        """Every guarantee, computed again from ledger, votes and threat, of which it is a pure function."""
        return certify_all(self.certifier, self.votes).certified

    @property
    def distances(self) -> tuple[float, ...]:
        """The L2 distance to the clean twin after each round, if `storage.keep = "distances"` was set; else nothing."""
        return self.ledger.twin_distances

    def plot(self, figure: str = "curves", others: Sequence[RunResult] = ()) -> Figure:
        """Draw one of the figures of docs/figures.md, of this run and others.

        Runs that differ in nothing but seeds become one line with a band.
        """
        from crfl_reports.gallery import plot

        return plot([self, *others], figure)

    def to_pandas(self, rows: RowKind = "curves") -> DataFrame:
        """Return a data frame with a row per point of a curve, guarantee of a sample, round, or round and client.

        Needs pandas, an extra: `pip install "crfl[pandas]"`.
        """
        from crfl_core.reporting.notebooks import frame

        return frame(self, rows)

    def _repr_html_(self) -> str:
        from crfl_core.reporting.notebooks import summary

        return summary(self)


def load(path: str | Path, *, plugins: Mapping[str, type[Plugin]] | None = None, trust: bool = False) -> RunResult:
    """A finished run, from its directory. Code of third parties that a run of others names runs only with `trust`."""
    directory = RunDirectory(Path(path))
    if directory.state != "finished":
        raise StoreError(f"{path}: the run is not finished: continue with `crfl resume {path}`")
    if not directory.keeps_record:
        hint = f"damage would not be noticed: `crfl upgrade {path}` lists its files"
        warnings.warn(f"{path}: was written in format 1, which keeps no digests, so {hint}", CrflWarning, stacklevel=2)
    return RunResult(directory.path, Registry(plugins), trust=trust)


def reading(
    directory: RunDirectory, registry: Registry, *, trust: bool, needed: Collection[str] = ()
) -> LenientRegistry:
    """The plugins with which a run is read: for a run of others, those that the person here allows, or trusts."""
    if directory.is_made_by_others and not trust:
        registry = registry.for_foreign_run(directory.path)
    return LenientRegistry(registry, used_plugins(directory), needed)


def data_facts(ledger: Ledger) -> DataFacts:
    """What a model needs to know about its inputs, from the ledger."""
    facts = ledger.facts
    return DataFacts(facts.inputs, facts.classes, Domain(*facts.domain), facts.image_shape)
