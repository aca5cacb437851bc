"""Config files: TOML or YAML, each merged onto what it extends."""

from __future__ import annotations

import tomllib
from pathlib import Path

from crfl_files.errors import ConfigError
from crfl_files.folder import one_line
from crfl_files.origins import KeyPath
from crfl_files.trees import Tree, leaves, merge


def read_file(path: Path, *, name: str, chain: tuple[Path, ...]) -> tuple[Tree, dict[KeyPath, str]]:
    """A file merged onto what it extends."""
    resolved = path.resolve()
    if resolved in chain:
        raise ConfigError(f"{name}: extends: the files extend each other in a circle: remove one `extends`")
    own = parse_file(path, name)
    bases = own.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{name}: extends = {bases!r}: must be a file name or a list of file names")
    tree: Tree = {}
    written: dict[KeyPath, str] = {}
    for base in bases:
        base_path = path.parent / base
        if not base_path.exists():
            raise ConfigError(f"{name}: extends = {base!r}: there is no file {base_path}")
        base_tree, base_written = read_file(base_path, name=str(base_path), chain=(*chain, resolved))
        tree = merge(tree, base_tree, written, base_written)
    return merge(tree, own, written, dict.fromkeys(leaves(own), name)), written


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
        from crfl_files import yaml_text
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
