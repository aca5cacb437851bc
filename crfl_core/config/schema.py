"""The schema: everything that can be written in a config, with its default."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from crfl_core.config.merging import NO_PLUGIN
from crfl_core.errors import ConfigError, wrap_failures
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.aggregator import AggregationStep, Aggregator, Stage
from crfl_core.plugin_api.attack import Attack
from crfl_core.plugin_api.base import Plugin, PluginField
from crfl_core.plugin_api.certificate import Certificate
from crfl_core.plugin_api.dataset import Dataset
from crfl_core.plugin_api.engine import Engine
from crfl_core.plugin_api.local_algorithm import LocalAlgorithm
from crfl_core.plugin_api.model import Model, as_list
from crfl_core.plugin_api.partitioner import Partitioner
from crfl_core.plugin_api.server_optimiser import ServerOptimiser
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.records import schedules
from crfl_core.records.schedules import EqualInfluence, Linear, PerClient, Schedule
from crfl_core.records.table import DefaultTable, Table
from crfl_core.records.threat import ThreatSettings
from crfl_core.records.votes import VoteSettings

PositiveRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Rates = PositiveRate | tuple[PositiveRate, ...] | Linear
Counts = Count | tuple[Count, ...] | Linear
FigureFormat = Literal["svg", "png", "pdf"]
PER_CLIENT = "; one value per client is written { per_client = [...] }"
DISTRIBUTION_OR_PLUGIN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[^:\s]+)?$"


def by_name(name: str) -> Any:
    """Return the default of a plugin field.

    It is the plugin of this name with its own defaults.
    """
    return cast("Any", DefaultTable(type=name))


def absent_if_none(value: object) -> object:
    """Return None for the word "none".

    It switches off what an inherited config sets.
    """
    return None if value in (NO_PLUGIN, {"type": NO_PLUGIN}) else value


def as_list_or_none(value: object) -> object:
    """Turn a single table into a list of one.

    The word "none" becomes an empty list.
    """
    return () if absent_if_none(value) is None else as_list(value)


class Seeds(Table):
    """Seeds of single purposes; those that are not set follow the run's `seed`."""

    data: int | None = Field(None, ge=0, description="split and partition of the data")
    initial: int | None = Field(None, ge=0, description="initial model")
    batches: int | None = Field(None, ge=0, description="order of the samples in local training")
    participation: int | None = Field(None, ge=0, description="who takes part in which round")
    aggregation: int | None = Field(None, ge=0, description="random aggregators")
    noise: int | None = Field(None, ge=0, description="training noise of the server")
    votes: Annotated[int, Field(ge=0)] | Literal["secret"] | None = Field(
        None,
        description="test-time noise, and noise that is drawn again; 'secret': drawn and recorded after training, so "
        "that no attacker can know it",
    )
    attack: int | None = Field(None, ge=0, description="attackers and what they draw")


class ReserveSamples(Table):
    """Samples of the training part of a dataset that is not the run's."""

    dataset: Annotated[Dataset, PluginField("dataset")] = Field(description="where they come from")
    samples: Count | None = Field(None, description="how many of them, drawn at random; unset: all")


class Reserve(Table):
    """Samples that the server trusts. They are taken out of the training data before any client gets a share.

    Each set is a number of samples, a share of all, or those of a dataset of its own. No sample is in two of them.
    """

    root: Count | Share | ReserveSamples | None = Field(None, description="for aggregation rules that learn from data")
    curator: Count | Share | ReserveSamples | None = Field(None, description="for feature maps that are fitted")
    validation: Count | Share | ReserveSamples | None = Field(
        None, description="for tuning: a test set beside the clean one, on which everything is certified as well"
    )

    weight_decay: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="L2 penalty of the model that the server trains on its own labelled samples; unset: that of the "
        "clients, training.weight_decay",
    )

    @property
    def sets(self) -> dict[str, int | float | ReserveSamples | None]:
        """Return what the server reserves, by name."""
        return {"root": self.root, "curator": self.curator, "validation": self.validation}

    @property
    def labelled(self) -> tuple[str, ...]:
        """Return the sets that a start model may be trained on.

        Those for validation stay unseen, for they score the run; of a curator from elsewhere only the inputs count.
        """
        root = () if self.root is None else ("root",)
        return root if self.curator is None or isinstance(self.curator, ReserveSamples) else (*root, "curator")

    @property
    def datasets(self) -> Iterator[Dataset]:
        """Yield the datasets of reserved sets.

        Sets that come from the run's own dataset are left out.
        """
        return (wanted.dataset for wanted in self.sets.values() if isinstance(wanted, ReserveSamples))

    def with_own_plugins(self) -> Reserve:
        """Return a copy with plugin instances of its own."""
        own = {name: wanted for name, wanted in self.sets.items() if isinstance(wanted, ReserveSamples)}
        return self.model_copy(
            update={name: one.model_copy(update={"dataset": one.dataset.model_copy()}) for name, one in own.items()}
        )


