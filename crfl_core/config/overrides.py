"""`--set key=value`: overrides that reach into tables, lists and plugins, in the order in which they were given."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from crfl_core.config.insertion import SIDES, as_items, is_insertion, item_position
from crfl_core.config.merging import Tree, as_table, merge, same_type
from crfl_core.config.origins import KeyPath
from crfl_core.files.errors import ConfigError
from crfl_core.files.folder import one_line

Place = tuple[int | str, ...]
"""A path in which items of lists are positions."""

OPENINGS = {"[": "an array", "{": "a table", '"': "a text in quotes", "'": "a text in quotes"}


def apply_override(tree: Tree, text: str, written: dict[KeyPath, str], defaults: Mapping[str, Any]) -> Tree:
    """The tree with one `a.b=value` applied; list items are named by position, `name` or `type`.

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
        if inserts(tree, path):
            over: Any = value
            for step in reversed(path):
                over = {step: over}
            return merge(tree, over, written, {path: f"--set {text}"})
        place = place_of(tree, path)
    except ValueError as error:
        raise ConfigError(f"--set {text}: {error}") from error
    before = dict(written)
    target = tuple(map(str, place))
    result = merge(tree, around(tree, place, value), written, {target: f"--set {text}"})
    if any(isinstance(step, int) for step in place):  # only one item of the array changed
        written |= {key: origin for key, origin in before.items() if key[: len(target)] != target}
    return result


def with_lists(tree: Tree, over: Mapping[str, Any], defaults: Mapping[str, Any]) -> Tree:
    """The tree with the default of every list that something is to be put into and that it does not have."""
    wanted = [key for key, value in over.items() if key not in tree and key in defaults and is_insertion(value)]
    return tree | {key: as_items(defaults[key]) for key in wanted}


def inserts(tree: Tree, path: KeyPath) -> bool:
    """Whether a path such as `aggregation.before.krum` puts something into a list."""
    *outer, side, _ = path if len(path) > 2 else ("", "", "")
    here: Any = tree
    for step in outer:
        here = here.get(step) if isinstance(here, Mapping) else None
    return side in SIDES and (isinstance(here, list | tuple | str) or (isinstance(here, Mapping) and "type" in here))


def place_of(tree: Tree, path: KeyPath) -> Place:
    """The path with items of lists as positions. Raises ValueError if it leads nowhere, or to several items."""
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


def around(tree: Tree, place: Place, value: Any) -> Any:
    """The value inside of new tables that lead to its place, and of copies of the lists there."""
    for depth in range(len(place) - 1, -1, -1):
        step = place[depth]
        value = {step: value} if isinstance(step, str) else replaced(follow(tree, place[:depth]), step, value)
    return value


def replaced(items: Sequence[Any], position: int, value: Any) -> list[Any]:
    """A copy of a list in which one item has changed: a table is merged with the one that is there."""
    item = as_table(items[position])
    if isinstance(value, dict) and isinstance(item, dict) and same_type(item, value):
        value = merge(item, value, {}, {})
    return [*items[:position], value, *items[position + 1 :]]


def follow(tree: Any, place: Place) -> Any:
    """The value at a place."""
    for step in place:
        tree = tree[step]
    return tree


def parse_value(raw: str) -> Any:
    """A value as in TOML; text that does not look like TOML may stand without quotes.

    >>> parse_value("0.1"), parse_value("[1, 2]"), parse_value("krum")
    (0.1, [1, 2], 'krum')
    >>> parse_value("[krum]")
    Traceback (most recent call last):
    ValueError: begins like an array of TOML and is none: Invalid value; in a shell, put single quotes around it all
    """
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError) as error:
        if raw[:1] in OPENINGS:
            reason = re.sub(r" \(at .*\)$", "", one_line(error))
            what = f"begins like {OPENINGS[raw[0]]} of TOML and is none: {reason}"
            raise ValueError(f"{what}; in a shell, put single quotes around it all") from error
        return raw
    return parsed["value"] if len(parsed) == 1 else raw
