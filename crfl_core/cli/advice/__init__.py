"""`crfl advise`: from three answers to a certificate, and to a config that computes it."""

from crfl_core.cli.advice.answers import AdviceError, Answers, check_dataset, clients_from
from crfl_core.cli.advice.choice import Way, chosen
from crfl_core.cli.advice.config import save, written

__all__ = ["AdviceError", "Answers", "Way", "check_dataset", "chosen", "clients_from", "save", "written"]
