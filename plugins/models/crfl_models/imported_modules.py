"""Model `module`: a `torch.nn.Module` that a config names, and the import of such modules.

A config names a class or function as `"package.module:Name"`, or in a file as `"nets.py:Name"`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from crfl_core.extend import BoundModel, DataFacts, ImportPath, Model, ModuleModel, OptionError

SUFFIX = ".py"
Argument = bool | int | float | str | tuple[bool | int | float | str, ...]
Arguments = Mapping[str, Argument]
Shape = tuple[Annotated[int, Field(ge=1)], ...]


def import_callable(path: str, option: str = "path") -> Callable[..., nn.Module]:
    """Import the callable that a path names.

    Raises `OptionError` if it cannot be imported or called. Importing runs its code; a config with `plugins.allow` was
    refused before, unless that lists its distribution.
    """
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise OptionError(option, f'must be "package.module:Name" or "file.py:Name", found {path!r}')
    try:
        module = (
            load_module_file(Path(place).expanduser()) if place.endswith(SUFFIX) else importlib.import_module(place)
        )
        target = getattr(module, name)
    except (Exception, SystemExit) as error:  # it is the user's code: anything may come out
        raise OptionError(option, f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(target):
        raise OptionError(option, f"{path!r} is {target!r}, neither a class nor a function that makes a module")
    return target  # type: ignore[no-any-return]


def load_module_file(path: Path) -> Any:
    """Load the module in a file.

    The file need not be on Python's path.
    """
    spec = importlib.util.spec_from_file_location(
        f"crfl_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}", path
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def module_factory(
    path: str, given: Arguments, known: Mapping[str, Any], option: str = "path"
) -> Callable[[], nn.Module]:
    """Return a function that makes the module.

    It is called with the arguments given, and with those of the `known` ones that it has parameters for.
    """
    target = import_callable(path, option)
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


class ImportedModule(Model):
    """Any `torch.nn.Module` of yours: a class, or a function that makes one.

    `path` names it as `"package.module:Name"`, where Python finds it, or as `"nets.py:Name"`, a file. **This runs the
    code that a config names**, with your rights. It is called with `arguments`, and with `inputs`, `classes` and
    `image_shape` of the data as far as it asks for them by name, and makes a module that maps (b, inputs) to (b,
    classes). Buffers and stochastic layers are refused. Not convex, like `mlp`.
    """

    path: ImportPath = Field(description='"package.module:Name" or "file.py:Name"; runs your code')
    arguments: dict[str, Argument] = Field({}, description="what it is called with, by name")
    images: bool = Field(False, description="hand inputs over as images, (b, channels, height, width)")

    def build(self, facts: DataFacts) -> BoundModel:
        """Build the module with its own initialisation.

        Raises `OptionError` if it does not map inputs to logits.
        """
        known = {"inputs": facts.inputs, "classes": facts.classes, "image_shape": facts.image_shape}
        make = module_factory(self.path, self.arguments, known)
        if self.images:
            if facts.image_shape is None:
                raise OptionError("images", "these data are not images: leave it out")
            shape = (1,) * (3 - len(facts.image_shape)) + facts.image_shape
            flat, make = make, lambda: nn.Sequential(nn.Unflatten(1, shape), flat())
        model = ModuleModel(make)
        check_module(model, facts, self.path)
        return model


def check_module(model: BoundModel, facts: DataFacts, path: str) -> None:
    """Try the module as training will use it.

    The check runs several models and clients at once, in both precisions.
    """
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(1, 2, facts.inputs, dtype=dtype)
        y = torch.zeros(1, 2, dtype=torch.int64)
        parameters = torch.zeros(1, 1, model.layout.size, dtype=dtype)
        try:
            logits = model.logits(parameters[0], x[0])
            if logits.shape == (1, 2, facts.classes):
                model.gradient(parameters, x, y, torch.ones(1, 2, dtype=dtype))
        except Exception as error:  # it is the user's code: anything may come out
            what = (
                f"{path} fails on {facts.inputs} inputs in {dtype}, through torch.func: {type(error).__name__}: {error}"
            )
            raise OptionError("path", what) from error
        if logits.shape != (1, 2, facts.classes):
            found = f"{tuple(logits.shape[1:])} for (2, {facts.inputs})"
            raise OptionError("path", f"{path} must map (b, {facts.inputs}) to (b, {facts.classes}), found {found}")
