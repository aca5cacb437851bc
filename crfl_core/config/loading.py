"""From files, inheritance and overrides to one frozen config, remembering where each value came from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from pydantic import ValidationError

from crfl_core.config import origins as places
from crfl_core.config.origins import Origins
from crfl_core.config.schema import RunConfig, Trust
from crfl_core.errors import ConfigError
from crfl_core.plugins import Registry

Tree = dict[str, Any]
ConfigSource = str | Path | Mapping[str, Any] | RunConfig


class LoadedConfig(NamedTuple):
    """A config and where its values were written."""

    config: RunConfig
    origins: Origins


def load_config(
    source: ConfigSource | None = None, *, overrides: Sequence[str] = (), registry: Registry | None = None
) -> LoadedConfig:
    """The config from a file, a mapping or an earlier config, with `key=value` overrides applied in order.

    Without a source it is the default: all defaults of the schema, on the embedded digits, under attack.
    """
    tree, written = read_source(source)
    for override in overrides:
        tree = apply_override(tree, override, written)
    found = Origins(written)
    try:
        allow = Trust.model_validate(tree).plugins.allow
        context = {"resolver": (registry or Registry()).allowing(allow)}
        config = RunConfig.model_validate(tree, context=context)
        if stages := config.missing_stages:
            steps = [*stages, *config.aggregation]
            config = RunConfig.model_validate({**dict(config), "aggregation": steps}, context=context)
            for _ in stages:
                found = found.shifted("aggregation", "server.cap_updates")
    except ValidationError as error:
        raise places.explain(error, tree, found) from error
    return LoadedConfig(config, found)


def dump_config(config: RunConfig, *, without: Set[str] = frozenset()) -> str:
    """The config as TOML, `without` some of its tables; loading the complete one gives an equal object."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True, exclude=set(without)))


def read_source(source: ConfigSource | None) -> tuple[Tree, dict[places.Path, str]]:
    """The merged tree of a source, and where each of its leaves was written."""
    if source is None:
        default = Path(__file__).with_name("default.toml")
        return read_file(default, name="the default config", chain=())
    if isinstance(source, RunConfig):
        return source.model_dump(mode="json", exclude_none=True), {}
    if isinstance(source, Mapping):
        tree = dict(source)
        if "extends" in tree:
            raise ConfigError("extends: only a file can extend another; load the base with crfl_core.load_config")
        return tree, dict.fromkeys(leaves(tree), "the mapping given to crfl_core")
    return read_file(Path(source), name=str(source), chain=())


def read_file(path: Path, *, name: str, chain: tuple[Path, ...]) -> tuple[Tree, dict[places.Path, str]]:
    """A file merged onto what it extends."""
    resolved = path.resolve()
    if resolved in chain:
        raise ConfigError(f"{name}: extends: the files extend each other in a circle: remove one `extends`")
    own = parse_file(path, name)
    bases = own.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{name}: extends = {bases!r}: must be a file name or a list of file names")
    tree: Tree = {}
    written: dict[places.Path, str] = {}
    for base in bases:
        base_path = path.parent / base
        if not base_path.exists():
            raise ConfigError(f"{name}: extends = {base!r}: there is no file {base_path}")
        base_tree, base_written = read_file(base_path, name=str(base_path), chain=(*chain, resolved))
        tree = merge(tree, base_tree, written, base_written)
    return merge(tree, own, written, dict.fromkeys(leaves(own), name)), written


def parse_file(path: Path, name: str) -> Tree:
    """The content of one TOML or YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    if path.suffix in (".yaml", ".yml"):
        return parse_yaml(text, name)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from error


def parse_yaml(text: str, name: str) -> Tree:
    """The content of a YAML file, read without constructing any Python objects."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"{name}: reading YAML needs PyYAML: pip install 'crfl[yaml]', or write TOML") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error
    if tree is None:  # an empty file
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: must be a table of settings, found {type(tree).__name__}")
    return tree


