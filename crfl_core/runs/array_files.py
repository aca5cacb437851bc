"""Arrays and tensors in files, never pickled."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from crfl_core.files.folder import digest
from crfl_core.files.marked_folder import MarkedFolder

Arrays = Mapping[str, NDArray[Any]]
NOTES = "crfl"
"""The one entry of a tensor file's metadata, as JSON: safetensors writes several in any order."""

LENGTH = 8
"""Bytes in front of a tensor file that say how long its header is."""


class Files(MarkedFolder):
    """The files below a path. Whatever cannot be read is a `StoreError` that names the file."""

    def write_arrays(self, name: str, arrays: Arrays) -> None:
        """A compressed npz file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # the stubs take a keyword for an option
        self.write(name, buffer.getvalue())

    def write_tensors(self, name: str, tensors: Arrays, notes: Mapping[str, object]) -> None:
        """A safetensors file that holds a digest of its tensors and notes."""
        # Of other arrays safetensors would write the memory, in whatever order it is.
        ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        written = {**notes, "sha256": tensor_digest(ordered, notes)}
        self.write(name, save_tensors(ordered, metadata={NOTES: json.dumps(written, sort_keys=True)}))

    def read_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """An npz file. Pickled objects are refused."""
        content = self.read(name)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                return dict(file)
        except Exception as error:  # whatever an unpacker may stumble on
            raise self.damaged(name, "no npz file of plain arrays") from error

    def read_tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """A safetensors file, compared with the digest in it."""
        return self.read_noted(name)[0]

    def read_noted(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """A safetensors file and the notes in it. Those of format 1 hold none; then a record must list the file."""
        content = self.read(name)
        try:
            tensors = load_tensors(content)
            header = json.loads(content[LENGTH : LENGTH + int.from_bytes(content[:LENGTH], "little")])
            written = header.get("__metadata__", {}).get(NOTES, "")
            if not written.startswith("{") and (name in self.digests or not self.keeps_record):
                return tensors, {}
            notes = json.loads(written)
            found = notes.pop("sha256")
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self.damaged(name, error) from error
        if found != tensor_digest(tensors, notes):
            raise self.damaged(name, "its tensors are not those that the run wrote, their SHA-256 is another")
        return tensors, notes


def tensor_digest(tensors: Arrays, notes: Mapping[str, object]) -> str:
    """A digest of names, types, shapes and values of tensors, and of what is noted beside them."""
    return digest(save_tensors(dict(tensors)) + json.dumps(notes, sort_keys=True).encode())
