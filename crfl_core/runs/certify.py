"""Other questions to a finished run: another threat, other votes, other options of a certificate.

Only a certificate that draws noise again trains, and the run itself is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from crfl_core.certification.certifier import Certifier, build_certifier, select_levels
from crfl_core.config import LoadedConfig, RunConfig, dump_config, load_config
from crfl_core.errors import ConfigError, CrflError, PluginError, StoreError
from crfl_core.files.atomic_files import (
    create_folders,
    explain_os_errors,
    refuse_links,
    rename_folder,
    scratch_folder,
)
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.plugin_loading.missing_plugins import missing_plugin_messages
from crfl_core.reporting.csv_files import audit_entries
from crfl_core.reporting.verdict import verdict
from crfl_core.runs.resource_needs import check_questions
from crfl_core.runs.results import Results, RunResult, certify_all
from crfl_core.runs.run import locate_errors
from crfl_core.runs.run_directory import UNSAVED_ANSWER, RunDirectory
from crfl_core.runs.stored_votes import has_votes
from crfl_core.runs.voter import Voter
from crfl_core.training.federation import Federation, build
from crfl_core.training.session import Session
from crfl_core.training.threats import check_threat

if TYPE_CHECKING:
    from crfl_core.plugin_api.tracker import Tracker
    from crfl_core.records.threat import Threat

ASKABLE = ("threat", "votes", "certificates", "evaluation.radii")
Needs = Literal["formulas", "votes", "continuations"]
Attacked = Literal["any", "every"] | int
"""Any one round, every round, or at most this number of unknown rounds."""


@dataclass(frozen=True)
class WhatIf(Results):
    """The answer to a what-if question, like the parts of a `RunResult`. `needs` says what had to be computed.

    `clients` is the number of clients of the run.
    """

    config: RunConfig
    threat: Threat
    needs: Needs
    clients: int

    @property
    def verdict(self) -> str:
        """Return in one sentence what is certified."""
        return verdict(
            self.curves,
            self.refused,
            audit_entries(self.audits),
            clients=self.clients,
            attackers=self.threat.attackers,
        )


def certify(
    run: RunResult,
    overrides: Sequence[str] = (),
    *,
    rounds: Attacked | None = None,
    save: str | None = None,
    trackers: Sequence[Tracker] = (),
) -> WhatIf:
    """Certify a finished run again with other settings.

    They are overrides of `threat`, `votes` or `certificates`. `rounds` asks about attacks in "any" one round, in at
    most a number of unknown rounds, or in "every" round, as `threat.rounds` does. With `save` the answer is also
    written to `<run>/what-if/<save>/`. `trackers` are told how far the work is. Raises `ConfigError` for keys that
    would change training.
    """
    if rounds is not None:
        asked = f"{{any = {rounds}}}" if isinstance(rounds, int) else f'"{rounds}"'
        overrides = (*overrides, f"threat.rounds={asked}")
    loaded = load_changed_config(run, overrides)
    config = loaded.config
    with locate_errors(loaded):
        check_threat(config, run.ledger.facts.clients)
        for position, certificate in enumerate(config.certificates):
            with errors_of(f"certificates.{position}", certificate):
                select_levels(certificate)
    if save is None:
        with TemporaryDirectory(prefix="crfl-") as nowhere:
            return answer_question(run, config, RunDirectory(Path(nowhere)), trackers)
    if not save.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"--save {save}: use letters, digits, '-', '_' and '.'")
    target = run.path / "what-if" / save
    refuse_links(run.path, f"what-if/{save}")
    with explain_os_errors(f"{target}: cannot be written"), scratch_folder(run.path, UNSAVED_ANSWER) as folder:
        if target.exists():
            raise StoreError(f"{target}: exists: choose another name to save under")
        fresh = RunDirectory(folder / save)
        result = answer_question(run, config, fresh, trackers)
        fresh.write("config.toml", dump_config(config).encode())
        result.write(fresh)
        fresh.finish({"run": run.directory.status.get("manifest")})
        create_folders(target.parent)
        rename_folder(fresh.path, target)  # there at once or not at all
    return result


def load_changed_config(run: RunResult, overrides: Sequence[str]) -> LoadedConfig:
    """Return the run's config with overrides.

    They may only change what training does not depend on.
    """
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(key == part or key.startswith(f"{part}.") for part in ASKABLE):
            raise ConfigError(
                f"--set {override}: changes training: start another run; a finished one can be asked about "
                f"{', '.join(ASKABLE)}"
            )
    registry = run.registry.needing(("certificate",))
    return load_config(run.path / "config.toml", overrides=overrides, registry=registry)


def find_needs(run: RunResult, certifier: Certifier) -> Needs:
    """Return what the answer needs.

    It needs formulas only, new votes of the stored model, or new continuations.
    """
    asked = [question.request for question in certifier.questions if question.needs_votes]
    missing = [request for request in asked if not has_votes(run.directory, request)]
    if any(request.needs_training for request in missing):
        return "continuations"
    return "votes" if missing else "formulas"


def answer_question(run: RunResult, config: RunConfig, target: RunDirectory, trackers: Sequence[Tracker]) -> WhatIf:
    """Compute the guarantees under another config."""
    certifier = build_certifier(config, run.ledger)
    required = find_needs(run, certifier)
    if required != "formulas":
        check_questions(certifier, run.path)
    if required == "continuations" and (missing := missing_plugin_messages(config.used_plugins())):
        raise PluginError(f"{missing[0]}: new continuations train with it")
    source = run.votes if required == "formulas" else build_voter(run, config, target, trackers)
    results = certify_all(certifier, source, config.evaluation.radii)
    clients = run.ledger.facts.clients
    return WhatIf(**vars(results), config=config, threat=certifier.threat, needs=required, clients=clients)


def build_voter(run: RunResult, config: RunConfig, target: RunDirectory, trackers: Sequence[Tracker]) -> Voter:
    """Return a voter with the run's model and data.

    Before that, check that they are the run's.
    """
    over = {"trackers": (), "model": config.model.model_copy(update={"start": None})}  # where it started is recorded
    config = config.model_copy(update=over).with_own_plugins()
    hooks = Hooks([*config.named_plugins(), *(("tracker", tracker) for tracker in trackers)])
    hooks.report_progress("data")
    federation = rebuild_federation(run, config, hooks)
    session = Session.of(federation, target.path, hooks).resume_after(config.rounds)
    return Voter(session, run.directory, target, run.ledger)


def rebuild_federation(run: RunResult, config: RunConfig, hooks: Hooks) -> Federation:
    """Build the federation of a run again.

    Raises `CrflError` unless its data are those of the run.
    """
    federation = build(config, fitted=run.fitted, on_progress=partial(hooks.report_progress, "feature maps"))
    for name, expected in run.ledger.facts.test_sets.items():
        found = federation.test_sets.get(name)
        if found is None or found.facts != expected:
            raise CrflError(
                f"{run.path}: the {name} test set is not the one that this run was tested on: restore its data"
            )
    for name in ("samples", "input_norms", "feature_norms", "reserve"):
        if getattr(federation.facts, name) != getattr(run.ledger.facts, name):
            raise CrflError(f"{run.path}: the training data are not those of this run, {name} differ: restore them")
    return federation
