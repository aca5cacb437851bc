"""Tracker `jsonl`: events as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from crfl_core.extend import CertificateResult, RoundRecord, RunContext, RunResult, Tracker, hookimpl


class JsonLines(Tracker):
    """Appends one JSON object per event to a file, for tools that follow a run.

    Every object has `event`: run_started, round_finished, certified or run_finished. After a resume the file continues
    with another run_started; rounds that were lost to a kill appear twice.
    """

    path: str = Field("events.jsonl", description="file; a relative path is inside the run directory")

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Write the run's name, and after which round it resumes."""
        self._write(run, "run_started", {"name": run.name, "rounds": run.rounds, "resumed_from": run.resumed_from})

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord) -> None:
        """Write the round's record."""
        self._write(run, "round_finished", record.model_dump(mode="json"))

    @hookimpl
    def crfl_certified(self, run: RunContext, certified: CertificateResult) -> None:
        """Write which guarantee is ready."""
        names = ("certificate", "level", "test_set", "statement", "directions", "label")
        self._write(run, "certified", {name: getattr(certified, name) for name in names})

    @hookimpl
    def crfl_run_finished(self, run: RunContext, result: RunResult) -> None:
        """Write the headline figures."""
        self._write(run, "run_finished", result.metrics.model_dump(mode="json", exclude={"curves"}))

    def _write(self, run: RunContext, event: str, facts: dict[str, object]) -> None:
        with Path(run.path, self.path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event} | facts) + "\n")
