"""Tracker `tensorboard`: runs in TensorBoard."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from crfl_reports.figures import image_of
from pydantic import Field, PrivateAttr

from crfl_core.extend import PluginError, RoundRecord, RunContext, RunResult, Tracker, hookimpl
from crfl_trackers.run_summary import curve_name, curve_points, draw_figures, final_metrics, flat_config, round_metrics


class TensorBoard(Tracker):
    """Writes scalars of every round, the config, certified accuracy and figures for `tensorboard --logdir runs`.

    A resumed run continues in the same directory; rounds that a kill took back are not shown.
    Needs an extra: `pip install "crfl[tensorboard]"`.
    """

    path: str = Field("tensorboard", description="directory of event files; a relative one is inside the run directory")
    figures: bool = Field(True, description="whether figures are drawn at the end")

    _writer: Any = PrivateAttr(default=None)

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Open an event file, and write the config."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PluginError('TensorBoard is not here: `pip install "crfl[tensorboard]"`') from error
        folder = Path(run.path, self.path)
        purge = run.resumed_from + 1 if folder.exists() else None
        self._writer = SummaryWriter(str(folder), purge_step=purge)
        text = (run.path / "config.toml").read_text(encoding="utf-8")
        self._writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()), run.resumed_from)

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        """Write the scalars of a round."""
        for name, value in round_metrics(record).items():
            self._writer.add_scalar(name, value, record.round)

    @hookimpl
    def crfl_run_finished(self, run: RunContext, result: RunResult) -> None:
        """Write curves as scalars and text, and figures.

        Also write the numbers that compare runs.
        """
        for curve in result.metrics.curves:
            for step, shares in curve_points(curve):
                for name, value in shares.items():
                    self._writer.add_scalar(name, value, step)
            rows = zip(curve.radii, curve.certified_accuracy, curve.certified_rate, strict=True)
            lines = [f"| {radius:g} | {accuracy:.4f} | {rate:.4f} |" for radius, accuracy, rate in rows]
            table = "\n".join(["| radius | certified accuracy | certified rate |", "| --- | --- | --- |", *lines])
            self._writer.add_text(f"certified/{curve_name(curve)}", table, run.rounds)
        for name, figure in (draw_figures(result) if self.figures else {}).items():
            self._writer.add_image(f"figures/{name}", pixels(image_of(figure, "png")), run.rounds, dataformats="HWC")
        self._writer.add_hparams(flat_config(run.path), final_metrics(result), run_name=".", global_step=run.rounds)
        self._close()

    @hookimpl
    def crfl_run_failed(self) -> None:
        """Close the file; what it holds can be shown."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def pixels(png: bytes) -> Any:
    """Convert a PNG picture to an array, (height, width, 3)."""
    from matplotlib.image import imread

    return imread(io.BytesIO(png), format="png")[..., :3]
