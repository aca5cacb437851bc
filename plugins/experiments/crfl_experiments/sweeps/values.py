"""Values of a config as text and back: in overrides, in tables, in names of directories; and lookups by key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crfl_core.config import RunConfig

CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}
LONGEST_NAME = 60
"""Letters of a directory's name that come from settings."""


def toml_inline(value: Any) -> str:
    """Write a value as TOML on one line.

    >>> toml_inline({"type": "krum", "f": 1}), toml_inline([0.5, "rfa", True])
    ('{"type" = "krum", "f" = 1}', '[0.5, "rfa", true]')
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml_inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_inline, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def table_value(value: Any) -> Any:
    """Return a value as a table shows it.

    A plugin without options is its name; lists and other tables are text.
    """
    if isinstance(value, Mapping) and set(value) == {"type"}:
        return value["type"]
    return toml_inline(value) if isinstance(value, Mapping | list | tuple) else value


def parse_value(raw: str) -> Any:
    """Parse a value as TOML; text that is not TOML stays text.

    >>> parse_value("0.5"), parse_value("krum"), parse_value("[1, 2]")
    (0.5, 'krum', [1, 2])
    """
    try:
        found = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        return raw
    return found["value"] if len(found) == 1 else raw


def split_values(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes.

    >>> split_values('1, {type = "krum", f = 2},[3,4]')
    ['1', '{type = "krum", f = 2}', '[3,4]']
    """
    parts = []
    start = 0
    closing = ""
    for place, sign in enumerate(text):
        if closing and sign == closing[-1]:
            closing = closing[:-1]
        elif sign in CLOSING and closing[-1:] not in ('"', "'"):
            closing += CLOSING[sign]
        elif sign == "," and not closing:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def directory_name(settings: Mapping[str, Any]) -> str:
    """Build the beginning of a directory's name from settings.

    The text is valid on every file system.

    >>> directory_name({"attack.scale": 10, "aggregation": "rfa", "seed": 3})
    'scale-10_aggregation-rfa_seed-3'
    """
    words = [f"{key.rpartition('.')[2]}-{table_value(value)}" for key, value in settings.items()]
    plain = [re.sub(r"[^A-Za-z0-9.+_]+", "-", word).strip("-") for word in words]
    return "_".join(plain)[:LONGEST_NAME].rstrip("-._")


Tree = dict[str, Any]


def config_tree(config: RunConfig) -> Tree:
    """Return a config as a file would write it."""
    return config.model_dump(mode="json", exclude_none=True)


def lookup_part(value: Any, part: str) -> Any:
    """Look up a part of a key in a table or list.

    Items of lists are found by position, name or type. The result is None if the part does not exist.
    """
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
    """Yield the dotted keys of all values."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"
