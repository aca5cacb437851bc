"""Checks of every plugin, whatever its kind."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import random
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from crfl_core.config import dump_config, load_config
from crfl_core.errors import CrflError, PluginError
from crfl_core.plugin_api import LOCAL
from crfl_core.plugin_api.aggregator import Stage
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.plugin_loading.class_checks import check_version, hook_names
from crfl_core.plugin_loading.hooks import Hooks
from crfl_core.plugin_loading.registry import Registry, plugin_summary
from crfl_core.testing.suite import USES, Case, CheckFailed, Skipped, Use, check_for, difference


def use_of(plugin: type[Plugin]) -> Use:
    """Return the ordinary use of a plugin of this kind."""
    return next(use for base, use in USES.items() if issubclass(plugin, base))


def registry_of(case: Case[Plugin]) -> Registry:
    """Return a registry of everything installed and the plugin under test."""
    return Registry({case.name: type(case.plugin)})


def table_of(case: Case[Plugin]) -> dict[str, Any]:
    """Return the smallest config that names the plugin."""
    plugin = case.plugin
    if isinstance(plugin, Stage):
        return {"aggregation": [plugin, "fedavg"]}
    if case.kind == "optimiser":
        return {"server": {"optimiser": plugin}}
    if case.kind == "feature-map":
        return {"model": {"type": "softmax", "features": [plugin]}}
    if case.kind == "algorithm":
        return {"training": {"algorithm": plugin}}
    tables = {
        "aggregator": "aggregation",
        "partitioner": "partition",
        "certificate": "certificates",
        "tracker": "trackers",
    }
    return {tables.get(case.kind, case.kind): plugin}


@check_for(Plugin)
def check_loads_class(case: Case[Plugin]) -> None:
    """The class is complete and written for an API version that this release offers."""
    try:
        check_version(case.plugin.full_name, type(case.plugin), LOCAL)
    except PluginError as error:
        raise CheckFailed(
            "a class that the registry loads", str(error), "correct `api_version`, an integer, or leave it out"
        ) from error


@check_for(Plugin)
def check_documents_options(case: Case[Plugin]) -> None:
    """The class has a docstring and every option a description: both appear in `crfl plugins` and in the docs."""
    plugin = type(case.plugin)
    if "__doc__" not in vars(plugin) or not plugin_summary(plugin):
        raise CheckFailed("a docstring", f"none on {plugin.__name__}", "say in one line what the plugin does")
    bare = [name for name, field in plugin.model_fields.items() if not field.description]
    if bare:
        raise CheckFailed(
            "a description for every option",
            f"none for {', '.join(bare)}",
            f"write {bare[0]}: ... = Field(..., description='what it means')",
        )


@check_for(Plugin)
def check_options_survive_a_config_file(case: Case[Plugin]) -> None:
    """Options that are written to a config file and read again make an equal plugin."""
    registry = registry_of(case)
    config = load_config(table_of(case), registry=registry).config
    try:
        again = load_config(tomllib.loads(dump_config(config)), registry=registry).config
    except CrflError as error:
        raise CheckFailed(
            "a config file that can be read again", str(error), "use options of plain types: numbers, strings, tuples"
        ) from error
    for (_, before), (_, after) in zip(config.named_plugins(), again.named_plugins(), strict=True):
        if not have_same_options(before, after):
            raise CheckFailed(
                f"{before!r} after writing and reading a config file",
                f"{after!r}",
                "use options of plain types, and serialisers that invert their validators",
            )


def have_same_options(one: object, other: object) -> bool:
    """Return whether two values are equal.

    Plugins in them are equal if their options are. Where their classes come from does not count.
    """
    if isinstance(one, Plugin) and isinstance(other, Plugin):
        return type(one) is type(other) and all(map(have_same_options, dict(one).values(), dict(other).values()))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(have_same_options, one, other))
    return one == other


@check_for(Plugin)
def check_options_have_a_json_schema(case: Case[Plugin]) -> None:
    """The options can be described to editors and validators as JSON Schema."""
    try:
        schema = json.loads(json.dumps(type(case.plugin).model_json_schema()))
    except Exception as error:
        raise CheckFailed(
            "a JSON Schema of the options",
            f"{type(error).__name__}: {error}",
            "use types that pydantic can describe, or annotate them with WithJsonSchema",
        ) from error
    missing = set(type(case.plugin).model_fields) - set(schema.get("properties", {}))
    if missing:
        raise CheckFailed("every option in the JSON Schema", f"none for {min(missing)}", "do not hide options")


@check_for(Plugin)
def check_freezes_options(case: Case[Plugin]) -> None:
    """Instances are frozen and refuse options that they do not know."""
    settings = case.plugin.model_config
    if not settings.get("frozen") or settings.get("extra") != "forbid":
        raise CheckFailed(
            "a frozen model that forbids unknown options",
            f"frozen = {settings.get('frozen')}, extra = {settings.get('extra')!r}",
            "do not override `model_config`",
        )


@check_for(Plugin)
def check_hooks_exist(case: Case[Plugin]) -> None:
    """Every hook is spelled as in `crfl_core.plugin_api.hookspecs`, takes its arguments, and carries `@hookimpl`."""
    plugin = type(case.plugin)
    marked = hook_names(type(case.plugin))
    bare = [name for name, _ in inspect.getmembers(plugin) if name.startswith("crfl_") and name not in marked]
    if bare:
        raise CheckFailed("@hookimpl on every hook", f"{bare[0]} without it", "mark it with @crfl_core.hookimpl")
    try:
        Hooks([(case.kind, case.plugin)])
    except PluginError as error:
        raise CheckFailed(
            "hooks that exist", str(error), "crfl_core/plugin_api/hookspecs.py has names and arguments"
        ) from error
    if isinstance(case.plugin, Tracker) and not marked:
        raise CheckFailed("a tracker that watches something", "no hook at all", "mark its methods with @hookimpl")


@check_for(Plugin)
def check_answers_are_repeatable(case: Case[Plugin]) -> None:
    """Equal input gives equal output, bit for bit, also from an instance that was never used before."""
    use = use_of(type(case.plugin))
    first = use(case.plugin, case)
    for other, who in ((case.plugin, "the same instance"), (case.fresh(), "a fresh instance")):
        if found := difference(first, use(other, case)):
            raise CheckFailed(
                "the same answer to the same input",
                f"that {found}, asking {who} again",
                "draw random numbers from the `Streams` that are handed in, and keep no state on the instance",
            )


@check_for(Plugin)
def check_keeps_global_state(case: Case[Plugin]) -> None:
    """Using the plugin prints nothing to stdout and leaves global random generators and settings as they were."""
    with watch_globals("using it"):
        use_of(type(case.plugin))(case.plugin, case)


@check_for(Plugin)
def check_importing_has_no_side_effects(case: Case[Plugin]) -> None:
    """Importing the plugin's module prints nothing and changes no global setting."""
    module = sys.modules.get(type(case.plugin).__module__)
    found = getattr(module, "__spec__", None)
    if module is None or found is None or found.origin is None or not found.has_location:
        raise Skipped("its class was not imported from a file")
    name = f"{found.parent}.again" if found.parent else "again"
    spec = importlib.util.spec_from_file_location(name, found.origin)
    if spec is None or spec.loader is None:
        raise Skipped(f"{found.origin} cannot be imported a second time")
    copy = importlib.util.module_from_spec(spec)
    sys.modules[name] = copy  # pydantic looks annotations up there
    try:
        with watch_globals("importing it"):
            spec.loader.exec_module(copy)
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def watch_globals(doing: str) -> Iterator[None]:
    """Raise `CheckFailed` if something global changes.

    That is a print to stdout, or a change of a global generator or setting of PyTorch.
    """
    before = global_state()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    if text := printed.getvalue():
        raise CheckFailed(
            "nothing on stdout, which may be JSON",
            f"that {doing} prints {text[:60]!r}",
            "write to stderr, or not at all",
        )
    for name, value in global_state().items():
        if found := difference(before[name], value):
            raise CheckFailed(
                "global state to be left alone",
                f"that {doing} changes {name}: {found.removeprefix('the answer ')}",
                "draw from `Streams`, or restore what you change",
            )


def global_state() -> dict[str, object]:
    """Return the global state that a plugin must leave alone."""
    return {
        "the random generator of torch": torch.get_rng_state(),
        "the random generator of numpy": np.random.get_state(),
        "the random generator of Python": random.getstate(),
        "torch's default dtype": str(torch.get_default_dtype()),
        "torch's number of threads": torch.get_num_threads(),
    }
