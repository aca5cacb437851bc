"""A resolved config, line by line, with where each value was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tomli_w

from crfl_core.config.loading import LoadedConfig
from crfl_core.config.origins import Path


def explained(loaded: LoadedConfig) -> list[tuple[str, str]]:
    """Pairs of `key = value` and origin, for every setting."""
    tree = loaded.config.model_dump(mode="json", exclude_none=True)
    return [(f"{'.'.join(path)} = {toml(value)}", loaded.origins.of(path)) for path, value in settings(tree, ())]


def settings(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The paths and values of all settings; items of a list of tables are numbered."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from settings(value, (*path, key))
    elif isinstance(tree, Sequence) and tree and all(isinstance(item, Mapping) for item in tree):
        for number, item in enumerate(tree):
            yield from settings(item, (*path, str(number)))
    else:
        yield path, tree


def toml(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    text = tomli_w.dumps({"value": value}).removeprefix("value = ").removeprefix("[value]").strip()
    return " ".join(line.strip() for line in text.splitlines()).replace("[ ", "[").replace(", ]", "]") or "{}"
