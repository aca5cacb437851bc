"""The hooks of one run: a pluggy manager with the plugins that the config names, and nobody else."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pluggy

from crfl_core.errors import UNEXPECTED, CrflError, CrflWarning, PluginFailure, reason
from crfl_core.plugin_api import hookspecs
from crfl_core.plugin_api.aggregator import state_key
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.plugin_errors import source_location
from crfl_core.plugin_api.tracker import RunContext, Tracker
from crfl_core.plugin_loading.class_checks import check_hooks, hook_names
from crfl_core.plugin_loading.mutation_guard import InputsChanged, guard_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.records.round import ClientUpdates, Round, RuleResult, State


class Hooks:
    """Calls the hooks of a run. `plugins` are (kind, instance) pairs, asked in this order."""

    def __init__(self, plugins: Iterable[tuple[str, Plugin]]) -> None:
        self._manager = pluggy.PluginManager("crfl")
        self._manager.add_hookspecs(hookspecs)
        named = list(plugins)
        position = itertools.count()
        owners = [state_key(next(position)) if kind == "aggregator" else kind for kind, _ in named]
        # pluggy asks the plugin registered last first.
        for number, (kind, plugin) in reversed(list(enumerate(named))):
            if hook_names(type(plugin)):
                self._register(f"{kind}-{number}", f"{kind} {plugin.full_name}", plugin, owners[number])

    def observe(self, hook: str, **arguments: object) -> None:
        """Tell everybody who listens."""
        getattr(self._manager.hook, hook)(**arguments)

    def report_progress(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Tell everybody who listens how far a phase is."""
        self.observe("crfl_progress", phase=phase, done=done, total=total)

    @property
    def may_reject(self) -> bool:
        """Whether any plugin of this run wants to judge models."""
        return bool(self._manager.hook.crfl_accept_round.get_hookimpls())

    @property
    def replaces_weights(self) -> bool:
        """Whether any plugin of this run wants to see the updates of a round and report other weights."""
        return bool(self._manager.hook.crfl_effective_weights.get_hookimpls())

    def accept(self, run: RunContext, current: Round, candidate: Tensor, states: Mapping[str, State]) -> bool:
        """Whether nobody rejects the candidate. `states` are those of the whole chain; a plugin sees its own."""
        answers: list[bool] = self._manager.hook.crfl_accept_round(
            run=run, current=current, candidate=candidate, state=states
        )
        return all(answers)

    def effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> tuple[Tensor, str] | None:
        """The weights that a plugin answered with, and which plugin it was; None if nobody did."""
        answer: tuple[Tensor, str] | None = self._manager.hook.crfl_effective_weights(
            updates=updates, aggregate=aggregate
        )
        return answer

    def _register(self, key: str, who: str, plugin: Plugin, owner: str) -> None:
        """Register wrapped methods instead of the instance: pluggy would touch every attribute of a pydantic model."""
        check_hooks(who, type(plugin))
        methods = {name: getattr(plugin, name) for name in hook_names(type(plugin))}
        holder = SimpleNamespace(
            **{name: self._guarded(key, who, plugin, owner, name, method) for name, method in methods.items()}
        )
        self._manager.register(holder, name=key)

    def _guarded(
        self, key: str, who: str, plugin: Plugin, owner: str, name: str, method: Callable[..., Any]
    ) -> Callable[..., Any]:
        parameters = tuple(inspect.signature(method).parameters)

        @functools.wraps(method)
        def call(*arguments: Any) -> object:
            own = [
                value.get(owner, {}) if parameter == "state" else value
                for parameter, value in zip(parameters, arguments, strict=False)  # parameters with a default get none
            ]
            try:
                with guard_inputs(f"{who}: {name} ({source_location(method)})", *own):
                    answer = method(*own)
            except InputsChanged:
                raise
            except UNEXPECTED as error:
                failure = f"{who} failed in {name}: {reason(error)}"
                if not isinstance(plugin, Tracker):
                    raise error if isinstance(error, CrflError) else PluginFailure(failure) from error
                warnings.warn(f"{failure}; the run continues without it", CrflWarning, stacklevel=2)
                if self._manager.has_plugin(key):
                    self._manager.unregister(name=key)
                return None
            if name == "crfl_effective_weights" and answer is not None:
                return answer, who
            return answer

        return call
