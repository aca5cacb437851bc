"""The base of everything that is written as a table in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from crfl_core.errors import closest


class Table(BaseModel):
    """A frozen table whose unknown keys are refused, with the known ones in the message."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if key not in cls.model_fields:
                    known = ", ".join(cls.model_fields) or "none, it has no options"
                    message = " ".join(f"unknown key; {closest(str(key), cls.model_fields)} known: {known}".split())
                    raise PydanticCustomError("unknown_key", "{message}", {"message": message, "key": str(key)})
        return value
