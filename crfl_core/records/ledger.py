"""The ledger: the record of a run that certification needs, and all that it reads about training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import ne
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from crfl_core.errors import StoreError
from crfl_core.records.round import Dependence

LEDGER_FORMAT = 1
"""Number of the file format. Raise it when columns or facts change: a reader accepts its own format only."""


class LedgerRecord(BaseModel):
    """Base of plain facts that survive a round trip through JSON, infinities included."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class ModelFacts(LedgerRecord):
    """Properties of a model that certificates may assume.

    `linear`: logits are linear in the parameters. `convex`: the loss is convex in them. `bias`: the last input is a
    constant 1 that does not count in an input's norm.
    """

    linear: bool
    convex: bool
    bias: bool
    loss: str = "cross-entropy"


class BallFacts(LedgerRecord):
    """The ball rule: gradients at the model 0 are at most `start_limit` F long, inputs `input_bound` B.

    Then, under this decay on all parameters, gradients inside the ball of radius kappa / lambda are at most kappa long,
    and models do not leave it: docs/certificates/every-round.md#the-ball-rule.
    """

    start_limit: float
    input_bound: float
    weight_decay: float
    gradient_bound: float

    @property
    def radius(self) -> float:
        """Return the radius of the ball, `kappa / lambda`."""
        return self.gradient_bound / self.weight_decay


class TrainingFacts(LedgerRecord):
    """Local training of honest clients.

    `plain`: SGD steps of the core; certificates know nothing about the updates of other algorithms. `proximal` is mu,
    the weight of a pull toward the broadcast model. `clip_gradients` is the norm to which every sample's gradient is
    shortened: such steps are not gradient steps of a convex loss. `spectrum` is L: clients multiply the loss of
    a batch by `min(1, L / L_s)`, or with the `ball` rule by `min(1, L / L_s, F / F_s)`. `remembers` are the vectors
    that clients keep from round to round. `class_balance`: every class of a client has the same total weight in its
    loss. `toward_start`: weight decay pulls toward the model before the first round.
    """

    algorithm: str = "sgd"
    plain: bool = True
    proximal: float = 0.0
    clip_gradients: float | None = None
    spectrum: float | None = None
    ball: BallFacts | None = None
    remembers: tuple[str, ...] = ()
    class_balance: bool = False
    toward_start: bool = False


class StartFacts(LedgerRecord):
    """Model before the first round: the model's own start, zeros, random numbers, a file, or what the server trained.

    `digest` is the SHA-256 of the file, or of the parameters that the server trained on its `reserve`.
    """

    kind: Literal["own", "zeros", "random", "file", "reserve"] = "own"
    digest: str | None = None


class SetFacts(LedgerRecord):
    """Set of samples: its size and a digest of inputs and labels."""

    samples: int
    digest: str


class GroupFacts(LedgerRecord):
    """Groups of a run that trains several models: the clients of each group, and its number of votes.

    `by` is the rule that formed them. A client is in one group, except with `by` "subsets". `voting` is the rule by
    which their votes decide.
    """

    by: str
    members: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...] | None = None
    voting: Literal["plurality", "condorcet"] = "plurality"

    @property
    def votes(self) -> tuple[int, ...]:
        """Return how many votes each group has."""
        return self.weights or (1,) * len(self.members)


class ReservedFacts(SetFacts):
    """Samples that the server reserved, and the plugins that use them.

    `from_clients`: they were drawn from samples that clients brought, and not from a pool before it was dealt out.
    """

    from_clients: bool = False
    used_by: tuple[str, ...] = ()


class FittedFacts(LedgerRecord):
    """Fitted feature map at a place of the chain, fitted to public inputs of its own or to a curator's.

    The digests are those of these inputs, in front of all maps, and of the fitted parameters.
    """

    place: int
    feature_map: str
    source: Literal["public", "curator"]
    samples: int
    inputs_digest: str
    digest: str


