"""Tables merged onto each other: what a file says counts before what it extends, and an override before both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crfl_core.config.insertion import insert, is_insertion
from crfl_core.config.origins import KeyPath

Tree = dict[str, Any]


def merge(base: Tree, over: Tree, written: dict[KeyPath, str], new: Mapping[KeyPath, str]) -> Tree:
    """Tables merge, arrays replace, and a table whose `type` changes replaces the whole table.

    A table that says what to put `before` or `after` items of an array is no replacement of it: see `insertion`.

    `written` is changed to say where the values of the result come from, `new` saying it for `over`.
    """

    def combine(one: Tree, other: Tree, path: KeyPath) -> Tree:
        result = dict(one)
        for key, value in other.items():
            here = (*path, key)
            mine = as_table(result.get(key))
            if is_insertion(value) and is_list(mine):
                places = (place for known, place in new.items() if known[: len(here)] == here)
                result[key] = insert(mine, value, here, written, next(places, ""))
                inserted.append(here)
            elif isinstance(mine, dict) and isinstance(value, dict) and same_type(mine, value):
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
    """A plugin's name alone stands for a table with this `type`."""
    return {"type": value} if isinstance(value, str) else value


def is_list(value: Any) -> bool:
    """Whether a value is an array, or the table of a plugin that stands for an array of one."""
    return isinstance(value, list | tuple) or (isinstance(value, Mapping) and "type" in value)


def same_type(one: Tree, other: Tree) -> bool:
    """Whether a table may be merged into another: it names the same plugin, or none."""
    return "type" not in other or one.get("type") == other["type"]


def leaves(tree: Mapping[str, Any], path: KeyPath = ()) -> list[KeyPath]:
    """The paths of all values; items of an array of tables are numbered, any other array is one value."""
    found: list[KeyPath] = []
    for key, value in tree.items():
        here = (*path, str(key))
        if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            value = {str(number): item for number, item in enumerate(value)}
        found += leaves(value, here) if isinstance(value, Mapping) and value else [here]
    return found
