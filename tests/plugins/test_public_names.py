"""What a plugin author may import. A name that disappears here breaks other people's packages."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import crfl_core
from crfl_core import CrflDeprecationWarning, deprecation

STUB = ast.parse((Path(crfl_core.__file__).parent / "__init__.pyi").read_text(encoding="utf-8"))
MODULES = {
    alias.asname: f"crfl_core.{statement.module}"
    for statement in STUB.body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

PUBLIC = [
    "ABSTAIN",
    "API_VERSION",
    "Aggregate",
    "Aggregator",
    "Attack",
    "AttackEffect",
    "Attackers",
    "Backdoor",
    "Batches",
    "BoundMap",
    "BoundModel",
    "CatalogueEntry",
    "Certificate",
    "Certified",
    "Check",
    "ClassHistogram",
    "ClientColumns",
    "ClientUpdates",
    "Clients",
    "ConfigError",
    "CrflDeprecationWarning",
    "CrflError",
    "CrflWarning",
    "Curve",
    "Data",
    "DataError",
    "DataFacts",
    "DataFile",
    "DataSource",
    "Dataset",
    "Dependence",
    "Domain",
    "Engine",
    "FeatureMap",
    "FederatedData",
    "FileDataset",
    "Guarantee",
    "Job",
    "Layout",
    "Ledger",
    "Level",
    "LinearAggregator",
    "LoadedConfig",
    "LocalModels",
    "Metrics",
    "Model",
    "ModelFacts",
    "ModuleModel",
    "OptionError",
    "Partitioner",
    "Plugin",
    "PluginError",
    "PluginFailure",
    "Poisoning",
    "Prediction",
    "Realised",
    "Registry",
    "Round",
    "RoundRecord",
    "RunConfig",
    "RunContext",
    "RunError",
    "RunFacts",
    "RunResult",
    "ScaffoldError",
    "Scaling",
    "ScalingKind",
    "SplitDataset",
    "Stage",
    "Staged",
    "State",
    "StoreError",
    "Streams",
    "Table",
    "Threat",
    "Tracker",
    "Trained",
    "UserPath",
    "VoteRequest",
    "VoteSettings",
    "Votes",
    "WhatIf",
    "__version__",
    "attack_effect",
    "cache_dir",
    "catalogue",
    "certify",
    "class_histogram",
    "dump_config",
    "fetch_dataset",
    "formulas",
    "hookimpl",
    "load",
    "load_config",
    "open_job",
    "partition_figure",
    "predict",
    "resume",
    "run",
    "verify_datasets",
]


def test_the_public_names_are_these() -> None:
    assert sorted(vars(crfl_core)["__all__"]) == PUBLIC
    assert sorted(name for name in MODULES if name) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(crfl_core, name) is getattr(importlib.import_module(MODULES[name]), name)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(crfl_core, name)
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


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isclass(getattr(crfl_core, name))])
def test_every_public_method_is_documented(name: str) -> None:
    value = getattr(crfl_core, name)
    bare = [
        attribute
        for attribute, member in vars(value).items()
        if not attribute.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | staticmethod | classmethod))
        and not inspect.getdoc(member)
    ]
    assert bare == []


def test_an_old_name_goes_on_working_and_warns_whoever_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(deprecation.RENAMED, "Rule", deprecation.Renamed("Aggregator", "0.4"))
    message = "crfl_core.Rule is called crfl_core.Aggregator now; crfl 0.4 drops the old name"
    with pytest.warns(CrflDeprecationWarning, match=message) as caught:
        exec("from crfl_core import Rule\nassert Rule.__name__ == 'Aggregator'", {"__name__": "somebody_elses_module"})
    assert caught[0].filename == "<string>"


def test_no_old_name_shadows_a_public_one() -> None:
    assert not set(deprecation.RENAMED) & set(PUBLIC)
    assert {new.name for new in deprecation.RENAMED.values()} <= set(PUBLIC)