def merge(base: Tree, over: Tree, written: dict[places.Path, str], new: Mapping[places.Path, str]) -> Tree:
    """Tables merge, arrays replace, and a table whose `type` changes replaces the whole table.

    `written` is changed to say where the values of the result come from, `new` saying it for `over`.
    """

    def combine(one: Tree, other: Tree, path: places.Path) -> Tree:
        result = dict(one)
        for key, value in other.items():
            here = (*path, key)
            mine = as_table(result.get(key))
            if isinstance(mine, dict) and isinstance(value, dict) and same_type(mine, value):
                result[key] = combine(mine, value, here)
            else:
                for old in [known for known in written if known[: len(here)] == here]:
                    del written[old]
                result[key] = value
        return result

    result = combine(base, over, ())
    written.update(new)
    return result


def as_table(value: Any) -> Any:
    """A plugin's name alone stands for a table with this `type`."""
    return {"type": value} if isinstance(value, str) else value


def same_type(one: Tree, other: Tree) -> bool:
    """Whether a table may be merged into another: it names the same plugin, or none."""
    return "type" not in other or one.get("type") == other["type"]


def leaves(tree: Mapping[str, Any], path: places.Path = ()) -> list[places.Path]:
    """The paths of all values; items of an array of tables are numbered, any other array is one value."""
    found: list[places.Path] = []
    for key, value in tree.items():
        here = (*path, str(key))
        if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            value = {str(number): item for number, item in enumerate(value)}
        found += leaves(value, here) if isinstance(value, Mapping) and value else [here]
    return found


def apply_override(tree: Tree, text: str, written: dict[places.Path, str]) -> Tree:
    """The tree with one `a.b=value` applied; list items are named by position, `name` or `type`."""
    key, equals, raw = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: write it as key=value, for example --set training.learning_rate=0.1")
    if len(path) > 1 and path[0] not in tree:
        tree = tree | default_of(path[0])
    before = dict(written)
    place = places_in(tree, path, text)
    over: Any = parse_value(raw.strip())
    for depth in range(len(place) - 1, -1, -1):
        step = place[depth]
        if isinstance(step, int):
            items = list(follow(tree, place[:depth]))
            item = as_table(items[step])
            if isinstance(over, dict) and isinstance(item, dict) and same_type(item, over):
                over = merge(item, over, {}, {})
            items[step] = over
            over = items
        else:
            over = {step: over}
    target = tuple(map(str, place))
    result = merge(tree, over, written, {target: f"--set {text}"})
    if any(isinstance(step, int) for step in place):  # only one item of the array changed
        written |= {key: origin for key, origin in before.items() if key[: len(target)] != target}
    return result


def default_of(key: str) -> Tree:
    """The default of a field that holds plugins, so that an override can reach into it."""
    field = RunConfig.model_fields.get(key)
    default = None if field is None else field.default
    if isinstance(default, tuple):
        return {key: list(default)}
    return {key: default} if isinstance(default, dict) else {}


def places_in(tree: Tree, path: places.Path, text: str) -> tuple[int | str, ...]:
    """The path with items of lists as positions."""
    place: list[int | str] = []
    here: Any = tree
    for part in path:
        if isinstance(here, list | tuple):
            position = item_position(here, part)
            if position is None:
                tables = [item for item in map(as_table, here) if isinstance(item, dict)]
                found = ", ".join(str(item.get("name", item.get("type"))) for item in tables) or f"{len(here)} items"
                raise ConfigError(f"--set {text}: {'.'.join(map(str, place))} has no item {part!r}: it has {found}")
            place.append(position)
            here = here[position]
        elif part != "0" or not place or not isinstance(as_table(here), Mapping):
            # A single table stands for a list of one: position 0 of it is the table itself.
            place.append(part)
            here = here.get(part) if isinstance(here, Mapping) else None
    return tuple(place)


def item_position(items: Sequence[Any], part: str) -> int | None:
    """Which item of a list is meant: by position, by `name`, by `type`."""
    if part.isdecimal():
        return int(part) if int(part) < len(items) else None
    for key in ("name", "type"):
        for position, item in enumerate(map(as_table, items)):
            if isinstance(item, Mapping) and item.get(key) == part:
                return position
    return None


def follow(tree: Any, place: Sequence[int | str]) -> Any:
    """The value at a place."""
    for step in place:
        tree = tree[step]
    return tree


def parse_value(raw: str) -> Any:
    """A value as in TOML, else the text itself.

    >>> parse_value("0.1"), parse_value("[1, 2]"), parse_value("krum")
    (0.1, [1, 2], 'krum')
    """
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw
