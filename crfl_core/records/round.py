"""Records of a round, from its participants to what the server makes of their updates: plain, read-only containers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import PluginFailure

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.server_view import ServerView
    from crfl_core.records.random_streams import Streams

State = Mapping[str, "Tensor"]
"""Tensors that a plugin wants to see again in the next round, by name. The core stores them in the checkpoint."""

ParticipantRows = slice | NDArray[np.int64]
"""Some participants of a round, by their places in it."""

Dependence = Literal["fixed", "own", "all"]
"""On what an aggregation weight depends: on nothing that was submitted, on that client's own update, on all."""

DEPENDENCE_ORDER: tuple[Dependence, ...] = ("fixed", "own", "all")

CLIENTS_AT_ONCE = 64, 256
"""Clients that train at once, and the same number for small models and batches."""
SMALL_PARAMETERS = 2**21
SMALL_SAMPLES = 2**12
"""How many parameters and samples more than the fewer of them may have together: small operations for many chunks would
take longer than the work in these."""
PARAMETERS_AT_ONCE = 2**26
"""Parameters of all models that are trained at once, 256 MiB in single precision."""


def most_dependent(*dependences: Dependence) -> Dependence:
    """Return the dependence of a chain: that of its worst link.

    >>> most_dependent("fixed", "own", "fixed")
    'own'
    """
    return max(dependences, key=DEPENDENCE_ORDER.index)


@dataclass(frozen=True)
class Layout:
    """Order of a model's named tensors in one flat parameter vector."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Return the number of parameters P."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a (..., P) tensor, by name, each (..., *shape)."""
        pieces = flat.split([math.prod(shape) for _, shape in self.shapes], dim=-1)
        return {
            name: piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for (name, shape), piece in zip(self.shapes, pieces, strict=True)
        }


@dataclass(frozen=True)
class Clients:
    """The participants of a round as the protocol knows them, one entry per client in every array.

    `steps` local SGD steps of rate `learning_rate` on batches of `batch_size` samples; `last_batch` is the size of the
    last batch of an epoch, which may be shorter. `group` says which of the global models a client trains; in most
    federations there is one. Nothing here says who attacks, or what attackers really do.

    What honest training can do at most: weight decay keeps the share `retention` of the broadcast model w, which is
    (1 - eta lambda)^tau for plain SGD, so an update is `u = -(1 - retention) w + r`, and `update_bound` bounds ||r||
    (infinite if nothing is known about the gradients, or about the algorithm).
    """

    ids: NDArray[np.int64]
    samples: NDArray[np.int64]
    learning_rate: NDArray[np.float64]
    steps: NDArray[np.int64]
    batch_size: NDArray[np.int64]
    last_batch: NDArray[np.int64]
    weight_decay: NDArray[np.float64]
    retention: NDArray[np.float64]
    update_bound: NDArray[np.float64]
    group: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Clients:
        """Return the same facts for some of the participants."""
        return Clients(**{name: value[rows] for name, value in vars(self).items()})


@dataclass(frozen=True)
class RoundFacts:
    """Facts of a round that are known before any client trains, and do not depend on earlier rounds."""

    number: int
    total: int
    clients: Clients
    layout: Layout
    streams: Streams


@dataclass(frozen=True)
class Round(RoundFacts):
    """Round as a plugin sees it: `start` is the broadcast model w~_{t-1} of shape (P,).

    `server_side` is there only for steps of the aggregation that look at the updates, which read it as `server`.
    """

    start: Tensor
    server_side: ServerView | None = None

    @property
    def server(self) -> ServerView:
        """Return the server's model, federation and trusted samples.

        Attacks, hooks and trackers do not get them.
        """
        if self.server_side is None:
            raise PluginFailure("what the server has is for steps of the aggregation that look at the updates alone")
        return self.server_side

    @property
    def facts(self) -> RoundFacts:
        """Return the round without its model."""
        return RoundFacts(**{field.name: getattr(self, field.name) for field in fields(RoundFacts)})


