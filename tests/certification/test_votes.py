"""The votes of noisy models: how they are drawn, counted, shared between certificates and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_models.softmax import Softmax
from numpy.typing import NDArray
from torch import Tensor

import crfl_core
from crfl_core import RunResult
from crfl_core.certification import voting
from crfl_core.certification.voting import VotingModels
from crfl_core.errors import StoreError
from crfl_core.extend import (
    BoundModel,
    CountVotes,
    DataFacts,
    Domain,
    LogitVotes,
    Streams,
    VoteRequest,
    Votes,
    VoteSettings,
)
from crfl_core.records import vote_counting
from crfl_core.records.vote_counting import COPIES_PER_STREAM
from crfl_core.training.federation import build
from tests.oracle import sealed, tiny

SETTINGS = VoteSettings()
MODEL = Softmax().build(DataFacts(6, 3, Domain()))


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


PARAMETERS, FEATURES, LABELS = gaussian(MODEL.layout.size), gaussian(20, 6, seed=1), torch.arange(20) % 3


def refuse_continuation(request: VoteRequest) -> Tensor:
    raise AssertionError(f"no continuation the run for {request}")


def electorate(model: BoundModel = MODEL, parameters: Tensor = PARAMETERS, seed: int = 0) -> VotingModels:
    """A model that votes without continuations."""
    return VotingModels(model, parameters, Streams(seed), refuse_continuation)


def vote_on(
    voters: VotingModels, features: Tensor, labels: Tensor, request: VoteRequest, settings: VoteSettings
) -> Votes:
    """The answer on one test set."""
    return voting.collect_votes(voters, {"only": (features, labels)}, request, settings)["only"]


def counts(models: int, *, model: BoundModel = MODEL, noise_std: float = 0.5, seed: int = 0) -> NDArray[np.int64]:
    """The votes on some samples."""
    request = VoteRequest("monte-carlo", models=models, noise_std=noise_std)
    votes = vote_on(electorate(model, seed=seed), FEATURES, LABELS, request, SETTINGS)
    return votes.expect(CountVotes).counts


@pytest.mark.parametrize("models", [1, 7, 8, 64, 300, 519])
def test_every_model_votes_once_on_every_sample(models: int) -> None:
    assert counts(models).sum(axis=1).tolist() == [models] * 20


def test_the_votes_are_those_of_gaussian_copies_of_the_model() -> None:
    """Against the exact probabilities of two classes: logits of noisy linear models are Gaussian themselves."""
    model = Softmax().build(DataFacts(6, 2, Domain()))
    parameters, std, models = gaussian(model.layout.size), 0.5, 20_000
    request = VoteRequest("monte-carlo", models=models, noise_std=std)
    votes = vote_on(electorate(model, parameters), FEATURES, LABELS, request, SETTINGS).expect(CountVotes)
    logits = model.logits(parameters[None], FEATURES)[0]
    spread = std * torch.sqrt(2 * (FEATURES.norm(dim=1) ** 2 + 1))
    expected = torch.special.ndtr((logits[:, 0] - logits[:, 1]) / spread).numpy()
    deviations = np.sqrt(expected * (1 - expected) / models)
    assert (np.abs(votes.counts[:, 0] / models - expected) < 5 * deviations).all()


def test_without_noise_all_models_agree_with_the_model_itself() -> None:
    winners = MODEL.logits(PARAMETERS[None], FEATURES)[0].argmax(1)
    np.testing.assert_array_equal(counts(64, noise_std=0.0), 64 * torch.nn.functional.one_hot(winners, 3))


def test_the_size_of_a_chunk_changes_no_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = counts(300)
    for chunk in (vote_counting.COPIES_PER_STREAM, 5 * vote_counting.COPIES_PER_STREAM):
        monkeypatch.setattr(vote_counting, "MODELS_PER_CHUNK", chunk)
        np.testing.assert_array_equal(counts(300), whole)


def test_more_models_are_the_same_ones_and_then_some() -> None:
    """So that a second request with a larger M never contradicts the first."""
    assert (counts(200) >= counts(120)).all()


def test_the_number_of_threads_changes_no_vote() -> None:
    whole = counts(300)
    torch.set_num_threads(2)
    try:
        np.testing.assert_array_equal(counts(300), whole)
    finally:
        torch.set_num_threads(1)


def test_votes_depend_on_their_seed() -> None:
    assert (counts(64, seed=0) != counts(64, seed=1)).any()


def test_the_same_models_vote_on_every_sample() -> None:
    """Two equal inputs get equal counts, wherever they stand."""
    features = FEATURES[torch.tensor([0, 5, 0, 5, 0])]
    request = VoteRequest("monte-carlo", models=40, noise_std=0.5)
    votes = vote_on(electorate(), features, LABELS[:5], request, SETTINGS).expect(CountVotes).counts
    assert votes[[0, 2, 4]].tolist() == [votes[0].tolist()] * 3
    assert votes[1].tolist() == votes[3].tolist() == counts(40)[5].tolist()


@pytest.mark.parametrize("selection", [0, 24])
def test_noisy_models_are_drawn_once_for_all_test_sets(selection: int) -> None:
    request = VoteRequest("monte-carlo", models=40, noise_std=0.5, selection_models=selection)
    parts = (slice(12), slice(5, 20))
    alone = [vote_on(electorate(), FEATURES[rows], LABELS[rows], request, SETTINGS) for rows in parts]
    drawn: list[str] = []

    class Watched(Streams):
        def generator(
            self, purpose: str, *, round_number: int = 0, client: int = 0, replica: int = 0
        ) -> np.random.Generator:
            drawn.append(f"{purpose} {replica}")
            return super().generator(purpose, round_number=round_number, client=client, replica=replica)

    shown: list[tuple[int, int]] = []
    voters = VotingModels(
        MODEL, PARAMETERS, Watched(0), refuse_continuation, on_progress=lambda done, total: shown.append((done, total))
    )
    sets = {"first": (FEATURES[:12], LABELS[:12]), "second": (FEATURES[5:], LABELS[5:])}
    together = voting.collect_votes(voters, sets, request, SETTINGS)
    assert list(together) == ["first", "second"]
    for one, other in zip(together.values(), alone, strict=True):
        for name, column in vars(other.expect(CountVotes)).items():
            np.testing.assert_array_equal(getattr(one, name), column)
    assert len(drawn) == len(set(drawn)) == (40 + selection) // COPIES_PER_STREAM
    assert shown[-1] == (40 + selection, 40 + selection)


def test_logits_are_answered_in_float64_with_norms_and_labels() -> None:
    single = electorate(parameters=PARAMETERS.float())
    votes = vote_on(single, FEATURES.float(), LABELS, VoteRequest("logits"), SETTINGS).expect(LogitVotes)
    assert votes.logits.dtype == np.float64
    np.testing.assert_allclose(votes.logits, MODEL.logits(PARAMETERS[None], FEATURES)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(votes.input_norms, FEATURES.norm(dim=1), rtol=1e-6)
    np.testing.assert_array_equal(votes.labels, LABELS)


def test_different_requests_have_different_files() -> None:
    requests = [
        VoteRequest("logits"),
        VoteRequest("monte-carlo", models=64, noise_std=0.1),
        VoteRequest("monte-carlo", models=65, noise_std=0.1),
        VoteRequest("monte-carlo", models=64, noise_std=0.2),
        VoteRequest("monte-carlo", models=64, noise_std=0.1, selection_models=10),
    ]
    assert len({request.digest for request in requests}) == len(requests)
    assert VoteRequest("logits").digest == VoteRequest("logits").digest


def run(path: Path, certificates: list[dict[str, Any]]) -> RunResult:
    """A small run with these certificates."""
    return crfl_core.run(tiny(certificates=certificates), out=path)


def test_equal_requests_are_computed_once_and_others_apart(tmp_path: Path) -> None:
    """alpha is not part of the question: it decides what the answer means."""
    result = run(
        tmp_path / "run",
        [
            {"type": "paper"},
            {"type": "paper", "name": "sure", "votes": {"alpha": 0.0001}},
            {"type": "paper", "name": "many", "votes": {"models": 80}},
        ],
    )
    files = sorted((result.path / "votes").iterdir())
    sizes = set()
    for file in files:
        with np.load(file, allow_pickle=False) as arrays:
            sizes.add(int(arrays["clean/counts"][0].sum()))
    assert (len(files), sizes) == (2, {64, 80})
    curves = {curve.certificate: curve for curve in result.metrics.curves if curve.test_set == "clean"}
    assert curves["sure"].abstained >= curves["paper"].abstained
    assert curves["sure"].median_radius != curves["paper"].median_radius


def test_stored_votes_are_those_of_the_stored_model(tmp_path: Path) -> None:
    result = run(tmp_path / "run", [{"type": "paper"}])
    request = VoteRequest("monte-carlo", models=64, noise_std=0.02)
    stored = result.votes(request)
    assert set(stored) == {"clean", "backdoored"}
    federation = build(result.config)
    for name, votes in stored.items():
        chosen = federation.test_sets[name]
        voters = VotingModels(federation.model, result.parameters, federation.streams, result.read_continued_models)
        again = vote_on(voters, chosen.features, chosen.labels, request, result.config.votes)
        np.testing.assert_array_equal(votes.expect(CountVotes).counts, again.expect(CountVotes).counts)
        np.testing.assert_array_equal(votes.labels, chosen.labels)


def test_votes_of_another_test_set_are_refused(tmp_path: Path) -> None:
    result = run(tmp_path / "run", [{"type": "paper"}])
    (file,) = (result.path / "votes").iterdir()
    with np.load(file, allow_pickle=False) as arrays:
        changed = dict(arrays) | {"clean/digest": np.array("0" * 64)}
    np.savez_compressed(file, **changed)
    with pytest.raises(StoreError, match="does not belong to the clean test set of this run"):
        crfl_core.load(sealed(result.path)).votes(VoteRequest("monte-carlo", models=64, noise_std=0.02))
