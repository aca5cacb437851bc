"""Commands that cannot work: how they are written down, and the plugins that they name."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Bad:
    """A command that cannot work: how its message begins (where, key, value), and what else it must say.

    `files` are written first. Commands that name `finished` or `unfinished` get a copy of such a run.
    """

    command: Sequence[str]
    begins: str
    says: Sequence[str] = ()
    files: Mapping[str, bytes | None] = field(default_factory=dict)


Refused = Callable[[Bad], None]


def npz(**arrays: object) -> bytes:
    """The bytes of an npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # the stubs take a keyword for an option
    return buffer.getvalue()


BAD_TOOLS = """
from dataclasses import replace

import numpy as np

from crfl_core.extend import Data, Dataset, Domain, Partitioner, Stage, Tracker, hookimpl


class Tabular(Dataset):
    scaling: str = "none"

    def read(self):
        x, y = np.linspace(0.0, 1.0, 240).reshape(60, 4), np.arange(60) % 3
        return Data(x=x, y=y, test_x=x, test_y=y, domain=Domain(), class_names=("a", "b", "c"))


class NotFinite(Tabular):
    def read(self):
        data = super().read()
        x = data.x.copy()
        x[7, 2] = np.nan
        return replace(data, x=x)


class WrongLabels(Tabular):
    def read(self):
        data = super().read()
        return replace(data, test_y=np.where(np.arange(60) == 5, 3, data.test_y))


class TooFewLabels(Tabular):
    def read(self):
        data = super().read()
        return replace(data, y=data.y[1:])


class Raises(Tabular):
    def read(self):
        raise RuntimeError("the server does not answer")


class LosesOne(Partitioner):
    def split(self, data, streams):
        return tuple(np.array_split(np.arange(len(data.x) - 1), 20))


class Empty(Partitioner):
    clients: int = 2

    def split(self, data, streams):
        return np.arange(len(data.x)), np.arange(0)


class Halve(Stage):
    def transform(self, updates, state):
        raise NotImplementedError


class Misspelt(Tracker):
    @hookimpl
    def crfl_finishd(self): ...
"""
BAD_POINTS = {
    "crfl.datasets": {
        "tabular": "Tabular",
        "not-finite": "NotFinite",
        "wrong-labels": "WrongLabels",
        "too-few-labels": "TooFewLabels",
        "raises": "Raises",
    },
    "crfl.partitioners": {"loses-one": "LosesOne", "empty": "Empty"},
    "crfl.aggregators": {"halve": "Halve"},
    "crfl.trackers": {"misspelt": "Misspelt"},
}
