"""YAML reader for configs: constructs no Python objects, refuses repeated keys, reads `1e-3` as a number."""

from __future__ import annotations

import re
from typing import Any

import yaml

# YAML 1.1, which PyYAML reads, wants a point in the mantissa and a sign in the exponent. Other readers do not.
SCIENTIFIC = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")

MOST_VALUES = 100_000
"""Values that a file may have when its aliases are written out."""


class Loader(yaml.SafeLoader):
    """Safe loader that refuses repeated keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse repeated keys while a table is read.

        Later the table may hold what `<<` brings along.
        """
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"line {line}: {name}: stands twice, first in line {lines[name]}: keep one of them")
            lines[name] = line
        return node


Loader.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, list("-+0123456789"))


def parse(text: str) -> object:
    """Parse a YAML text. Raises ValueError with a line."""
    try:
        tree = yaml.load(text, Loader)  # derived from the safe one
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from error
    if count_values(tree, {}, set()) > MOST_VALUES:
        raise ValueError(f"has more than {MOST_VALUES:,} values: write fewer aliases")
    return tree


def count_values(value: object, known: dict[int, int], above: set[int]) -> int:
    """Count the values of a tree in which aliases share parts.

    `above` are those around this one. Raises ValueError if a value contains itself.
    """
    if not isinstance(value, dict | list):
        return 1
    here = id(value)
    if here in above:
        raise ValueError("an alias stands inside of what it stands for: remove it")
    if here not in known:
        parts = value.values() if isinstance(value, dict) else value
        known[here] = 1 + sum(count_values(part, known, above | {here}) for part in parts)
    return known[here]
