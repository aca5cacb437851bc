"""Partitioner `file`: a split that a file states."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, OptionError, Partitioner, Streams, UserPath
from crfl_datasets.partitioners.random_splits import deal

Rows = tuple[NDArray[np.int64], ...]
FORMATS = (
    "a .npz file has one array `client`, the client of every training sample; a .json file has that as a list of "
    "numbers, or the rows of every client as a list of lists or as an object of lists by name"
)


class FromFile(Partitioner):
    """The split that a file says: the client of every training sample, or the rows of every client.

    Clients and rows are counted from 0, rows in the order of the dataset, without those that the server reserves.
    Nothing is random. A .npz file has one array `client`. A .json file has a list of clients, one for each row; or a
    list of lists, the rows of each client; or an object of such lists, whose keys are the clients' names.
    """

    path: UserPath = Field(description="the file, .npz or .json")

    def split(self, data: Data, streams: Streams) -> Rows:  # noqa: ARG002
        """Return the rows of each client, in the order of the file."""
        return check_partition(self.path, self._clients(len(data.y)), len(data.y))

    def client_names(self, data: Data, partition: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of the clients, if the file has any."""
        content = read_file(self.path)
        return tuple(content) if isinstance(content, dict) else ()

    def _clients(self, samples: int) -> Rows:
        content = read_file(self.path)
        if isinstance(content, Mapping):
            content = list(content.values())
        if isinstance(content, list) and content and all(isinstance(rows, list) for rows in content):
            return tuple(
                integer_array(self.path, rows, f"the rows of client {place}") for place, rows in enumerate(content)
            )
        owner = integer_array(self.path, content, "the client of every training sample")
        if len(owner) != samples:
            raise file_error(
                self.path, f"it says the client of {len(owner):,} samples, but {samples:,} are for training"
            )
        if owner.min() < 0 or owner.max() >= samples:
            raise file_error(self.path, f"clients are 0, 1, 2, ..., found {owner.min()} to {owner.max()}")
        return deal(np.arange(samples), owner, int(owner.max()) + 1)


def read_file(path: Path) -> Any:
    """Read the content of a .npz or .json file.

    For a .npz file this is its array `client`.
    """
    try:
        if path.suffix == ".json":
            return json.loads(path.read_text(encoding="utf-8"))
        if path.suffix == ".npz":
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                return arrays["client"]
    except OSError as error:
        raise file_error(path, f"cannot be read: {error.strerror}") from error
    except (KeyError, ValueError, EOFError, RecursionError, zipfile.BadZipFile) as error:
        raise file_error(path, f"cannot be understood ({error}): {FORMATS}") from error
    raise file_error(path, f"its name says neither .npz nor .json: {FORMATS}")


def integer_array(path: Path, values: Any, what: str) -> NDArray[np.int64]:
    """Convert a list of whole numbers to an array."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise file_error(path, f"{what} must be a list of whole numbers: {FORMATS}") from error
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
        found = "none" if array.size == 0 else f"{array.dtype} of shape {array.shape}"
        raise file_error(path, f"{what} must be whole numbers, found {found}: {FORMATS}")
    return array.astype(np.int64)


def check_partition(path: Path, clients: Rows, samples: int) -> Rows:
    """Check that every sample has one client and no client is empty.

    Raises `OptionError` otherwise.
    """
    if empty := [place for place, rows in enumerate(clients) if len(rows) == 0]:
        raise file_error(path, f"client {empty[0]} of {len(clients)} has no samples: number clients without gaps")
    together = np.concatenate(clients)
    if together.min() < 0 or together.max() >= samples:
        outside = int(together[(together < 0) | (together >= samples)][0])
        raise file_error(path, f"there is no row {outside}: the {samples:,} samples for training are 0..{samples - 1}")
    counts = np.bincount(together, minlength=samples)
    if (counts != 1).any():
        row = int(np.flatnonzero(counts != 1)[0])
        raise file_error(path, f"row {row} has {counts[row] or 'no'} clients: every training sample has exactly one")
    return clients


def file_error(path: Path, why: str) -> OptionError:
    """Return the error for a file that does not partition the data."""
    return OptionError("path", f"{path}: {why}")
