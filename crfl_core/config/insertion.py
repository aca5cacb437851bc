"""Items put into a list that is inherited, without writing it again: `aggregation.before.krum = "norm-filter"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crfl_core.config.origins import KeyPath
from crfl_core.files.errors import ConfigError

SIDES = ("before", "after")


def is_insertion(value: Any) -> bool:
    """Whether a table does not replace a list but names items of it, and what to put before or after them."""
    return isinstance(value, Mapping) and bool(value) and all(side in SIDES for side in value) and all_tables(value)


def all_tables(value: Mapping[str, Any]) -> bool:
    """Whether every entry is a table."""
    return all(isinstance(entry, Mapping) for entry in value.values())


def as_items(value: Any) -> list[Any]:
    """A single table, or the name of a plugin, stands for a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def insert(items: Any, wish: Mapping[str, Any], here: KeyPath, written: dict[KeyPath, str], origin: str) -> list[Any]:
    """The list with new items at their places; `written` is changed to say where its items come from now.

    Items are named by position, `name` or `type`, as `--set` names them; those of one side come in the order in which
    they are written.
    """
    if isinstance(items, Mapping):  # a table that stands for a list of one
        number(here, written)
    result = as_items(items)
    for side, anchors in wish.items():
        for anchor, new in anchors.items():
            try:
                position = item_position(result, anchor, here, ()) + (side == "after")
            except ValueError as error:
                raise ConfigError(f"{origin}: {'.'.join((*here, side, anchor))}: {error}") from error
            for offset, item in enumerate(as_items(new)):
                result.insert(position + offset, item)
                shift(position + offset, here, written)
                written[(*here, str(position + offset))] = origin
    return result


def number(here: KeyPath, written: dict[KeyPath, str]) -> None:
    """What was written of a table, as what was written of the first item of a list."""
    for path in [path for path in written if path[: len(here)] == here and path != here]:
        written[(*here, "0", *path[len(here) :])] = written.pop(path)


def shift(position: int, here: KeyPath, written: dict[KeyPath, str]) -> None:
    """Give what was written of items from a position on the next number."""
    depth = len(here)
    moved = [
        path
        for path in written
        if path[:depth] == here and path[depth : depth + 1] and path[depth].isdecimal() and int(path[depth]) >= position
    ]
    later = {(*here, str(int(path[depth]) + 1), *path[depth + 1 :]): written.pop(path) for path in moved}
    written.update(later)


def item_position(items: Sequence[Any], part: str, before: KeyPath, behind: KeyPath) -> int:
    """Which item of a list is meant: by position, by `name` (which is its `type` unless it has one), by `type`."""
    tables = [{"type": each} if isinstance(each, str) else each if isinstance(each, Mapping) else {} for each in items]
    titles = [item.get("name", item.get("type")) for item in tables]
    if part.isdecimal():
        found = [int(part)] if int(part) < len(items) else []
    else:
        named = [position for position, title in enumerate(titles) if title == part]
        found = named or [position for position, item in enumerate(tables) if item.get("type") == part]
    where = ".".join(before)
    if not found:
        known = ", ".join(str(title) for title in titles if title is not None) or f"{len(items)} items"
        raise ValueError(f"{where} has no item {part!r}: it has {known}")
    if len(found) > 1:
        choices = " or ".join(".".join((*before, str(position), *behind)) for position in found)
        raise ValueError(f"{where} has {len(found)} items called {part!r}: choose one by its position, {choices}")
    return found[0]
