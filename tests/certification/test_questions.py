"""Every certificate is asked once about everything, whichever reader wants the answers."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from crfl_certificates.tail import Tail

import crfl_core
from crfl_core import RunResult
from crfl_core.certification import certifier
from crfl_core.extend import Certificate
from crfl_core.records.votes import VoteOverrides
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.runs.stored_votes import has_votes
from tests.oracle import tiny

THREE = [
    {"type": "pathwise-linear"},
    {"type": "pathwise-smoothed", "method": "monte-carlo"},
    {"type": "tail", "continuations": 8, "selection": 4},
]
CONFIG = tiny(
    server={"clip_norm": 4.0, "noise_std": 0.05},
    model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
    certificates=THREE,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One run for the whole file."""
    return crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("questions") / "run")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often certificates are asked, threats resolved and models read for a digest."""
    counter: Counter[str] = Counter()

    def counted(owner: Any, name: str, key: str) -> None:
        real = getattr(owner, name)

        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            counter[key] += 1
            return real(*arguments, **keywords)

        monkeypatch.setattr(owner, name, wrapper)

    for certificate in (PathwiseLinear, PathwiseSmoothed, Tail):
        counted(certificate, "audit", "audits")
    for owner in (PathwiseLinear, PathwiseSmoothed, Tail.__mro__[1]):
        counted(owner, "request", "requests")
    counted(VoteOverrides, "apply", "overrides")
    counted(certifier, "resolve_threat", "threats")
    read = RunDirectory.read

    def reading(self: RunDirectory, name: str) -> bytes:
        counter["models read"] += name == "model.safetensors"
        return read(self, name)

    monkeypatch.setattr(RunDirectory, "read", reading)
    return counter


ONCE = {"audits": 3 + 2, "requests": 3, "overrides": 3, "threats": 1}
"""Those that answer for unknown rounds are audited for these, too."""


def asked(calls: Counter[str]) -> dict[str, int]:
    return {key: count for key, count in calls.items() if key != "models read"}


def test_a_run_asks_each_certificate_once(tmp_path: Path, calls: Counter[str]) -> None:
    crfl_core.run(CONFIG, out=tmp_path / "run")
    assert asked(calls) | {"overrides": 3} == ONCE  # estimates look at the options alone
    assert calls["models read"] <= 1 + len(THREE) + 1  # once for its digest; to vote, and to be scored


def test_reading_all_guarantees_again_asks_each_certificate_once(finished: RunResult, calls: Counter[str]) -> None:
    result = crfl_core.load(finished.path)
    assert len(result.certified) > 0
    assert result.threat.rounds
    assert asked(calls) == ONCE
    assert calls["models read"] == 1


@pytest.mark.parametrize("override", ["threat.clients=2", "votes.models=32", "certificates.tail.continuations=9"])
def test_a_what_if_question_asks_each_certificate_once_whatever_it_needs(
    finished: RunResult, tmp_path: Path, calls: Counter[str], override: str
) -> None:
    copy = crfl_core.load(shutil.copytree(finished.path, tmp_path / "copy"))
    calls.clear()
    crfl_core.certify(copy, [override], save="asked")
    assert asked(calls) == ONCE
    new_votes = {"threat.clients=2": 0}.get(override, 1)
    assert calls["models read"] == 1 + new_votes


def test_predictions_share_the_questions_of_their_run(finished: RunResult, calls: Counter[str]) -> None:
    result = crfl_core.load(finished.path)
    inputs = np.zeros((2, result.ledger.facts.inputs))
    for _ in range(3):
        assert len(crfl_core.predict(result, inputs).certified) > 0
    assert asked(calls) == ONCE
    assert calls["models read"] == 1  # the model itself: there are no stored votes to match it with


def test_a_refused_certificate_is_voted_on_unless_that_means_training_again(tmp_path: Path) -> None:
    """So a run has votes of its model whatever was refused, and spends no time on continuations for nothing."""
    config = CONFIG | {"aggregation": [{"type": "median"}]}
    result = crfl_core.run(config, out=tmp_path / "run")
    assert set(result.metrics.refused) == {"pathwise-linear", "pathwise-smoothed", "tail"}
    kinds = {question.request.kind for question in result.certifier.questions if question.needs_votes}
    assert kinds == {"logits", "monte-carlo"}
    stored = [has_votes(result.directory, question.request) for question in result.certifier.questions]
    assert stored == [True, True, False]


def test_certificates_that_read_other_votes_than_they_asked_for_are_told(tmp_path: Path) -> None:
    class Mistaken(PathwiseLinear):
        """Asks for counts and reads logits."""

        def request(self, *arguments: Any) -> Any:
            return PathwiseSmoothed(method="monte-carlo").request(*arguments)

    config, told = CONFIG | {"certificates": [{"type": "mistaken"}]}, "asked for 'monte-carlo', which are CountVotes"
    with pytest.raises(crfl_core.CrflError, match=told):
        crfl_core.run(config, out=tmp_path / "run", plugins={"mistaken": Mistaken})


def test_questions_are_plain_data(finished: RunResult) -> None:
    for question in finished.certifier.questions:
        assert isinstance(question.certificate, Certificate)
        assert question.audit.certificate == question.certificate.title
        assert question.settings.models == finished.config.votes.models
        assert question.uncovered == ()
