"""Whether a plugin leaves what it is given as it was: the core uses the same tensors and arrays after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure


@contextmanager
def untouched(who: str, arguments: Iterable[object]) -> Iterator[None]:
    """Raise `PluginFailure` if somebody changes tensors or arrays in his arguments, those inside of containers as well.

    Matrices count their changes, which costs nothing but misses what is done to them through NumPy.
    """
    given = [part for argument in arguments for part in parts(argument)]
    before = [content(part) for part in given]
    yield
    if before != [content(part) for part in given]:
        raise PluginFailure(f"{who} changed what it was given: work on a copy")


def parts(value: object) -> Iterator[Tensor | NDArray[Any]]:
    """The tensors and arrays of an argument."""
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from parts(entry)
    elif is_dataclass(value):
        for field in fields(value):
            yield from parts(getattr(value, field.name))


def content(part: Tensor | NDArray[Any]) -> tuple[int, bytes]:
    """Something that changes with a tensor or an array."""
    if isinstance(part, np.ndarray):
        return 0, part.tobytes()
    return part._version, part.detach().cpu().numpy().tobytes() if part.ndim < 2 else b""
