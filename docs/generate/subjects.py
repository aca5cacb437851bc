"""Pages of the reference, and the names on each."""

from __future__ import annotations

from typing import NamedTuple

from docs.generate.source import PACKAGE, Definition


class Subject(NamedTuple):
    """Page of the reference: the definitions of `modules`, and `names` from anywhere."""

    page: str
    title: str
    text: str
    modules: tuple[str, ...]
    names: tuple[str, ...] = ()


SUBJECTS = (
    Subject(
        "run",
        "Runs",
        "Train, attack, aggregate and certify; read results; ask a finished run other questions. "
        "[From Python](../python.md) shows it in use.",
        (
            "crfl_core.runs.run",
            "crfl_core.training.data_loading",
            "crfl_core.runs.results",
            "crfl_core.runs.certify",
            "crfl_core.runs.attack",
            "crfl_core.runs.predict",
            "crfl_core.runs",
            "crfl_core.reporting",
            "crfl_core._version",
            "crfl_reports",
            "crfl_experiments",
        ),
    ),
    Subject(
        "metrics",
        "Figures of merit",
        "The metrics of a run, as in `metrics.json` and `RunResult.metrics`.",
        ("crfl_core.reporting.metrics",),
        ("AttackEffect",),
    ),
    Subject(
        "configuration",
        "Configs",
        "From files, mappings and overrides to one frozen config. [Configuration](../configuration.md) lists its keys.",
        ("crfl_core.config", "crfl_core.records.table", "crfl_core.records.schedules"),
    ),
    Subject(
        "errors",
        "Errors",
        "Exceptions that are raised on purpose. Every message says what is wrong, where, and what to do.",
        (
            "crfl_core.errors",
            "crfl_core.errors",
        ),
    ),
    Subject(
        "plugins",
        "What all plugins share",
        "The base class of every plugin, how plugins are found, and where their random numbers come from. "
        "[Writing plugins](../writing-plugins/README.md) is the way in.",
        (PACKAGE,),
    ),
    Subject(
        "aggregation",
        "Aggregation",
        "Stages that transform the updates of a round, rules that combine them, and the arguments of both. See "
        "[Writing an aggregator](../writing-plugins/aggregator.md), [Writing a stage](../writing-plugins/stage.md) and "
        "[Composing defences](../composing-defences.md).",
        ("crfl_core.plugin_api.aggregator", "crfl_core.plugin_api.server_view", "crfl_core.records.round"),
    ),
    Subject(
        "optimisers",
        "Server optimisers",
        "How the aggregate of a round becomes the next model. See "
        "[Writing a server optimiser](../writing-plugins/optimiser.md).",
        ("crfl_core.plugin_api.server_optimiser",),
        ("OptimiserResult",),
    ),
    Subject(
        "attacks",
        "Attacks and threats",
        "Actions of malicious clients, measurements of them, and the assumptions of certificates about them. "
        "See [Writing an attack](../writing-plugins/attack.md).",
        ("crfl_core.plugin_api.attack", "crfl_core.records.attacker_view", "crfl_core.records.threat"),
        ("BatchMeasurements",),
    ),
    Subject(
        "data",
        "Datasets and partitions",
        "Where samples come from, how they are scaled, and which client holds which. See "
        "[Writing a dataset](../writing-plugins/dataset.md), "
        "[Writing a partitioner](../writing-plugins/partitioner.md) and [Datasets](../datasets.md).",
        (
            "crfl_core.plugin_api.dataset",
            "crfl_core.plugin_api.partitioner",
            "crfl_core.records.inputs",
            "crfl_core.files.data_files",
        ),
    ),
    Subject(
        "models",
        "Models and feature maps",
        "From flat parameters and inputs to logits and gradients, for many models at once. "
        "See [Writing a model](../writing-plugins/model.md) and "
        "[Writing a feature map](../writing-plugins/feature-map.md).",
        (
            "crfl_core.plugin_api.model",
            "crfl_core.plugin_api.torch_module",
            "crfl_core.plugin_api.softmax_regression",
            "crfl_core.plugin_api.feature_map",
        ),
        ("Layout", "ModelFacts"),
    ),
    Subject(
        "algorithms",
        "Local training",
        "How a client turns gradients into steps. See [Writing an algorithm](../writing-plugins/algorithm.md).",
        ("crfl_core.plugin_api.local_algorithm",),
        ("TrainingFacts",),
    ),
    Subject(
        "engines",
        "Engines",
        "Where clients train and votes are counted. See [Writing an engine](../writing-plugins/engine.md).",
        ("crfl_core.plugin_api.engine", "crfl_core.records.vote_counting", "crfl_core.training"),
        ("LocalUpdates", "TrainingTask", "open_job"),
    ),
    Subject(
        "hooks",
        "Hooks and trackers",
        "How a plugin observes a run or takes part in it. [Hooks](../hooks.md) describes every hook, "
        "[Writing a tracker](../writing-plugins/tracker.md) a plugin that has nothing else.",
        (
            "crfl_core.plugin_api.hookspecs",
            "crfl_core.plugin_loading.hooks",
            "crfl_core.plugin_api.tracker",
            "crfl_core.records.run_context",
        ),
    ),
    Subject(
        "commands",
        "Commands",
        "Subcommands of `crfl` that plugins add.",
        ("crfl_core.plugin_api.command", "crfl_core.cli"),
    ),
    Subject(
        "ledger",
        "The ledger",
        "The record of a run, and all that certification reads about training. See [Concepts](../concepts.md#ledger).",
        ("crfl_core.records.ledger",),
    ),
    Subject(
        "certificates",
        "Certificates",
        "From the ledger, the votes and a threat to a guarantee for every prediction; the functions that the included "
        "certificates use. See [Writing a certificate](../writing-plugins/certificate.md) and, for the proofs, "
        "[Certificates](../certificates.md).",
        ("crfl_core.plugin_api.certificate", "crfl_core.records.votes", "crfl_core.certification"),
    ),
    Subject(
        "formulas",
        "The mathematics",
        "The mathematics of certification as pure functions on arrays; `from crfl import formulas`. "
        "[Certificates](../certificates.md) has the proofs.",
        ("crfl_core.certification.formulas",),
    ),
)


def subject_of(definition: Definition) -> Subject:
    """Return the page of a definition."""
    named = [subject for subject in SUBJECTS if definition.name in subject.names]
    return named[0] if named else max(SUBJECTS, key=lambda subject: len(place_in(subject, definition)))


def place_in(subject: Subject, definition: Definition) -> str:
    """Return the longest module of a subject that contains a definition."""
    inside = [one for one in subject.modules if f"{definition.qualified}.".startswith(f"{one}.")]
    return max(inside, key=len, default="")
