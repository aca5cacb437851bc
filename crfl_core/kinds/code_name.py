"""Options that name code: a function or a class that a plugin imports because a config says so."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from crfl_core.errors import PluginError


def allowed(name: str, info: ValidationInfo) -> str:
    """The name, if whoever reads this config may run the code behind it."""
    resolver = (info.context or {}).get("resolver")
    try:
        if resolver is not None:
            resolver.check_code(name)
    except PluginError as error:
        raise PydanticCustomError("plugin", "{message}", {"message": str(error)}) from error
    return name


CodeName = Annotated[str, AfterValidator(allowed)]
"""The type of an option that names code, "package.module:function": `plugins.allow` must list its package or
distribution, and a run directory that somebody else made must be trusted, before a plugin is handed the name."""
