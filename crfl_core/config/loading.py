"""From files, inheritance and overrides to one frozen config, remembering where each value came from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import ValidationError

from crfl_core.absent import Reading
from crfl_core.config.merging import Tree, leaves, merge
from crfl_core.config.origins import KeyPath, Origins, explain
from crfl_core.config.overrides import apply_override, with_lists
from crfl_core.config.presets import is_preset, preset_path
from crfl_core.config.schema import RunConfig, Trust
from crfl_core.errors import ConfigError
from crfl_core.plugins import Registry

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
        tree = apply_override(tree, override, written)
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


def dump_config(config: RunConfig, *, without: Set[str] = frozenset()) -> str:
    """The config as TOML, `without` some of its tables; loading the complete one gives an equal object."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True, exclude=set(without)))


def read_source(source: ConfigSource | None) -> tuple[Tree, dict[KeyPath, str]]:
    """The merged tree of a source, and where each of its leaves was written."""
    if source is None:
        default = Path(__file__).with_name("default.toml")
        return read_file(default, name="the default config", chain=())
    if isinstance(source, RunConfig):
        return source.model_dump(mode="json", exclude_none=True), {}
    if isinstance(source, Mapping):
        tree = dict(source)
        if "extends" in tree:
            raise ConfigError("extends: only a file can extend another; load the base with crfl_core.load_config")
        return added({}, tree, {}, "the mapping given to crfl_core")
    return read_file(Path(source), name=str(source), chain=())


def read_file(path: Path, *, name: str, chain: tuple[Path, ...]) -> tuple[Tree, dict[KeyPath, str]]:
    """A file merged onto what it extends."""
    resolved = path.resolve()
    if resolved in chain:
        raise ConfigError(f"{name}: extends: the files extend each other in a circle: remove one `extends`")
    own = parse_file(path, name)
    bases = own.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{name}: extends = {bases!r}: must be a file name, a preset package:name, or a list of them")
    tree: Tree = {}
    written: dict[KeyPath, str] = {}
    for base in bases:
        base_path = found_base(path, base, name)
        base_name = base if is_preset(base) else str(base_path)
        base_tree, base_written = read_file(base_path, name=base_name, chain=(*chain, resolved))
        if is_preset(base) and "plugins" in base_tree:
            raise ConfigError(f"{base}: plugins: a preset cannot say whose code may run: write it in {name}")
        tree = merge(tree, base_tree, written, base_written)
    return added(tree, own, written, name)


def added(tree: Tree, own: Tree, written: dict[KeyPath, str], name: str) -> tuple[Tree, dict[KeyPath, str]]:
    """What was inherited with what the file or mapping of this name says."""
    return merge(with_lists(tree, own), own, written, dict.fromkeys(leaves(own), name)), written


def found_base(path: Path, base: str, name: str) -> Path:
    """The file that one entry of `extends` stands for. Raises `ConfigError`."""
    if is_preset(base):
        try:
            return preset_path(base)
        except ConfigError as error:
            raise ConfigError(f"{name}: extends = {base!r}: {error}") from error
    base_path = path.parent / base
    if not base_path.exists():
        raise ConfigError(f"{name}: extends = {base!r}: there is no file {base_path}")
    return base_path


def parse_file(path: Path, name: str) -> Tree:
    """The content of one TOML or YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    if path.suffix in (".yaml", ".yml"):
        return parse_yaml(text, name)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from error


def parse_yaml(text: str, name: str) -> Tree:
    """The content of a YAML file."""
    try:
        from crfl_core.config import yaml_text
    except ImportError:
        raise ConfigError(f"{name}: reading YAML needs PyYAML: pip install 'crfl[yaml]', or write TOML") from None
    try:
        tree = yaml_text.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    if tree is None:  # an empty file
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: must be a table of settings, found {type(tree).__name__}")
    return tree
