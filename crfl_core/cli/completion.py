"""Shell completion: run directories, config files, keys and values of a config, plugins and their kinds."""

from __future__ import annotations

from pathlib import Path

import typer

RUN_MARKER = "crfl.json"
CONFIG_SUFFIXES = (".toml", ".yaml", ".yml")


def run_directories(incomplete: str) -> list[str]:
    """Offer run directories, and folders on the way to one."""
    folders = matching_folders(incomplete)
    runs = [str(path) for path in folders if (path / RUN_MARKER).exists()]
    if runs:
        return runs
    return [f"{path}/" for path in folders if any(path.glob(f"*/{RUN_MARKER}")) or any(path.glob(f"*/*/{RUN_MARKER}"))]


def config_files(incomplete: str) -> list[str]:
    """Offer config files, and folders."""
    paths = matching_paths(incomplete)
    files = [str(path) for path in paths if path.suffix in CONFIG_SUFFIXES]
    return files + [f"{path}/" for path in paths if path.is_dir() and not path.name.startswith(".")]


def configs_and_runs(incomplete: str) -> list[str]:
    """Offer config files, run directories, and folders."""
    return sorted({*config_files(incomplete), *run_directories(incomplete)})


def matching_folders(incomplete: str) -> list[Path]:
    """List the folders whose path begins with a text."""
    return [path for path in matching_paths(incomplete) if path.is_dir()]


def matching_paths(incomplete: str) -> list[Path]:
    """List the files and folders whose path begins with a text."""
    head, slash, start = incomplete.rpartition("/")
    try:
        return sorted(path for path in Path(head + slash or ".").iterdir() if path.name.startswith(start))
    except OSError:
        return []


def settings(incomplete: str) -> list[str]:
    """Offer keys of a config with `=`, or their values.

    After the `=`, offer the values that a key can have, if they are few.
    """
    from crfl_core.config.options import keys_of

    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in values_of(key) if choice.startswith(value)]
    return [f"{name}=" for name in dict.fromkeys(keys_of()) if name.startswith(key)]


def values_of(key: str) -> list[str]:
    """List the values of a key.

    They are the plugins of its kind, the words that it knows, or true and false.
    """
    from crfl_core.config.options import field_at, list_choices, plugin_kinds_of
    from crfl_core.plugin_loading.registry import Registry

    field = field_at(key.removesuffix(".type"))
    if field is None:
        return []
    kinds = plugin_kinds_of(field)
    return list(Registry().names(kinds[0]) if kinds else list_choices(field.annotation))


def kinds(incomplete: str) -> list[str]:
    """Offer the kinds of plugins."""
    from crfl_core.plugin_api import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def plugin_names(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of installed plugins.

    If a kind is given, offer only those of that kind.
    """
    from crfl_core.plugin_api import KINDS
    from crfl_core.plugin_loading.registry import Registry

    registry = Registry()
    given = context.params.get("kind")
    searched = (given,) if given in KINDS else tuple(KINDS)
    return sorted({name for kind in searched for name in registry.names(kind) if name.startswith(incomplete)})
