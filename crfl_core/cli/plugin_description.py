"""Description of one plugin for `crfl plugins show`, from its class alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc

from crfl_core.config.options import default_text, example_value, plugin_places, to_toml, type_text
from crfl_core.config.schema import RunConfig
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.aggregator import AggregationStep, Aggregator, Stage
from crfl_core.plugin_api.attack import FREE_METHODS, Attack
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.certificate import Certificate
from crfl_core.plugin_loading.class_checks import hook_names
from crfl_core.plugin_loading.registry import FoundPlugin, plugin_summary
from crfl_core.records.round import Dependence

NEEDS: dict[Dependence, str] = {
    "fixed": "only their weighted sum: they are added up as they arrive, and none is kept",
    "own": "each by itself: they are shortened and added up as they arrive, and none is kept",
    "all": "all together: the server keeps those of a round until the last has arrived",
}
"""Descriptions of what a step needs of the updates, by `depends`, which the base class decides."""

WEIGHTS: dict[Dependence, str] = {
    "fixed": "follow from the participants alone; the core does the arithmetic, and every certificate can use them",
    "own": "times a factor that depends on the client's own update; certificates use p_i and the cap, as long as no "
    "honest client is shortened",
    "all": "depend on the updates of all clients; certificates that need fixed weights refuse them",
}


@dataclass(frozen=True)
class OptionDescription:
    """One option: what may be written, its default and its meaning."""

    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class PluginDescription:
    """Description of a plugin for its users. `facts` maps titles to texts."""

    kind: str
    name: str
    distribution: str
    version: str
    base: str
    about: str
    options: tuple[OptionDescription, ...]
    facts: dict[str, str]
    example: str


def describe_plugin(found: FoundPlugin, plugin: type[Plugin]) -> PluginDescription:
    """Describe a plugin by everything that its class says about it."""
    return PluginDescription(
        kind=found.kind,
        name=found.name,
        distribution=found.distribution,
        version=found.version,
        base=base_of(plugin, found.kind).__name__,
        about=cleandoc(plugin.__doc__ or ""),
        options=tuple(options_of(plugin)),
        facts=dict(facts_of(plugin, found.kind)),
        example=example_of(found.kind, found.name, plugin),
    )


def base_of(plugin: type[Plugin], kind: str) -> type[Plugin]:
    """Return a plugin's contract, its nearest base class in the core."""
    core = KINDS[kind].base.__module__
    near = next((base for base in plugin.__mro__ if base.__module__ == core), KINDS[kind].base)
    assert issubclass(near, Plugin)
    return near


def options_of(plugin: type[Plugin]) -> Iterator[OptionDescription]:
    """Yield the options with limits, defaults and meanings, the plugin's own first."""
    fields = plugin.model_fields
    inherited = kind_options(plugin)
    for name in sorted(fields, key=lambda name: name in inherited):
        field = fields[name]
        kind = type_text(field.annotation, field.metadata)
        default = default_text(field)
        yield OptionDescription(name, kind.replace("`", ""), default.replace("`", ""), field.description or "")


def kind_options(plugin: type[Plugin]) -> set[str]:
    """Return the options that every plugin of this kind has."""
    return {name for kind in KINDS.values() if kind.includes(plugin) for name in kind.base.model_fields}


def facts_of(plugin: type[Plugin], kind: str) -> Iterator[tuple[str, str]]:
    """Yield what follows from the class, as titles and texts."""
    base = base_of(plugin, kind)
    yield "contract", f"{base.__name__}: {plugin_summary(base)}"
    if issubclass(plugin, AggregationStep):
        yield from step_facts(plugin)
    if issubclass(plugin, Attack):
        yield "threat", threat_of(plugin)
    if issubclass(plugin, Certificate):
        yield "levels", ", ".join(plugin.levels_offered)
        yield "statement", f"{plugin.statement}, {'sound' if plugin.sound else plugin.label or 'not sound'}"
    if hooks := hook_names(plugin):
        yield "hooks", ", ".join(hooks)
    yield "source", source_of(plugin)


def step_facts(step: type[AggregationStep]) -> Iterator[tuple[str, str]]:
    """Yield the facts about a step's weights and updates.

    They are what its weights depend on, and what it needs of the updates.
    """
    yield "depends", step.depends
    yield "needs of the updates", NEEDS[step.depends]
    yield "weights p_i", WEIGHTS[step.depends]
    if issubclass(step, Aggregator) and step.depends == "all":
        known = step.breakdown is not Aggregator.breakdown
        what = "bounded: certificates of votes behind the attacked round count clients" if known else "not known"
        yield "breakdown", what


def threat_of(attack: type[Attack]) -> str:
    """Return what a certificate must assume about attackers that use this attack."""
    free = [name for name in FREE_METHODS if getattr(attack, name) is not getattr(Attack, name)]
    if free:
        return f"update: attackers submit what they like ({', '.join(f'{name}()' for name in free)})"
    if attack.poison is not Attack.poison:
        return "poisoned samples: inputs or labels change, local training follows the protocol"
    return "a scaled update: data and local training follow the protocol"


def source_of(plugin: type[Plugin]) -> str:
    """Return the module and file of a class."""
    try:
        return f"{plugin.__module__}.{plugin.__qualname__} ({inspect.getsourcefile(plugin)})"
    except (OSError, TypeError):
        return f"{plugin.__module__}.{plugin.__qualname__}"


def example_of(kind: str, name: str, plugin: type[Plugin]) -> str:
    """Return the smallest config that names the plugin.

    Its own options are at their defaults.
    """
    key, is_list = plugin_places()[kind]
    inherited = kind_options(plugin)
    shown = {
        option: value
        for option, field in plugin.model_fields.items()
        if (option not in inherited or field.is_required()) and (value := example_value(field)) is not None
    }
    table = "{ " + ", ".join([f'type = "{name}"', *(f"{option} = {value}" for option, value in shown.items())]) + " }"
    if issubclass(plugin, Stage):
        table += f", {to_toml(RunConfig.model_fields[key].default[-1])}"  # a list ends with a rule
    value = f"[{table}]" if is_list else table
    outer, _, inner = key.rpartition(".")
    default = RunConfig.model_fields[outer].default if outer else None
    if isinstance(default, dict) and "type" in default:  # the table of a plugin, which has to name it
        return f'{outer} = {{ type = "{default["type"]}", {inner} = {value} }}'
    return f"{key} = {value}"
