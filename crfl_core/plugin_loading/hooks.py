"""Hooks of one run: a pluggy manager with the plugins that the config names, and no others."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pluggy

from crfl_core.errors import UNEXPECTED_EXCEPTIONS, CrflError, CrflWarning, PluginFailure, describe_exception
from crfl_core.plugin_api import hookspecs
from crfl_core.plugin_api.aggregator import state_key
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.plugin_errors import source_location
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.plugin_loading.class_checks import check_hooks, hook_names
from crfl_core.plugin_loading.mutation_guard import InputsChanged, guard_inputs
from crfl_core.records.run_context import RunContext

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.records.round import ClientUpdates, Round, RuleResult, State


class Hooks:
    """Caller of a run's hooks. `plugins` are (kind, instance) pairs, called in this order."""

    def __init__(self, plugins: Iterable[tuple[str, Plugin]]) -> None:
        self._manager = pluggy.PluginManager("crfl")
        self._manager.add_hookspecs(hookspecs)
        pairs = list(plugins)
        position = itertools.count()
        owners = [state_key(next(position)) if kind == "aggregator" else kind for kind, _ in pairs]
        # pluggy calls the plugin registered last first.
        for number, (kind, plugin) in reversed(list(enumerate(pairs))):
            if hook_names(type(plugin)):
                self._register(f"{kind}-{number}", f"{kind} {plugin.full_name}", plugin, owners[number])

    def observe(self, hook: str, **arguments: object) -> None:
        """Call a hook that only observes."""
        getattr(self._manager.hook, hook)(**arguments)

    def report_progress(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Report how far a phase is."""
        self.observe("crfl_progress", phase=phase, done=done, total=total)

    @property
    def may_reject(self) -> bool:
        """Return whether a plugin of this run can reject a round."""
        return bool(self._manager.hook.crfl_accept_round.get_hookimpls())

    @property
    def replaces_weights(self) -> bool:
        """Return whether a plugin of this run may report other weights.

        Such a plugin sees the updates of a round.
        """
        return bool(self._manager.hook.crfl_effective_weights.get_hookimpls())

    def accept(self, run: RunContext, current: Round, candidate: Tensor, states: Mapping[str, State]) -> bool:
        """Ask all plugins whether to accept the candidate; one rejection is enough.

        `states` are those of the whole chain; a plugin sees only the state that it returned.
        """
        answers: list[bool] = self._manager.hook.crfl_accept_round(
            run=run, current=current, candidate=candidate, state=states
        )
        return all(answers)

    def effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> tuple[Tensor, str] | None:
        """Return the weights that a plugin reports, and its name.

        None if no plugin reports weights.
        """
        answer: tuple[Tensor, str] | None = self._manager.hook.crfl_effective_weights(
            updates=updates, aggregate=aggregate
        )
        return answer

    def _register(self, key: str, who: str, plugin: Plugin, owner: str) -> None:
        """Register wrapped methods instead of the instance.

        pluggy would touch every attribute of a pydantic model.
        """
        check_hooks(who, type(plugin))
        methods = {name: getattr(plugin, name) for name in hook_names(type(plugin))}
        holder = SimpleNamespace(
            **{name: self._guard(key, who, plugin, owner, name, method) for name, method in methods.items()}
        )
        self._manager.register(holder, name=key)

    def _guard(
        self, key: str, who: str, plugin: Plugin, owner: str, name: str, method: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Wrap a hook of a plugin.

        The hook sees only its state, its inputs are compared, and failures name the plugin.
        """
        parameters = tuple(inspect.signature(method).parameters)

        @functools.wraps(method)
        def call(*arguments: Any) -> object:
            given = [
                value.get(owner, {}) if parameter == "state" else value
                for parameter, value in zip(parameters, arguments, strict=False)  # parameters with a default get none
            ]
            try:
                with guard_inputs(f"{who}: {name} ({source_location(method)})", *given):
                    answer = method(*given)
            except InputsChanged:
                raise
            except UNEXPECTED_EXCEPTIONS as error:
                failure = f"{who} failed in {name}: {describe_exception(error)}"
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
