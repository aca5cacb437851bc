"""The kit itself: results, expected failures, cases of pytest, the command."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.krum import Krum
from crfl_aggregators.mixing import Bucketing
from crfl_datasets.arrays import Arrays
from pydantic import Field

from crfl_core import testing
from crfl_core.extend import (
    Aggregator,
    Clients,
    ClientUpdates,
    FixedStage,
    LinearAggregator,
    Mixing,
    Plugin,
    RoundFacts,
    RuleResult,
    State,
)
from crfl_core.plugin_api import CONFIGURABLE, KINDS
from crfl_core.testing import check_plugin, parametrize_with_checks
from crfl_core.testing.suite import PROMISES
from tests.testing.test_broken_aggregators import FirstComeFirstServed

ORDER = "order_of_clients_does_not_matter"


def statuses(plugin: Plugin, **options: Any) -> dict[str, tuple[str, str]]:
    return {result.check: (result.status, result.message) for result in check_plugin(plugin, **options)}


def test_results_name_plugin_check_and_promise() -> None:
    result = next(result for result in check_plugin(FedAvg) if result.check == ORDER)
    assert (result.plugin, result.status, result.message) == ("FedAvg", "passed", "")
    assert result.promise == "The same clients in another order get the same weights and give the same aggregate."


def test_every_check_states_its_promise_in_one_sentence() -> None:
    for promise in PROMISES:
        assert promise.function.__name__.startswith("check_")
        assert promise.text.endswith("."), promise.name


def test_every_kind_has_checks_of_its_own_and_an_ordinary_use() -> None:
    from crfl_core.testing.suite import USES

    bases = {promise.base for promise in PROMISES}
    for name, kind in KINDS.items():
        assert any(issubclass(known, kind.base) for known in bases)
        assert (kind.base in USES) == (name in CONFIGURABLE)  # no check runs a command


class Misspelt(Aggregator):
    """Asks tensors for something that they do not have."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = updates.values.evenly()  # type: ignore[attr-defined]
        return RuleResult(weights @ updates.values, weights, state=state)


class Lonely(Aggregator):
    """Returns a weight for one client."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        return RuleResult(updates.values[0].clone(), torch.ones(1), state=state)


@pytest.mark.parametrize(("rule", "words"), [(Misspelt(), "evenly"), (Lonely(), "weights")])
def test_what_fails_many_checks_for_one_reason_is_reported_once(rule: Aggregator, words: str) -> None:
    found = statuses(rule)
    ((first, failed),) = ((check, message) for check, (status, message) in found.items() if status == "failed")
    assert words in failed
    stopped = [message for status, message in found.values() if "what goes wrong there stops this one" in message]
    assert len(stopped) > 10
    assert all(f"before {first} passes" in message for message in stopped)


def test_pytest_reports_it_once_too() -> None:
    _, cases = parametrize_with_checks([Misspelt()]).mark.args  # type: ignore[attr-defined]
    failed = 0
    for case in cases:
        try:
            case.values[0]()
        except testing.CheckFailed:
            failed += 1
        except pytest.skip.Exception:
            continue
    assert failed == 1


def test_two_faults_are_reported_both() -> None:
    class Twice(FirstComeFirstServed):
        """In order of arrival, and loud."""

        def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
            print("hello")
            return super().aggregate(updates, state)

    failed = {check for check, (status, _) in statuses(Twice()).items() if status == "failed"}
    assert {ORDER, "keeps_global_state"} <= failed


class ServerRate(FixedStage):
    """Multiplies the server's step."""

    rate: float = Field(2.0, gt=0, description="factor on every update")

    def mixing(self, facts: RoundFacts) -> Mixing:
        return Mixing(torch.full((len(facts.clients),), self.rate, dtype=torch.float64))


class Hasty(LinearAggregator):
    """A mean with a server rate."""

    rate: float = Field(1.5, gt=0, description="the server's step")

    def weights(self, clients: Clients) -> torch.Tensor:
        return torch.full((len(clients),), self.rate / len(clients), dtype=torch.float64)


@pytest.mark.parametrize("step", [ServerRate(), ServerRate(rate=0.5), Hasty(), Hasty(rate=0.25)])
def test_a_server_rate_passes_the_kit(step: Plugin) -> None:
    assert {check: found for check, found in statuses(step).items() if found[0] == "failed"} == {}


