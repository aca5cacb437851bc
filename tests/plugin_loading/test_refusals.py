"""Classes and packages that cannot be used as plugins: refused when they are loaded, with what to do instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any, final

import pytest
import torch
from torch import Tensor

from crfl_core import load_config
from crfl_core.extend import (
    Clients,
    ClientUpdates,
    ConfigError,
    LinearAggregator,
    PluginError,
    Registry,
    Round,
    RuleResult,
    Stage,
    State,
    Tracker,
    hookimpl,
)
from crfl_core.plugin_loading.registry import PluginListing

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]


class Mean(LinearAggregator):
    """The plain mean, as an honest plugin would write it."""

    def weights(self, clients: Clients) -> Tensor:
        return torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)


def longest(_self: Any, updates: ClientUpdates, state: State) -> RuleResult:
    """The longest update, reported as a mean: which a linear rule must not do."""
    values = updates.values
    weights = torch.full((len(values),), 1 / len(values), dtype=torch.float64)
    return RuleResult(update=values[values.norm(dim=1).argmax()], weights=weights, state=state)


class Mixin:
    """Brings a method along that is not its host's to replace."""

    aggregate = longest


class Unbound:
    """Says of its host what is not its host's to say."""

    depends = "fixed"


def refusal(config: dict[str, Any]) -> str:
    """Why a config that names something unusable is refused."""
    with pytest.raises(ConfigError) as stop:
        load_config(config)
    return str(stop.value)


class TestDependence:
    """What a step may look at follows from its base class alone."""

    def test_no_mixin_makes_a_stage_that_sees_updates_fixed(self) -> None:
        members = {"transform": longest, "__module__": __name__}
        with pytest.raises(PluginError, match=r"Sly \(.*\) sets `depends`, which follows from the base class: derive"):
            type("Sly", (Unbound, Stage), members)

    @pytest.mark.filterwarnings("ignore:Field name .* shadows an attribute")
    def test_no_option_of_that_name_does(self) -> None:
        annotations = {"depends": str}
        with pytest.raises(PluginError, match="sets `depends`"):
            type("Odd", (Mean,), {"depends": "own", "__annotations__": annotations, "__module__": __name__})

    def test_a_rule_that_must_not_watch_the_run_gets_no_hook_afterwards(self) -> None:
        class Late(Mean):
            """Looks at the models when it is too late to be noticed."""

        @hookimpl
        def crfl_round_started(_self: Any, current: Round) -> None:
            """Sees what a linear rule must not see."""

        setattr(Late, "crfl_round_started", crfl_round_started)  # noqa: B010
        with pytest.raises(PluginError, match=r"Late has the hook crfl_round_started \(.*test_refusals.py:\d+\)"):
            Registry({"late": Late}).load("aggregator", "late")


class TestFinalMethods:
    def test_a_class_that_replaces_one_cannot_be_defined(self) -> None:
        with pytest.raises(PluginError) as stop:
            type("Liar", (Mean,), {"aggregate": longest, "__module__": __name__})
        place = f"{__file__}:{longest.__code__.co_firstlineno}"
        assert str(stop.value) == (
            f"Liar.aggregate ({place}) replaces LinearAggregator.aggregate, which is final: implement weights instead"
        )

    def test_neither_by_a_mixin(self) -> None:
        with pytest.raises(
            PluginError, match=r"Sly\.aggregate .* replaces LinearAggregator\.aggregate, which is final"
        ):
            type("Sly", (Mixin, Mean), {"__module__": __name__})

    def test_nor_by_an_option_of_that_name(self) -> None:
        with pytest.raises(PluginError, match=r"Odd\.aggregate \(.*\) replaces LinearAggregator\.aggregate"):
            type("Odd", (Mean,), {"aggregate": longest, "__annotations__": {"aggregate": Any}, "__module__": __name__})

    def test_nor_after_the_class_was_defined(self) -> None:
        class Late(Mean):
            """Waits until it is not watched."""

        setattr(Late, "aggregate", longest)  # noqa: B010  # type checkers know that it is final
        message = r"aggregator 'late' of \(this process\): .*Late\.aggregate .* replaces LinearAggregator\.aggregate"
        with pytest.raises(PluginError, match=message):
            Registry({"late": Late}).load("aggregator", "late")

    def test_an_installed_one_is_refused_by_name_and_listed_as_failed(self, install: Install) -> None:
        source = (
            "from crfl_core.extend import LinearAggregator\n\n\nclass Liar(LinearAggregator):\n"
            "    def weights(self, clients): ...\n\n    def aggregate(self, updates, state): ...\n"
        )
        install("lying-tools", "0.1", {"crfl.aggregators": {"liar": "Liar"}}, source)
        reason = refusal({"aggregation": "liar"})
        assert "aggregation.0.type = 'liar': aggregator 'liar' of lying-tools 0.1 cannot be imported: " in reason
        assert "lying_tools.py:7) replaces LinearAggregator.aggregate, which is final" in reason
        assert [line.status for line in Registry().listing() if line.name == "liar"] == ["failed"]

    def test_methods_of_any_sort_can_be_final_and_all_others_be_overridden(self) -> None:
        class Base(Tracker):
            """Has final methods of every sort, and one that is free."""

            @property
            @final
            def prop(self) -> int:
                return 1

            @final
            @classmethod
            def of_class(cls) -> int:
                return 1

            @staticmethod
            @final
            def static() -> int:
                return 1

            def free(self) -> int:
                return 1

        class Fine(Base):
            """Overrides what it may."""

            def free(self) -> int:
                return 2

        assert Fine().free() == 2
        members: dict[str, Any] = {"prop": property(lambda _: 2), "of_class": classmethod(longest), "static": longest}
        for name, member in members.items():
            message = rf"Bad\.{name} \({re.escape(__file__)}:\d+\) replaces .*Base\.{name}, .*: implement free instead"
            with pytest.raises(PluginError, match=message):
                type("Bad", (Base,), {name: member, "__module__": __name__})


