"""`crfl schema`: a JSON Schema that accepts what the loader accepts."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import crfl_core
from crfl_core import RunConfig, load_config
from crfl_core.config.json_schema import json_schema
from crfl_core.plugin_api import CONFIGURABLE
from crfl_core.plugin_loading.registry import Registry

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]
Schema = dict[str, Any]


@pytest.fixture(scope="module")
def schema() -> Schema:
    return json_schema(Registry())


def nodes(schema: Any) -> Iterator[Schema]:
    """Every table of a schema."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from nodes(item)


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
ANNOTATIONS = {"$schema", "$defs", "title", "description", "default", "discriminator"}


def is_of_type(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (isinstance(value, bool) == (name == "boolean"))


KEYWORDS: dict[str, Callable[[Schema, Schema, Any, Any], Any]] = {
    "$ref": lambda root, _, name, value: accepts(root, root["$defs"][name.removeprefix("#/$defs/")], value),
    "anyOf": lambda root, _, options, value: any(accepts(root, option, value) for option in options),
    "oneOf": lambda root, _, options, value: any(accepts(root, option, value) for option in options),
    "type": lambda _, __, name, value: is_of_type(value, name),
    "const": lambda _, __, expected, value: value == expected,
    "enum": lambda _, __, options, value: value in options,
    "required": lambda _, __, keys, value: all(key in value for key in keys),
    "properties": lambda root, _, parts, value: all(
        accepts(root, part, value[key]) for key, part in parts.items() if key in value
    ),
    "additionalProperties": lambda root, schema, allowed, value: all(
        accepts(root, allowed, value[key]) if isinstance(allowed, dict) else allowed
        for key in set(value) - set(schema.get("properties", ()))
    ),
    "minProperties": lambda _, __, least, value: len(value) >= least,
    "items": lambda root, _, part, value: all(accepts(root, part, item) for item in value),
    "minItems": lambda _, __, least, value: len(value) >= least,
    "pattern": lambda _, __, pattern, value: re.search(pattern, value) is not None,
    "minimum": lambda _, __, limit, value: value >= limit,
    "exclusiveMinimum": lambda _, __, limit, value: value > limit,
    "maximum": lambda _, __, limit, value: value <= limit,
    "exclusiveMaximum": lambda _, __, limit, value: value < limit,
}


def accepts(root: Schema, schema: Schema, value: Any) -> bool:
    """Whether a value is valid, by the keywords of JSON Schema that pydantic writes. Unknown keywords are an error."""

    def holds(keyword: str, operand: Any) -> bool:
        return bool(KEYWORDS[keyword](root, schema, operand, value))

    checks = {keyword: operand for keyword, operand in schema.items() if keyword not in ANNOTATIONS}
    if "type" in checks and not holds("type", checks.pop("type")):
        return False
    return all(holds(keyword, operand) for keyword, operand in checks.items())


def test_the_command_prints_it(crfl: Crfl, schema: Schema) -> None:
    assert json.loads(crfl("schema").stdout) == schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_reference_resolves(schema: Schema) -> None:
    references = {node["$ref"] for node in nodes(schema) if isinstance(node.get("$ref"), str)}
    assert references
    assert {reference.removeprefix("#/$defs/") for reference in references} <= set(schema["$defs"])
    assert not [node for node in nodes(schema) if "x-crfl-kind" in node]


def test_every_setting_is_described_and_extends_is_allowed(schema: Schema) -> None:
    properties = schema["properties"]
    assert set(properties) == {*RunConfig.model_fields, "extends"}
    assert all(setting.get("description") for setting in properties.values())


@pytest.mark.parametrize("kind", CONFIGURABLE)
def test_every_installed_plugin_appears_with_all_its_options(schema: Schema, kind: str) -> None:
    *tables, names = schema["$defs"][kind]["anyOf"]
    registry = Registry()
    for name in registry.names(kind):
        (table,) = [table for table in tables if name in table["properties"]["type"]["enum"]]
        assert set(table["properties"]) == {"type", *registry.load(kind, name).model_fields}
        assert table["additionalProperties"] is False
        assert table["description"]
        assert name in names["enum"]


def test_an_option_of_every_plugin_says_what_it_means(schema: Schema) -> None:
    unexplained = [
        f"{kind} {table['title']}: {option}"
        for kind in CONFIGURABLE
        for table in schema["$defs"][kind]["anyOf"][:-1]
        for option, content in table["properties"].items()
        if option != "type" and not content.get("description")
    ]
    assert unexplained == []


DEFAULT = (Path(crfl_core.__file__).parent / "config" / "default.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        DEFAULT,
        "",
        "extends = 'base.toml'\nattack = { scale = 5.0 }",
        "extends = ['a.toml', 'b.yaml']",
        "attack = 'none'",
        "aggregation = 'fedavg'",
        "aggregation = [{ type = 'fedavg', weighting = 'uniform' }]",
        "aggregation = { type = 'crfl:fedavg' }",
        "aggregation.before.fedavg = 'norm-bound'",
        "aggregation.before.fedavg = [{ type = 'norm-bound', bound = 2.0 }, 'norm-filter']",
        "certificates.after.paper = 'tail'",
        "model = { type = 'softmax', features = 'unit-ball' }",
        "model = { type = 'mlp', features = [{ type = 'unit-ball', radius = 2 }, 'identity'] }",
        "rounds = 2\nserver = { clip_norm = [1.0, 2.0], noise_std = { start = 0.1, slope = 0.0 } }",
        "rounds = 2\ntraining = { learning_rate = [0.1, 0.2], epochs = 2 }",
        "training = { learning_rate = { start = 0.9, slope = -0.01 }, steps = { per_client = [1, 2] } }",
        "training = { algorithm = { type = 'fedprox', mu = 0.2 }, clip_gradients = 0.5 }",
        "training = { spectrum = 0.06, ball = 0.1, weight_decay = 0.1 }",
        "model = { type = 'softmax', start = 'zeros' }",
        "seeds = { noise = 3 }\ntrackers = ['jsonl']",
    ],
)
def test_it_accepts_what_the_loader_accepts(schema: Schema, text: str) -> None:
    tree = tomllib.loads(text)
    assert accepts(schema, schema, tree)
    if "extends" not in tree:
        load_config(tree)


