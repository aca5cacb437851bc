"""Merging of config tables: a file overrides what it extends, and `--set` overrides both.

Items can be inserted into inherited lists, `aggregation.before.krum = "norm-filter"`. For every value, `Origins` knows
the file or override that set it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crfl_core.errors import ConfigError, one_line
from crfl_core.records.table import DefaultTable, RetypedTable

Tree = dict[str, Any]

DEFAULT = "default"
NO_PLUGIN = "none"
"""The word that switches off a plugin which an inherited config sets."""

KeyPath = tuple[str, ...]
"""The keys that lead to a value; items of a list are numbered."""


@dataclass(frozen=True)
class Origins:
    """Map from the path of a value to the file, override or mapping that set it.

    `inserted` counts the items that another setting put in front of a list.
    """

    written: Mapping[KeyPath, str] = field(default_factory=dict)
    inserted: Mapping[str, int] = field(default_factory=dict)

    def of(self, path: KeyPath) -> str:
        """Return where a value was written.

        A value that was not written is a default.
        """
        single = tuple(part for part in path if part != "0")  # a single table may stand for a list of one
        for candidate in (path, single):
            for length in range(len(candidate), 0, -1):
                if (origin := self.written.get(candidate[:length])) is not None:
                    return origin
        return DEFAULT

    def with_inserted(self, key: str, origin: str) -> Origins:
        """Return the origins after an item was put before a list.

        Another setting put it there.
        """

        def move(path: KeyPath) -> KeyPath:
            if path[0] != key or len(path) == 1:
                return path
            # A single table stands for a list of one.
            position, inside = (int(path[1]), path[2:]) if path[1].isdecimal() else (0, path[1:])
            return (key, str(position + 1), *inside)

        written = {move(path): place for path, place in self.written.items()}
        return Origins({**written, (key, "0"): origin}, {**self.inserted, key: self.inserted.get(key, 0) + 1})

    def near(self, path: KeyPath) -> str:
        """Return where to look for a value.

        It is where the value, or the table around it, was written.
        """
        if (origin := self.of(path)) != DEFAULT:
            return origin
        for length in range(len(path), 0, -1):
            if inside := [origin for key, origin in self.written.items() if key[:length] == path[:length]]:
                return inside[-1]
        return DEFAULT

    def locate(self, error: ConfigError) -> ConfigError:
        """Return the error with the origin of its key in front."""
        if error.key is None:
            return error
        path = tuple(error.key.split("."))
        origin = self.near(path)
        return ConfigError(f"{'' if origin == DEFAULT else origin + ': '}{'.'.join(self.as_written(path))}: {error}")

    def as_written(self, path: KeyPath) -> KeyPath:
        """Return the path as its author counts items.

        It leaves out those that another setting put in front.
        """
        offset = self.inserted.get(path[0], 0)
        if not offset or not path[1:2] or not path[1].isdecimal() or int(path[1]) < offset:
            return path
        return (path[0], str(int(path[1]) - offset), *path[2:])


def merge(base: Tree, over: Tree, written: dict[KeyPath, str], new: Mapping[KeyPath, str]) -> Tree:
    """Merge a table onto another.

    An array replaces the earlier one. A table whose `type` changes keeps its other settings (`RetypedTable`). A table
    that says what to put `before` or `after` items of an array does not replace it: see `insert_items`.

    `written` is changed to say where the values of the result come from, `new` saying it for `over`.
    """

    def combine(one: Tree, other: Tree, path: KeyPath) -> Tree:
        result = start_merge(one, other)
        if (place := written.get(path)) is not None:  # written as one value: now of which each key has a place
            written.update({(*path, key): place for key in one if (*path, key) not in written})
        for key, value in other.items():
            here = (*path, key)
            mine = as_table(result.get(key))
            value = as_new_type(result.get(key), value)
            if is_insertion(value) and is_list(mine):
                places = (place for known, place in new.items() if known[: len(here)] == here)
                result[key] = insert_items(mine, value, here, written, next(places, ""))
                inserted.append(here)
            elif isinstance(mine, dict) and isinstance(value, dict):
                result[key] = combine(mine, value, here)
            else:
                for old in [known for known in written if known[: len(here)] == here]:
                    del written[old]
                result[key] = value
        return result

    inserted: list[KeyPath] = []
    result = combine(base, over, ())
    written.update({path: place for path, place in new.items() if not any(path[: len(at)] == at for at in inserted)})
    return result


def as_table(value: Any) -> Any:
    """Return a table with this `type` for a plugin's name alone."""
    return {"type": value} if isinstance(value, str) else value


