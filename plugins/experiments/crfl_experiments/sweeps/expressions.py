"""Arithmetic over the keys of a config: the value of a linked key. Expressions are never executed as code.

An expression is read by Python's own parser and then walked: numbers, keys, `+ - * / // % **`, brackets, and a few
functions. A key is written as in a config, `server.noise_std`; items of lists are `aggregation[0].f`, and names with a
hyphen are written in brackets, too: `certificates["pathwise-linear"].name`.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from crfl_core.errors import ConfigError

Lookup = Callable[[str], Any]
"""Function from a key to its value; raises `KeyError` with a phrase that says why it has none."""

LONGEST = 300
"""Letters of an expression."""

LARGEST_EXPONENT = 64

OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "round": round,
    "int": int,
    "abs": abs,
    "sqrt": math.sqrt,
}
ALLOWED = "numbers, keys, + - * / // % **, brackets, " + ", ".join(FUNCTIONS)


class Expression:
    """The right side of a linked key: `Expression("votes.noise_std", "server.noise_std / 2")`.

    >>> Expression("training.steps", "600 // partition.clients").value({"partition.clients": 20}.__getitem__)
    30
    """

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        self.text = text
        if len(text) > LONGEST:
            raise self.error(f"is longer than {LONGEST} letters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what looks odd to Python is refused below
                self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            place = f" at letter {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
            raise self.error(f"cannot be read{place}: use {ALLOWED}") from None
        self.keys = tuple(dict.fromkeys(self._keys(self._tree)))

    def value(self, lookup: Lookup) -> Any:
        """Compute the value.

        A key alone may have any value; in arithmetic all values are numbers.
        """
        if (key := self._key_of(self._tree)) is not None:
            return self._found(key, self._tree, lookup)
        try:
            value = self._number(self._tree, lookup)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise self.error(f"cannot be computed: {error}") from error
        if isinstance(value, complex) or not math.isfinite(value):
            raise self.error(f"is {value}, which is not a finite number")
        return value

    def error(self, what: str) -> ConfigError:
        """Build an error for this expression."""
        return ConfigError(f"sweep.linked: {self.key} = {self.text!r}: {what}", key=self.key)

    def _keys(self, node: ast.expr) -> Iterator[str]:
        """Yield every key of the expression.

        Raises `ConfigError` for anything that is neither a key nor arithmetic.
        """
        if (key := self._key_of(node)) is not None:
            yield key
            return
        for part in self._parts(node):
            yield from self._keys(part)

    def _parts(self, node: ast.expr) -> list[ast.expr]:
        """Return the operands of an operation."""
        if isinstance(node, ast.Constant) and is_number(node.value):
            return []
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return [node.left, node.right]
        if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
            return [node.operand]
        if isinstance(node, ast.Call) and not node.keywords and node.args:
            if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
                return node.args
            raise self.error(f"{position_text(node)} there is no function {ast.unparse(node.func)}: use {ALLOWED}")
        raise self.error(f"{position_text(node)} {ast.unparse(node)} is not arithmetic: use {ALLOWED}")

    def _key_of(self, node: ast.expr) -> str | None:
        """Return the dotted key that a name stands for.

        The result is None for anything else.
        """
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute) and (above := self._key_of(node.value)) is not None:
            return f"{above}.{node.attr}"
        if isinstance(node, ast.Subscript) and (above := self._key_of(node.value)) is not None:
            item = node.slice
            if isinstance(item, ast.Constant) and isinstance(item.value, int | str):
                return f"{above}.{item.value}"
        return None

    def _found(self, key: str, node: ast.expr, lookup: Lookup) -> Any:
        try:
            return lookup(key)
        except KeyError as error:
            raise self.error(f"{position_text(node)} {error.args[0]}") from None

    def _number(self, node: ast.expr, lookup: Lookup) -> Any:
        if (key := self._key_of(node)) is not None:
            value = self._found(key, node, lookup)
            if not is_number(value):
                raise self.error(f"{position_text(node)} {key} is {value!r}, which is not a number")
            return value
        values = [self._number(part, lookup) for part in self._parts(node)]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow) and abs(values[1]) > LARGEST_EXPONENT:
                raise self.error(f"{position_text(node)} an exponent is at most {LARGEST_EXPONENT}, found {values[1]}")
            return OPERATIONS[type(node.op)](*values)
        if isinstance(node, ast.UnaryOp):
            return SIGNS[type(node.op)](*values)
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        return FUNCTIONS[node.func.id](*values)


def is_number(value: object) -> bool:
    """Return whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def position_text(node: ast.expr) -> str:
    """Say where in an expression a part stands."""
    return f"letter {node.col_offset + 1}:"


def sort_links(expressions: dict[str, Expression]) -> list[Expression]:
    """Sort expressions so that each comes after those it needs.

    Raises `ConfigError` for a cycle.
    """
    ordered: list[Expression] = []
    open_keys: list[str] = []

    def visit(key: str) -> None:
        if key in open_keys:
            circle = " -> ".join([*open_keys[open_keys.index(key) :], key])
            raise ConfigError(f"sweep.linked: keys follow each other in a circle: {circle}: set one of them", key=key)
        if key in expressions and expressions[key] not in ordered:
            open_keys.append(key)
            for needed in expressions[key].keys:
                visit(needed)
            open_keys.pop()
            ordered.append(expressions[key])

    for key in expressions:
        visit(key)
    return ordered
