"""The JSON Schema of a config, for editors and validators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import models_json_schema

from crfl_core.config.merging import SIDES
from crfl_core.config.schema import RunConfig
from crfl_core.errors import PluginError
from crfl_core.plugin_api import CONFIGURABLE
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_loading.registry import Registry, plugin_summary

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLUGIN_KIND_KEY = "x-crfl-kind"


class PluginChoice(NamedTuple):
    """A plugin that a config can name, by which names; `described` if its options have a JSON Schema."""

    kind: str
    names: list[str]
    plugin: type[Plugin]
    described: bool


def json_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema of a config file.

    It has every installed plugin that can be loaded. Imports them all.
    """
    choices = [choice for kind in CONFIGURABLE for choice in list_choices(registry, kind)]
    models: list[type[BaseModel]] = [RunConfig, *(choice.plugin for choice in choices if choice.described)]
    refs, definitions = models_json_schema([(model, "validation") for model in models])
    known = definitions["$defs"]
    schema = resolve_reference(refs[RunConfig, "validation"], known)
    schema["properties"]["extends"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "config files to start from, relative to this one, or presets of packages, package:name",
    }
    for kind in CONFIGURABLE:
        tables = []
        names = []
        for choice in (choice for choice in choices if choice.kind == kind):
            options: dict[str, Any] = {"type": "object"}
            if choice.described:
                options = resolve_reference(refs[choice.plugin, "validation"], known)
            options["properties"] = {"type": {"enum": choice.names}} | options.get("properties", {})
            options.pop("required", None)  # what a file leaves out may stand in one that it extends
            tables.append(options | {"title": choice.names[0], "description": plugin_summary(choice.plugin)})
            names += choice.names
        known[kind] = {"anyOf": [*tables, {"enum": names, "description": "by name, with its defaults"}]}
    return cast("dict[str, Any]", link_plugins({"$schema": DRAFT} | schema | {"$defs": known}))


def list_choices(registry: Registry, kind: str) -> Iterator[PluginChoice]:
    """Yield every plugin of a kind that can be loaded.

    `crfl plugins` says what is wrong with the others.
    """
    for name in registry.names(kind):
        candidates = [found for found in registry.found[kind][name] if registry.is_usable(found)]
        for found in candidates:
            exact = f"{found.distribution}:{name}"
            try:
                plugin = registry.load(kind, exact)
            except PluginError:
                continue
            yield PluginChoice(kind, [name, exact] if len(candidates) == 1 else [exact], plugin, is_described(plugin))


def is_described(plugin: type[Plugin]) -> bool:
    """Return whether JSON can express the options of a plugin."""
    try:
        plugin.model_json_schema()
    except PydanticInvalidForJsonSchema:
        return False
    return True


def resolve_reference(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the definition that a reference points to."""
    name = schema["$ref"].rpartition("/")[2]
    return dict(known[name])


def link_plugins(schema: Any) -> Any:
    """Replace every mark of a plugin field by a reference.

    The reference is to the plugins of its kind.
    """
    if isinstance(schema, list):
        return [link_plugins(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {key: link_plugins(value) for key, value in schema.items() if key != PLUGIN_KIND_KEY}
    if PLUGIN_KIND_KEY in schema:
        return {"$ref": f"#/$defs/{schema[PLUGIN_KIND_KEY]}"} | rest
    if PLUGIN_KIND_KEY in schema.get("items", ()):  # a single table stands for a list of one
        array = {"type": rest.pop("type"), "items": rest.pop("items")}
        beside = {"type": "object", "additionalProperties": {"anyOf": [array, array["items"]]}}
        insertion = {
            "type": "object",
            "properties": dict.fromkeys(SIDES, beside),
            "additionalProperties": False,
            "minProperties": 1,
            "description": "what to put before or after items of the inherited list, which are named by type",
        }
        return {"anyOf": [array, array["items"], insertion]} | rest
    return rest