class Training(Table):
    """Local training: steps on mini-batches, which are reshuffled every epoch."""

    algorithm: Annotated[LocalAlgorithm, PluginField("algorithm")] = Field(
        by_name("sgd"), description="what is made of a gradient"
    )

    learning_rate: Rates | EqualInfluence | PerClient[Rates] = Field(
        0.05,
        description="eta: a number, a list per round, {start, slope}, {per_client = [...]} of these, or {type = "
        "'equal-influence'}: rates that give an attack in any round the same effect",
    )
    steps: Counts | PerClient[Counts] | None = Field(
        None, description="local steps tau in a round: a whole number, or as for the rate; unset: epochs"
    )
    epochs: Count | None = Field(None, description="instead of steps: passes over a client's data per round")
    batch_size: Count = Field(32, description="samples per step; a client with fewer uses all it has")
    drop_last: bool = Field(
        False, description="leave the short batch at the end of an epoch out, unless a client has no other"
    )
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty on all parameters, lambda")
    toward_start: bool = Field(
        False,
        description="pull by weight decay toward the model before the first round, lambda/2 ||w - w_0||^2, instead of "
        "toward 0; only certificates by votes of groups cover that",
    )
    class_balance: bool = Field(
        False,
        description="give every class that a client holds the same total weight in its loss, for clients with few "
        "classes; only certificates by votes of groups cover that",
    )
    clip_gradients: PositiveRate | None = Field(
        None, description="norm to which every sample's gradient is shortened, which bounds the updates of any model"
    )
    spectrum: PositiveRate | None = Field(
        None,
        description="L of the batch-spectrum rule: the loss of a batch is multiplied by min(1, L / L_s), L_s being the "
        "largest eigenvalue of X^T X / n; allows larger rates and a smaller cap. Softmax regression without bias",
    )
    ball: PositiveRate | None = Field(
        None,
        description="F of the ball rule: also by F / F_s, F_s being the norm of the batch's gradient at the model 0; "
        "needs spectrum, weight decay and no training noise",
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")

    @model_validator(mode="after")
    def _fit_together(self) -> Training:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("set either steps or epochs, not both")
        if self.ball is not None and (self.spectrum is None or not self.weight_decay):
            missing = "spectrum" if self.spectrum is None else "weight_decay"
            raise misfit_error("ball", f"the ball rule needs training.{missing}, which is not set")
        if self.toward_start and not self.weight_decay:
            raise misfit_error("toward_start", "needs training.weight_decay above 0, which is what pulls")
        return self


class Server(Table):
    """The server's step on the global model: move it, clip the whole vector, then add noise to all of it."""

    optimiser: Annotated[
        Annotated[ServerOptimiser, PluginField("optimiser")] | None,
        BeforeValidator(
            absent_if_none,
            json_schema_input_type=Annotated[ServerOptimiser, PluginField("optimiser")] | Literal["none"] | None,
        ),
    ] = Field(None, description="what the model is moved by; unset or 'none': by the aggregate itself")
    clip_norm: Schedule = Field(15.0, description="rho_t: a number, a list, or {start, slope}")
    noise_std: Schedule = Field(0.01, description="sigma_t: a number, a list, or {start, slope}")
    cap_updates: bool | None = Field(
        None,
        description="put a stage that caps updates in front of the aggregation, unnoticed by honest clients; unset: if "
        "a certificate wants it, as the sound ones do for their client level",
    )
    bad_update: Literal["zero", "drop"] = Field(
        "zero",
        description="a non-finite or wrong-shaped update counts as zero with its weight kept, or is dropped "
        "and the other weights renormalised (they then depend on the attackers)",
    )


class Groups(Table):
    """Several global models instead of one, each trained by a group of clients of its own. They vote."""

    by: Literal["deal", "natural", "subsets"] = Field(
        "deal",
        description="deal: round-robin in the order of a salted hash of the ids; natural: one group for each natural "
        "owner of the data (a state, a writer); subsets: random clients, who may be in several groups",
    )
    count: int | None = Field(None, ge=1, description="how many groups; natural ones are counted")
    size: int | None = Field(None, ge=1, description="clients of each random subset")
    salt: int = Field(0, ge=0, description="changes who is dealt to which group; it need not be secret")
    weights: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="how many votes each group has, fixed before training; unset: one each"
    )
    voting: Literal["plurality", "condorcet"] = Field(
        "plurality",
        description="plurality: the class that most groups predict; condorcet: the class that beats every other one in "
        "the groups' rankings, and the most predicted one where there is none",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Groups:
        if (self.by == "natural") != (self.count is None):
            raise misfit_error("count", "must be left out of natural groups, and given for others")
        if (self.by == "subsets") != (self.size is not None):
            raise misfit_error("size", "belongs to by = 'subsets', which needs it")
        if self.weights is not None:
            if self.count is not None and len(self.weights) != self.count:
                raise misfit_error(
                    "weights", f"needs one for each of the {self.count} groups, found {len(self.weights)}"
                )
            if not any(self.weights):
                raise misfit_error("weights", "some group must count")
        return self


class Evaluation(Table):
    """Settings of what is measured during training and reported at the end."""

    every: int = Field(1, ge=0, description="rounds between measurements of test accuracy and loss; 0: only in the end")
    radii: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        None, description="where certified accuracy is reported; unset: a grid up to the largest radius"
    )


