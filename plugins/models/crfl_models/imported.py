"""Classes and functions that a config names: `module = "package.module:Name"`, or a file, `"nets.py:Name"`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from crfl_core.extend import OptionError

SUFFIX = ".py"
Argument = bool | int | float | str | tuple[bool | int | float | str, ...]
Arguments = Mapping[str, Argument]
Shape = tuple[Annotated[int, Field(ge=1)], ...]


def imported(path: str, option: str = "path") -> Callable[..., nn.Module]:
    """What a path names. Raises `OptionError` if it cannot be imported or called.

    Importing runs its code; a config with `plugins.allow` was refused before, unless that lists its distribution.
    """
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise OptionError(option, f'must be "package.module:Name" or "file.py:Name", found {path!r}')
    try:
        module = from_file(Path(place).expanduser()) if place.endswith(SUFFIX) else importlib.import_module(place)
        target = getattr(module, name)
    except (Exception, SystemExit) as error:  # it is the user's code: anything may come out
        raise OptionError(option, f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(target):
        raise OptionError(option, f"{path!r} is {target!r}, neither a class nor a function that makes a module")
    return target  # type: ignore[no-any-return]


def from_file(path: Path) -> Any:
    """The module in a file, which needs to be on no path."""
    spec = importlib.util.spec_from_file_location(
        f"crfl_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}", path
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def maker(path: str, given: Arguments, known: Mapping[str, Any], option: str = "path") -> Callable[[], nn.Module]:
    """A function that makes the module: with the arguments given, and those of the `known` ones that it asks for."""
    target = imported(path, option)
    try:
        asked = inspect.signature(target).parameters
    except (TypeError, ValueError):
        asked = {}  # type: ignore[assignment]
    arguments = {name: value for name, value in known.items() if name in asked} | dict(given)

    def make() -> nn.Module:
        try:
            module = target(**arguments)
        except Exception as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            raise OptionError(option, f"{path}({shown}) failed: {type(error).__name__}: {error}") from error
        if not isinstance(module, nn.Module):
            raise OptionError(option, f"{path} makes a {type(module).__name__}, not a torch.nn.Module")
        return module

    return make
