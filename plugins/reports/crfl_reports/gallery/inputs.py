"""Inputs with and without the backdoor, and the predictions of the trained model for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_core.errors import ConfigError
from crfl_core.records.inputs import Batches
from crfl_core.training.attackers import find_moved_inputs, poison_batches
from crfl_core.training.evaluation import predict_with_loss
from crfl_core.training.federation import Federation, build
from crfl_reports.figures import Grid, Heat, Row, features_figure, pictures_figure
from crfl_reports.gallery.run_groups import only

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from crfl_core.plugin_api.attack import Attack
    from crfl_core.runs.results import RunResult

PICTURES = 6
SHORT = 9
"""Letters of a class name below a picture."""

Numbers = NDArray[np.float64]
Classes = NDArray[np.int64]


@dataclass(frozen=True)
class Backdoored:
    """Backdoored test set of a run, and the predictions of its model.

    `clean` are the same inputs without the backdoor; None if the attack has no trigger but inputs of its own.
    """

    federation: Federation
    attack: Attack
    x: Tensor
    labels: Classes
    predicted: Classes
    clean: Tensor | None
    clean_predicted: Classes | None

    def named(self, number: int) -> str:
        """Return the name of a class, shortened."""
        name = self.federation.data.class_names[number]
        return name if len(name) <= SHORT else f"{name[: SHORT - 1]}…"


def add_backdoor(run: RunResult, figure: str) -> Backdoored:
    """Rebuild the inputs of the attack from the run's data.

    The data must be present.
    """
    if run.config.attack is None:
        raise ConfigError(f"{run.path}: the run has no attack, so figure {figure!r} has nothing to show")
    over = {"trackers": (), "model": run.config.model.model_copy(update={"start": None})}
    federation = build(run.config.model_copy(update=over).with_own_plugins(), fitted=run.fitted)
    attack = federation.config.attack
    assert attack is not None
    found = attack.backdoor_test_set(federation.data, federation.prepared)
    if found is None:
        raise ConfigError(f"{run.path}: attack {attack.configured_as!r} has no backdoor, which figure {figure!r} shows")
    if federation.test_sets["backdoored"].facts != run.ledger.facts.test_sets["backdoored"]:
        raise ConfigError(f"{run.path}: the backdoored test set is not the one of this run: restore its data")
    chosen = federation.test_sets["backdoored"]
    data = federation.data
    others = data.test_y != (-1 if attack.backdoor_class is None else attack.backdoor_class)
    if len(found[0]) == len(others):  # those of the target class as well
        others = torch.ones_like(others)
    paired = attack.add_trigger(data.test_x[:1], federation.prepared) is not None and len(found[0]) == int(others.sum())
    before = federation.test_sets["clean"].features[others]

    def predicted(features: Tensor) -> Classes:
        parameters = run.parameters.to(federation.device)
        classes = predict_with_loss(federation, parameters, (features, chosen.labels), run.ledger.failed_groups)[0]
        return np.asarray(classes.cpu().numpy(), np.int64)

    return Backdoored(
        federation=federation,
        attack=attack,
        x=found[0].cpu(),
        labels=np.asarray(chosen.labels.cpu().numpy(), np.int64),
        predicted=predicted(chosen.features),
        clean=data.test_x[others].cpu() if paired else None,
        clean_predicted=predicted(before) if paired else None,
    )


def samples(runs: Sequence[RunResult]) -> Figure:
    """Draw test inputs of several classes with and without the trigger.

    The figure also shows samples on which attackers train.
    """
    found = add_backdoor(only(runs, "samples"), "samples")
    shape = found.federation.data.facts.image_shape
    chosen = one_of_each(found.labels)
    if shape is None:
        return table_figure(found, int(chosen[0]))
    domain = found.federation.data.facts.domain
    limits = (domain.low, domain.high) if np.isfinite([domain.low, domain.high]).all() else None
    taken = [f"taken for {found.named(number)}" for number in found.predicted[chosen]]
    rows = [Row("with the trigger", pictures(found.x[chosen], shape), taken, limits=limits)]
    if found.clean is not None and found.clean_predicted is not None:
        before = [f"taken for {found.named(number)}" for number in found.clean_predicted[chosen]]
        difference = pictures(found.x[chosen] - found.clean[chosen], shape)
        rows = [
            Row("test inputs", pictures(found.clean[chosen], shape), before, limits=limits),
            *rows,
            Row("difference", difference, signed=True),
        ]
    else:
        rows = [Row("inputs of the attack", rows[0].pictures, taken, limits=limits)]
    poisoned, captions = training_samples(found)
    if len(poisoned):
        rows.append(Row("attackers train on", pictures(poisoned, shape), captions, limits=limits))
    return pictures_figure(rows, title=f"{found.attack.configured_as}: the target is {target_of(found)}")


def target_of(found: Backdoored) -> str:
    """Return the class that the attack wants, in words."""
    target = found.attack.backdoor_class
    return "any other class" if target is None else found.federation.data.class_names[target]


def table_figure(found: Backdoored, row: int) -> Figure:
    """Draw one row of a table with and without the trigger."""
    if found.clean is None:
        raise ConfigError(f"attack {found.attack.configured_as!r} has no trigger, and its inputs are not images")
    names = found.federation.data.feature_names or tuple(f"feature {n}" for n in range(found.x.shape[1]))
    title = f"{found.attack.configured_as}: a test input of class {found.named(int(found.labels[row]))}"
    return features_figure(array(found.clean[row]), array(found.x[row]), names, title=title)


def training_samples(found: Backdoored) -> tuple[Tensor, list[str]]:
    """Return one changed sample for each attacker.

    The attackers changed them in their first attacked round.
    """
    federation = found.federation
    attack = found.attack
    participation = federation.participation
    number = participation.attack_rounds[0]
    clients = np.asarray(participation.behaviour(number).attacking)
    plan = participation.participants(number).take(clients)
    changed = []
    captions = []
    for client, size in zip(plan.ids[:PICTURES], plan.batch_size, strict=False):
        rows = torch.from_numpy(federation.data.partition[client][:size])
        x = federation.data.x_of(rows)
        y = federation.data.y[rows]
        sizes = torch.full((1, 1), len(rows), device=x.device)
        clean = Batches(x[None, None], y[None, None], sizes, np.array([client]), number)
        dirty = poison_batches(attack, clean, federation.prepared)
        relabelled = (clean.y != dirty.y).cpu()[0, 0]
        changes = find_moved_inputs(clean.x, dirty.x)[0, 0].int() + 2 * relabelled.int()
        if changes.any():
            place = int(changes.argmax())  # the label says most about what the attacker wants
            changed.append(dirty.x[0, 0, place].cpu())
            before = found.named(int(y[place]))
            after = found.named(int(dirty.y[0, 0, place]))
            captions.append(f"client {client}: {before} → {after}")
    return (torch.stack(changed) if changed else torch.empty(0)), captions


def one_of_each(labels: Classes) -> Classes:
    """Return the first sample of each of the first classes.

    Other samples fill the rest.
    """
    first = np.unique(labels, return_index=True)[1]
    rest = np.setdiff1d(np.arange(len(labels)), first)
    return np.asarray([*first, *rest][:PICTURES], np.int64)


def array(values: Tensor) -> Numbers:
    """Convert a tensor to a NumPy array."""
    return np.asarray(values.double().cpu().numpy(), np.float64)


def pictures(x: Tensor, shape: tuple[int, ...]) -> Numbers:
    """Reshape inputs to pictures, (n, height, width) or (n, height, width, 3)."""
    flat = array(x).reshape(len(x), *shape)
    if flat.ndim == 3:
        return flat
    return flat[:, 0] if flat.shape[1] != 3 else np.moveaxis(flat, 1, -1)


def flips(runs: Sequence[RunResult]) -> Grid:
    """Count the inputs that the trigger moves from one prediction to another."""
    found = add_backdoor(only(runs, "flips"), "flips")
    names = found.federation.data.class_names
    before = found.labels if found.clean_predicted is None else found.clean_predicted
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (before, found.predicted), 1)
    moved = 1 - np.trace(counts) / max(counts.sum(), 1)
    said = "are not taken for their class" if found.clean_predicted is None else "change their prediction"
    return Grid(
        [Heat(np.where(counts > 0, counts, np.nan), "test inputs")],
        names,
        names,
        y_label="true class" if found.clean_predicted is None else "prediction without the trigger",
        x_label="prediction with the backdoor" if found.clean_predicted is None else "prediction with the trigger",
        title=f"{moved:.0%} of {int(counts.sum()):,} inputs {said}",
    )