class RunFacts(LedgerRecord):
    """Facts of a run that do not change from round to round.

    Norms are Euclidean. `input_norms` are the largest of each client in scaled input space, where triggers and the
    feature radius live; `feature_norms` the same behind the feature map. The `_bound`s are declared, not measured.
    `feature_lipschitz` is None for a map that has no Lipschitz constant; `feature_digests` are those of maps that were
    made elsewhere, from a file or by training on public data, `fitted_maps` those that are fitted to inputs that no
    client holds. `rejects`: some plugin may reject rounds; `watching` are those that make models of updates and have
    hooks, which see all groups.
    `feature_names` are those of a table; the features of an image are pixels. `resampled` are the rounds whose model
    before noise was kept, so that noise can be drawn again from there. `bad_update` is what the server does with an
    update that it cannot use, `optimiser` the name of its optimiser if it has one. `secret_votes`: the seed of the vote
    noise was drawn after training. `exact_shares`: poisoned shares are quotients of counts, not sums in single
    precision. `partition_digest` is the SHA-256 of who holds which training rows. `measured`: the clients' data were
    here; if not, their numbers of samples and their norms are what was declared. `engine` names an engine that is more
    than this process, `foreign_maps` the feature maps that are not part of crfl, and `rule` the aggregation rule, each
    with its distribution: audits name them beside what they declare. `reserve` are the samples that the
    server trusts, by name: none of them is a client's.
    """

    format: int = LEDGER_FORMAT
    clients: int
    rounds: int
    dtype: str
    classes: int
    inputs: int
    features: int
    parameters: int
    model: str
    model_facts: ModelFacts
    training: TrainingFacts = TrainingFacts()
    start: StartFacts = StartFacts()
    samples: tuple[int, ...]
    partition_digest: str | None = None
    measured: bool = True
    device: str = "cpu"
    engine: str = ""
    foreign_maps: tuple[str, ...] = ()
    rule: str = ""
    input_norms: tuple[float, ...]
    feature_norms: tuple[float, ...]
    domain: tuple[float, float]
    image_shape: tuple[int, ...] | None
    class_names: tuple[str, ...]
    classes_found: bool = False
    feature_names: tuple[str, ...] = ()
    input_norm_bound: float
    feature_norm_bound: float
    feature_lipschitz: float | None
    feature_digests: tuple[str, ...] = ()
    fitted_maps: tuple[FittedFacts, ...] = ()
    scaling: str
    scaling_fitted: bool
    scaling_shift: tuple[float, ...]
    scaling_factor: tuple[float, ...]
    test_noise_std: float
    bad_update: str = "zero"
    optimiser: str | None = None
    secret_votes: bool = False
    exact_shares: bool = False
    rejects: bool
    watching: tuple[str, ...] = ()
    resampled: tuple[int, ...] = ()
    attack: str | None
    attackers: tuple[int, ...]
    attack_rounds: tuple[int, ...]
    test_sets: dict[str, SetFacts]
    groups: GroupFacts | None = None

    @property
    def models(self) -> int:
        """Return the number of global models: one, or one for each group."""
        return 1 if self.groups is None else len(self.groups.members)

    reserve: dict[str, ReservedFacts] = {}


class RoundRecord(LedgerRecord):
    """Record of one round on the server.

    `start_norm` is ||w~_{t-1}|| and `start_operator_norm` the spectral norm of its column-centred weight block (None
    for models that have none). `norm_before_clip` is ||w_t||. `noise_std` is 0 in the final round, which is only
    clipped. `breakdown` is how far 0, 1, 2, ... arbitrary clients can move the aggregate of a rule that looks at the
    updates, if the rule knows; the entries end where it breaks down. `carries_state`: some plugin remembers more of the
    round than the noisy model, or could: it has hooks or attributes of its own. `rounding` bounds, in Euclidean norm,
    by how much the aggregate may differ from what the weights and caps of the ledger say: sums of floating-point
    numbers are not exact. `has_offset`: a part of the aggregate is in no client's weight. `server_rate` is what the
    aggregate was multiplied by before it moved the model, which is in all weights and in `breakdown`; None if an
    optimiser looked at it, and then weights are those of the largest scale of a parameter. `group` is the one whose
    model this is about; `failed` says why its training ended, after which it stands still and votes for class 0.
    `accuracy` and `loss` of the clipped model on the clean test set, the `success_rate` of its backdoor, and its L2
    `distance` to the clipped model of the clean twin, if that was kept, are for people, not for certificates.
    """

    round: int
    clip_norm: float
    noise_std: float
    start_norm: float
    start_operator_norm: float | None
    norm_before_clip: float
    accepted: bool
    depends: Dependence
    weights_from: str
    participants: int
    quarantined: int
    accuracy: float | None = None
    loss: float | None = None
    success_rate: float | None = None
    distance: float | None = None
    notes: dict[str, float] = {}
    breakdown: tuple[float, ...] | None = None
    carries_state: bool = False
    rounding: float = 0.0
    has_offset: bool = False
    group: int = 0
    failed: str | None = None
    server_rate: float | None = 1.0

    @property
    def has_unweighted_part(self) -> bool:
        """Return whether updates change the aggregate outside all weights.

        A part of it then depends on them.
        """
        return self.has_offset and self.depends == "all"


@dataclass(frozen=True)
class ClientRows:
    """Participants of a round as the server knows them: one entry per client in every array.

    These are columns of the ledger, see `ClientColumns`: the weight that reached the model, the norm of the update as
    it arrived and as it entered the aggregate, the norm that the server enforced, and whether the update was unusable
    and counts as zero. Nothing here says who attacks.
    """

    client: NDArray[np.int64]
    group: NDArray[np.int64]
    weight: NDArray[np.float64]
    submitted_norm: NDArray[np.float64]
    residual_norm: NDArray[np.float64]
    cap: NDArray[np.float64]
    quarantined: NDArray[np.bool_]

    @staticmethod
    def of(columns: ClientColumns) -> ClientRows:
        """Return what the server knows of the rows of some columns."""
        return ClientRows(**{field.name: getattr(columns, field.name) for field in fields(ClientRows)})

    def __len__(self) -> int:
        return len(self.client)