class Storage(Table):
    """Settings of the run directory."""

    checkpoint_seconds: float = Field(
        5.0, ge=0, description="seconds between checkpoints: the most that a killed run loses"
    )
    figures: tuple[FigureFormat, ...] = Field(("svg", "png"), description="formats of the figures; []: no figures")
    keep: Literal["needed", "models", "distances"] = Field(
        "needed",
        description="what is kept of rounds: the models that certificates start from again; 'models': those of all; "
        "'distances': also how far each is from that of the clean twin, which is trained alongside",
    )


class PluginSettings(Table):
    """The plugins that may run. Code that is not allowed is never imported, whatever the config names."""

    allow: tuple[Annotated[str, Field(pattern=DISTRIBUTION_OR_PLUGIN)], ...] | None = Field(
        None,
        description="what may be loaded besides `crfl` itself, as distribution or distribution:name; unset: everything",
    )


class Trust(BaseModel):
    """The part of a config that is read before any plugin is loaded."""

    plugins: PluginSettings = PluginSettings()


class RunConfig(Table):
    """One run: data, federation, defence, attack, and the certificates it should get."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="names the directory runs/<name>")
    seed: int = Field(0, ge=0, description="every random stream derives from it")
    seeds: Seeds = Field(Seeds(), description="other seeds for single purposes")
    rounds: int = Field(30, ge=1, description="rounds of federated training, T")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where tensors live")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision of parameters and data")
    dataset: Annotated[Dataset, PluginField("dataset")] = Field(by_name("digits"), description="samples")
    reserve: Reserve = Field(Reserve(), description="samples that the server keeps and trusts")
    partition: Annotated[Partitioner, PluginField("partitioner")] = Field(
        by_name("iid"), description="which client holds which samples"
    )
    model: Annotated[Model, PluginField("model")] = Field(by_name("softmax"), description="what is trained")
    training: Training = Field(cast("Training", {}), description="local training of a client")
    server: Server = Field(Server(), description="the server's step")
    aggregation: Annotated[
        tuple[Annotated[AggregationStep, PluginField("aggregator")], ...], BeforeValidator(as_list)
    ] = Field((by_name("fedavg"),), description="any number of stages, then one rule")
    groups: Annotated[
        Groups | None,
        BeforeValidator(absent_if_none, json_schema_input_type=Groups | Literal["none"] | None),
    ] = Field(None, description="groups of clients that train models of their own; unset or 'none': one model")
    attack: Annotated[
        Annotated[Attack, PluginField("attack")] | None,
        BeforeValidator(
            absent_if_none,
            json_schema_input_type=Annotated[Attack, PluginField("attack")] | Literal["none"] | None,
        ),
    ] = Field(None, description="what malicious clients do; unset or 'none': all are honest")
    threat: ThreatSettings = Field(ThreatSettings(), description="what the certificates assume")
    votes: VoteSettings = Field(VoteSettings(), description="defaults for every certificate that votes")
    certificates: Annotated[
        tuple[Annotated[Certificate, PluginField("certificate")], ...], BeforeValidator(as_list_or_none)
    ] = Field((by_name("paper"),), description="guarantees to compute; [] or 'none': none")
    evaluation: Evaluation = Field(Evaluation(), description="what is measured")
    engine: Annotated[Engine, PluginField("engine")] = Field(by_name("local"), description="where clients train")
    trackers: Annotated[tuple[Annotated[Tracker, PluginField("tracker")], ...], BeforeValidator(as_list_or_none)] = (
        Field((), description="plugins that watch the run")
    )
    storage: Storage = Field(Storage(), description="how the run directory is written")
    plugins: PluginSettings = Field(PluginSettings(), description="which installed plugins may be loaded")

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        self._check_aggregation()
        self._check_schedules()
        if self.storage.keep == "distances" and self.attack is None:
            raise misfit_error(
                "storage.keep", "needs an attack, because distances are measured to a clean twin: set 'models'"
            )
        titles = [certificate.title for certificate in self.certificates]
        for position, title in enumerate(titles):
            if title in titles[:position]:
                raise misfit_error(
                    f"certificates.{position}", f"two are called {title!r}: give one of them another `name`"
                )
        return self

    def named_plugins(self) -> Iterator[tuple[str, Plugin]]:
        """Yield every plugin that this config names, with its kind.

        The order is the one in which hooks ask them.
        """
        yield "dataset", self.dataset
        yield from (("dataset", dataset) for dataset in self.reserve.datasets)
        yield "partitioner", self.partition
        yield "model", self.model
        yield from (("feature-map", feature_map) for feature_map in self.model.features)
        yield "algorithm", self.training.algorithm
        yield from (("aggregator", step) for step in self.aggregation)
        if self.server.optimiser is not None:
            yield "optimiser", self.server.optimiser
        if self.attack is not None:
            yield "attack", self.attack
        yield from (("certificate", certificate) for certificate in self.certificates)
        yield "engine", self.engine
        yield from (("tracker", tracker) for tracker in self.trackers)

    def used_plugins(self) -> Iterator[tuple[str, Plugin]]:
        """Yield every named plugin, and plugins that are options of these."""
        for kind, plugin in self.named_plugins():
            yield kind, plugin
            for _, part in plugin:
                if isinstance(part, Plugin):
                    yield next(name for name, described in KINDS.items() if described.includes(type(part))), part

    def with_own_plugins(self) -> RunConfig:
        """Return a copy with plugin instances of its own.

        Their state then stays in one run.
        """
        maps = tuple(feature_map.model_copy() for feature_map in self.model.features)
        lists = ("aggregation", "certificates", "trackers")
        copies: dict[str, object] = {name: tuple(one.model_copy() for one in getattr(self, name)) for name in lists}
        copies |= {name: getattr(self, name).model_copy() for name in ("dataset", "partition", "engine")}
        copies |= {"reserve": self.reserve.with_own_plugins()}
        copies |= {"model": self.model.model_copy(update={"features": maps})}
        algorithm = self.training.algorithm.model_copy()
        copies |= {"training": self.training.model_copy(update={"algorithm": algorithm})}
        copies |= {"attack": None if self.attack is None else self.attack.model_copy()}
        optimiser = None if self.server.optimiser is None else self.server.optimiser.model_copy()
        copies |= {"server": self.server.model_copy(update={"optimiser": optimiser})}
        return self.model_copy(update=copies)

    def without_attack(self) -> RunConfig:
        """Return the config of the clean twin.

        It is the same run with the same random streams but without attackers.
        """
        keeps = {"keep": "needed"} if self.storage.keep == "distances" else {}  # there is nothing to be distant from
        return self.model_copy(update={"attack": None, "storage": self.storage.model_copy(update=keeps)})

    @property
    def missing_stages(self) -> list[Mapping[str, Any]]:
        """Return the stages that certificates want but the aggregation lacks.

        They belong before the aggregation.
        """
        capping = self.server.cap_updates
        there = {step.configured_as.rpartition(":")[2] for step in self.aggregation}
        wanted: dict[str, Mapping[str, Any]] = {}
        for certificate in self.certificates if capping is not False else ():
            with wrap_failures(f"certificate {certificate.full_name} failed in stages_to_add"):
                stages = map(DefaultTable, certificate.stages_to_add(capping))
                wanted |= {str(stage["type"]).rpartition(":")[2]: stage for stage in stages}
        if capping and not wanted and len(self.aggregation) == 1:
            raise ConfigError(
                "server.cap_updates = true: no certificate names a stage that caps updates: put one into aggregation, "
                "in front of the rule"
            )
        return [stage for name, stage in wanted.items() if name not in there]

    def _check_aggregation(self) -> None:
        if not self.aggregation:
            raise misfit_error("aggregation", "must end with a rule such as fedavg")
        *stages, rule = self.aggregation
        if not isinstance(rule, Aggregator):
            message = f"{rule.configured_as!r} is a stage: the last entry must be a rule such as fedavg"
            raise misfit_error(f"aggregation.{len(stages)}", message)
        for position, stage in enumerate(stages):
            if not isinstance(stage, Stage):
                raise misfit_error(
                    f"aggregation.{position}", f"{stage.configured_as!r} is a rule and must be the last entry"
                )

    def _check_schedules(self) -> None:
        training = self.training
        server = self.server
        self._check_schedule("server.clip_norm", server.clip_norm, "above 0", lambda value: value > 0)
        at_least_zero = "finite and at least 0"
        self._check_schedule("server.noise_std", server.noise_std, at_least_zero, lambda value: 0 <= value < math.inf)
        if isinstance(training.learning_rate, EqualInfluence):
            if training.weight_decay == 0:
                forgotten = "equal influence needs training.weight_decay above 0: without it no round is ever forgotten"
                raise misfit_error("training.learning_rate", forgotten)
        else:
            self._check_schedule("training.learning_rate", training.learning_rate, "above 0", lambda value: value > 0)
        if training.steps is not None:
            whole = "a whole number of at least 1"
            self._check_schedule("training.steps", training.steps, whole, lambda value: value >= 1 and value % 1 == 0)

    def _check_schedule(
        self, key: str, schedule: Schedule | PerClient[Any], required: str, fits: Callable[[float], bool]
    ) -> None:
        table = "" if key.startswith("server") or isinstance(schedule, PerClient) else PER_CLIENT
        for one in schedules.client_schedules(schedule):
            try:
                numbers = schedules.rounds_to_check(one, self.rounds)
            except ValueError as error:
                raise misfit_error(key, f"{error}{table}") from error
            for number in numbers:
                if not fits(value := schedules.value_at(one, number)):
                    raise misfit_error(key, f"must be {required} in every round, found {value:g} in round {number}")


def misfit_error(key: str, message: str) -> PydanticCustomError:
    """Return the error for settings that do not fit together.

    `key` is the one to change.
    """
    return PydanticCustomError("misfit", "{message}", {"message": message, "key": key})
