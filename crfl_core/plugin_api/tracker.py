"""Trackers: plugins that observe a run."""

from __future__ import annotations

from crfl_core.plugin_api.base import Plugin


class Tracker(Plugin):
    """Observer of a run through hooks. Open files and progress bars live in private attributes.

    An exception in a tracker disables it with a warning; it never stops a run.
    """
