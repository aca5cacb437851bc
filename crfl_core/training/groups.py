"""Groups of clients that train a model each, fixed before round 1, and the server's steps of each group."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import ConfigError, OptionError, PluginFailure, wrap_failures
from crfl_core.plugin_api.aggregator import AggregationStep, Stage
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.class_checks import hook_names
from crfl_core.plugin_loading.missing_plugins import MissingPlugin
from crfl_core.plugin_loading.mutation_guard import arrays_in

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.config.schema import Groups
    from crfl_core.plugin_api.plugin_errors import PluginMethod
    from crfl_core.plugin_api.server_optimiser import ServerOptimiser
    from crfl_core.records.random_streams import Streams
    from crfl_core.records.round import Clients, RoundFacts

T = TypeVar("T", bound=Plugin)
Answer = TypeVar("Answer")

Members = tuple[NDArray[np.int64], ...]
"""The clients of each group, ascending."""

KEPT_NUMBERS = 2**22
"""Numbers of the answers that a group keeps: 32 MiB. Of others it keeps digests."""


def assign_groups(settings: Groups | None, clients: int, owners: NDArray[np.int64] | None, streams: Streams) -> Members:
    """Assign clients to groups; without settings all clients are in one.

    `owners` are the natural owners of each client's data, if every client has one. Raises `ConfigError`.
    """
    if settings is None:
        return (np.arange(clients),)
    if settings.by == "natural":
        return group_by_owner(owners, len(settings.weights) if settings.weights is not None else None)
    assert settings.count is not None
    if settings.by == "subsets":
        assert settings.size is not None
        return draw_subsets(settings.count, settings.size, clients, streams)
    if settings.count > clients:
        raise ConfigError(
            f"found {settings.count}, but there are only {clients} clients, and no group may be empty",
            key="groups.count",
        )
    order = sorted(range(clients), key=lambda client: deal_key(settings.salt, client))
    return tuple(np.sort(np.asarray(order[group :: settings.count])) for group in range(settings.count))


def deal_key(salt: int, client: int) -> bytes:
    """Return a client's sort key for dealing clients to groups."""
    return hashlib.blake2b(f"{salt}|{client}".encode(), digest_size=16, person=b"crfl-groups").digest()


def group_by_owner(owners: NDArray[np.int64] | None, weights: int | None) -> Members:
    """Return one group for each natural owner."""
    if owners is None:
        raise ConfigError(
            "'natural' needs clients whose data have one natural owner each: use a dataset with natural owners and "
            "partition.type = 'natural', or by = 'deal'",
            key="groups.by",
        )
    groups = tuple(np.flatnonzero(owners == owner) for owner in np.unique(owners))
    if weights is not None and weights != len(groups):
        raise ConfigError(f"needs one for each of the {len(groups)} groups, found {weights}", key="groups.weights")
    return groups


def draw_subsets(count: int, size: int, clients: int, streams: Streams) -> Members:
    """Draw random subsets of this size, independently of each other."""
    if size > clients:
        raise ConfigError(f"found {size}, but there are only {clients} clients", key="groups.size")
    draws = (streams.generator("participation/subset", replica=group) for group in range(count))
    return tuple(np.sort(draw.choice(clients, size, replace=False)) for draw in draws)


class FixedAnswers:
    """Answers of one group's steps, by what they were asked: an equal question has an equal answer.

    Certificates take weights, caps and rates for functions of what the step is asked. An answer that is kept is used
    again; where there is a digest, the step is asked again, and another answer ends the run.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}
        self._digests: dict[bytes, bytes] = {}
        self._room = KEPT_NUMBERS

    def ask(self, who: PluginMethod, question: Clients | RoundFacts, answer: Callable[[], Answer]) -> Answer:
        """Return the answer of a step's method to a question.

        `answer` asks the step.
        """
        key = digest_of_arrays(question, f"{id(who.plugin)} {who.method}")
        if key in self._kept:
            kept: Answer = self._kept[key]
            return kept
        found = answer()
        if key not in self._digests:
            size = sum(getattr(array, "nbytes", 8) for array in arrays_in(found)) // 8
            if size <= self._room:
                self._room -= size
                self._kept[key] = found
                return found
            self._digests[key] = digest_of_arrays(found)
        if self._digests[key] != digest_of_arrays(found):
            raise PluginFailure(
                f"{who} has answered the same question differently before: its answer must follow from what it is "
                "given, so remember nothing, and draw from keyed streams"
            )
        return found


def digest_of_arrays(content: object, prefix: str = "") -> bytes:
    """Return a digest of all arrays and numbers in a container."""
    digest = hashlib.blake2b(prefix.encode(), digest_size=16)
    for leaf in arrays_in(content):
        values = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf
        if isinstance(values, np.ndarray):
            digest.update(f"{values.dtype.str}{values.shape}".encode())
            digest.update(np.ascontiguousarray(values).data)
        elif isinstance(values, int | float):
            digest.update(repr(values).encode())
    return digest.digest()


class ServerSteps(NamedTuple):
    """Steps of a group's server: those of its aggregation, its optimiser if there is one, and their fixed answers."""

    aggregation: tuple[AggregationStep, ...]
    optimiser: ServerOptimiser | None
    answers: FixedAnswers | None = None


