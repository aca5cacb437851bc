"""Config files: TOML or YAML, each merged onto what it extends."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crfl_core.config.merging import Tree, leaves, merge
from crfl_core.config.origins import KeyPath
from crfl_core.config.overrides import with_lists
from crfl_core.config.presets import is_preset, preset_path
from crfl_core.files.errors import ConfigError
from crfl_core.files.folder import one_line


def read_file(
    path: Path, defaults: Mapping[str, Any], *, name: str, chain: tuple[Path, ...] = ()
) -> tuple[Tree, dict[KeyPath, str]]:
    """A file merged onto what it extends, and where each value was written.

    Something may be put into one of the lists in `defaults` that no file mentions.
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
        base_path = found_base(path, base, name)
        base_name = base if is_preset(base) else str(base_path)
        base_tree, base_written = read_file(base_path, defaults, name=base_name, chain=(*chain, resolved))
        if is_preset(base) and "plugins" in base_tree:
            raise ConfigError(f"{base}: plugins: a preset cannot say whose code may run: write it in {name}")
        tree = merge(tree, base_tree, written, base_written)
    return added(with_lists(tree, own, defaults), own, written, name)


def added(tree: Tree, own: Tree, written: dict[KeyPath, str], name: str) -> tuple[Tree, dict[KeyPath, str]]:
    """What was inherited with what the file or mapping of this name says."""
    return merge(tree, own, written, dict.fromkeys(leaves(own), name)), written


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
    except (ValueError, RecursionError) as error:  # also a number of too many digits, or tables without end
        raise ConfigError(f"{name}: not valid TOML: {one_line(error)}") from error


def parse_yaml(text: str, name: str) -> Tree:
    """The content of a YAML file."""
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
