"""What a plugin author may import. A name that disappears here breaks other people's packages."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import crfl
import crfl_core
from crfl_core import extend


def modules_of(stub: str) -> dict[str, str]:
    """The module that each name of a door comes from."""
    tree = ast.parse((Path(crfl_core.__file__).parent / stub).read_text(encoding="utf-8"))
    return {
        alias.name: str(statement.module)
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


MODULES = modules_of("extend.pyi") | modules_of("__init__.pyi")

FRONT = [
    "ABSTAIN",
    "AttackEffect",
    "AttackReport",
    "AttackedStatement",
    "ClassHistogram",
    "CrflError",
    "CrflWarning",
    "Curve",
    "FIGURES",
    "Metrics",
    "Prediction",
    "RunConfig",
    "RunResult",
    "Threat",
    "WhatIf",
    "__version__",
    "attack_certificates",
    "attack_effect",
    "certify",
    "class_histogram",
    "dump_config",
    "formulas",
    "load",
    "load_config",
    "partition_figure",
    "plot",
    "predict",
    "reading_once",
    "resume",
    "run",
]

EXTEND = [
    "ABSTAIN",
    "Aggregator",
    "Attack",
    "AttackerObservation",
    "AttackerView",
    "BatchMeasurements",
    "Batches",
    "BoundMap",
    "BoundModel",
    "CapStage",
    "Certificate",
    "CertificateResult",
    "Check",
    "ClientRows",
    "ClientUpdates",
    "Clients",
    "CollectiveGuarantee",
    "ConfigArgument",
    "ConfigError",
    "CountVotes",
    "CountingTask",
    "CrflError",
    "CrflWarning",
    "Curve",
    "Data",
    "DataError",
    "DataFacts",
    "DataFile",
    "DataSource",
    "Dataset",
    "Domain",
    "DriftBound",
    "DriftCosts",
    "Engine",
    "ExactVotes",
    "FeatureMap",
    "FederatedData",
    "FileDataset",
    "FittedMap",
    "FixedRate",
    "FixedStage",
    "GroupDistances",
    "GroupFacts",
    "GroupRankings",
    "GroupVotes",
    "Guarantee",
    "ImageMap",
    "ImportPath",
    "Job",
    "JsonOption",
    "Knowledge",
    "Layout",
    "Ledger",
    "Level",
    "LinearAggregator",
    "LinearModel",
    "LocalAlgorithm",
    "LocalModels",
    "LocalRound",
    "LocalStep",
    "LocalUpdates",
    "LogitVotes",
    "Mixing",
    "Model",
    "ModelFacts",
    "ModuleModel",
    "NoisyModels",
    "OptimiserResult",
    "OptionError",
    "PartialCount",
    "Partitioner",
    "Plugin",
    "PluginError",
    "PluginFailure",
    "PluginField",
    "ProximalAlgorithm",
    "QuietOption",
    "RealisedAttack",
    "Registry",
    "RootSamples",
    "Round",
    "RoundFacts",
    "RoundRecord",
    "RuleResult",
    "RunArgument",
    "RunContext",
    "RunError",
    "RunResult",
    "ScalingKind",
    "ServerOptimiser",
    "ServerView",
    "SetOption",
    "SplitDataset",
    "Stage",
    "StageResult",
    "State",
    "StatefulAlgorithm",
    "StepDirection",
    "Streams",
    "Table",
    "Threat",
    "Tracker",
    "TrainingTask",
    "TrustOption",
    "UserPath",
    "VoteRequest",
    "VoteSettings",
    "Votes",
    "WeightedRule",
    "Weighting",
    "assumption_checks",
    "bias_input",
    "build_guarantee",
    "cache_dir",
    "check_breakdown_direction",
    "formulas",
    "forward_checks",
    "hookimpl",
    "input_bound",
    "margin_thresholds",
    "may_write_caches",
    "open_job",
    "passing",
    "pathwise_checks",
    "plot",
    "progress",
    "remote_rows",
    "smoothed_thresholds",
    "smoothness",
    "spectrum_checks",
    "terminal",
    "vote_bounds",
    "vote_count_request",
]

PUBLIC = sorted({*FRONT, *EXTEND})


def public(name: str) -> object:
    return getattr(crfl_core if name in FRONT else extend, name)


def test_the_public_names_are_these() -> None:
    assert sorted(vars(crfl_core)["__all__"]) == FRONT == sorted(modules_of("__init__.pyi"))
    assert sorted(vars(extend)["__all__"]) == EXTEND == sorted(modules_of("extend.pyi"))


def test_the_front_door_is_small() -> None:
    assert len(FRONT) <= 30


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert public(name) is getattr(importlib.import_module(MODULES[name]), name)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    value = public(name)
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
        assert value.__doc__
    else:
        assert name in documented_constants(MODULES[name])


def documented_constants(module: str) -> set[str]:
    """Names that a module assigns and explains in a string right below; a module's docstring explains a single one."""
    source = Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
    body = ast.parse(source).body
    assigned = [
        (statement.targets[0].id, below)
        for statement, below in zip(body, [*body[1:], None], strict=True)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    ]
    return {
        name
        for name, below in assigned
        if (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)) or len(body) == 2
    }


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isclass(public(name))])
def test_every_public_method_is_documented(name: str) -> None:
    value = public(name)
    bare = [
        attribute
        for attribute, member in vars(value).items()
        if not attribute.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | staticmethod | classmethod))
        and not inspect.getdoc(member)
    ]
    assert bare == []


def test_a_name_for_plugins_says_where_it_is() -> None:
    with pytest.raises(AttributeError, match=r"crfl_core\.Aggregator: import it from crfl_core\.extend"):
        vars(crfl_core)["__getattr__"]("Aggregator")


def test_the_front_door_has_the_names_of_the_framework_and_those_of_experiments() -> None:
    assert {*vars(crfl)["__all__"]} == {*FRONT, "Comparison", "SweepResult", "compare", "sweep"}
    assert all(getattr(crfl, name) is getattr(crfl_core, name) for name in FRONT)
    assert callable(crfl.sweep)
    assert callable(crfl.compare)


def test_the_front_door_loads_no_torch_until_a_name_needs_it() -> None:
    code = "import sys, crfl; dir(crfl); crfl.CrflError; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_line_runs_as_the_module_of_the_front_door() -> None:
    command = [sys.executable, "-m", "crfl", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"crfl {crfl.__version__}\n"