def server_steps(config: RunConfig, groups: int) -> tuple[ServerSteps, ...]:
    """Return the steps of every group, as instances of its own.

    What a step remembers about itself reaches no other group. Plugins with hooks are shared by all groups, because
    their hooks are; `plugins_watching_rounds` names them.
    """
    first = ServerSteps(config.aggregation, config.server.optimiser, FixedAnswers())
    others = (
        ServerSteps(
            tuple(map(copy_plugin, first.aggregation)),
            None if first.optimiser is None else copy_plugin(first.optimiser),
            FixedAnswers(),
        )
        for _ in range(groups - 1)
    )
    return (first, *others)


def copy_plugin(plugin: T) -> T:
    """Return a deep copy of a plugin with its private state.

    A plugin with hooks is shared instead.
    """
    if hook_names(type(plugin)):
        return plugin
    with wrap_failures(f"{plugin.full_name} cannot be copied, as every group needs its own"):
        return plugin.model_copy(deep=True)


def plugins_watching_rounds(config: RunConfig) -> tuple[str, ...]:
    """Return the plugins whose hooks see the rounds of all groups.

    Only plugins that make models of updates count. Models and local algorithms have no hooks.
    """
    makers = ("aggregator", "optimiser")
    return tuple(
        plugin.configured_as for kind, plugin in config.named_plugins() if kind in makers and hook_names(type(plugin))
    )


def has_private_state(server: ServerSteps) -> bool:
    """Ask whether a plugin that looks at updates can keep them privately.

    The state that the core stores does not count.
    """
    steps = (*server.aggregation, *(() if server.optimiser is None else (server.optimiser,)))
    usual = Plugin.__private_attributes__.keys()
    looking = (step for step in steps if step.depends == "all")
    return any(hook_names(type(step)) or step.__private_attributes__.keys() > usual for step in looking)


def check_groups(steps: Sequence[AggregationStep], clients: Clients) -> None:
    """Check that every aggregation step fits the smallest and largest group.

    Of several groups a step sees the sample counts only in a copy: what it keeps of them reaches no other group.
    """
    sizes = np.bincount(clients.group)
    if len(sizes) == 1:
        check_steps(steps, clients)
        return
    for group in {int(sizes.argmin()), int(sizes.argmax())}:
        context = f"one of {len(sizes)} groups has {sizes[group]} of the {len(clients)} clients in a round"
        check_steps(tuple(map(copy_plugin, steps)), clients.take(clients.group == group), context)


def check_steps(steps: Sequence[AggregationStep], clients: Clients, context: str | None = None) -> None:
    """Ask every step whether it fits rounds of clients like these.

    Each step is asked about the clients as the stages before it hand them on. Raises `ConfigError`, which also gives
    the `context` and says which stages changed the number of clients that the step complains about.
    """
    changes = [] if context is None else [context]
    for position, step in enumerate(steps):
        if isinstance(step, MissingPlugin):  # what it would do is not known here; nothing is trained with it
            return
        with errors_of(f"aggregation.{position}", step):
            try:
                step.check(clients)
            except OptionError as error:
                raise OptionError(error.option, "; ".join((error.message, *changes))) from error
            if isinstance(step, Stage):
                before = len(clients)
                after = step.outputs(len(clients))
                if after != before:
                    changes.append(f"{step.configured_as!r} makes {after} of {before} updates")
                clients = clients.take(slice(after))
