"""YAML reader for configs: constructs no Python objects, refuses repeated keys, reads `1e-3` as a number."""

from __future__ import annotations

import re
from typing import Any

import yaml

# YAML 1.1, which PyYAML reads, wants a point in the mantissa and a sign in the exponent. Other readers do not.
SCIENTIFIC = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")


class Loader(yaml.SafeLoader):
    """Safe loader that refuses repeated keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse repeated keys while a table is read: later it may hold what `<<` brings along."""
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
        return yaml.load(text, Loader)  # derived from the safe one
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from error
