"""Base class of every plugin, config fields that hold plugins, and methods that plugins must not replace."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Unpack

from pydantic import (
    AfterValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from crfl_core.errors import UNEXPECTED_EXCEPTIONS, CrflError, PluginError, describe_exception
from crfl_core.files.data_files import absolute_user_path
from crfl_core.plugin_api import LOCAL, own_packages
from crfl_core.plugin_api.plugin_errors import function_of, source_location
from crfl_core.records.round import Dependence
from crfl_core.records.table import DefaultTable, RetypedTable, Table

API_VERSION = 1
"""Version of the plugin API that this release offers. A class names the one it was written for in `api_version`."""


class Plugin(Table):
    """A class that is its own config: its fields are its options, and unknown options are refused.

    Instances are frozen and hold no state of a run: state is passed in, returned, and kept by the core.
    """

    # No option means anything at infinity, and a dumped config would have nothing in its place.
    model_config = ConfigDict(allow_inf_nan=False)

    api_version: ClassVar[int] = 1
    """Version of the plugin API that the class was written for."""

    # The `type` under which a config named this plugin. Not a field, so a plugin's options are its own.
    _configured_as: str | None = PrivateAttr(default=None)
    _provided_by: str = PrivateAttr(default=LOCAL)

    def __init_subclass__(cls, **settings: Unpack[ConfigDict]) -> None:
        super().__init_subclass__(**settings)
        refuse_overriding(cls, Plugin)

    @property
    def configured_as(self) -> str:
        """Return the name under which a config names this plugin.

        It is the class name if Python code made the plugin.
        """
        return self._configured_as or type(self).__name__

    @property
    def full_name(self) -> str:
        """Return name, distribution and version, as in messages: `'krum' of crfl 0.1.0`."""
        return f"{self.configured_as!r} of {self._provided_by}"

    def with_name(self, name: str, origin: str | None = None) -> Plugin:
        """Return a copy with a configured name and a distribution.

        The copy comes from the distribution `origin` if that is given.
        """
        copy = self.model_copy()
        copy._configured_as = name
        copy._provided_by = origin or self._provided_by
        return copy


def is_built_in(plugin: Plugin) -> bool:
    """Ask whether a plugin's class is code of crfl.

    What other plugins say about themselves is declared in audits.
    """
    return type(plugin).__module__.partition(".")[0] in own_packages()


def name_with_distribution(plugin: Plugin) -> str:
    """Return name and distribution of a plugin, with those in its options.

    An example is `'per-layer' of crfl with ...`.
    """
    origin = plugin._provided_by
    name = f"{plugin.configured_as!r} of {origin if origin == LOCAL else origin.partition(' ')[0]}"
    inner = (name_with_distribution(option) for _, option in plugin if isinstance(option, Plugin))
    return " with ".join((name, *inner))


class Resolver(Protocol):
    """Lookup of plugin classes by name, passed to the fields below in pydantic's validation context."""

    def load(self, kind: str, name: str) -> type[Plugin]:
        """Return the class that a name stands for. Raises `PluginError`."""

    def name_of(self, kind: str, plugin: type[Plugin]) -> str:
        """Return the name that stands for a class. Raises `PluginError`."""

    def origin(self, kind: str, name: str) -> str:
        """Return distribution and version of a named plugin. Raises `PluginError`."""

    def default_name(self, kind: str, name: str) -> str:
        """Return the name that stands for crfl's own plugin.

        It stands for it even if other distributions declare the same name.
        """

    def import_refusal(self, path: str) -> str:
        """Return why an option must not import code; empty if it may."""


def check_import_path(path: str, info: ValidationInfo) -> str:
    """Check that code may be imported, and make file paths absolute.

    So a run can resume from another folder.
    """
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise ValueError('must be "package.module:name" or "file.py:name"')
    if place.endswith(".py"):
        path = f"{absolute_user_path(Path(place))}:{name}"
    resolver: Resolver | None = (info.context or {}).get("resolver")
    if resolver is not None and (refusal := resolver.import_refusal(path)):
        raise PydanticCustomError("plugin", "{message}", {"message": refusal})
    return path


ImportPath = Annotated[str, AfterValidator(check_import_path)]
"""Type of an option that names code to import, "package.module:name" or "file.py:name".

It runs the code that a config names; with `plugins.allow`, only code of the listed distributions."""


def names_code(plugin: Plugin) -> bool:
    """Ask whether an option of a plugin names code to import."""
    marks = (mark for field in type(plugin).model_fields.values() for mark in field.metadata)
    return any(getattr(mark, "func", None) is check_import_path for mark in marks)


