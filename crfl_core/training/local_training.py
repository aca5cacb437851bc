"""Local training of many clients at once: their batches, and SGD batched over clients and replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.local_algorithm import LocalRound, StatefulAlgorithm
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_api.softmax_regression import LinearModel, LinearSteps
from crfl_core.records.input_rows import BatchBuffer, Rows
from crfl_core.records.round import BatchMeasurements, Clients, LocalUpdates, TrainingTask
from crfl_core.records.vote_counting import CountingTask, PartialCount, count_votes
from crfl_core.training.attackers import AttackedSteps, Poisoner, attack_state_of, interferes_with_steps
from crfl_core.training.batch_scaling import BatchScaling, Spectra
from crfl_core.training.class_balance import ClassBalance
from crfl_core.training.local_steps import ClientMemory, ProtocolSteps, remember_round

if TYPE_CHECKING:
    from crfl_core.plugin_api.model import LocalModels
    from crfl_core.records.random_streams import Streams
    from crfl_core.records.round import State
    from crfl_core.training.federation import Federation


INPUT_NUMBERS_AT_ONCE = 2**18
"""Numbers that are gathered together for several steps: few enough for a cache."""


class LocalTraining:
    """Job that engines run: trains clients and counts votes.

    Everything it needs is rebuilt from `specification` in another process.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._balance = ClassBalance(federation.data) if federation.config.training.class_balance else None
        self._spectra = Spectra(federation.data, federation.features, self._balance)
        self._gathering = BatchBuffer()
        self._poisoner = Poisoner(federation)

    @property
    def specification(self) -> str:
        """Return the config as TOML."""
        return self._federation.specification

    def train(self, task: TrainingTask, part: slice) -> LocalUpdates:
        """Train every client of `part` from each of its models.

        It also measures the clients' batches. Every group trains in a call of its own, so no bit of it depends on the
        clients of another group: neither on what they do, nor on how many samples they have.
        """
        return self.train_parts(task, [part])[0]

    def train_parts(self, task: TrainingTask, parts: Sequence[slice]) -> list[LocalUpdates]:
        """Train several parts, each group in a call of its own.

        All groups draw their batches first, because small operations are slower between large ones.
        """
        drawn = [[self._draw(task, rows) for rows in task.rows_by_group(part)] for part in parts]
        return [
            join_groups(part, [self._train_group(task, batches) for batches in groups])
            for part, groups in zip(parts, drawn, strict=True)
        ]

    def _draw(self, task: TrainingTask, part: slice) -> GroupBatches:
        """Draw the batches of clients of one group."""
        federation = self._federation
        behaviour = federation.participation.behaviour(task.number, attacked=task.attacked).take(part)
        order = np.argsort(behaviour.attacking, kind="stable")  # attackers last: they and the others are slices
        clients = task.clients.take(part).take(order)
        behaviour = behaviour.take(order)
        honest = len(clients) - int(behaviour.attacking.sum())
        drawn = draw_batches(federation.data.partition, clients, behaviour.steps, task.number, federation.streams)
        device = federation.device
        dtype = federation.dtype
        rows = torch.from_numpy(drawn.rows).to(device)
        sizes = torch.from_numpy(drawn.sizes).to(device)
        labels = federation.data.y[rows]
        weights = sample_weights(sizes, rows.shape[2], dtype)
        rates = torch.from_numpy(behaviour.learning_rate).to(device, dtype)[:, None] * (sizes > 0)
        decay = torch.from_numpy(clients.weight_decay).to(device, dtype) if clients.weight_decay.any() else None
        return GroupBatches(
            part=part,
            order=order,
            clients=clients,
            honest=honest,
            rows=rows,
            sizes=sizes,
            labels=labels,
            weights=weights,
            rates=rates,
            decay=decay,
        )

    def _train_group(self, task: TrainingTask, drawn: GroupBatches) -> LocalUpdates:
        """Train clients of one group.

        A step is `w_s <- w_{s-1} - eta (g(w_{s-1}) + lambda w_{s-1})`. With `training.toward_start` decay is
        `lambda (w_{s-1} - w_0)`; with `training.class_balance` g is the gradient of the balanced loss.
        """
        federation = self._federation
        device = federation.device
        dtype = federation.dtype
        part = drawn.part
        clients = drawn.clients
        honest = drawn.honest
        rows = drawn.rows
        labels = drawn.labels
        sizes = drawn.sizes
        weights = drawn.weights
        poisoned, measurements = self._poisoner.poison(task, rows, labels, sizes, clients.ids[honest:])
        own_data = 0 if poisoned is None else len(poisoned)
        balanced: Tensor | None = None
        if self._balance is not None:
            balanced = self._balance.sample_weights(clients.ids, labels, sizes, own_data)
            weights = weights * balanced.to(dtype)
        scaling: BatchScaling | None = None
        if federation.honest.facts.spectrum is not None:
            scaling = BatchScaling(self._spectra, federation.config.training, clients, own_data, rows.shape[1])
        start = expand_starts(task.starts.to(device, dtype), clients)
        origin = origin_of(federation, task, clients)
        updates = start.new_empty(start.shape)
        memory = memory_of(federation, task, start, part, drawn.order, clients)
        kept = {name: torch.empty_like(values) for name, values in memory.own.items()}
        with errors_of("model", federation.config.model):
            for group, models in local_models(federation, task, Begin(start, memory, origin), honest, sizes):
                decays = None if drawn.decay is None else drawn.decay[group]
                own = poisoned if group.stop > honest else None
                seen = iterate_inputs(self._gathering, federation.features, rows[group], own)
                by_step = (each[group].unbind(1) for each in (labels, weights, drawn.rates))
                for step, (x, y, means, rate) in enumerate(zip(seen, *by_step, strict=True)):
                    if scaling is not None:
                        shares = None if balanced is None else balanced[group, step]
                        means = means * scaling.factors(group, step, x, y, sizes[group, step], shares)[:, None]
                    made = x, y, means, rate, decays
                    if step < rows.shape[1] - 1:
                        models.step(*made)
                    else:
                        models.last_step(*made, start[:, group], updates[:, group])
                for name, values in finish_round(federation, start, updates, drawn.rates, memory, group).items():
                    kept[name][:, group] = values
        if scaling is not None:
            measurements = scaling.add_measurements(measurements)
        trained = LocalUpdates(part, updates, measurements, kept)
        return restore_order(trained, drawn.order) if 0 < honest < len(clients) else trained

    def count_votes(self, task: CountingTask, part: slice) -> PartialCount:
        """Count votes on some samples of a test set, by block."""
        model = self._federation.new_model()
        features = self._federation.test_sets[task.test_set].features
        voters = replace(task.voters, models=task.voters.models.to(features.device))
        rows = [block for block in task.blocks if part.start <= block.start < part.stop]
        return PartialCount(
            part, np.concatenate(count_votes(model, voters.chunks(), [features[block] for block in rows]))
        )


