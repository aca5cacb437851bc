"""`crfl resume`: finish a run that was interrupted."""

from __future__ import annotations

from crfl_core.cli import arguments, output


def resume(
    run: arguments.RunArgument,
    full: arguments.FullOption = False,
    json: arguments.JsonOption = False,
    quiet: arguments.QuietOption = False,
    trust: arguments.TrustOption = False,
) -> None:
    """Resume an unfinished run, bit for bit as if it had never stopped."""
    output.starting(quiet)
    from crfl_core import api

    with output.plugins_at_work():
        try:
            result = api.resume(run, trackers=output.progress(quiet), trust=trust)
        except KeyboardInterrupt as stop:
            raise output.interrupted(run, stop) from None
    output.report(result, quiet=quiet, full=full, json=json)
