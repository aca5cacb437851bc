"""Error messages of a config: one sentence per wrong key, with the file, the value found and the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from crfl_core.config.merging import DEFAULT, KeyPath, Origins
from crfl_core.errors import ConfigError, one_line

ABSENT_KEY_ERRORS = ("missing", "missing_key", "union_tag_not_found")
"""Types of errors about a key that is not there: pydantic's, and that of our own tables."""

EXPECTED_TYPES = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
"""Types of errors that say only which type of value a member of a union expects, and the type in words."""

UNQUOTED_VALUE = re.compile(r"^\s*([-+]?(\d[\d_]*\.?\d*([eE][-+]?\d+)?|inf|nan)|true|false)\s*$")
"""Text that would be a number or a truth value without its quotes."""


def config_error(error: ValidationError, tree: Mapping[str, Any], origins: Origins) -> ConfigError:
    """Return an error with one sentence per wrong key.

    A sentence says where the key was written, its name, the value found, and what would be right.
    """
    problems: dict[KeyPath, list[ErrorDetails]] = {}
    inputs: dict[KeyPath, Any] = {}
    for detail in error.errors(include_url=False):
        path, value, present = follow_location(tree, detail["loc"])
        if key := inner_key(detail):
            path = (*path, *key)
            present = detail["type"] not in ABSENT_KEY_ERRORS
            value = follow_location(value, [int(step) if step.isdecimal() else step for step in key])[1]
        if present:
            inputs[path] = value
        problems.setdefault(path, []).append(detail)
    # A union tries all its members: what is wrong inside of one says more than that the others did not fit.
    innermost = [path for path in problems if not any(path == other[: len(path)] != other for other in problems)]
    return ConfigError("\n".join(problem_text(path, problems[path], inputs, origins) for path in innermost))


def inner_key(detail: ErrorDetails) -> KeyPath:
    """Return the key inside of an error's location.

    Our errors name it. A missing key has no value.
    """
    context = detail.get("ctx", {})
    if "discriminator" in context:
        return (context["discriminator"].strip("'"),)
    if "key" in context:
        return tuple(context["key"].split("."))
    return (str(detail["loc"][-1]),) if detail["type"] in ABSENT_KEY_ERRORS else ()


def plain_wording(detail: ErrorDetails) -> str:
    """Return pydantic's message in the words of a config."""
    if detail["type"] in ("missing", "union_tag_not_found"):
        return "is missing"
    if detail["type"] == "union_tag_invalid":
        return f"must be one of {detail['ctx']['expected_tags']}"
    if detail["type"] in EXPECTED_TYPES:
        return f"must be {EXPECTED_TYPES[detail['type']]}"
    message = re.sub(r"^\w+ should ", "must ", detail["msg"].removeprefix("Value error, "))
    return re.sub(r" or instance of \w+", "", message).replace("tuple", "list").replace("dictionary", "table")


def union_wording(details: Sequence[ErrorDetails], value: Any) -> str:
    """Return what would be right at one key of a union.

    Every member of the union reports an error for it.
    """
    types = list(dict.fromkeys(EXPECTED_TYPES[one["type"]] for one in details if one["type"] in EXPECTED_TYPES))
    wishes = list(dict.fromkeys(plain_wording(one) for one in details if one["type"] not in EXPECTED_TYPES))
    if types and not (wishes and isinstance(value, int | float)):  # such a number has a right type, but breaks a limit
        wishes.append("must be " + " or ".join(filter(None, (", ".join(types[:-1]), types[-1]))))
    return ", or ".join(wishes)


def remedy(value: Any, types: Set[str]) -> str:
    """Return what to do about a value that is written wrongly.

    The value is right but for the way it is written.
    """
    if isinstance(value, bool):
        return ": true and false are not numbers" if types & {"int_type", "float_type"} else ""
    if isinstance(value, str) and UNQUOTED_VALUE.match(value) and types & {"int_type", "float_type", "bool_type"}:
        return ": write it without quotes"
    return ": write it in quotes" if isinstance(value, int | float) and "string_type" in types else ""


def problem_text(
    path: KeyPath, details: Sequence[ErrorDetails], inputs: Mapping[KeyPath, Any], origins: Origins
) -> str:
    """Return the sentence `file: key = value: what would be right`."""
    origin = origins.near(path)
    where = [] if origin == DEFAULT else [origin]
    if path:
        shown = path in inputs and not leads_to_table(inputs[path])
        where.append(".".join(path) + (f" = {one_line(repr(inputs[path]))}" if shown else ""))
    right = union_wording(details, inputs.get(path))
    return ": ".join([*where, right + remedy(inputs.get(path), {detail["type"] for detail in details})])


def leads_to_table(value: Any) -> bool:
    """Return whether a value is a table or a list of tables.

    Such a value is too long to be quoted in a message.
    """
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(map(leads_to_table, value)))


def follow_location(tree: Any, location: Sequence[int | str]) -> tuple[KeyPath, Any, bool]:
    """Follow an error's location as far as the input goes.

    pydantic adds the names of union members to a location; they are not keys of the input, and are skipped.
    """
    path: list[str] = []
    for step in location:
        single = step == 0 and not isinstance(tree, list | tuple)  # a single table that stands for a list of one
        if not single:
            inside = step in tree if isinstance(tree, Mapping) else is_item(tree, step)
            if not inside:
                continue
            tree = tree[step]
        path.append(str(step))
    return tuple(path), tree, bool(path)


def is_item(value: Any, step: int | str) -> bool:
    """Return whether a step is an item's position in a list."""
    return isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)
