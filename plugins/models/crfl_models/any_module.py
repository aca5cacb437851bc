"""A module of one's own as the model, without a plugin."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from crfl_core.extend import BoundModel, DataFacts, ImportPath, Model, ModuleModel, OptionError
from crfl_models.imported import Argument, maker


class AnyModule(Model):
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
        """From the module's own initialisation. Raises `OptionError` if it does not map inputs to logits."""
        known = {"inputs": facts.inputs, "classes": facts.classes, "image_shape": facts.image_shape}
        make = maker(self.path, self.arguments, known)
        if self.images:
            if facts.image_shape is None:
                raise OptionError("images", "these data are no images: leave it out")
            shape = (1,) * (3 - len(facts.image_shape)) + facts.image_shape
            flat, make = make, lambda: nn.Sequential(nn.Unflatten(1, shape), flat())
        model = ModuleModel(make)
        check_module(model, facts, self.path)
        return model


def check_module(model: BoundModel, facts: DataFacts, path: str) -> None:
    """Try the module as training will: for several models and clients at once, in both precisions."""
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