class GroupBatches(NamedTuple):
    """Clients of one group with what they train on, attackers last; `order` are their places in `part`.

    `honest` is how many do not attack. `rows` of the training data and their `labels` are (clients, steps, batch), as
    are the `weights` of samples in the mean of their batch; `sizes` of batches and `rates` of steps are (clients,
    steps), and `decay` is (clients,) or None.
    """

    part: slice
    order: NDArray[np.int64]
    clients: Clients
    honest: int
    rows: Tensor
    sizes: Tensor
    labels: Tensor
    weights: Tensor
    rates: Tensor
    decay: Tensor | None


def join_groups(part: slice, groups: Sequence[LocalUpdates]) -> LocalUpdates:
    """Return what the groups of a part trained as one."""
    if len(groups) == 1:
        return groups[0]
    measurements = BatchMeasurements.concatenate([trained.measurements for trained in groups])
    memory = {name: torch.cat([trained.memory[name] for trained in groups], dim=1) for name in groups[0].memory}
    return LocalUpdates(part, torch.cat([trained.updates for trained in groups], dim=1), measurements, memory)


def restore_order(trained: LocalUpdates, order: NDArray[np.int64]) -> LocalUpdates:
    """Return what clients trained in the order in which they came.

    This undoes `order`, which put attackers last.
    """
    back = np.argsort(order)
    kept = {name: values[:, back] for name, values in trained.memory.items()}
    return LocalUpdates(trained.part, trained.updates[:, back], trained.measurements.take(back), kept)


