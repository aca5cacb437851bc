"""`crfl resume`: finish a run that was interrupted."""

from __future__ import annotations

from pathlib import Path

from crfl_core.cli import arguments, output


def resume(
    run: arguments.RunArgument,
    full: arguments.FullOption = False,
    json: arguments.JsonOption = False,
    quiet: arguments.QuietOption = False,
    trust: arguments.TrustOption = False,
) -> None:
    """Resume an unfinished run, bit for bit as if it had never stopped; or a sweep."""
    output.show_start(quiet)
    with output.pause_garbage_collection():
        from crfl_core.cli.early_results import RunDisplay
        from crfl_core.runs.run import resume as resume_run

    if (run / "sweep.toml").is_file():
        resume_sweep(run, json=json, quiet=quiet, trust=trust)
        return
    results = RunDisplay(full=full, json=json, quiet=quiet)
    with output.redirect_plugin_output():
        try:
            result = resume_run(run, trackers=results.trackers, trust=trust)
        except KeyboardInterrupt as stop:
            raise output.report_interrupt(run, stop) from None
    results.show(result)


def resume_sweep(path: Path, *, json: bool, quiet: bool, trust: bool) -> None:
    """Resume the sweep in a folder with the command `sweep`, which is a plugin."""
    from crfl_core.plugin_loading.registry import Registry

    options = [f"--{name}" for name, given in {"json": json, "quiet": quiet, "trust": trust}.items() if given]
    Registry().command("sweep").click_command.main([str(path), *options], prog_name="crfl sweep")