class PluginField:
    """Mark of a field that holds a plugin: `dataset: Annotated[Dataset, PluginField("dataset")]`.

    In a config it is a table with the plugin's name in `type` and its options beside it. Only the named plugin is
    imported. Options are validated by the plugin's own class, so an error names the exact key.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(self, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(self._serialise),
        )

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # `crfl schema` puts the options of every installed plugin here.
        return {"x-crfl-kind": self.kind}

    def _validate(self, value: object, info: ValidationInfo) -> Plugin:
        resolver: Resolver | None = (info.context or {}).get("resolver")
        if isinstance(value, Plugin):
            return value if resolver is None else self._named(value, resolver, info)
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a table with the name of {with_article(self.kind)} in `type`")
        name = value.get("type")
        if not isinstance(name, str):
            raise ValueError(f"needs `type`, the name of an installed {self.kind}: `crfl plugins` lists them")
        if resolver is None:
            raise ValueError(f"{name!r} alone needs a registry: pass an instance of its class instead")
        if isinstance(value, DefaultTable):
            name = resolver.default_name(self.kind, name)
        try:
            plugin_class = resolver.load(self.kind, name)
        except PluginError as error:
            raise PydanticCustomError("plugin", "{message}", {"message": str(error), "key": "type"}) from error
        if isinstance(value, RetypedTable):
            value = value.fit(plugin_class, f"{self.kind} {name!r}", info.context)
        options = {key: option for key, option in value.items() if key != "type"}
        origin = resolver.origin(self.kind, name)
        try:
            plugin = plugin_class.model_validate(options, context=info.context)
        except ValidationError as error:
            refuse_wrong_defaults(f"{self.kind} {name!r} of {origin}", plugin_class, options, error)
            raise
        except CrflError:
            raise
        except UNEXPECTED_EXCEPTIONS as error:
            message = f"{self.kind} {name!r} of {origin} failed to check its options: {describe_exception(error)}"
            raise PydanticCustomError("plugin", "{message}", {"message": message}) from error
        plugin._configured_as = name
        plugin._provided_by = origin
        return plugin

    def _named(self, value: Plugin, resolver: Resolver, info: ValidationInfo) -> Plugin:
        """Name an instance that Python code made as a config would.

        The plugins among its options are named, too.
        """
        if any(isinstance(part, Plugin) and part._configured_as is None for _, part in value):
            options = {option: getattr(value, option) for option in value.model_fields_set}
            known_as = value._configured_as
            origin = value._provided_by
            value = type(value).model_validate(options, context=info.context)
            value._configured_as = known_as
            value._provided_by = origin
        if value._configured_as is not None:
            return value
        try:
            name = resolver.name_of(self.kind, type(value))
            resolver.load(self.kind, name)  # refuses a class that cannot be used
            return value.with_name(name, resolver.origin(self.kind, name))
        except PluginError as error:
            raise PydanticCustomError("plugin", "{message}", {"message": str(error)}) from error

    @staticmethod
    def _serialise(value: Plugin) -> dict[str, Any]:
        return {"type": value.configured_as} | value.model_dump(mode="json", exclude_none=True)


def refuse_wrong_defaults(who: str, plugin: type[Plugin], options: Mapping[str, Any], error: ValidationError) -> None:
    """Raise an error about the plugin if its own default is refused.

    The config has no such key to mend.
    """
    for detail in error.errors(include_url=False):
        option = str(detail["loc"][0]) if detail["loc"] else ""
        if option in plugin.model_fields and option not in options and "key" not in detail.get("ctx", {}):
            default = plugin.model_fields[option].default
            message = f"{who}: its default {option} = {default!r} is refused: {detail['msg']}: mend the plugin"
            raise PydanticCustomError("plugin", "{message}", {"message": message}) from error


def with_article(kind: str) -> str:
    """Return the name of a kind with its article.

    >>> with_article("aggregator"), with_article("model")
    ('an aggregator', 'a model')
    """
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def refuse_overriding(plugin: type, root: type) -> None:
    """Raise `PluginError` if a class replaces a final method.

    `typing.final` marks such a method in one of the class's bases below `root`. What an instance would find counts: a
    method of the class or of a mixin, or an option of the same name.
    """
    options = inspect.get_annotations(plugin)
    for base in plugin.__mro__:
        if base is plugin or not issubclass(base, root):
            continue
        for name, member in tuple(vars(base).items()):  # other threads may fill caches of the class
            if not is_final(member):
                continue
            found = inspect.getattr_static(plugin, name)
            if name in options or found is not member:
                place = source_location(plugin if name in options else found)
                raise PluginError(
                    f"{plugin.__qualname__}.{name} ({place}) replaces {base.__qualname__}.{name}, which is final: "
                    f"{instead(base)}"
                )


def refuse_hooks(plugin: type, role: str) -> None:
    """Raise `PluginError` if a class has hooks.

    With hooks it would watch the run; `role` says what it is.
    """
    for name in dir(plugin):
        member = inspect.getattr_static(plugin, name)
        if hasattr(member, "crfl_impl"):
            raise PluginError(
                f"{plugin.__qualname__} has the hook {name} ({source_location(member)}), but {role} cannot watch the "
                "run: put the hook into a tracker"
            )


def is_final(member: Any) -> bool:
    """Ask whether `typing.final` marks a method.

    The mark may come before or behind `property`, `classmethod` or `staticmethod`.
    """
    return getattr(member, "__final__", False) or getattr(function_of(member), "__final__", False)


def instead(base: type) -> str:
    """Return which methods to implement in place of a final one."""
    free = sorted(getattr(base, "__abstractmethods__", ())) or [
        name for name, member in vars(base).items() if inspect.isfunction(member) and not is_final(member)
    ]
    public = [name for name in free if not name.startswith(("_", "model_"))]
    return f"implement {' or '.join(public)} instead" if public else "derive from another class"


class ServerStep(Plugin):
    """Plugin of the server that changes the weights of clients. What they depend on follows from the base class."""

    depends: ClassVar[Dependence] = "all"
    alternatives: ClassVar[str]
    """Base classes to derive from for another dependence."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        cls.check_dependence()

    @classmethod
    def check_dependence(cls) -> None:
        """Raise `PluginError` if the class sets `depends` or has wrong hooks.

        Wrong hooks see what the class must not see. What an instance would find counts, whether the class, a mixin or a
        later assignment put it there.
        """
        base = next(base for base in cls.__mro__ if base.__module__.startswith("crfl_core.plugin_api."))
        depends = inspect.getattr_static(cls, "depends")
        if depends is not inspect.getattr_static(base, "depends") or "depends" in cls.model_fields:
            raise PluginError(
                f"{cls.__qualname__} ({source_location(cls)}) sets `depends`, which follows from the base class: "
                f"derive from {cls.alternatives}, or leave it out"
            )
        if depends != "all":
            refuse_hooks(cls, "a step that must not depend on the updates")