class TestSignatures:
    """A method that could not be called ends no run: its class is refused before one begins."""

    def test_an_attack_with_other_arguments_is_refused(self, install: Install) -> None:
        source = (
            "from crfl_core.extend import Attack\n\n\nclass Old(Attack):\n    def prepare(self, data, streams): ...\n\n"
            "    def craft(self, honest, own, weights): ...\n"
        )
        install("old-tools", "0.1", {"crfl.attacks": {"old": "Old"}}, source)
        reason = refusal({"attack": "old"})
        assert "attack.type = 'old': attack 'old' of old-tools 0.1: craft (" in reason
        assert "old_tools.py:7) takes honest, own, weights, and is called with known, state: give it these" in reason

    def test_names_of_arguments_and_further_ones_with_a_default_are_the_authors_own(self) -> None:
        class Fine(Mean):
            """Calls its clients members, and can do more than it is asked for."""

            def weights(self, members: Clients, power: float = 1.0) -> Tensor:
                return super().weights(members) ** power

        assert Registry({"fine": Fine}).load("aggregator", "fine") is Fine

    def test_what_takes_anything_is_fine(self) -> None:
        class Wrapped(Mean):
            """Hands on what it is given."""

            def check(self, *arguments: Any, **options: Any) -> None:
                super().check(*arguments, **options)

        assert Registry({"wrapped": Wrapped}).load("aggregator", "wrapped") is Wrapped


class TestEntryPointGroups:
    SOURCE = "from crfl_aggregators.trimmed_mean import Median as Mine\n"

    @pytest.mark.parametrize(
        ("group", "hint"),
        [
            ("crfl.aggregator", "did you mean 'crfl.aggregators'"),
            ("crfl.feature-maps", "did you mean 'crfl.feature_maps'"),
            ("crlf.aggregators", "did you mean 'crfl.aggregators'"),
            ("crfl.hooks", "groups are crfl.aggregators, crfl.optimisers"),
        ],
    )
    def test_one_that_does_not_exist_is_listed_as_failed(
        self, install: Install, crfl: Crfl, group: str, hint: str
    ) -> None:
        install("lost-tools", "0.2", {group: {"mine": "Mine"}}, self.SOURCE)
        (line,) = [line for line in json.loads(crfl("plugins", "--json").stdout) if line["status"] != "ok"]
        assert (line["kind"], line["name"], line["distribution"], line["version"]) == (
            "unknown",
            "mine",
            "lost-tools",
            "0.2",
        )
        assert line["status"] == "failed"
        assert line["reason"].startswith(f"there is no entry-point group {group!r}: ")
        assert hint in line["reason"]

    def test_a_config_that_names_such_a_plugin_is_an_error(self, install: Install) -> None:
        install("lost-tools", "0.2", {"crfl.aggregator": {"mine": "Mine"}}, self.SOURCE)
        with pytest.raises(ConfigError, match=r"lost-tools 0\.2 declares it, but there is no entry-point group"):
            load_config({"aggregation": "mine"})

    def test_the_rest_of_such_a_package_is_found(self, install: Install) -> None:
        groups = {"crfl.aggregator": {"lost": "Mine"}, "crfl.aggregators": {"mine": "Mine"}}
        install("half-tools", "0.2", groups, self.SOURCE)
        assert Registry().load("aggregator", "mine").__name__ == "Median"

    @pytest.mark.parametrize("group", ["console_scripts", "crflx.panels", "pytest11", "crfl_dashboard.panels"])
    def test_groups_of_others_are_their_own_affair(self, install: Install, group: str) -> None:
        install("other-tools", "3.0", {group: {"mine": "Mine"}}, self.SOURCE)
        assert [line for line in Registry().listing() if line.distribution == "other-tools"] == []


def test_a_class_for_an_older_plugin_api_is_refused_with_what_to_upgrade(install: Install) -> None:
    source = "from typing import ClassVar\nfrom crfl_core.extend import Tracker\n"
    source += "class Old(Tracker):\n    api_version: ClassVar[int] = 0\n"
    install("old-tools", "0.9", {"crfl.trackers": {"old": "Old"}}, source)
    (line,) = [line for line in Registry().listing() if line.name == "old"]
    assert line == PluginListing(
        kind="tracker",
        name="old",
        distribution="old-tools",
        version="0.9",
        status="failed",
        reason="tracker 'old' of old-tools 0.9 was written for plugin API 0, this crfl offers 1: upgrade old-tools; "
        "if it is yours, the documentation of crfl has a page on the API contract",
        summary="",
        hooks=(),
    )