def is_list(value: Any) -> bool:
    """Return whether a value is an array.

    The table of a plugin counts, because it stands for an array of one.
    """
    return isinstance(value, list | tuple) or (isinstance(value, Mapping) and "type" in value)


def as_new_type(mine: Any, value: Any) -> Any:
    """Return a plugin's name as a table if it replaces one.

    That is so where it is written over a plugin's table. The name "none" removes the plugin.
    """
    if isinstance(mine, Mapping) and "type" in mine and isinstance(value, str) and value != NO_PLUGIN:
        return {"type": value}
    return value


def start_merge(one: Tree, other: Tree) -> Tree:
    """Return a copy of a table to merge another into.

    It remembers what it inherits if the other changes `type`.
    """
    new_type = other.get("type", one.get("type"))
    if new_type == NO_PLUGIN:
        return {}
    if new_type != one.get("type"):
        return RetypedTable(one, frozenset(one) - set(other) - {"type"})
    if isinstance(one, RetypedTable):
        return one.copy_without(other)
    return DefaultTable(one) if isinstance(one, DefaultTable) and "type" not in other else dict(one)


def leaves(tree: Mapping[str, Any], path: KeyPath = ()) -> list[KeyPath]:
    """List the paths of all values.

    Items of an array of tables are numbered. Any other array is one value.
    """
    found: list[KeyPath] = []
    for key, value in tree.items():
        here = (*path, str(key))
        if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            value = {str(number): item for number, item in enumerate(value)}
        found += leaves(value, here) if isinstance(value, Mapping) and value else [here]
    return found


SIDES = ("before", "after")


def is_insertion(value: Any) -> bool:
    """Return whether a table inserts into a list.

    Instead of replacing the list, it names items of it, and what to put before or after them.
    """
    return isinstance(value, Mapping) and bool(value) and all(side in SIDES for side in value) and all_tables(value)


def all_tables(value: Mapping[str, Any]) -> bool:
    """Return whether every entry is a table."""
    return all(isinstance(entry, Mapping) for entry in value.values())


def as_items(value: Any) -> list[Any]:
    """Return a value as a list.

    A single table, or the name of a plugin, stands for a list of one.
    """
    return list(value) if isinstance(value, list | tuple) else [value]


def insert_items(
    items: Any, insertions: Mapping[str, Any], here: KeyPath, written: dict[KeyPath, str], origin: str
) -> list[Any]:
    """Insert new items at their places.

    `written` is changed to say where each item comes from. Items are named by position, `name` or `type`, as `--set`
    names them; those of one side come in the order in which they are written.
    """
    if isinstance(items, Mapping):  # a table that stands for a list of one
        number_item(here, written)
    result = as_items(items)
    for side, anchors in insertions.items():
        for anchor, new in anchors.items():
            try:
                position = item_position(result, anchor, here, ()) + (side == "after")
            except ValueError as error:
                raise ConfigError(f"{origin}: {'.'.join((*here, side, anchor))}: {error}") from error
            for offset, item in enumerate(as_items(new)):
                result.insert(position + offset, item)
                shift_items(position + offset, here, written)
                written[(*here, str(position + offset))] = origin
    return result


def number_item(here: KeyPath, written: dict[KeyPath, str]) -> None:
    """Move a table's origins to the first item of a list."""
    for path in [path for path in written if path[: len(here)] == here and path != here]:
        written[(*here, "0", *path[len(here) :])] = written.pop(path)


def shift_items(position: int, here: KeyPath, written: dict[KeyPath, str]) -> None:
    """Renumber what was written of items from a position on by one."""
    depth = len(here)
    moved = [
        path
        for path in written
        if path[:depth] == here and path[depth : depth + 1] and path[depth].isdecimal() and int(path[depth]) >= position
    ]
    later = {(*here, str(int(path[depth]) + 1), *path[depth + 1 :]): written.pop(path) for path in moved}
    written.update(later)


def item_position(items: Sequence[Any], part: str, before: KeyPath, behind: KeyPath) -> int:
    """Find an item of a list by position, name or type.

    Its name is `name`, or its `type` unless it has one. Raises `ValueError` if none or several fit.
    """
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


Place = tuple[int | str, ...]
"""A path in which items of lists are positions."""

TOML_OPENINGS = {"[": "an array", "{": "a table", '"': "a text in quotes", "'": "a text in quotes"}