def test_an_expected_failure_carries_its_reason() -> None:
    found = statuses(FirstComeFirstServed(), expected_failures={ORDER: "clients come by the clock"})
    assert found[ORDER] == ("expected failure", "clients come by the clock")
    assert "failed" not in {status for status, _ in found.values()}


def test_an_expected_failure_that_passes_is_a_failure() -> None:
    status, message = statuses(FedAvg(), expected_failures={ORDER: "once upon a time"})[ORDER]
    assert status == "failed"
    assert message == "it passes, but is expected to fail (once upon a time): remove it from expected_failures"


def test_a_misspelt_expected_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no check 'ordre'; there are"):
        check_plugin(FedAvg(), expected_failures={"ordre": "no reason"})
    with pytest.raises(ValueError, match="there is no check 'ordre'; there are"):
        parametrize_with_checks([FedAvg()], expected_failures={"ordre": "no reason"})


def test_options_that_fit_no_round_are_skipped_and_not_failed() -> None:
    status, message = statuses(Krum(f=500))["weights_are_not_negative"]
    assert (status, message.partition(":")[0]) == ("skipped", "its options fit no round of 12, 25, 60, 120 clients")


def test_options_that_need_more_clients_are_tried_on_larger_rounds() -> None:
    assert statuses(Krum(f=10))["weights_are_not_negative"] == ("passed", "")


def test_a_class_of_no_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="int derives from none of AggregationStep, ServerOptimiser"):
        check_plugin(int)


def test_a_class_that_needs_options_says_so() -> None:
    with pytest.raises(TypeError, match=r"Arrays cannot be made without options \(.*`path`.*\): pass an instance"):
        check_plugin(Arrays)


def test_cases_of_pytest_have_names_and_know_their_expected_failures() -> None:
    mark = parametrize_with_checks(
        [Bucketing, FirstComeFirstServed(), Krum(f=1), Krum(f=2)],
        expected_failures={f"FirstComeFirstServed-{ORDER}": "by the clock", "huge_updates_do_no_harm": "all of them"},
    ).mark  # type: ignore[attr-defined]
    name, cases = mark.args
    expected = {case.id: case.marks[0] for case in cases if case.marks}
    assert name == "check"
    assert {f"Bucketing-{ORDER}", f"Krum(f=1)-{ORDER}", f"Krum(f=2)-{ORDER}"} <= {case.id for case in cases} - set(
        expected
    )
    assert set(expected) == {
        f"FirstComeFirstServed-{ORDER}",
        *(f"{who}-huge_updates_do_no_harm" for who in ("Bucketing", "FirstComeFirstServed", "Krum(f=1)", "Krum(f=2)")),
    }
    assert expected[f"FirstComeFirstServed-{ORDER}"].kwargs["reason"] == "by the clock"
    assert expected[f"FirstComeFirstServed-{ORDER}"].kwargs["strict"]


