"""What a run was made with, as its environment.json says."""

from __future__ import annotations

from crfl_core.plugin_loading.missing_plugins import Requirement, Used
from crfl_core.runs.run_directory import ENVIRONMENT, RunDirectory


def used_plugins(directory: RunDirectory) -> Used:
    """Where a run took its plugins from; nothing if it does not say. Raises `StoreError` for a damaged file."""
    if not (directory.path / ENVIRONMENT).exists():
        return {}
    try:
        return {
            (plugin["kind"], plugin["name"]): Requirement(plugin["distribution"], plugin["version"])
            for plugin in directory.read_json(ENVIRONMENT)["plugins"]
        }
    except (KeyError, TypeError) as error:
        raise directory.damaged(ENVIRONMENT, error) from error
