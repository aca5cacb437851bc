"""Configs that packages ship: `extends = "crfl-mine:digits"` is `presets/digits.toml` in a package of crfl-mine.

They are data: nothing of the package is imported to read one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from crfl_core.files.errors import ConfigError, closest

REFERENCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]+):([A-Za-z0-9][A-Za-z0-9._-]*)")  # one letter would be a drive
FOLDER = "presets"


def is_preset(base: str) -> bool:
    """Whether an entry of `extends` names a preset, not a file."""
    return REFERENCE.fullmatch(base) is not None


def preset_path(reference: str) -> Path:
    """The file of a preset. Raises `ConfigError` that names those that there are."""
    owner, _, name = reference.partition(":")
    try:
        found = presets_of(distribution(owner))
    except PackageNotFoundError:
        raise ConfigError(f"{owner} is not installed: pip install {owner}") from None
    if name not in found:
        known = ", ".join(sorted(found)) or f"none: no package of it has a folder {FOLDER} with TOML files"
        raise ConfigError(
            f"{owner} has no preset {name!r}: {closest(name, found)} there are {known}".replace("  ", " ")
        )
    return found[name]


def presets_of(owner: Distribution) -> dict[str, Path]:
    """The presets of a distribution, by name."""
    files = (path for folder in folders(owner) for path in (folder / FOLDER).glob("*.toml"))
    return {path.stem: path for path in files}


def folders(owner: Distribution) -> Iterator[Path]:
    """The folders of the top-level packages that a distribution names: after itself, or in its entry points.

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
