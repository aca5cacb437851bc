"""A tracker for crfl."""

from __future__ import annotations

from crfl_core.extend import RoundRecord, RunContext, Tracker, hookimpl
from pydantic import Field


class MyPlugin(Tracker):
    """Writes the norm of the global model before the clip, round by round, to a CSV file.

    After a resume the file continues; rounds that were lost to a kill appear twice.
    """

    file: str = Field("norms.csv", min_length=1, description="file inside the run directory")

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Write the header when a new run begins."""
        if run.resumed_from == 0:
            (run.path / self.file).write_text("round,norm,clip_norm\n", encoding="utf-8")

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord) -> None:
        """Write one line per round."""
        with (run.path / self.file).open("a", encoding="utf-8") as file:
            file.write(f"{record.round},{record.norm_before_clip},{record.clip_norm}\n")
