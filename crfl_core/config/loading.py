"""From files, inheritance and overrides to one frozen config, remembering where each value came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import ValidationError

from crfl_core.config.file_reader import added, read_file
from crfl_core.config.merging import Tree
from crfl_core.config.origins import KeyPath, Origins, explain
from crfl_core.config.overrides import apply_override, with_lists
from crfl_core.config.schema import RunConfig, Trust
from crfl_core.errors import ConfigError
from crfl_core.plugin_loading.missing_plugins import Reading
from crfl_core.plugin_loading.registry import Registry

ConfigSource = str | Path | Mapping[str, Any] | RunConfig


class LoadedConfig(NamedTuple):
    """A config and where its values were written."""

    config: RunConfig
    origins: Origins


def load_config(
    source: ConfigSource | None = None, *, overrides: Sequence[str] = (), registry: Registry | Reading | None = None
) -> LoadedConfig:
    """The config from a file, a mapping or an earlier config, with `key=value` overrides applied in order.

    Without a source it is the default: all defaults of the schema, on the embedded digits, under attack.
    """
    tree, written = read_source(source)
    for override in overrides:
        tree = apply_override(tree, override, written, plugin_defaults())
    found = Origins(written)
    try:
        allow = Trust.model_validate(tree).plugins.allow
        context = {"resolver": (registry or Registry()).allowing(allow)}
        config = RunConfig.model_validate(tree, context=context)
        if stages := config.missing_stages:
            steps = [*stages, *config.aggregation]
            config = RunConfig.model_validate({**dict(config), "aggregation": steps}, context=context)
            for _ in stages:
                found = found.shifted("aggregation", "server.cap_updates")
    except ValidationError as error:
        raise explain(error, tree, found) from error
    return LoadedConfig(config, found)


def plugin_defaults() -> Tree:
    """The defaults of the fields that hold plugins, as a file would write them, so that overrides reach into them."""
    defaults = {key: field.default for key, field in RunConfig.model_fields.items()}
    lists = {key: list(default) for key, default in defaults.items() if isinstance(default, tuple)}
    return lists | {key: default for key, default in defaults.items() if isinstance(default, dict)}


def dump_config(config: RunConfig, *, without: Set[str] = frozenset()) -> str:
    """The config as TOML, `without` some of its tables; loading the complete one gives an equal object."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True, exclude=set(without)))


def read_source(source: ConfigSource | None) -> tuple[Tree, dict[KeyPath, str]]:
    """The merged tree of a source, and where each of its leaves was written."""
    if source is None:
        default = Path(__file__).with_name("default.toml")
        return read_file(default, plugin_defaults(), name="the default config")
    if isinstance(source, RunConfig):
        return source.model_dump(mode="json", exclude_none=True), {}
    if isinstance(source, Mapping):
        tree = dict(source)
        if "extends" in tree:
            raise ConfigError("extends: only a file can extend another; load the base with crfl_core.load_config")
        return added(with_lists({}, tree, plugin_defaults()), tree, {}, "the mapping given to crfl_core")
    return read_file(Path(source), plugin_defaults(), name=str(source))
