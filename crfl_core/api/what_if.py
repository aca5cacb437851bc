"""Other questions to a finished run: another threat, other votes, other options of a certificate. Nothing is trained
again unless noise has to be drawn again, and the run itself is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from crfl_core.absent import absences
from crfl_core.api.certifying import certify_all
from crfl_core.api.execution import located
from crfl_core.api.result import RunResult
from crfl_core.api.stored_votes import Voter
from crfl_core.certification import certifier as certification
from crfl_core.certification import threats
from crfl_core.certification.certifier import Audit
from crfl_core.certification.metrics import Curve, curves
from crfl_core.config import LoadedConfig, RunConfig, dump_config, load_config
from crfl_core.errors import ConfigError, CrflError, PluginError, StoreError
from crfl_core.federation.setup import build, check_threat
from crfl_core.hooks import Hooks
from crfl_core.kinds.certificate import CertificateResult
from crfl_core.kinds.complaints import settings_of
from crfl_core.kinds.engine import Engine
from crfl_core.kinds.tracker import RunContext
from crfl_core.report.files import audit_table, certificate_csv
from crfl_core.store import RunDirectory
from crfl_core.threat import Threat

ASKABLE = ("threat", "votes", "certificates", "evaluation.radii")
Needs = Literal["formulas", "votes", "continuations"]


@dataclass(frozen=True)
class WhatIf:
    """The answer to a what-if question, like the parts of a `RunResult`. `needs` says what had to be computed."""

    config: RunConfig
    threat: Threat
    needs: Needs
    audits: tuple[Audit, ...]
    certified: tuple[CertificateResult, ...]
    curves: tuple[Curve, ...]


def certify(run: RunResult, overrides: Sequence[str] = (), *, save: str | None = None) -> WhatIf:
    """Certify a finished run again with other settings of `threat`, `votes` or `certificates`.

    With `save` the answer is also written to `<run>/what-if/<save>/`. Raises `ConfigError` for keys that would change
    training.
    """
    loaded = changed(run, overrides)
    config = loaded.config
    with located(loaded):
        check_threat(config, run.ledger.facts.clients)
        for position, certificate in enumerate(config.certificates):
            with settings_of(f"certificates.{position}", certificate):
                certification.levels_of(certificate)
    if save is None:
        with TemporaryDirectory(prefix="crfl-") as scratch:
            return answer(run, config, RunDirectory(Path(scratch)))
    if not save.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"--save {save}: use letters, digits, '-', '_' and '.'")
    target = run.path / "what-if" / save
    if target.exists():
        raise StoreError(f"{target}: exists: choose another name to save under")
    with TemporaryDirectory(prefix=".what-if-", dir=run.path) as scratch:
        fresh = RunDirectory(Path(scratch, save))
        result = answer(run, config, fresh)
        write(fresh, result)
        target.parent.mkdir(exist_ok=True)
        fresh.path.rename(target)  # there at once or not at all
    return result


def changed(run: RunResult, overrides: Sequence[str]) -> LoadedConfig:
    """The run's config with the overrides, which may only touch what training does not depend on."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(key == part or key.startswith(f"{part}.") for part in ASKABLE):
            raise ConfigError(
                f"--set {override}: changes training: start another run; a finished one can be asked about "
                f"{', '.join(ASKABLE)}"
            )
    registry = run.registry.needing(("certificate",))
    return load_config(run.path / "config.toml", overrides=overrides, registry=registry)


def needs(run: RunResult, config: RunConfig) -> Needs:
    """What has to be computed to answer: formulas only, new votes of the stored model, or new continuations."""
    directory, found = RunDirectory(run.path), "formulas"
    threat, _ = threats.resolve(config.threat, config.attack, run.ledger)
    for certificate in config.certificates:
        request = certification.request_of(certificate, run.ledger, threat, config.votes)
        refused = certification.audit(certificate, run.ledger, threat).refusal
        if not directory.has_votes(request) and not (refused and request.kind == "continuations"):
            found = "continuations" if request.kind == "continuations" or found == "continuations" else "votes"
    return found  # type: ignore[return-value]


def answer(run: RunResult, config: RunConfig, target: RunDirectory) -> WhatIf:
    """The guarantees under another config."""
    required = needs(run, config)
    if required == "continuations" and (missing := absences(config.named_plugins())):
        raise PluginError(f"{missing[0]}: new continuations train with it")
    source = run.votes if required == "formulas" else new_votes(run, config, target)
    audits, certified = [], []
    for audit, guarantees in certify_all(config, run.ledger, source):
        audits.append(audit)
        certified += list(guarantees)
    return WhatIf(
        config=config,
        threat=threats.resolve(config.threat, config.attack, run.ledger)[0],
        needs=required,
        audits=tuple(audits),
        certified=tuple(certified),
        curves=curves(certified, config.evaluation.radii),
    )


def new_votes(run: RunResult, config: RunConfig, target: RunDirectory) -> Voter:
    """A voter with model and data, after checking that they are those of the run."""
    federation = build(config)
    for name, expected in run.ledger.facts.test_sets.items():
        found = federation.test_sets.get(name)
        if found is None or found.facts != expected:
            raise CrflError(
                f"{run.path}: the {name} test set is not the one that this run was tested on: restore its data"
            )
    for name in ("samples", "input_norms", "feature_norms"):
        if getattr(federation.facts, name) != getattr(run.ledger.facts, name):
            raise CrflError(f"{run.path}: the training data are not those of this run, {name} differ: restore them")
    running = [(kind, plugin.model_copy()) for kind, plugin in config.named_plugins() if kind != "tracker"]
    engine = next(plugin for _, plugin in running if isinstance(plugin, Engine))
    context = RunContext(
        config.name, target.path, config.rounds, config.rounds, federation.data, federation.model, federation.features
    )
    hooks = Hooks(running)
    return Voter(federation, engine, hooks, context, RunDirectory(run.path), target, run.ledger)


def write(target: RunDirectory, result: WhatIf) -> None:
    """The answer as files, in the format of a run directory."""
    target.write("config.toml", dump_config(result.config).encode())
    for audit in result.audits:
        of_certificate = [one for one in result.certified if one.certificate == audit.certificate]
        if of_certificate:
            target.write(f"certificates/{audit.certificate}.csv", certificate_csv(of_certificate))
    target.write_json("audit.json", {"certificates": audit_table(result.audits)})
    target.write_json("metrics.json", {"curves": [one.model_dump() for one in result.curves]})
