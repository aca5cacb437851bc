"""What can be checked of an aggregation before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

from crfl_core.absent import StandIn
from crfl_core.errors import OptionError
from crfl_core.kinds.aggregator import AggregationStep, Stage
from crfl_core.kinds.complaints import settings_of
from crfl_core.updates import Clients


def check_steps(steps: Sequence[AggregationStep], clients: Clients) -> None:
    """Ask every step whether it fits rounds of clients like these, as the stages before it hand them on.

    Raises `ConfigError`, which also says which stages changed the number of clients that the step complains about.
    """
    changes: list[str] = []
    for position, step in enumerate(steps):
        if isinstance(step, StandIn):  # what it would do is not known here; nothing is trained with it
            return
        with settings_of(f"aggregation.{position}", step):
            try:
                step.check(clients)
            except OptionError as error:
                raise OptionError(error.option, "; ".join((error.message, *changes))) from error
            if isinstance(step, Stage):
                before, after = len(clients), step.outputs(len(clients))
                if after != before:
                    changes.append(f"{step.configured_as!r}, aggregation.{position}, makes {after} of {before} updates")
                clients = clients.take(slice(after))
