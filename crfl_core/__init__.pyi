"""The names for people who run; `__init__.py` imports each of them when it is first used."""

from . import formulas as formulas
from ._version import __version__ as __version__
from .api import AttackEffect as AttackEffect
from .api import Prediction as Prediction
from .api import RunResult as RunResult
from .api import WhatIf as WhatIf
from .api import attack_effect as attack_effect
from .api import certify as certify
from .api import class_histogram as class_histogram
from .api import load as load
from .api import predict as predict
from .api import resume as resume
from .api import run as run
from .config import RunConfig as RunConfig
from .config import dump_config as dump_config
from .config import load_config as load_config
from .errors import CrflError as CrflError
from .errors import CrflWarning as CrflWarning
from .kinds.certificate import ABSTAIN as ABSTAIN
from .report.figures import partition_figure as partition_figure
from .report.metrics import ClassHistogram as ClassHistogram
from .report.metrics import Curve as Curve
from .report.metrics import Metrics as Metrics
from .threat import Threat as Threat
