"""The base of every table of a config."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any, cast, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, model_validator
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
    """Return a pydantic schema that accepts numbers and booleans strictly.

    It accepts them only as such, at any depth. pydantic's own strict mode would also refuse `1e5` as an integer, and
    the lists of a file as tuples.
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
    """Build the error about one key of a table.

    It is for a validator of the whole table.
    """
    context = {"message": " ".join(message.split()), "key": key}
    return PydanticCustomError(problem, "{message}", context)


COMMON_NAMES = {
    "alpha": "votes.alpha",
    "attackers": "attack.clients",
    "batch": "training.batch_size",
    "batch_size": "training.batch_size",
    "byzantine": "aggregation.f",
    "client_fraction": "training.participation",
    "clients": "partition.clients",
    "clip": "server.clip_norm",
    "clip_norm": "server.clip_norm",
    "defence": "aggregation",
    "defense": "aggregation",
    "epochs": "training.epochs",
    "fraction_fit": "training.participation",
    "learning_rate": "training.learning_rate",
    "local_epochs": "training.epochs",
    "local_steps": "training.steps",
    "lr": "training.learning_rate",
    "malicious": "attack.clients",
    "momentum": "training.algorithm",
    "n_clients": "partition.clients",
    "n_rounds": "rounds",
    "noise": "server.noise_std",
    "noise_std": "server.noise_std",
    "num_byzantine": "aggregation.f",
    "num_clients": "partition.clients",
    "num_groups": "groups.count",
    "num_malicious": "attack.clients",
    "num_rounds": "rounds",
    "optimizer": "server.optimiser",
    "random_seed": "seed",
    "rho": "server.clip_norm",
    "sigma": "server.noise_std",
    "steps": "training.steps",
    "wd": "training.weight_decay",
    "weight_decay": "training.weight_decay",
}
"""Keys of a config, by the names that other libraries and papers give them."""


def suggest_key(name: str, known: Collection[str]) -> str:
    """Return a phrase that offers known keys for an unknown one.

    It is empty if no known key fits.

    >>> suggest_key("lr", ["learning_rate", "steps"]), suggest_key("lr", ["training", "server"])
    ("did you mean 'learning_rate'?", "did you mean 'training.learning_rate'?")
    """
    path = COMMON_NAMES.get(name, "")
    table, _, key = path.rpartition(".")
    if key in known:
        return f"did you mean {key!r}?"
    return f"did you mean {path!r}?" if table in known else suggest_names(name, known)


class DefaultTable(dict[str, Any]):
    """Table of a plugin that is a default: its `type` means the plugin of crfl, whichever others have that name."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(dict[str, Any])

    @classmethod
    def mark(cls, tree: Any) -> Any:
        """Mark every table with a `type` in a tree as default."""
        if isinstance(tree, list | tuple):
            return type(tree)(map(cls.mark, tree))
        if not isinstance(tree, Mapping):
            return tree
        table = {key: cls.mark(value) for key, value in tree.items()}
        return cls(table) if "type" in table else table


class RetypedTable(dict[str, Any]):
    """Table whose `type` changed while configs were merged.

    It keeps the settings of the table before. Of those, `inherited`, the new type leaves out the ones that it does not
    have.
    """

    def __init__(self, values: Mapping[str, Any], inherited: Set[str]) -> None:
        super().__init__(values)
        self.inherited = frozenset(inherited)

    def copy_without(self, written: Iterable[str]) -> RetypedTable:
        """Return a copy in which these settings count as written.

        They were written for the new type.
        """
        return RetypedTable(self, self.inherited - set(written))

    def fit(self, table: type[BaseModel], who: str, context: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the settings that a table has.

        The list `left_out` of the context gets a sentence about the others. A table that takes any key keeps
        everything. What is not inherited stays: the table may refuse it. `who` begins the sentence.
        """
        if table.model_config.get("extra") == "allow":
            return dict(self)
        foreign = [key for key in self if key in self.inherited and key not in table.model_fields]
        if foreign and context is not None and "left_out" in context:
            context["left_out"].append(
                f"{who} leaves out inherited options that it does not have: {', '.join(foreign)}"
            )
        return {key: value for key, value in self.items() if key not in foreign}


class Table(BaseModel):
    """Frozen table of a config that refuses unknown keys and names the known ones.

    Values are not converted: text is not a number, and neither text nor a number is a boolean, at any depth.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", make_strict(handler(source)))

    @classmethod
    def type_names(cls) -> tuple[str, ...]:
        """Return the values of `type` that stand for this table.

        The tuple is empty if it has no `type`.
        """
        return get_args(cls.model_fields["type"].annotation) if "type" in cls.model_fields else ()

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, RetypedTable) and value["type"] in cls.type_names():
            value = value.fit(cls, repr(value["type"]), info.context)
        if isinstance(value, Mapping) and cls.model_config.get("extra") == "forbid":
            for key in value:
                if key not in cls.model_fields:
                    known = ", ".join(cls.model_fields) or "none, it has no options"
                    message = f"unknown key; {suggest_key(str(key), cls.model_fields)} known: {known}"
                    raise build_key_error("unknown_key", str(key), message)
            for key, field in cls.model_fields.items():
                if field.is_required() and key not in value:
                    meaning = f": {field.description}" if field.description else ""
                    raise build_key_error("missing_key", key, f"is missing, and has no default{meaning}")
        return value
