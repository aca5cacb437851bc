"""A run from config to files: federation, rounds, ledger, votes, certificates."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torch import Tensor

from crfl_core.certification.certifier import build_certifier, select_levels
from crfl_core.config import LoadedConfig, RunConfig, dump_config, load_config
from crfl_core.errors import ConfigError, CrflError, StoreError
from crfl_core.live_line import is_interactive
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.class_checks import require_observing_tracker
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.plugin_loading.registry import Registry
from crfl_core.records.ledger import RunFacts
from crfl_core.reporting.metrics import Backdoor, ClassHistogram, Metrics, TrustedBaseline, measure_attackers
from crfl_core.runs import environment
from crfl_core.runs.checkpoints import continue_rounds, remove_checkpoint
from crfl_core.runs.replace_run import claim_path, clean_up
from crfl_core.runs.resource_needs import size_check
from crfl_core.runs.results import RunResult, certify_all, load, prefer_recorded, reading
from crfl_core.runs.run_directory import CONFIG, FITTED_MAPS, LEDGER, RunDirectory
from crfl_core.runs.stored_models import read_fitted_maps, read_parameters, write_fitted_maps
from crfl_core.runs.stored_votes import draw_vote_seed
from crfl_core.runs.training_loop import train_rounds
from crfl_core.runs.voter import Voter
from crfl_core.training.clean_twin import check_twin
from crfl_core.training.evaluation import backdoor_score, score
from crfl_core.training.federation import Federation, build
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.session import Session
from crfl_core.training.trusted_baseline import score_trusted_samples

if TYPE_CHECKING:
    from crfl_core.config.loading import ConfigSource
    from crfl_core.config.merging import Origins
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.plugin_api.engine import Job
    from crfl_core.plugin_api.tracker import Tracker
    from crfl_core.plugin_loading.registry import LocalPlugin
    from crfl_core.training.features import FittedMaps


def run(  # noqa: PLR0913  # as many options as people may give
    config: ConfigSource | None = None,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    force: bool = False,
    plugins: Mapping[str, LocalPlugin] | None = None,
    trackers: Sequence[Tracker] = (),
    twin: RunResult | None = None,
    progress: bool | None = None,
) -> RunResult:
    """Train, attack, aggregate and certify as a config says.

    If the directory holds an unfinished run, resume it.

    `config` is a file, a mapping or a `RunConfig`; None is the default on embedded data. `overrides` are `key=value`
    texts. Results go to `out`, by default `runs/<name>`; a finished run there is only replaced with `force`. `plugins`
    adds classes, or functions that weigh updates, under names that the config may use; `trackers` watch this run
    without being part of its config. `twin` is a run without the attack that kept its models:
    `storage.keep = "distances"` then trains none. `progress` shows how far the run is; unset, it does so in notebooks
    and at Python's prompt.
    """
    registry = Registry(plugins)
    loaded = load_config(config, overrides=overrides, registry=registry)
    path = default_path(loaded.config) if out is None else Path(out)
    with locate_errors(loaded):
        session = prepare(loaded.config, path, add_progress(trackers, loaded.config, progress))
        return execute(session, registry, loaded.origins, force=force, twin=twin)


def add_progress(trackers: Sequence[Tracker], config: RunConfig, wanted: bool | None) -> Sequence[Tracker]:
    """Add the tracker that shows progress if it is wanted.

    By default it is wanted where a person types Python.
    """
    if not (is_interactive() if wanted is None else wanted):
        return trackers
    plugin = Registry().load("tracker", "crfl:progress")
    if any(isinstance(tracker, plugin) for tracker in (*trackers, *config.trackers)):
        return trackers
    return [*trackers, cast("Tracker", plugin().with_name("progress"))]


def start_override(path: Path) -> str:
    """Return the override that starts another run from this model.

    It is the trained model of the run at `path`. Raises `StoreError` if the run is not trained yet.
    """
    directory = RunDirectory(path.absolute())
    if directory.state == "training":
        raise StoreError(f"{path}: the run is not trained yet: finish it with `crfl run {path}`")
    return f"model.start={json.dumps(str(directory.path / 'model.safetensors'))}"


def default_path(config: RunConfig) -> Path:
    """Return the directory of a run whose caller names none."""
    return Path("runs", config.name)


def resume(
    path: str | Path,
    *,
    plugins: Mapping[str, LocalPlugin] | None = None,
    trackers: Sequence[Tracker] = (),
    trust: bool = False,
    progress: bool | None = None,
) -> RunResult:
    """Resume an unfinished run.

    A finished one is returned as it is. `progress` is as of `run`. Resuming does what the config in the directory says,
    with the rights of the user. `trust` is needed if it names third-party code, or options of trackers or of the engine
    that say where to write or to connect.
    """
    directory = RunDirectory(Path(path))
    if directory.state == "finished":
        clean_up(directory)
        return load(path, plugins=plugins, trust=trust)
    registry = prefer_recorded(directory, Registry(plugins))
    loaded = load_runnable_config(directory, registry, trust=trust)
    with locate_errors(loaded):
        watching = add_progress(trackers, loaded.config, progress)
        session = prepare(loaded.config, directory.path, watching, read_fitted_maps_of_start(directory))
        return execute(session, registry, loaded.origins)


def load_runnable_config(directory: RunDirectory, registry: Registry, *, trust: bool) -> LoadedConfig:
    """Load the config of a run in order to train with it.

    Raises `CrflError` if that needs `trust`.
    """
    directory.read(CONFIG)  # read() verifies the digest
    loaded = load_config(directory.path / CONFIG, registry=reading(directory, registry, trust=trust, needed=KINDS))
    if not trust:
        check_outside_effects(directory.path, loaded.config)
    return loaded


def check_outside_effects(path: Path, config: RunConfig) -> None:
    """Raise `StoreError` if an untrusted config says where to write.

    The same holds if it says where to connect. Such options are texts and paths of the engine and of trackers; defaults
    stay inside the run directory.
    """
    plugins: dict[str, Plugin] = {"engine": config.engine}
    plugins |= {f"trackers.{position}": tracker for position, tracker in enumerate(config.trackers)}
    for key, plugin in plugins.items():
        for name, field in type(plugin).model_fields.items():
            value = getattr(plugin, name)
            if isinstance(value, str | Path) and value != field.get_default():
                raise StoreError(
                    f"{path}: {key}.{name} = {str(value)!r} decides where the run writes or connects to: read its "
                    "config, then give --trust"
                )


def open_job(specification: str) -> Job:
    """Return the local training that `Job.specification` describes, for engines with other processes."""
    return LocalTraining(build(load_config(tomllib.loads(specification)).config))


def read_fitted_maps_of_start(directory: RunDirectory) -> FittedMaps | None:
    """Return the fitted feature maps of an unfinished run.

    None if the run ended before writing them.
    """
    facts = directory.read_facts(LEDGER, RunFacts)
    return (
        read_fitted_maps(directory, facts) if (directory.path / FITTED_MAPS).exists() or not facts.fitted_maps else None
    )


def prepare(config: RunConfig, path: Path, trackers: Sequence[Tracker], fitted: FittedMaps | None = None) -> Session:
    """Return a run that is ready to start at `path`.

    Checks everything and writes nothing.
    """
    config = config.with_own_plugins()
    watching = tuple(require_observing_tracker(tracker).model_copy() for tracker in trackers)
    hooks = Hooks([*config.named_plugins(), *(("tracker", tracker) for tracker in watching)])
    hooks.report_progress("data")
    federation = build(
        config,
        fitted=fitted,
        on_progress=partial(hooks.report_progress, "feature maps"),
        check_sizes=size_check(config, path),
    )
    for position, certificate in enumerate(config.certificates):
        with errors_of(f"certificates.{position}", certificate):
            select_levels(certificate)
    session = Session.of(federation, path, hooks)
    session.ask_fixed_answers()
    return session


def execute(
    session: Session, registry: Registry, origins: Origins, *, force: bool = False, twin: RunResult | None = None
) -> RunResult:
    """Train, vote, certify and report a run.

    `origins` says where each setting was written.
    """
    check_twin(session.federation.config, twin)
    federation = session.federation
    path = session.context.path
    config = federation.config
    registry = registry.with_allow_list(federation.config.plugins.allow)
    directory = open_or_create_directory(federation, path, registry, origins, force=force)
    with directory.lock():
        directory.check_before_resuming()
        directory.check_facts(federation.facts)
        write_fitted_maps(directory, federation.fitted)
        saved = continue_rounds(directory) if directory.state == "training" else None
        played = config.rounds if directory.state != "training" else 0 if saved is None else saved.round
        session = session.resume_after(played)
        try:
            session.hooks.observe("crfl_run_started", run=session.context)
            with session.open_engine():
                if directory.state == "training":
                    environment.record_environment(directory, config, registry, played)
                    train_rounds(session, directory, saved, twin)
                remove_checkpoint(directory)
                certify_run(session, directory)
        except BaseException as error:
            error.add_note(f"resume with `crfl run {path}`")
            session.hooks.observe("crfl_run_failed", run=session.context, error=error)
            raise
        result = RunResult(path, registry, trust=True)
        session.hooks.observe("crfl_run_finished", run=session.context, result=result)
    return result


def open_or_create_directory(
    federation: Federation, path: Path, registry: Registry, origins: Origins, *, force: bool
) -> RunDirectory:
    """Open the unfinished run directory at `path`, or create a new one."""
    text = dump_config(federation.config)
    directory = claim_path(path, stored_text_if_equal(text, path / CONFIG, registry), force=force)
    if directory is not None:
        return directory
    files = {CONFIG: text, LEDGER: federation.facts.model_dump_json(indent=2) + "\n"}
    return RunDirectory.create(path, files, environment.first_environment(federation.config, registry, origins))


def stored_text_if_equal(text: str, file: Path, registry: Registry) -> str:
    """Return the stored text of a config file if it still holds.

    It holds if it means the same as `text`. Otherwise return `text`.
    """
    with suppress(CrflError, OSError):
        if dump_config(load_config(file, registry=registry).config) == text:
            return file.read_text(encoding="utf-8")
    return text


def certify_run(session: Session, directory: RunDirectory) -> None:
    """Count the votes of a trained run, and certify it.

    Write metrics, audits and figures.
    """
    federation = session.federation
    config = federation.config
    ledger = directory.read_ledger()
    draw_vote_seed(config, directory)
    certifier = build_certifier(config, ledger)
    results = certify_all(
        certifier,
        Voter(session, directory, directory, ledger, is_open=True),
        config.evaluation.radii,
        lambda certified: session.hooks.observe("crfl_certified", run=session.context, certified=certified),
    )
    parameters = read_parameters(directory, federation)
    figures, triggered = (
        score(federation, parameters, name, ledger.failed_groups) if name in federation.test_sets else None
        for name in ("clean", "backdoored")
    )
    assert figures is not None
    data = federation.data
    partition = ClassHistogram.of(data.y.cpu().numpy(), data.partition, data.class_names, data.client_names)
    metrics = Metrics(
        partition=partition,
        accuracy=figures.accuracy,
        loss=figures.loss,
        backdoored_accuracy=None if triggered is None else triggered.accuracy,
        backdoor=measure_backdoor(federation, parameters, ledger.failed_groups),
        attackers=measure_attackers(ledger, config.attack),
        assumed_attackers=certifier.threat.attackers,
        trusted_baseline=measure_trusted_baseline(federation),
        voting=None if ledger.facts.groups is None else ledger.facts.groups.voting,
        curves=results.curves,
        collective=results.collective,
        refused=results.refused,
    )
    results.write(directory, metrics)
    session.hooks.report_progress("figures")
    from crfl_reports.gallery.training import partition_files

    for suffix, content in partition_files(partition, config.storage.figures).items():
        directory.write(f"figures/partition.{suffix}", content)
    directory.finish()
    clean_up(directory)


@contextmanager
def locate_errors(loaded: LoadedConfig) -> Iterator[None]:
    """Say in which file the key of a wrong setting was written."""
    try:
        yield
    except ConfigError as error:
        raise loaded.origins.locate(error) from error


def measure_trusted_baseline(federation: Federation) -> TrustedBaseline | None:
    """Measure the accuracy that the server reaches without any client.

    It trains on its own labelled samples. None if it reserved none.
    """
    found = score_trusted_samples(federation)
    return None if found is None else TrustedBaseline(accuracy=found.accuracy, samples=found.samples)


def measure_backdoor(federation: Federation, parameters: Tensor, failed: Sequence[int]) -> Backdoor | None:
    """Measure how often the backdoor works.

    None if the attack has no target class.
    """
    rates = backdoor_score(federation, parameters, failed)
    if rates is None or federation.config.attack is None or federation.config.attack.backdoor_class is None:
        return None
    samples = int((federation.test_sets["backdoored"].labels != federation.config.attack.backdoor_class).sum())
    return Backdoor(
        target=federation.config.attack.backdoor_class,
        success_rate=rates.success_rate,
        clean_rate=rates.clean_rate,
        samples=samples,
    )
