"""Tracker `mlflow`: runs in MLflow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from crfl_reports.figures import image_of
from pydantic import Field, PrivateAttr

from crfl_core.extend import CrflError, PluginError, RoundRecord, RunContext, RunResult, Tracker, hookimpl
from crfl_trackers.run_summary import curve_points, draw_figures, final_metrics, flat_config, round_metrics

PARAMETERS_PER_REQUEST = 100
"""Parameters in one request; MLflow takes no more."""
MAX_PARAMETER_LENGTH = 6000
"""Letters of a parameter; MLflow takes no more."""


class MLflow(Tracker):
    """Logs parameters, metrics of every round, certified accuracy and figures to an MLflow tracking store.

    A resumed run continues in the same MLflow run. Needs an extra: `pip install "crfl[mlflow]"`.
    """

    uri: str | None = Field(
        None,
        description="tracking store, such as `sqlite:///mlflow.db` or a server; unset: that of MLFLOW_TRACKING_URI, or "
        "else `mlflow.db` beside the run directory",
    )
    experiment: str = Field("crfl", min_length=1, description="name of the experiment; made if there is none")
    figures: bool = Field(True, description="whether figures are drawn and logged at the end")

    file: str = Field(
        "mlflow.json", min_length=1, description="file inside the run directory that says which MLflow run it is"
    )

    _client: Any = PrivateAttr(default=None)
    _id: str = PrivateAttr(default="")

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Make an MLflow run and log the config as parameters.

        A run that resumes continues in its MLflow run.
        """
        try:
            from mlflow import MlflowClient, is_tracking_uri_set
            from mlflow.entities import Param
        except ImportError as error:
            raise PluginError('MLflow is not here: `pip install "crfl[mlflow]"`') from error
        beside = None if self.uri is not None or is_tracking_uri_set() else run.path.absolute().parent
        self._client = MlflowClient(tracking_uri=self.uri if beside is None else f"sqlite:///{beside}/mlflow.db")
        if (known := self._find_run(run)) is not None:
            self._id = known
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"crfl.path": str(run.path.absolute())}
        self._id = self._client.create_run(self._experiment_id(beside), run_name=run.name, tags=tags).info.run_id
        parameters = [Param(key, value[:MAX_PARAMETER_LENGTH]) for key, value in flat_config(run.path).items()]
        for start in range(0, len(parameters), PARAMETERS_PER_REQUEST):
            self._client.log_batch(self._id, params=parameters[start : start + PARAMETERS_PER_REQUEST])
        Path(run.path, self.file).write_text(json.dumps({"run_id": self._id}) + "\n", encoding="utf-8")

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        """Log the metrics of a round."""
        self._log(round_metrics(record), record.round)

    @hookimpl
    def crfl_run_finished(self, run: RunContext, result: RunResult) -> None:
        """Log curves and headline numbers, and config, metrics and figures as artifacts."""
        for curve in result.metrics.curves:
            for step, shares in curve_points(curve):
                self._log(shares, step)
        self._log(final_metrics(result), run.rounds)
        for name in ("config.toml", "metrics.json", "audit.json"):
            self._client.log_artifact(self._id, str(run.path / name))
        for name, figure in (draw_figures(result) if self.figures else {}).items():
            self._log_picture(f"{name}.svg", image_of(figure, "svg"))
            self._log_picture(f"{name}.png", image_of(figure, "png"))
        self._client.set_terminated(self._id, "FINISHED")

    @hookimpl
    def crfl_run_failed(self, error: BaseException) -> None:
        """Mark the run as failed or killed.

        A run that resumes is running again.
        """
        if self._id:
            self._client.set_terminated(self._id, "FAILED" if isinstance(error, Exception) else "KILLED")

    def _find_run(self, run: RunContext) -> str | None:
        """Find the MLflow run of this run directory.

        The result is None if this run directory has none. Raises `CrflError` if the file names no MLflow run.
        """
        file = Path(run.path, self.file)
        if not run.resumed_from or not file.exists():
            return None
        try:
            known = str(json.loads(file.read_text(encoding="utf-8"))["run_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CrflError(f"{file}: names no MLflow run: remove the file") from error
        self._client.get_run(known)  # which says what is wrong if it is gone
        return known

    def _experiment_id(self, beside: Path | None) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            return str(found.experiment_id)
        artifacts = None if beside is None else (beside / "mlruns").as_uri()
        return str(self._client.create_experiment(self.experiment, artifact_location=artifacts))

    def _log(self, numbers: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(key, value, now, step) for key, value in numbers.items()])

    def _log_picture(self, name: str, content: bytes) -> None:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(prefix="crfl-") as folder:
            file = Path(folder, name)
            file.write_bytes(content)
            self._client.log_artifact(self._id, str(file), "figures")