def apply_override(tree: Tree, text: str, written: dict[KeyPath, str], defaults: Mapping[str, Any]) -> Tree:
    """Apply one `a.b=value`; list items are named by position, `name` or `type`.

    `written` is changed to say so. An override may reach into one of `defaults` that the tree does not mention.
    """
    key, equals, raw = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        example = key.strip() if all(path) else "seed"
        raise ConfigError(f"--set {text}: write it as key=value, for example --set {example}=1")
    if len(path) > 1 and path[0] not in tree:
        tree = tree | {path[0]: defaults[path[0]]} if path[0] in defaults else tree
    try:
        value = parse_value(raw.strip())
        if is_insertion_path(tree, path):
            over: Any = value
            for step in reversed(path):
                over = {step: over}
            return merge(tree, over, written, {path: f"--set {text}"})
        place = find_place(tree, path)
    except ValueError as error:
        raise ConfigError(f"--set {text}: {error}") from error
    before = dict(written)
    target = tuple(map(str, place))
    result = merge(tree, wrap_value(tree, place, value), written, {target: f"--set {text}"})
    if any(isinstance(step, int) for step in place):  # only one item of the array changed
        written |= {key: origin for key, origin in before.items() if key[: len(target)] != target}
    return result


def add_default_lists(tree: Tree, over: Mapping[str, Any], defaults: Mapping[str, Any]) -> Tree:
    """Add the default of every list that the tree lacks.

    They are the lists that items are inserted into.
    """
    wanted = [key for key, value in over.items() if key not in tree and key in defaults and is_insertion(value)]
    return tree | {key: as_items(defaults[key]) for key in wanted}


def is_insertion_path(tree: Tree, path: KeyPath) -> bool:
    """Return whether a path such as `aggregation.before.krum` puts something into a list."""
    *outer, side, _ = path if len(path) > 2 else ("", "", "")
    here: Any = tree
    for step in outer:
        here = here.get(step) if isinstance(here, Mapping) else None
    return side in SIDES and (isinstance(here, list | tuple | str) or (isinstance(here, Mapping) and "type" in here))


def find_place(tree: Tree, path: KeyPath) -> Place:
    """Return the path with items of lists as positions.

    Raises `ValueError` if none or several fit.
    """
    place: list[int | str] = []
    here: Any = tree
    for number, part in enumerate(path):
        if isinstance(here, list | tuple):
            position = item_position(here, part, path[:number], path[number + 1 :])
            place.append(position)
            here = here[position]
        elif part != "0" or not place or not isinstance(as_table(here), Mapping):
            # A single table stands for a list of one: position 0 of it is the table itself.
            place.append(part)
            here = here.get(part) if isinstance(here, Mapping) else None
    return tuple(place)


def wrap_value(tree: Tree, place: Place, value: Any) -> Any:
    """Wrap a value in new tables that lead to its place.

    Lists there are copied.
    """
    for depth in range(len(place) - 1, -1, -1):
        step = place[depth]
        value = {step: value} if isinstance(step, str) else replace_item(value_at(tree, place[:depth]), step, value)
    return value


def replace_item(items: Sequence[Any], position: int, value: Any) -> list[Any]:
    """Return a copy of a list with one item changed.

    A table is merged with the present one.
    """
    item = as_table(items[position])
    value = as_new_type(item, value)
    if isinstance(value, dict) and isinstance(item, dict):
        value = merge(item, value, {}, {})
    return [*items[:position], value, *items[position + 1 :]]


def value_at(tree: Any, place: Place) -> Any:
    """Return the value at a place."""
    for step in place:
        tree = tree[step]
    return tree


def parse_value(raw: str) -> Any:
    """Parse a value as in TOML.

    Text that does not look like TOML may stand without quotes.

    >>> parse_value("0.1"), parse_value("[1, 2]"), parse_value("krum")
    (0.1, [1, 2], 'krum')
    >>> parse_value("[krum]")
    Traceback (most recent call last):
    ValueError: begins like an array of TOML and is none: Invalid value; in a shell, put single quotes around it all
    """
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError) as error:
        if raw[:1] in TOML_OPENINGS:
            reason = re.sub(r" \(at .*\)$", "", one_line(error))
            what = f"begins like {TOML_OPENINGS[raw[0]]} of TOML and is none: {reason}"
            raise ValueError(f"{what}; in a shell, put single quotes around it all") from error
        return raw
    return parsed["value"] if len(parsed) == 1 else raw
