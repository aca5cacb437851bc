"""Whether two answers of a plugin are the same, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel
from torch import Tensor


def difference(one: object, other: object, path: str = "the answer") -> str:
    """Where two answers differ, in words; empty if they do not. Functions inside them are not compared."""
    if callable(one) and callable(other):
        return ""
    if type(one) is not type(other):
        return f"{path} is a {type(one).__name__} once and a {type(other).__name__} once"
    if isinstance(one, Tensor | np.ndarray):
        return "" if same_array(one, other) else f"{path} differs"
    for name, here, there in parts(one, other):
        if found := difference(here, there, f"{path}{name}"):
            return found
    if isinstance(one, Mapping | Sequence) and len(one) != len(other):  # type: ignore[arg-type]
        return f"{path} has {len(one)} entries once and {len(other)} once"  # type: ignore[arg-type]
    if is_plain(one) and one != other and not (one != one and other != other):
        return f"{path} is {one!r} once and {other!r} once"
    return ""


def parts(one: Any, other: Any) -> list[tuple[str, object, object]]:
    """The parts of two objects of the same type, side by side."""
    if is_dataclass(one) and not isinstance(one, type):
        return [(f".{part.name}", getattr(one, part.name), getattr(other, part.name)) for part in fields(one)]
    if isinstance(one, BaseModel):
        return [(f".{name}", getattr(one, name), getattr(other, name)) for name in type(one).model_fields]
    if isinstance(one, Mapping):
        return [(f"[{key!r}]", value, other.get(key)) for key, value in one.items()]
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return [(f"[{position}]", *pair) for position, pair in enumerate(zip(one, other, strict=False))]
    return []


def is_plain(value: object) -> bool:
    """Whether a value has no parts of its own."""
    return isinstance(value, str | bytes | int | float | None)


def same_array(one: Any, other: Any) -> bool:
    """Equal shape, type and entries; NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if isinstance(one, Tensor):
        return one.device == other.device and same_array(one.detach().cpu().numpy(), other.detach().cpu().numpy())
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
