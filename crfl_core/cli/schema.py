"""`crfl schema`: the JSON Schema of a config."""

from __future__ import annotations

from crfl_core.cli import echo


def schema() -> None:
    """Print the JSON Schema of a config, for editors and programs.

    It has the options of every installed plugin.
    """
    import json

    from crfl_core.config.json_schema import json_schema
    from crfl_core.plugin_loading.registry import Registry

    echo(json.dumps(json_schema(Registry()), indent=2))
