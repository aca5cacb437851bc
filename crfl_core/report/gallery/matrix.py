"""Which attack gets through which defence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.report.gallery.together import groups
from crfl_figures import Heat, heat_figure
from crfl_interface.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from crfl_core.api import RunResult
    from crfl_core.config import RunConfig

NO_ATTACK = "none"


def matrix(runs: Sequence[RunResult]) -> Figure:
    """Attack success rate and accuracy of every attack under every defence; means over runs of the same two."""
    cells: dict[tuple[str, tuple[str, ...]], list[RunResult]] = {}
    for run in runs:
        cells.setdefault((attack_of(run.config), defence_of(run.config)), []).append(run)
    attacks, defences = list(dict.fromkeys(pair[0] for pair in cells)), list(dict.fromkeys(pair[1] for pair in cells))
    if len(cells) < 2:
        raise ConfigError("figure 'matrix' needs runs with different attacks or defences")
    success = np.full((len(attacks), len(defences)), np.nan)
    accuracy = success.copy()
    for (attack, defence), alike in cells.items():
        check_alike(attack, " + ".join(defence), alike)
        place = attacks.index(attack), defences.index(defence)
        rates = [run.metrics.backdoor.success_rate for run in alike if run.metrics.backdoor is not None]
        success[place] = 100 * np.mean(rates) if rates else np.nan
        accuracy[place] = 100 * np.mean([run.metrics.accuracy for run in alike])
    tables = [Heat(accuracy, "percent", "accuracy", (0, 100))]
    if np.isfinite(success).any():
        tables.insert(0, Heat(success, "percent", "attack success", (0, 100)))
    return heat_figure(
        tables, attacks, named(defences), y_label="attack", x_label="defence", title=counted(cells.values())
    )


def check_alike(attack: str, defence: str, runs: Sequence[RunResult]) -> None:
    """A cell is one experiment: a mean over different ones would hide what differs."""
    if len(found := groups(runs)) > 1:
        differ = " / ".join(group.label for group in found)
        raise ConfigError(f"runs of {attack} against {defence} differ in more than seeds, {differ}: leave some out")


def attack_of(config: RunConfig) -> str:
    """The name of the attack."""
    return NO_ATTACK if config.attack is None else config.attack.configured_as


def named(defences: Sequence[tuple[str, ...]]) -> list[str]:
    """What to call defences: without what all of them have, if something is left of each.

    >>> named([("rfa", "noise"), ("krum", "noise")]), named([("rfa", "noise")]), named([("rfa",), ("rfa", "noise")])
    (['rfa', 'krum'], ['rfa + noise'], ['rfa', 'rfa + noise'])
    """
    shared = set.intersection(*map(set, defences))
    rest = [[part for part in parts if part not in shared] for parts in defences]
    return [" + ".join(parts) for parts in (rest if all(rest) else defences)]


def defence_of(config: RunConfig) -> tuple[str, ...]:
    """What stands between the updates and the model: groups, steps of the aggregation, clip and noise."""
    parts = [step.configured_as for step in config.aggregation]
    if config.groups is not None:
        parts.insert(0, "groups")
    if config.server.noise_std != 0:
        parts.append("clip + noise")
    return tuple(parts)


def counted(cells: Iterable[Sequence[RunResult]]) -> str:
    """How many runs a cell stands for, if there are several."""
    sizes = sorted({len(alike) for alike in cells})
    return "" if sizes == [1] else f"means of {' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} runs"
