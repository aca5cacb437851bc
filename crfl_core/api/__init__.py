"""What people call: run, resume, load and predict. Config in, finished run directory out."""

from crfl_core.api.prediction import Prediction, predict
from crfl_core.api.result import RunResult, load
from crfl_core.api.running import open_job, resume, run

__all__ = ["Prediction", "RunResult", "load", "open_job", "predict", "resume", "run"]
