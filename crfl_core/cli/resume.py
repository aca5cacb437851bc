"""`crfl resume`: go on after a kill."""

from __future__ import annotations

from crfl_core.cli import arguments, output


def resume(run: arguments.RunArgument, quiet: arguments.QuietOption = False) -> None:
    """Go on with an unfinished run, bit by bit as if it had never stopped."""
    from crfl_core import api

    try:
        result = api.resume(run, trackers=output.progress(quiet))
    except KeyboardInterrupt:
        raise output.interrupted(run) from None
    output.report(result, quiet=quiet)
