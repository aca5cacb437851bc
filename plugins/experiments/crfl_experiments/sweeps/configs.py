"""Configs as tables of settings: as files write them, and what a dotted key leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from crfl_core.config import RunConfig

Tree = dict[str, Any]


def written(config: RunConfig) -> Tree:
    """A config as a file would write it."""
    return config.model_dump(mode="json", exclude_none=True)


def item(value: Any, part: str) -> Any:
    """What a part of a key leads to; items of lists are known by position, name or type."""
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, list | tuple):
        if part.isdigit():
            return value[int(part)] if int(part) < len(value) else None
        return next(
            (one for one in value if isinstance(one, Mapping) and part in (one.get("name"), one.get("type"))), None
        )
    return None


def flat_keys(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted keys of all values."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"
