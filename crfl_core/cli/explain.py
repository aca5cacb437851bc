"""`crfl explain`: the resolved config, and where each value came from."""

from __future__ import annotations

from crfl_core.cli import arguments, echo, output


def explain(
    config: arguments.ConfigArgument = None,
    overrides: arguments.SetOption = None,
    json: arguments.JsonOption = False,
    trust: arguments.TrustOption = False,
) -> None:
    """Print every setting of a config, and where it was written.

    CONFIG is a file or a run directory.
    """
    from crfl_core.config import load_config
    from crfl_core.config.options import list_settings
    from crfl_core.plugin_loading.missing_plugins import LenientRegistry, missing_plugin_messages
    from crfl_core.plugin_loading.registry import Registry
    from crfl_core.runs.resource_needs import check_config
    from crfl_core.runs.results import reading
    from crfl_core.runs.run import default_path, locate_errors
    from crfl_core.runs.run_directory import CONFIG, RunDirectory

    if config is not None and (config / CONFIG).exists():
        config = config / CONFIG
    with output.redirect_plugin_output():
        registry = LenientRegistry(Registry())
        if config is not None and config.name == CONFIG and (run := RunDirectory(config.parent)).has_marker:
            run.read(CONFIG)  # which compares it
            registry = reading(run, Registry(), trust=trust)
        loaded = load_config(config, overrides=overrides or (), registry=registry)
        with locate_errors(loaded):
            check_config(loaded.config, default_path(loaded.config))
        lines = list_settings(loaded)
    if json:
        from pydantic_core import to_json

        echo(to_json([vars(line) for line in lines], indent=2).decode())
    else:
        texts = [f"{line.key} = {line.text}" for line in lines]
        width = min(72, max(map(len, texts)))
        for text, line in zip(texts, lines, strict=True):
            echo(f"{text:<{width}}  # {line.origin}")
    for sentence in missing_plugin_messages(loaded.config.used_plugins()):
        echo(f"warning: {sentence}; its options are shown as they were written", err=True)
