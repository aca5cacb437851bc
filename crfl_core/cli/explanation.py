"""A resolved config, line by line, with where each value was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from crfl_core.config.loading import LoadedConfig
from crfl_core.config.merging import DEFAULT, KeyPath
from crfl_core.config.schema import RunConfig
from crfl_core.records.table import Table


@dataclass(frozen=True)
class Setting:
    """One setting of a config, and where it was written."""

    key: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """Its value as TOML writes it."""
        return toml(self.value)


def explained(loaded: LoadedConfig) -> list[Setting]:
    """Every setting of a config, as it is resolved, with where it was written."""
    config, origins = loaded
    tree = config.model_dump(mode="json", exclude_none=True)
    return [
        Setting(".".join(path), value, origins.of(path) if is_set(config, path) else DEFAULT)
        for path, value in settings(tree, ())
    ]


def is_set(config: RunConfig, path: KeyPath) -> bool:
    """Whether anybody set a value. Where only the name of a plugin was written, its options are defaults."""
    here: Any = config
    for step in path:
        if isinstance(here, Table):
            if step in type(here).model_fields and step not in here.model_fields_set:
                return False
            here = getattr(here, step, None)
        elif isinstance(here, tuple):
            here = here[int(step)]
        else:  # the value is one table or list, whatever it looks like inside
            return True
    return True


def settings(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
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