def expand_starts(starts: Tensor, clients: Clients) -> Tensor:
    """Return the models that a group's clients train from, (K, n, P).

    The models are not copied.
    """
    group = int(clients.group[0]) if starts.shape[1] > 1 else 0
    return starts[:, group : group + 1].expand(-1, len(clients), -1)


def origin_of(federation: Federation, task: TrainingTask, clients: Clients) -> Tensor | None:
    """Return the models toward which weight decay pulls a group's clients.

    They are (K or 1, n, P). None if decay pulls toward 0.
    """
    if not federation.honest.facts.toward_start:
        return None
    if task.origins is None:
        raise PluginFailure("the engine must hand on TrainingTask.origins, toward which weight decay pulls")
    return expand_starts(task.origins.to(federation.device, federation.dtype), clients)


def memory_of(
    federation: Federation, task: TrainingTask, start: Tensor, part: slice, order: NDArray[np.int64], clients: Clients
) -> ClientMemory:
    """Return what the algorithm keeps of some clients.

    It is in their order here, and zeros if the task brings nothing.
    """
    algorithm = federation.config.training.algorithm
    ids = tuple(clients.ids.tolist())
    if not isinstance(algorithm, StatefulAlgorithm):
        return ClientMemory(ids)
    if not task.memory:
        zeros = {name: torch.zeros_like(start) for name in algorithm.remembers}
        return ClientMemory(ids, zeros, zeros)
    rows = torch.from_numpy(np.arange(len(task.clients))[part][order])
    own = {name: values[:, rows].to(start) for name, values in task.memory.items()}
    return ClientMemory(ids, own, {name: expand_starts(one.to(start), clients) for name, one in task.mean.items()})


def finish_round(
    federation: Federation, start: Tensor, updates: Tensor, rates: Tensor, memory: ClientMemory, group: slice
) -> State:
    """Return what the clients of `group` keep after their steps.

    It is empty unless the algorithm is stateful.
    """
    if not memory.own:
        return {}
    own = memory.take(group)
    first = start[:, group]
    distance = rates[group].sum(1, keepdim=True)
    finished = LocalRound(first, first + updates[:, group], distance, own.ids, own.own, own.mean)
    return remember_round(federation.new_algorithm(), finished)


NOTHING_KEPT = ClientMemory()


def honest_models(
    federation: Federation, start: Tensor, memory: ClientMemory = NOTHING_KEPT, origin: Tensor | None = None
) -> LocalModels:
    """Return the models of clients that train as the protocol says.

    They begin at `start`, (R, n, P). Weight decay pulls toward `origin`, or toward 0 if that is None.
    """
    model = federation.model
    facts = federation.honest.facts
    if not facts.plain or facts.proximal or origin is not None:
        return ProtocolSteps(federation, start, memory, origin)
    if facts.clip_gradients is None:
        return federation.new_model().local_models(start)
    if isinstance(model, LinearModel):
        return LinearSteps(model.layout, start, facts.clip_gradients)
    return ProtocolSteps(federation, start, memory)


class Begin(NamedTuple):
    """What n clients of one group begin a round with: models, (R, n, P), their memory, and the pull of weight decay."""

    start: Tensor
    memory: ClientMemory
    origin: Tensor | None

    def take(self, rows: slice) -> Begin:
        """Return the same for some of the clients."""
        origin = None if self.origin is None else self.origin[:, rows]
        return Begin(self.start[:, rows], self.memory.take(rows), origin)


def local_models(
    federation: Federation, task: TrainingTask, begin: Begin, honest: int, sizes: Tensor
) -> list[tuple[slice, LocalModels]]:
    """Return the clients that train together, with their models.

    The models have the layout that suits them best. Attackers, who come last, train apart if they interfere with single
    steps. They make all their steps first: a few small operations are much slower between the large ones of the others.
    """
    attack = federation.config.attack
    clients = len(sizes)
    if attack is None or honest == clients or not interferes_with_steps(attack):
        return [(slice(0, clients), honest_models(federation, *begin))]
    state = attack_state_of(federation, task.attack_state)
    attackers = slice(honest, clients)
    start, memory, origin = begin.take(attackers)
    attacked = AttackedSteps(federation, attack, state, start, memory, sizes[attackers].cpu().numpy(), origin)
    groups: list[tuple[slice, LocalModels]] = [(attackers, attacked)]
    if honest:
        groups.append((slice(0, honest), honest_models(federation, *begin.take(slice(0, honest)))))
    return groups


