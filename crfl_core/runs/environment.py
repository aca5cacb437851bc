"""Which versions took part in a run, and in which rounds."""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crfl_core._version import __version__
from crfl_core.errors import CrflWarning, PluginError
from crfl_core.files.atomic_files import content_digest
from crfl_core.plugin_loading.missing_plugins import Requirement, Used
from crfl_core.runs.recorded_directory import table_digest
from crfl_core.runs.run_directory import ENVIRONMENT, RunDirectory

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.config.merging import Origins
    from crfl_core.plugin_loading.registry import Registry


def first_environment(config: RunConfig, registry: Registry, origins: Origins) -> dict[str, Any]:
    """Return the environment of a new run.

    It says what plays the run's rounds, and where its config was written.
    """
    written = {".".join(path): origin for path, origin in origins.written.items()}
    return {"from_round": 1, **collect_versions(config, registry), "origins": written}


def record_environment(directory: RunDirectory, config: RunConfig, registry: Registry, played: int) -> None:
    """Record what plays the rounds after `played`.

    What played the rounds before stays recorded. Warn if it differs.
    """
    before = directory.read_sealed(ENVIRONMENT)
    origins = before.pop("origins", {})
    now = {"from_round": played + 1, **collect_versions(config, registry), "origins": origins}
    try:
        entries = [*before.pop("earlier", []), before]
        earlier = [one for one in entries if one.get("from_round", 1) <= played]
        changes = [*describe_changes(before, now)] if earlier else []
    except (KeyError, TypeError, AttributeError) as error:
        raise directory.damage_error(ENVIRONMENT, "it does not say what played which rounds") from error
    for change in changes:
        warning = f"{directory.path}: {change}; {ENVIRONMENT} says which versions played which rounds"
        warnings.warn(warning, CrflWarning, stacklevel=2)
    directory.write_sealed(ENVIRONMENT, now | ({"earlier": earlier} if earlier else {}))


def collect_versions(config: RunConfig, registry: Registry) -> dict[str, Any]:
    """Collect the versions of everything that takes part in a run."""
    plugins = []
    code: dict[str, str] = {}
    for kind, plugin in config.used_plugins():
        try:
            found = registry.find(kind, plugin.configured_as)
            origin = {"distribution": found.distribution, "version": found.version}
        except PluginError:
            origin = {"distribution": type(plugin).__module__, "version": ""}
        package = type(plugin).__module__.partition(".")[0]
        if package not in code:
            code[package] = code_digest(package)
        plugins.append({"kind": kind, "name": plugin.configured_as, **origin, "code": code[package]})
    return {
        "crfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "threads": torch.get_num_threads(),
        "plugins": plugins,
    }


def code_digest(package: str) -> str:
    """Return a digest of all Python files of a package or module.

    It is empty if the package has none, or is the user's program.
    """
    top = sys.modules.get(package)
    place = getattr(top, "__file__", None)
    if package == "__main__" or place is None or not Path(place).is_file():
        return ""
    folder = Path(place).parent
    files = sorted(folder.rglob("*.py")) if hasattr(top, "__path__") else [Path(place)]
    named = {file.relative_to(folder).as_posix(): content_digest(file.read_bytes()) for file in files}
    return table_digest(named)


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two environments, in words."""
    for name in ("crfl", "torch", "numpy"):
        if before.get(name) != now[name]:
            yield f"resumed with {name} {now[name]}, before it was {before.get(name)}"
    known = {(entry["kind"], entry["name"]): entry for entry in before.get("plugins", [])}
    for entry in now["plugins"]:
        old = known.get((entry["kind"], entry["name"]), entry)
        if old["version"] != entry["version"] or old["distribution"] != entry["distribution"]:
            yield (
                f"resumed with {entry['kind']} {entry['name']!r} of {entry['distribution']} {entry['version']}, "
                f"before it was that of {old['distribution']} {old['version']}"
            )
        elif old.get("code", "") != entry["code"]:
            yield (
                f"resumed with {entry['kind']} {entry['name']!r} of {entry['distribution']} {entry['version']}, whose "
                "code has changed since"
            )


def used_plugins(directory: RunDirectory) -> Used:
    """Return the distributions of a run's plugins.

    The dictionary is empty if the run did not record them. Raises `StoreError` if the record is damaged.
    """
    if not (directory.path / ENVIRONMENT).exists():
        return {}
    try:
        return {
            (plugin["kind"], plugin["name"]): Requirement(plugin["distribution"], plugin["version"])
            for plugin in directory.read_sealed(ENVIRONMENT)["plugins"]
        }
    except (KeyError, TypeError) as error:
        raise directory.damage_error(ENVIRONMENT, error) from error
