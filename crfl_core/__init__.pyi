"""The names for people who run; `__init__.py` imports each of them when it is first used."""

from crfl_core import formulas as formulas
from crfl_core._version import __version__ as __version__
from crfl_core.api import AttackEffect as AttackEffect
from crfl_core.api import Prediction as Prediction
from crfl_core.api import RunResult as RunResult
from crfl_core.api import WhatIf as WhatIf
from crfl_core.api import attack_effect as attack_effect
from crfl_core.api import certify as certify
from crfl_core.api import class_histogram as class_histogram
from crfl_core.api import load as load
from crfl_core.api import predict as predict
from crfl_core.api import resume as resume
from crfl_core.api import run as run
from crfl_core.config import RunConfig as RunConfig
from crfl_core.config import dump_config as dump_config
from crfl_core.config import load_config as load_config
from crfl_core.report.figures import partition_figure as partition_figure
from crfl_core.report.gallery import FIGURES as FIGURES
from crfl_core.report.gallery import plot as plot
from crfl_core.report.metrics import ClassHistogram as ClassHistogram
from crfl_core.report.metrics import Curve as Curve
from crfl_core.report.metrics import Metrics as Metrics
from crfl_interface.errors import CrflError as CrflError
from crfl_interface.errors import CrflWarning as CrflWarning
from crfl_interface.kinds.certificate import ABSTAIN as ABSTAIN
from crfl_interface.threat import Threat as Threat
