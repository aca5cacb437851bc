"""The base of everything that is written as a table in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

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
            for key, found in value.items():
                if key not in cls.model_fields:
                    known = ", ".join(cls.model_fields) or "none, it has no options"
                    raise wrong_key(key, f"unknown key; {closest(str(key), cls.model_fields)} known: {known}")
                # Python counts true as 1, but a config that says `rounds = true` is a mistake.
                if isinstance(found, bool) and not takes_bool(cls.model_fields[key].annotation):
                    raise wrong_key(key, "true and false are no values of this key")
        return value


def wrong_key(key: str, message: str) -> PydanticCustomError:
    """The error about one key of a table, which a validator of the whole table would not name."""
    return PydanticCustomError("wrong_key", "{message}", {"message": " ".join(message.split()), "key": str(key)})


def takes_bool(annotation: Any) -> bool:
    """Whether a type, or one of its alternatives, is that of truth values.

    >>> takes_bool(bool | None), takes_bool(int | tuple[float, ...])
    (True, False)
    """
    return annotation in (bool, Any, object) or any(takes_bool(part) for part in get_args(annotation))