def test_pytest_reports_failures_and_expected_failures(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from crfl_core.testing import parametrize_with_checks\n"
        "from tests.testing.test_broken_aggregators import Negative\n"
        f"@parametrize_with_checks([Negative()], expected_failures={{{ORDER!r}: 'by the clock'}})\n"
        "def test_conforms(check):\n"
        "    check()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-rfx", "-p", "no:cacheprovider", str(tmp_path / "test_mine.py")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    (expected,) = (line for line in lines if line.startswith("XFAIL"))
    failed = next(line for line in lines if line.startswith("FAILED"))
    assert expected.endswith(f"test_conforms[Negative-{ORDER}] - by the clock")
    assert "test_conforms[Negative-weights_are_not_negative]" in failed
    assert "CheckFailed: expected weights of at least 0 in an ordinary round; found -" in done.stdout
    assert done.returncode == 1


def test_only_the_cases_of_pytest_need_pytest() -> None:
    files = Path(testing.__file__).parent.glob("*.py")
    assert [file.name for file in files if "import pytest" in file.read_text(encoding="utf-8")] == ["checking.py"]


def test_the_public_names_of_the_kit_are_these_and_documented() -> None:
    assert sorted(testing.__all__) == [
        "CheckFailed",
        "Promise",
        "Result",
        "Search",
        "Trial",
        "check_plugin",
        "parametrize_with_checks",
        "promises_of",
        "round_of",
    ]
    for name in set(testing.__all__) - {"Search"}:
        assert getattr(testing, name).__doc__, name
    trial = ast.parse(Path(sys.modules["crfl_core.testing.sample_run"].__file__ or "").read_text(encoding="utf-8"))
    assert "An adversarial search" in ast.dump(trial)


Crfl = Callable[..., CompletedProcess[str]]


def test_the_command_prints_a_table_of_all_checks(crfl: Crfl) -> None:
    done = crfl("plugins", "check", "krum", "--set", "f=2")
    assert done.returncode == 0
    assert "weights_rebuild_the_aggregate" in done.stdout
    assert "27 passed, 1 skipped" in done.stdout


def test_the_command_ends_with_1_if_a_promise_is_broken(crfl: Crfl, install: Callable[..., None]) -> None:
    source = "from tests.testing.test_broken_aggregators import FirstComeFirstServed as Broken\n"
    install("robust-tools", "1.2", {"crfl.aggregators": {"broken": "Broken"}}, source)
    done = crfl("plugins", "check", "broken", "--json")
    assert done.returncode == 1
    (failed,) = (result for result in json.loads(done.stdout) if result["status"] == "failed")
    assert failed["check"] == "order_of_clients_does_not_matter"
    assert failed["message"].startswith("expected weights that follow their clients when ")
    assert ". To fix it: break ties and draw groups by `round.clients.ids`, not by position" in failed["message"]
    assert "1 failed" in crfl("plugins", "check", "broken").stdout


def test_a_certificate_of_another_distribution_gives_repeatable_answers(
    crfl: Crfl, install: Callable[..., None]
) -> None:
    """Its audit names the distribution, which an instance that the kit makes again has to know, too."""
    source = "from crfl_certificates.group_vote import GroupVote\nclass Proof(GroupVote):\n    pass\n"
    install("robust-tools", "1.2", {"crfl.certificates": {"proof": "Proof"}}, source)
    results = {line["check"]: line for line in json.loads(crfl("plugins", "check", "proof", "--json").stdout)}
    assert results["answers_are_repeatable"]["status"] == "passed", results["answers_are_repeatable"]["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["krumm"], "there is no plugin 'krumm': did you mean 'krum'?"),
        (["zzzzz"], "there is no plugin 'zzzzz': `crfl plugins` lists them"),
        (["krum", "--kind", "attack"], "there is no attack 'krum'"),
        (["krum", "--kind", "rule"], "--kind rule: kinds are aggregator, optimiser"),
        (["krum", "--set", "g=2"], "g = 2: unknown key; known: f"),
        (["arrays"], "give either `path` or `callable`"),
    ],
)
def test_the_command_ends_with_2_if_there_is_nothing_to_check(crfl: Crfl, arguments: list[str], message: str) -> None:
    done = crfl("plugins", "check", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_name_of_several_kinds_needs_the_kind(crfl: Crfl, install: Callable[..., None]) -> None:
    source = "from tests.testing.own_data import Spots as Krum\n"
    install("robust-tools", "1.2", {"crfl.datasets": {"krum": "Krum"}}, source)
    done = crfl("plugins", "check", "krum")
    assert done.returncode == 2
    assert "'krum' is the name of several plugins: choose with --kind aggregator or --kind dataset" in done.stderr
    assert crfl("plugins", "check", "krum", "--kind", "dataset").returncode == 0


@pytest.mark.parametrize("name", ["unit-ball", "crfl:unit-ball"])
def test_a_feature_map_keeps_its_options_under_each_of_its_names(crfl: Crfl, name: str) -> None:
    results = json.loads(crfl("plugins", "check", name, "--json").stdout)
    assert [one["status"] for one in results if one["check"] == "options_survive_a_config_file"] == ["passed"]


def test_a_plugin_of_whose_kind_nothing_could_be_checked_is_not_fine(crfl: Crfl) -> None:
    done = crfl("plugins", "check", "arrays", "--set", "path='nowhere.npz'")
    assert done.returncode == 1
    assert "no check of its kind could be made: its data cannot be read here" in done.stdout