def iterate_inputs(gathering: BatchBuffer, features: Rows, rows: Tensor, poisoned: Tensor | None) -> Iterator[Tensor]:
    """Yield what clients see in each step, (clients, batch, features).

    `poisoned` is what the last of them see. The tensor is valid until the next step.
    """
    clean = len(rows) - (0 if poisoned is None else len(poisoned))
    if poisoned is not None and not clean:
        yield from poisoned.unbind(1)
        return
    steps = rows[:clean].transpose(0, 1).flatten(1).contiguous()  # (steps, clients * batch)
    shape = (len(rows), rows.shape[2], features.shape[1])
    together = 1 if poisoned is not None else max(1, min(len(steps), INPUT_NUMBERS_AT_ONCE // math.prod(shape)))
    x = gathering.memory_for(features.dtype, features.device, (together, *shape))
    gathered = x[:, :clean].view(-1, shape[2])
    inputs = x.unbind(0)
    for first, some in enumerate(steps.split(together)):  # one gather for several small steps
        gathering.gather(features, some.flatten(), gathered[: some.numel()])
        if poisoned is not None:
            x[0, clean:] = poisoned[:, first]
        yield from inputs[: some.shape[0]]


def sample_weights(sizes: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """Return the weight of each sample in its batch's mean.

    Weights are (clients, steps, batch), with 0 for padding.
    """
    real = torch.arange(batch, device=sizes.device) < sizes[..., None]
    return real.to(dtype) / sizes[..., None].clamp(min=1).to(dtype)


class BatchRows(NamedTuple):
    """Rows of the training data for every step: `rows` is (clients, steps, batch), `sizes` (clients, steps).

    Batches are padded with a client's first row to a common size; clients that make fewer steps have batches of size 0.
    The weight of padding is 0, but 0 times what overflows is no number: padding must not be another client's row.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]


def draw_batches(
    partition: Sequence[NDArray[np.int64]], clients: Clients, steps: NDArray[np.int64], number: int, streams: Streams
) -> BatchRows:
    """Draw the batches of some clients in a round.

    Client i makes `steps[i]` steps. Every epoch is a fresh permutation of a client's samples, cut into batches of which
    the last may be short, or left out if `last_batch` is not shorter than the others; a client makes its steps through
    as many epochs as it needs. A client's draw depends on the round and its id alone.
    """
    most_steps = int(steps.max())
    most_rows = int(clients.batch_size.max())
    ids = clients.ids.tolist()
    first = np.array([partition[client][0] for client in ids])
    rows = np.empty((len(clients), most_steps, most_rows), np.int64)
    rows[:] = first[:, None, None]
    size = clients.batch_size[:, None]
    last = clients.last_batch[:, None]
    per_epoch = (clients.samples[:, None] - last) // size + 1
    step = np.arange(most_steps)
    sizes = np.where(step < steps[:, None], np.where(step % per_epoch == per_epoch - 1, last, size), 0)
    held = clients.samples.tolist()
    # The usual case: each of its samples once. Those are put there for all such clients together.
    once = (steps == per_epoch[:, 0]) & (clients.batch_size == most_rows) & (clients.samples <= steps * most_rows)
    orders = rows.reshape(len(ids), -1)
    if once.any():
        owned = np.concatenate([partition[ids[place]] for place in np.flatnonzero(once)])
        orders[np.arange(orders.shape[1]) < np.where(once, clients.samples, 0)[:, None]] = owned
    drawn = streams.generators("batches", ids, round_number=number)
    for place, (whole, samples, generator) in enumerate(zip(once.tolist(), held, drawn, strict=True)):
        if whole:
            generator.shuffle(orders[place, :samples])
            continue
        own = partition[ids[place]]
        width = int(clients.batch_size[place])
        count = int(steps[place])
        parts = int(per_epoch[place, 0])
        order = np.full((-(-count // parts), parts * width), own[0])
        for epoch in order:
            epoch[: len(own)] = generator.permutation(own)[: len(epoch)]
        rows[place, :count, :width] = order.reshape(-1, width)[:count]
    return BatchRows(rows, sizes)
