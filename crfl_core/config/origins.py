"""Where each value of a config was written, and error messages that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from crfl_core.errors import ConfigError

DEFAULT = "default"
Path = tuple[str, ...]


@dataclass(frozen=True)
class Origins:
    """Maps the path of a value to the file, override or mapping that set it."""

    written: Mapping[Path, str] = field(default_factory=dict)

    def of(self, path: Path) -> str:
        """Where a value was written; what nobody wrote is a default."""
        single = tuple(part for part in path if part != "0")  # a single table may stand for a list of one
        for candidate in (path, single):
            for length in range(len(candidate), 0, -1):
                if (origin := self.written.get(candidate[:length])) is not None:
                    return origin
        return DEFAULT

    def near(self, path: Path) -> str:
        """Where to look for a value: where it, or the table around it, was written."""
        inside = [origin for key, origin in self.written.items() if key[: len(path)] == path]
        return self.of(path) if self.of(path) != DEFAULT or not inside else inside[-1]

    def located(self, error: ConfigError) -> ConfigError:
        """The error with the place where its key was written in front."""
        if error.key is None:
            return error
        origin = self.near(tuple(error.key.split(".")))
        return ConfigError(f"{'' if origin == DEFAULT else origin + ': '}{error.key}: {error}")


def explain(error: ValidationError, tree: Mapping[str, Any], origins: Origins) -> ConfigError:
    """One sentence per wrong key: where it was written, the key, the value found, what would be right."""
    problems: dict[Path, list[str]] = {}
    inputs: dict[Path, Any] = {}
    for detail in error.errors(include_url=False):
        path, value, present = walk(tree, detail["loc"])
        context = detail.get("ctx", {})
        if "key" in context:
            path = (*path, context["key"])
            value, present = (value.get(context["key"]), True) if isinstance(value, Mapping) else (value, True)
        elif detail["type"] == "missing":
            path, present = (*path, str(detail["loc"][-1])), False
        if present:
            inputs[path] = value
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        if detail["type"] not in ("value_error", "plugin", "unknown_key", "missing"):
            message = "must be " + message.replace("tuple", "list").replace("dictionary", "table")
        problems.setdefault(path, []).append(message)
    return ConfigError("\n".join(sentence(path, problems[path], inputs, origins) for path in problems))


def sentence(path: Path, messages: Sequence[str], inputs: Mapping[Path, Any], origins: Origins) -> str:
    """`file: key = value: what would be right`."""
    origin = origins.near(path)
    where = [] if origin == DEFAULT else [origin]
    if path:
        shown = path in inputs and not isinstance(inputs[path], Mapping)
        where.append(".".join(path) + (f" = {inputs[path]!r}" if shown else ""))
    return ": ".join([*where, ", or ".join(dict.fromkeys(messages))])


def walk(tree: Any, location: Sequence[int | str]) -> tuple[Path, Any, bool]:
    """Follow an error's location as far as the input goes.

    pydantic adds the names of union members to a location; they are no keys of the input and end the walk.
    """
    path: list[str] = []
    for step in location:
        single = step == 0 and not isinstance(tree, list | tuple)  # a single table that stands for a list of one
        if not single:
            inside = step in tree if isinstance(tree, Mapping) else is_item(tree, step)
            if not inside:
                break
            tree = tree[step]
        path.append(str(step))
    return tuple(path), tree, bool(path)


def is_item(value: Any, step: int | str) -> bool:
    """Whether a step is the position of an item in a list."""
    return isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)
