"""The whole way of a run: config, federation, rounds, ledger, votes, certificates, files."""

from __future__ import annotations

import platform
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crfl_core import schedules, store
from crfl_core._version import __version__
from crfl_core.absent import Reading
from crfl_core.api.certifying import certify_all
from crfl_core.api.result import RunResult
from crfl_core.api.stored_votes import Voter, opened, packed, read_parameters, unpacked
from crfl_core.certification.certifier import Audit, levels_of
from crfl_core.certification.metrics import Backdoor, ClassHistogram, Curve, Metrics, attackers, curves
from crfl_core.config import LoadedConfig, RunConfig, dump_config, load_config
from crfl_core.config.loading import ConfigSource
from crfl_core.errors import ConfigError, OptionError, PluginError
from crfl_core.federation import rounds
from crfl_core.federation.evaluation import backdoor_score, score
from crfl_core.federation.local import LocalTraining
from crfl_core.federation.setup import Federation, build
from crfl_core.hooks import Hooks
from crfl_core.kinds import KINDS
from crfl_core.kinds.complaints import settings_of
from crfl_core.kinds.engine import Engine, Job
from crfl_core.kinds.plugin import Plugin
from crfl_core.kinds.tracker import RunContext, Tracker
from crfl_core.ledger import ClientColumns
from crfl_core.plugins import Registry
from crfl_core.refusals import hook_names
from crfl_core.report.figures import partition_files
from crfl_core.report.files import audit_table, certificate_csv, metrics_json
from crfl_core.store import RunDirectory


def run(
    config: ConfigSource | None = None,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    force: bool = False,
    plugins: Mapping[str, type[Plugin]] | None = None,
    trackers: Sequence[Tracker] = (),
) -> RunResult:
    """Train, attack, aggregate and certify as a config says; go on if its directory holds an unfinished run.

    `config` is a file, a mapping or a `RunConfig`; None is the default on embedded data. `overrides` are `key=value`
    texts. Results go to `out`, by default `runs/<name>`; a finished run there is only replaced with `force`. `plugins`
    adds classes under names that the config may use; `trackers` watch this run without being part of its config.
    """
    registry = Registry(plugins)
    loaded = load_config(config, overrides=overrides, registry=registry)
    path = default_path(loaded.config) if out is None else Path(out)
    with located(loaded):
        return execute(loaded.config, registry, path, trackers, force=force)


def default_path(config: RunConfig) -> Path:
    """Where a run goes that nobody gave a directory."""
    return Path("runs", config.name)


def resume(
    path: str | Path,
    *,
    plugins: Mapping[str, type[Plugin]] | None = None,
    trackers: Sequence[Tracker] = (),
) -> RunResult:
    """Go on with an unfinished run; a finished one is returned as it is."""
    directory, registry = RunDirectory(Path(path)), Registry(plugins)
    if directory.state == "finished":
        return RunResult(directory.path, registry)
    installed = Reading(registry, store.used_plugins(directory.path), needed=KINDS)
    loaded = load_config(directory.path / "config.toml", registry=installed)
    with located(loaded):
        return execute(loaded.config, registry, directory.path, trackers, force=False)


def open_job(specification: str) -> Job:
    """The local training that `Job.specification` describes, for engines that train in other processes."""
    return LocalTraining(build(load_config(tomllib.loads(specification)).config))


def execute(
    config: RunConfig, registry: Registry, path: Path, trackers: Sequence[Tracker], *, force: bool
) -> RunResult:
    """The whole way of a run. Nothing is written before everything that can be checked was checked."""
    registry = registry.allowing(config.plugins.allow)
    federation = build(config)
    for position, certificate in enumerate(config.certificates):
        with settings_of(f"certificates.{position}", certificate):
            levels_of(certificate)
    kept = resampled_rounds(federation)
    # A run has plugins of its own: what engines and trackers open must not leak into the config's instances.
    running = [(kind, plugin.model_copy()) for kind, plugin in config.named_plugins()]
    running += [("tracker", only_watching(tracker).model_copy()) for tracker in trackers]
    hooks = Hooks(running)
    kept_facts = {"rejects": hooks.may_reject, "resampled": tuple(sorted(kept))}
    federation = replace(federation, facts=federation.facts.model_copy(update=kept_facts))
    engine = next(plugin for _, plugin in running if isinstance(plugin, Engine))
    text = dump_config(config)
    directory = store.claim(path, text, force=force)
    if directory is None:
        directory = RunDirectory.create(
            path, {"config.toml": text, "ledger.json": federation.facts.model_dump_json(indent=2) + "\n"}
        )
    with directory.locked():
        directory.check_facts(federation.facts)
        saved = directory.read_checkpoint() if directory.state == "training" else None
        started = config.rounds if directory.state != "training" else 0 if saved is None else saved.round
        context = RunContext(
            config.name, path, config.rounds, started, federation.data, federation.model, federation.features
        )
        try:
            hooks.observe("crfl_run_started", run=context)
            if directory.state == "training":
                directory.write_json("environment.json", environment(config, registry))
                train(federation, engine, hooks, context, directory, saved, kept)
            directory.remove_checkpoint()
            certify(federation, engine, hooks, context, directory)
        except BaseException as error:
            hooks.observe("crfl_run_failed", run=context, error=error)
            raise
        result = RunResult(path, registry)
        hooks.observe("crfl_run_finished", run=context, result=result)
    return result


def only_watching(tracker: Tracker) -> Tracker:
    """A tracker beside the config must not change a result: the run directory would not say who did."""
    if judged := {"crfl_accept_round", "crfl_effective_weights"} & set(hook_names(type(tracker))):
        raise ConfigError(f"{tracker.configured_as!r} implements {min(judged)}: name it in the config's trackers")
    return tracker


