"""Loading of configs: files, presets, inheritance and overrides become one frozen config with origins."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import ValidationError

from crfl_core.config.error_messages import config_error
from crfl_core.config.merging import KeyPath, Origins, Tree, add_default_lists, apply_override, leaves, merge
from crfl_core.config.schema import RunConfig, Trust
from crfl_core.errors import ConfigError, CrflWarning, one_line, suggest_names
from crfl_core.files.bounded_reading import MOST_TEXT_BYTES, read_regular_file
from crfl_core.plugin_loading.missing_plugins import LenientRegistry
from crfl_core.plugin_loading.registry import Registry
from crfl_core.records.table import DefaultTable

ConfigSource = str | Path | Mapping[str, Any] | RunConfig


class LoadedConfig(NamedTuple):
    """A config and where its values were written."""

    config: RunConfig
    origins: Origins


def load_config(
    source: ConfigSource | None = None,
    *,
    overrides: Sequence[str] = (),
    registry: Registry | LenientRegistry | None = None,
) -> LoadedConfig:
    """Load the config from a file, a mapping or another config.

    `key=value` overrides apply in order. Without a source it is the default: all defaults of the schema, on the
    embedded digits, under attack.
    """
    tree, written = read_source(source)
    for override in overrides:
        tree = apply_override(tree, override, written, plugin_defaults())
    found = Origins(written)
    try:
        allow = Trust.model_validate(tree).plugins.allow
        left_out: list[str] = []
        context = {"resolver": (registry or Registry()).with_allow_list(allow), "left_out": left_out}
        config = RunConfig.model_validate(tree, context=context)
        if stages := config.missing_stages:
            steps = [*stages, *config.aggregation]
            config = RunConfig.model_validate({**dict(config), "aggregation": steps}, context=context)
            for _ in stages:
                found = found.with_inserted("aggregation", "server.cap_updates")
    except ValidationError as error:
        raise config_error(error, tree, found) from error
    for note in dict.fromkeys(left_out):
        warnings.warn(note, CrflWarning, stacklevel=2)
    return LoadedConfig(config, found)


def plugin_defaults() -> Tree:
    """Return the defaults of plugin fields.

    They are as a file would write them, so that overrides reach into them.
    """
    defaults = {key: field.default for key, field in RunConfig.model_fields.items()}
    lists = {key: list(default) for key, default in defaults.items() if isinstance(default, tuple)}
    return lists | {key: default for key, default in defaults.items() if isinstance(default, dict)}


def dump_config(config: RunConfig, *, without: Set[str] = frozenset()) -> str:
    """Write the config as TOML, `without` some of its tables.

    Loading the complete one gives an equal object.
    """
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True, exclude=set(without)))


def read_source(source: ConfigSource | None) -> tuple[Tree, dict[KeyPath, str]]:
    """Read the merged tree of a source, and its origins.

    The origins say where each leaf was written.
    """
    if source is None:
        default = Path(__file__).with_name("default.toml")
        tree, written = read_file(default, plugin_defaults(), name="the default config")
        return DefaultTable.mark(tree), written
    if isinstance(source, RunConfig):
        return source.model_dump(mode="json", exclude_none=True), {}
    if isinstance(source, Mapping):
        tree = dict(source)
        if "extends" in tree:
            raise ConfigError("extends: only a file can extend another; load the base with crfl_core.load_config")
        return merge_source(add_default_lists({}, tree, plugin_defaults()), tree, {}, "the mapping given to crfl_core")
    return read_file(Path(source), plugin_defaults(), name=str(source))


def read_file(
    path: Path, defaults: Mapping[str, Any], *, name: str, chain: tuple[Path, ...] = ()
) -> tuple[Tree, dict[KeyPath, str]]:
    """Read a file merged onto what it extends, and its origins.

    The origins say where each value was written. Something may be put into one of the lists in `defaults` that no file
    mentions.
    """
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
        base_path = find_base(path, base, name)
        base_name = base if is_preset(base) else str(base_path)
        base_tree, base_written = read_file(base_path, defaults, name=base_name, chain=(*chain, resolved))
        if is_preset(base) and "plugins" in base_tree:
            raise ConfigError(f"{base}: plugins: a preset cannot say whose code may run: write it in {name}")
        tree = merge(tree, base_tree, written, base_written)
    return merge_source(add_default_lists(tree, own, defaults), own, written, name)


def merge_source(tree: Tree, own: Tree, written: dict[KeyPath, str], name: str) -> tuple[Tree, dict[KeyPath, str]]:
    """Merge a file or mapping onto the inherited settings.

    `name` is the name of the file or mapping.
    """
    return merge(tree, own, written, dict.fromkeys(leaves(own), name)), written


def find_base(path: Path, base: str, name: str) -> Path:
    """Find the file that one entry of `extends` stands for. Raises `ConfigError`."""
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
    """Parse one TOML or YAML file."""
    try:
        text = read_regular_file(path, MOST_TEXT_BYTES).decode()
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    if path.suffix in (".yaml", ".yml"):
        return parse_yaml(text, name)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits, or tables without end
        raise ConfigError(f"{name}: not valid TOML: {one_line(error)}") from error


def parse_yaml(text: str, name: str) -> Tree:
    """Parse the text of a YAML file."""
    try:
        from crfl_core.config import yaml_reader as yaml_text
    except ImportError:
        raise ConfigError(f"{name}: reading YAML needs PyYAML: pip install 'crfl[yaml]', or write TOML") from None
    try:
        tree = yaml_text.parse(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {one_line(error)}") from error
    if tree is None:  # an empty file
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: must be a table of settings, found {type(tree).__name__}")
    return tree


PRESET_REFERENCE = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]+):([A-Za-z0-9][A-Za-z0-9._-]*)"
)  # one letter would be a drive
PRESET_FOLDER = "presets"


def is_preset(base: str) -> bool:
    """Return whether an entry of `extends` names a preset, not a file."""
    return PRESET_REFERENCE.fullmatch(base) is not None


def preset_path(reference: str) -> Path:
    """Return the file of a preset. Raises `ConfigError` with the known presets."""
    owner, _, name = reference.partition(":")
    try:
        found = list_presets(distribution(owner))
    except PackageNotFoundError:
        raise ConfigError(f"{owner} is not installed: pip install {owner}") from None
    if name not in found:
        known = ", ".join(sorted(found)) or f"none: no package of it has a folder {PRESET_FOLDER} with TOML files"
        raise ConfigError(
            f"{owner} has no preset {name!r}: {suggest_names(name, found)} there are {known}".replace("  ", " ")
        )
    return found[name]


def list_presets(owner: Distribution) -> dict[str, Path]:
    """List the presets of a distribution, by name."""
    files = (path for folder in package_folders(owner) for path in (folder / PRESET_FOLDER).glob("*.toml"))
    return {path.stem: path for path in files}


def package_folders(owner: Distribution) -> Iterator[Path]:
    """Yield the folders of the top-level packages that a distribution names.

    An editable installation has no list of files. Finding a top-level package imports nothing.
    """
    named = {point.value.partition(":")[0].partition(".")[0] for point in owner.entry_points}
    for name in sorted({owner.name.replace("-", "_").replace(".", "_"), *named}):
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or ())