@pytest.mark.parametrize(
    "text",
    [
        "ronds = 3",
        "rounds = 0",
        "rounds = 'many'",
        "dataset = 'fedavg'",
        "aggregation = [{ type = 'fedagv' }]",
        "aggregation = [{ type = 'fedavg', wieghting = 'uniform' }]",
        "aggregation.beside.fedavg = 'norm-bound'",
        "aggregation.before.fedavg = 'norm-bond'",
        "attack = { type = 'model-replacement', scale = 0.5 }",
        "attack = { type = 'model-replacement', trigger = { type = 'pixels', size = 0 } }",
        "server = { clip_norm = { start = 1.0, slop = 0.1 } }",
        "name = 'a/b'",
        "extends = 3",
    ],
)
def test_it_refuses_what_the_loader_refuses(schema: Schema, text: str) -> None:
    assert not accepts(schema, schema, tomllib.loads(text))


ODD = """
from collections.abc import Callable

from crfl_core.extend import Tracker

class Odd(Tracker):
    call: Callable[[], None] = print
"""


def test_a_plugin_whose_options_json_cannot_express_is_named_without_them(install: Install) -> None:
    install("odd-tools", "1.0", {"crfl.trackers": {"odd": "Odd"}}, ODD)
    schema = json_schema(Registry())
    assert accepts(schema, schema, {"trackers": [{"type": "odd"}]})


def test_a_broken_plugin_is_left_out(install: Install) -> None:
    install("broken-tools", "0.3", {"crfl.trackers": {"broken": "Broken"}}, "raise ImportError")
    schema = json_schema(Registry())
    assert not accepts(schema, schema, {"trackers": ["broken"]})
    assert accepts(schema, schema, {"trackers": ["jsonl"]})


def test_plugins_of_one_name_appear_under_the_names_that_select_them(install: Install) -> None:
    install("odd-tools", "1.0", {"crfl.trackers": {"jsonl": "Odd"}}, ODD)
    schema = json_schema(Registry())
    assert accepts(schema, schema, {"trackers": ["odd-tools:jsonl", {"type": "crfl:jsonl", "path": "a"}]})
    assert not accepts(schema, schema, {"trackers": ["jsonl"]})
