"""Plain files in one directory, written atomically and never pickled."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from crfl_interface.errors import StoreError

Arrays = Mapping[str, NDArray[Any]]
Facts = TypeVar("Facts", bound=BaseModel)
JSON = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="strings"))


class Files:
    """The files below a path. Whatever cannot be read is a `StoreError` that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: bytes) -> None:
        """The whole new content or the whole old one, whatever happens in between."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)

    def write_json(self, name: str, content: object) -> None:
        """A JSON file; infinities are written as strings."""
        self.write(name, JSON.dump_json(content, indent=2) + b"\n")

    def write_arrays(self, name: str, arrays: Arrays) -> None:
        """A compressed npz file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # the stubs take a keyword for an option
        self.write(name, buffer.getvalue())

    def write_tensors(self, name: str, tensors: Arrays, metadata: Mapping[str, str]) -> None:
        """A safetensors file."""
        # Of other arrays safetensors would write the memory, in whatever order it is.
        ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        self.write(name, save_tensors(ordered, metadata=dict(metadata)))

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if not (self.path / "status.json").exists():
                raise StoreError(f"{self.path}: no run directory: give the path that `crfl run` printed") from None
            raise StoreError(f"{self.path / name}: missing: restore the file, or run again with --force") from None
        except OSError as error:
            raise StoreError(f"{self.path / name}: cannot be read: {error.strerror}") from error

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file."""
        try:
            content: dict[str, Any] = json.loads(self.read(name))
        except ValueError as error:
            raise self.damaged(name, error) from error
        if not isinstance(content, dict):
            raise self.damaged(name, "not a table")
        return content

    def read_facts(self, name: str, kind: type[Facts]) -> Facts:
        """A JSON file as an object of a class."""
        try:
            return kind.model_validate_json(self.read(name))
        except ValidationError as error:
            raise self.damaged(name, error.errors(include_url=False)[0]["msg"]) from error

    def read_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """An npz file. Pickled objects are refused."""
        content = self.read(name)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                return dict(file)
        except Exception as error:  # whatever an unpacker may stumble on
            raise self.damaged(name, "no npz file of plain arrays") from error

    def read_tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """A safetensors file."""
        try:
            return load_tensors(self.read(name))
        except (SafetensorError, ValueError) as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, reason: object) -> StoreError:
        """The error for a file whose content makes no sense."""
        return StoreError(f"{self.path / name}: damaged: {reason}: restore the file, or run again with --force")
