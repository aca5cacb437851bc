"""The JSON Schema of a config, for editors and validators."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from crfl_core.config.schema import RunConfig
from crfl_core.errors import PluginError
from crfl_core.kinds import KINDS
from crfl_core.plugins import Registry, first_line

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(registry: Registry) -> dict[str, Any]:
    """The schema of a config file with every installed plugin that can be loaded. Imports them all."""
    classes = {}
    for kind in KINDS:
        for name in registry.names(kind):
            try:
                classes[kind, name] = registry.load(kind, name)
            except PluginError:
                continue  # `crfl plugins` says what is wrong with it
    models: list[type[BaseModel]] = [RunConfig, *classes.values()]
    refs, definitions = models_json_schema([(model, "validation") for model in models])
    known = definitions["$defs"]
    schema = resolve(refs[RunConfig, "validation"], known)
    schema["properties"]["extends"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "config files to start from, relative to this one",
    }
    for kind in KINDS:
        choices = []
        for (of_kind, name), plugin in classes.items():
            if of_kind == kind:
                options = resolve(refs[plugin, "validation"], known)
                options["properties"] = {"type": {"const": name}} | options.get("properties", {})
                options["required"] = ["type", *options.get("required", [])]
                choices.append(options | {"title": name, "description": first_line(plugin)})
        names = {"enum": [choice["title"] for choice in choices], "description": "by name, with its defaults"}
        known[kind] = {"anyOf": [*choices, names]}
    return cast("dict[str, Any]", linked({"$schema": DRAFT} | schema | {"$defs": known}))


def resolve(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """A copy of the definition that a reference points to."""
    name = schema["$ref"].rpartition("/")[2]
    return dict(known[name])


def linked(schema: Any) -> Any:
    """The schema with every mark of a plugin field replaced by a reference to the plugins of its kind."""
    if isinstance(schema, dict):
        if "x-crfl-kind" in schema:
            rest = {key: linked(value) for key, value in schema.items() if key != "x-crfl-kind"}
            return {"$ref": f"#/$defs/{schema['x-crfl-kind']}"} | rest
        return {key: linked(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [linked(item) for item in schema]
    return schema
