"""What people call: run, resume, load, certify and predict. Config in, finished run directory out."""

from crfl_core.api.execution import open_job, resume, run
from crfl_core.api.partition import class_histogram
from crfl_core.api.prediction import Prediction, predict
from crfl_core.api.result import RunResult, load
from crfl_core.api.what_if import Attacked, WhatIf, certify
from crfl_core.report.clean_twin import AttackEffect, attack_effect

__all__ = [
    "AttackEffect",
    "Attacked",
    "Prediction",
    "RunResult",
    "WhatIf",
    "attack_effect",
    "certify",
    "class_histogram",
    "load",
    "open_job",
    "predict",
    "resume",
    "run",
]
