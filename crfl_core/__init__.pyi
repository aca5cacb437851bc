"""The names for people who run; `__init__.py` imports each of them when it is first used."""

from crfl_reports.gallery import FIGURES as FIGURES
from crfl_reports.gallery import plot as plot
from crfl_reports.gallery.training import partition_figure as partition_figure

from crfl_core._version import __version__ as __version__
from crfl_core.certification import formulas as formulas
from crfl_core.config import RunConfig as RunConfig
from crfl_core.config import dump_config as dump_config
from crfl_core.config import load_config as load_config
from crfl_core.errors import CrflError as CrflError
from crfl_core.errors import CrflWarning as CrflWarning
from crfl_core.plugin_api.certificate import ABSTAIN as ABSTAIN
from crfl_core.records.threat import Threat as Threat
from crfl_core.reporting.metrics import ClassHistogram as ClassHistogram
from crfl_core.reporting.metrics import Curve as Curve
from crfl_core.reporting.metrics import Metrics as Metrics
from crfl_core.runs.attack import AttackedStatement as AttackedStatement
from crfl_core.runs.attack import AttackReport as AttackReport
from crfl_core.runs.attack import attack_certificates as attack_certificates
from crfl_core.runs.certify import WhatIf as WhatIf
from crfl_core.runs.certify import certify as certify
from crfl_core.runs.predict import Prediction as Prediction
from crfl_core.runs.predict import predict as predict
from crfl_core.runs.results import RunResult as RunResult
from crfl_core.runs.results import load as load
from crfl_core.runs.run import resume as resume
from crfl_core.runs.run import run as run
from crfl_core.runs.run_data import class_histogram as class_histogram
from crfl_core.training.clean_twin import AttackEffect as AttackEffect
from crfl_core.training.clean_twin import attack_effect as attack_effect
from crfl_core.training.data_loading import reading_once as reading_once