def train(
    federation: Federation,
    engine: Engine,
    hooks: Hooks,
    context: RunContext,
    directory: RunDirectory,
    saved: store.Checkpoint | None,
    kept: Set[int],
) -> None:
    """All rounds that are still to do, with a checkpoint every few seconds, and then the model and the ledger.

    The models before noise of the rounds in `kept` are kept, too.
    """
    progress, clients = rounds.initial(federation), []
    if saved is not None:
        progress, clients = unpacked(saved.round, saved.tensors, federation), saved.clients
    unsaved: list[ClientColumns] = []
    pause, last = federation.config.storage.checkpoint_seconds, time.monotonic()
    with opened(engine, federation):
        for outcome in rounds.train(federation, engine, hooks, context, progress):
            progress = outcome.progress
            clients.append(outcome.clients)
            unsaved.append(outcome.clients)
            if progress.round in kept:
                before_noise = replace(progress, parameters=outcome.aggregate)
                directory.write_resampled(progress.round, packed(before_noise))
            directory.append_round(outcome.record)
            if time.monotonic() - last >= pause:
                directory.write_checkpoint(progress.round, packed(progress), unsaved)
                unsaved, last = [], time.monotonic()
    named = federation.model.layout.unflatten(progress.parameters.cpu())
    directory.write_arrays("clients.npz", vars(ClientColumns.concatenate(clients)))
    directory.write_tensors(
        "model.safetensors", {name: tensor.numpy() for name, tensor in named.items()}, {"crfl": __version__}
    )
    directory.set_state("trained")


def resampled_rounds(federation: Federation) -> Set[int]:
    """The rounds whose model before noise some certificate wants to start from again, all of which exist."""
    config, participation = federation.config, federation.participation
    if config.threat.rounds is not None:
        attacked = schedules.expand(config.threat.rounds, config.rounds)
    else:  # a round counts as attacked only if an attacker is drawn in it
        rounds_of_attack = participation.attack_rounds
        attacked = tuple(number for number in rounds_of_attack if participation.round(number).attacking.any())
    wanted: set[int] = set()
    for position, certificate in enumerate(config.certificates):
        with settings_of(f"certificates.{position}", certificate):
            numbers = certificate.resampled_rounds(attacked or (config.rounds,))
            if any(not 1 <= number <= config.rounds for number in numbers):
                raise OptionError("resample_from", f"found round {max(numbers)}, but rounds are 1..{config.rounds}")
        wanted.update(numbers)
    return wanted


def certify(federation: Federation, engine: Engine, hooks: Hooks, context: RunContext, directory: RunDirectory) -> None:
    """Votes, guarantees, audits and figures of a trained run."""
    config, ledger = federation.config, directory.read_ledger()
    voter = Voter(federation, engine, hooks, context, directory, directory, ledger)
    audits: list[Audit] = []
    shown: list[Curve] = []
    for audit, guarantees in certify_all(config, ledger, voter):
        audits.append(audit)
        found = []
        for certified in guarantees:
            hooks.observe("crfl_certified", run=context, certified=certified)
            found.append(certified)
        if found:
            directory.write(f"certificates/{audit.certificate}.csv", certificate_csv(found))
        shown += curves(found, config.evaluation.radii)
    directory.write_json("audit.json", {"certificates": audit_table(audits)})
    parameters = read_parameters(directory, federation)
    figures = score(federation, parameters)
    triggered = score(federation, parameters, "backdoored") if "backdoored" in federation.test_sets else None
    data = federation.data
    partition = ClassHistogram.of(data.y.cpu().numpy(), data.partition, data.class_names, data.client_names)
    metrics = Metrics(
        partition=partition,
        accuracy=figures.accuracy,
        loss=figures.loss,
        backdoored_accuracy=None if triggered is None else triggered.accuracy,
        backdoor=backdoor(federation, parameters),
        attackers=attackers(ledger),
        curves=tuple(shown),
        refused={name: reason for audit in audits for name, reason in audit.refusals.items()},
    )
    directory.write("metrics.json", metrics_json(metrics).encode() + b"\n")
    for suffix, content in partition_files(partition, config.storage.figures).items():
        directory.write(f"figures/partition.{suffix}", content)
    directory.set_state("finished")
    store.remove_previous(directory.path)


def backdoor(federation: Federation, parameters: Tensor) -> Backdoor | None:
    """How well the backdoor works, for the report."""
    rates = backdoor_score(federation, parameters)
    if rates is None or federation.attack is None or federation.attack.backdoor_class is None:
        return None
    samples = federation.test_sets["backdoored"].facts.samples
    return Backdoor(
        target=federation.attack.backdoor_class,
        success_rate=rates.success_rate,
        clean_rate=rates.clean_rate,
        samples=samples,
    )


def environment(config: RunConfig, registry: Registry) -> dict[str, Any]:
    """Versions of everything that takes part in a run."""
    plugins = []
    for kind, plugin in config.named_plugins():
        try:
            found = registry.find(kind, plugin.configured_as)
            origin = {"distribution": found.distribution, "version": found.version}
        except PluginError:
            origin = {"distribution": type(plugin).__module__, "version": ""}
        plugins.append({"kind": kind, "name": plugin.configured_as} | origin)
    return {
        "crfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "threads": torch.get_num_threads(),
        "plugins": plugins,
    }


@contextmanager
def located(loaded: LoadedConfig) -> Iterator[None]:
    """Say in which file the key of a wrong setting was written."""
    try:
        yield
    except ConfigError as error:
        raise loaded.origins.located(error) from error
