"""The base of every table of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from crfl_core.errors import suggest_names

VALUE_ENTRIES = frozenset({"default", "expected", "metadata", "serialization"})
"""Entries of pydantic's schemas that hold values of a plugin's author, not schemas."""


def refuse_non_integer(value: object) -> object:
    """Refuse values that pydantic would convert to an integer."""
    if isinstance(value, str | bytes | bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


def make_strict(schema: Any) -> Any:
    """Return a pydantic schema that accepts numbers and booleans only as such, at any depth.

    pydantic's own strict mode would also refuse `1e5` as an integer, and the lists of a file as tuples.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(map(make_strict, schema))
    if not isinstance(schema, Mapping):
        return schema
    match schema.get("type"):
        case "float" | "bool":
            return {**schema, "strict": True}
        case "int":
            return core_schema.no_info_before_validator_function(refuse_non_integer, cast("CoreSchema", schema))
        case "function-before" if schema["function"]["function"] is refuse_non_integer:
            return schema  # a table within this one was here before
    return {key: part if key in VALUE_ENTRIES else make_strict(part) for key, part in schema.items()}


def build_key_error(problem: str, key: str, message: str) -> PydanticCustomError:
    """Build the error about one key of a table, for a validator of the whole table."""
    context = {"message": " ".join(message.split()), "key": key}
    return PydanticCustomError(problem, "{message}", context)


class Table(BaseModel):
    """Frozen table of a config that refuses unknown keys and names the known ones.

    Values are not converted: text is not a number, and neither text nor a number is a boolean, at any depth.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", make_strict(handler(source)))

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and cls.model_config.get("extra") == "forbid":
            for key in value:
                if key not in cls.model_fields:
                    known = ", ".join(cls.model_fields) or "none, it has no options"
                    message = f"unknown key; {suggest_names(str(key), cls.model_fields)} known: {known}"
                    raise build_key_error("unknown_key", str(key), message)
            for key, field in cls.model_fields.items():
                if field.is_required() and key not in value:
                    meaning = f": {field.description}" if field.description else ""
                    raise build_key_error("missing_key", key, f"is missing, and has no default{meaning}")
        return value