@dataclass(frozen=True)
class ClientColumns:
    """Columns of the ledger: one row per round and participant, in order of rounds.

    `weight` is the p_i that reached the model; `weight_bound` is what it would be had no cap shortened the client's
    update. Radii use `weight_bound`, reports `weight`.
    `retention` and `update_bound` say what the protocol allows, see `Clients`. `cap` is the norm that the server
    enforced on the same residual (infinite if none), `residual_norm` the norm of that residual as it entered the
    aggregate, behind the cap; `submitted_norm` is that of the update as it arrived, `scale` the measured ratio of the
    submitted to the trained update. `learning_rate` and `steps` are those that were used; attackers may have their own
    instead of the `honest_` ones.
    The other columns are `BatchMeasurements`: six of the poison, four of what the batch-spectrum rule found.
    """

    round: NDArray[np.int64]
    client: NDArray[np.int64]
    group: NDArray[np.int64]
    weight: NDArray[np.float64]
    weight_bound: NDArray[np.float64]
    learning_rate: NDArray[np.float64]
    steps: NDArray[np.int64]
    honest_rate: NDArray[np.float64]
    honest_steps: NDArray[np.int64]
    batch_size: NDArray[np.int64]
    last_batch: NDArray[np.int64]
    weight_decay: NDArray[np.float64]
    retention: NDArray[np.float64]
    update_bound: NDArray[np.float64]
    cap: NDArray[np.float64]
    submitted_norm: NDArray[np.float64]
    residual_norm: NDArray[np.float64]
    quarantined: NDArray[np.bool_]
    attacking: NDArray[np.bool_]
    scale: NDArray[np.float64]
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

    def __len__(self) -> int:
        return len(self.round)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> ClientColumns:
        """Return the chosen rows."""
        return ClientColumns(**{name: value[rows] for name, value in vars(self).items()})

    def of_round(self, number: int) -> ClientColumns:
        """Return the participants of one round."""
        first, last = np.searchsorted(self.round, [number, number + 1])
        return self.take(slice(int(first), int(last)))

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names of the columns, in order."""
        return tuple(column.name for column in fields(ClientColumns))

    @staticmethod
    def concatenate(parts: Sequence[ClientColumns]) -> ClientColumns:
        """Join the rows of several parts, one after the other."""
        return ClientColumns(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ClientColumns.names()}
        )


@dataclass(frozen=True, eq=False)
class Ledger:
    """Ledger of a run: static facts, one entry per round, one row per round and participant.

    A ledger is equal only to itself, so results about it can be cached.
    """

    facts: RunFacts
    rounds: tuple[RoundRecord, ...]
    clients: ClientColumns

    def __post_init__(self) -> None:
        if self.facts.format != LEDGER_FORMAT:
            raise StoreError(
                f"the ledger has format {self.facts.format}, this version of crfl reads format {LEDGER_FORMAT}: "
                "use the version that environment.json names"
            )
        numbers = tuple((record.round, record.group) for record in self.rounds)
        models = self.facts.models
        expected = ((number, group) for number in range(1, self.facts.rounds + 1) for group in range(models))
        if len(numbers) != self.facts.rounds * models or any(map(ne, numbers, expected)):
            raise StoreError(
                f"the ledger must hold rounds 1 to {self.facts.rounds}, found {len(numbers)}: finish the run first"
            )
        places = (self.clients.round - 1) * models + self.clients.group
        rows = np.bincount(places[(places >= 0) & (places < len(numbers))], minlength=len(numbers)).tolist()
        for record, found in zip(self.rounds, rows, strict=True):
            if found != record.participants or len(self.clients) != sum(rows):
                raise StoreError(
                    f"the ledger must hold all {record.participants} participants of round {record.round}, found "
                    f"{found}: restore clients.npz"
                )

    def round(self, number: int) -> RoundRecord:
        """Return the record of a round, counted from 1.

        It is that of the only model, or of the first one.
        """
        return self.rounds[(number - 1) * self.facts.models]

    def of_group(self, group: int) -> Ledger:
        """Return the ledger of one group's model alone.

        It looks as if the run had no other group.
        """
        return Ledger(
            self.facts.model_copy(update={"groups": None}),
            tuple(record.model_copy(update={"group": 0}) for record in self.rounds if record.group == group),
            replace(rows := self.clients.take(self.clients.group == group), group=np.zeros_like(rows.group)),
        )

    @property
    def twin_distances(self) -> tuple[float, ...]:
        """Return the L2 distance to the clean twin after each round.

        The tuple is empty if the run did not keep it. With groups, the distance of all models together.
        """
        if any(record.distance is None for record in self.rounds):
            return ()
        groups = (
            self.rounds[first : first + self.facts.models] for first in range(0, len(self.rounds), self.facts.models)
        )
        return tuple(math.hypot(*(record.distance or 0.0 for record in group)) for group in groups)

    @property
    def failed_groups(self) -> tuple[int, ...]:
        """Return the groups whose training failed."""
        return tuple(sorted({record.group for record in self.rounds if record.failed is not None}))
