"""What can be checked of plugins before anything is trained, and of feature maps wherever they are used."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crfl_core.errors import OptionError, PluginFailure
from crfl_core.plugin_api.aggregator import AggregationStep, Stage
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.plugin_loading.missing_plugins import StandIn
from crfl_core.records.input_rows import Rows
from crfl_core.records.round import Clients

SAMPLED = 16
"""On how many inputs the promises of feature maps are tried before a run."""
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-9}
"""By how much, relatively, sums in another order may change what a feature map returns."""


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
                before = len(clients)
                after = step.outputs(len(clients))
                if after != before:
                    changes.append(f"{step.configured_as!r}, aggregation.{position}, makes {after} of {before} updates")
                clients = clients.take(slice(after))


def check_maps(maps: FeatureMaps, x: Rows) -> None:
    """Feature maps answer the same again and for every input by itself, and keep to their Lipschitz constant."""
    if not maps.links:
        return
    some = x[:: max(1, len(x) // SAMPLED)][:SAMPLED]
    together = maps(some)
    again = maps(some)
    alone = torch.cat([maps(one[None]) for one in some])
    reach = ROUNDING[x.dtype] * torch.linalg.vector_norm(together, dim=-1)
    if not torch.equal(together, again) or (torch.linalg.vector_norm(together - alone, dim=-1) > reach).any():
        raise PluginFailure(
            f"feature maps {maps.names}: an input is mapped differently the second time, or beside other inputs: a map "
            "must be a function of the input alone"
        )
    check_lipschitz(maps, some.roll(1, 0), some, together.roll(1, 0), together)


def check_lipschitz(maps: FeatureMaps, before: Tensor, after: Tensor, clean: Tensor, dirty: Tensor) -> None:
    """`||f(a) - f(b)|| <= L ||a - b||` for these rows of inputs and what the maps made of them."""
    if maps.lipschitz is None:
        return
    lengths = torch.linalg.vector_norm(clean, dim=-1) + torch.linalg.vector_norm(dirty, dim=-1)
    moved = torch.linalg.vector_norm(dirty - clean, dim=-1)
    limit = torch.linalg.vector_norm(after - before, dim=-1)
    over = moved - maps.lipschitz * limit - ROUNDING[before.dtype] * lengths
    if (over > 0).any():
        row = int(over.argmax())
        raise PluginFailure(
            f"feature maps {maps.names}: inputs {float(limit[row]):.3g} apart are {float(moved[row]):.3g} apart behind "
            f"them, which their Lipschitz constant {maps.lipschitz:.3g} rules out: correct it"
        )