@dataclass(frozen=True)
class TrainingTask:
    """The local training of a round, as engines hand it on: `starts` is (K, G, P).

    Every participant trains from the K models of its `group`, on the same batches. In a run K is 1; the K continuations
    of a run differ in their models alone. `attacked`: attackers do what they do in this round; else all are honest.
    `attack_state` is what they remember; None is what they prepared, which every process has. `memory` is what a
    `StatefulAlgorithm` keeps of each participant, (K, n, P) by name, and `mean` its mean over all clients of each
    model, (K, G, P); both are empty for other algorithms. `origins` are the models toward which weight decay pulls,
    (K, G, P) or (1, G, P) for all K alike; None if it pulls toward 0.
    """

    number: int
    starts: Tensor
    clients: Clients
    attacked: bool
    attack_state: State | None = None
    memory: State = field(default_factory=dict)
    mean: State = field(default_factory=dict)
    origins: Tensor | None = None

    def parts(self, at_once: int | None = None) -> list[slice]:
        """Cut the participants into chunks.

        A chunk has `at_once` participants, or as many as `clients_at_once` says. Bits depend on this cut, so engines
        that share it agree in all of them. No chunk has clients of two groups, and how a group is cut depends on its
        own participants alone.
        """
        cut = []
        for rows in self.rows_by_group(slice(0, len(self.clients))):
            chunk = self._chunk(rows, at_once)
            cut += [slice(first, min(first + chunk, rows.stop)) for first in range(rows.start, rows.stop, chunk)]
        return cut

    def bundles(self, at_once: int | None = None) -> list[list[slice]]:
        """Return the same parts, those in a row together that have no more clients than one part may have."""
        most = self._chunk(slice(0, len(self.clients)), at_once)
        bundles: list[list[slice]] = []
        for part in self.parts(at_once):
            if bundles and part.stop - bundles[-1][0].start <= most:
                bundles[-1].append(part)
            else:
                bundles.append([part])
        return bundles

    def _chunk(self, rows: slice, at_once: int | None) -> int:
        """Return how many of some participants train at once."""
        parameters = self.starts.shape[-1]
        wanted = at_once or clients_at_once(parameters, int(self.clients.batch_size[rows].max()))
        return max(1, min(wanted, PARAMETERS_AT_ONCE // parameters))

    def rows_by_group(self, part: slice) -> list[slice]:
        """Return the participants of a part as slices.

        Each group has a slice. If all groups share a model, they are one slice.
        """
        if self.starts.shape[1] == 1:
            return [part]
        ends = part.start + 1 + np.flatnonzero(np.diff(self.clients.group[part]))
        bounds = [part.start, *map(int, ends), part.stop]
        return [slice(*pair) for pair in pairwise(bounds)]


def clients_at_once(parameters: int, batch: int) -> int:
    """Return how many clients train at once by default.

    More clients train at once if models and batches are small.

    >>> clients_at_once(7850, batch=100), clients_at_once(7850, batch=6), clients_at_once(10**6, batch=6)
    (64, 256, 64)
    """
    few, many = CLIENTS_AT_ONCE
    return max(few, min(many, SMALL_PARAMETERS // parameters, SMALL_SAMPLES // batch))


@dataclass(frozen=True)
class ClientUpdates:
    """Updates that the clients of a round submitted. Read-only.

    `values` is (n, P), row i from `round.clients.ids[i]`.
    """

    values: Tensor
    round: Round


@dataclass(frozen=True)
class Mixing:
    """Mixing of a `FixedStage`: what it does to the updates of a round, `matrix @ updates + offset`.

    `matrix` is (m, n), or (n,) for a diagonal one; `offset` is (m, P), or (P,) if it is the same for all rows.
    """

    matrix: Tensor
    offset: Tensor | None = None


@dataclass(frozen=True)
class StageResult:
    """Answer of a stage: `values = mixing @ updates + offset`, which is checked in every round.

    `mixing` is (m, n), or (n,) for a diagonal matrix; `offset` is (m, P), or (P,) if it is the same for all rows.
    """

    values: Tensor
    mixing: Tensor
    offset: Tensor | None = None
    state: State = field(default_factory=dict)


@dataclass(frozen=True)
class RuleResult:
    """The answer of an aggregation rule: `update = sum_i weights[i] * values[i] + offset`, checked in every round.

    A coordinate-wise rule has a weight per client *and* parameter: it reports each client's largest one in
    `weights`, and the whole (n, P) matrix through `full_weights`.
    """

    update: Tensor
    weights: Tensor
    offset: Tensor | None = None
    full_weights: Callable[[], Tensor] | None = None
    state: State = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Weighting:
    """Weights of a `WeightedRule`, (n,) or (n, P), with the rule's next state and notes for the ledger."""

    weights: Tensor | NDArray[np.float64]
    state: State = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimiserResult:
    """The answer of a server optimiser: the core changes the model by `scale * aggregate + offset`.

    `scale` is a number, or (P,) for one per parameter: what the aggregate of this round is multiplied by. `offset`,
    (P,), is everything else, such as what is left of earlier rounds.
    """

    scale: Tensor | float
    offset: Tensor | None = None
    state: State = field(default_factory=dict)


@dataclass(frozen=True)
class BatchMeasurements:
    """Measurements of the batches that clients trained on in one round: one entry per client in every array.

    What attackers did to their batches, zero for honest clients: `poisoned_share` is the sum over steps of (poisoned
    samples / batch size), `poisoned_samples` their number, `poisoned_most` the largest number in one batch, `delta` the
    largest change of an input in scaled space, `label_flips` the number of changed labels, `poisoned_norm` the largest
    norm of a poisoned input behind the feature maps.
    What the batch-spectrum rule found, if the config uses it: `spectrum` is the largest L_s of a batch,
    `start_gradient` the largest F_s, `batch_factor` the smallest factor of a batch, `scaled_batches` the number of
    batches with a factor below 1. The ledger has a column of the same name for each field. Measurements do not depend
    on the model: when K models train at once, they share one entry per client.
    """

    poisoned_share: NDArray[np.float64]
    poisoned_samples: NDArray[np.int64]
    poisoned_most: NDArray[np.int64]
    delta: NDArray[np.float64]
    label_flips: NDArray[np.int64]
    poisoned_norm: NDArray[np.float64]
    spectrum: NDArray[np.float64]
    start_gradient: NDArray[np.float64]
    batch_factor: NDArray[np.float64]
    scaled_batches: NDArray[np.int64]

    @staticmethod
    def clean(clients: int) -> BatchMeasurements:
        """Return the measurements of clients that changed no batch and scaled none."""
        ints = np.zeros(clients, np.int64)
        floats = np.zeros(clients)
        return BatchMeasurements(
            poisoned_share=floats,
            poisoned_samples=ints,
            poisoned_most=ints,
            delta=floats,
            label_flips=ints,
            poisoned_norm=floats,
            spectrum=floats,
            start_gradient=floats,
            batch_factor=np.ones(clients),
            scaled_batches=ints,
        )

    @staticmethod
    def writable(clients: int) -> BatchMeasurements:
        """Return the same with arrays of their own, for `put`."""
        columns = vars(BatchMeasurements.clean(clients))
        return BatchMeasurements(**{name: column.copy() for name, column in columns.items()})

    @staticmethod
    def concatenate(parts: Sequence[BatchMeasurements]) -> BatchMeasurements:
        """Return the measurements of all parts, one after the other."""
        names = [field.name for field in fields(BatchMeasurements)]
        return BatchMeasurements(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in names})

    def take(self, rows: NDArray[np.int64]) -> BatchMeasurements:
        """Return the measurements of these clients, in this order."""
        return BatchMeasurements(**{name: column[rows] for name, column in vars(self).items()})

    def put(self, rows: ParticipantRows, part: BatchMeasurements) -> None:
        """Write the measurements of some clients into arrays that `writable` made."""
        for name, column in vars(self).items():
            column[rows] = getattr(part, name)


@dataclass(frozen=True)
class LocalUpdates:
    """Local updates of the participants `part` of a round, for each of the K models: `updates` is (K, k, P).

    `memory` is what a `StatefulAlgorithm` keeps of each of them from now on, (K, k, P) by name.
    """

    part: slice
    updates: Tensor
    measurements: BatchMeasurements
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class Submission:
    """Updates of some participants as the server takes them: crafted by attackers, and zero where they are quarantined.

    `part` are the places of these participants in the round, `updates` is (K, k, P). `norms`, (K, k), are of what was
    submitted: an update that is not finite or has the wrong shape is quarantined. `scale`, (k,), is the measured
    ratio of the norms of the submitted and the trained update of each attacker, 1 for others.
    """

    part: ParticipantRows
    updates: Tensor
    norms: Tensor
    quarantined: Tensor
    scale: NDArray[np.float64]
    measurements: BatchMeasurements
