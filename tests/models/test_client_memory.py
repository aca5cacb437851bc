"""What clients keep from round to round: as in the papers, in every engine, stored and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr

import crfl_core
from crfl_core.errors import ConfigError
from crfl_core.extend import (
    Engine,
    Job,
    LocalRound,
    LocalStep,
    LocalUpdates,
    Plugin,
    PluginFailure,
    State,
    StatefulAlgorithm,
    StepDirection,
    Tracker,
    TrainingTask,
    assumption_checks,
    hookimpl,
)
from crfl_core.training.federation import Federation
from tests.engines.process_engine import ProcessEngine
from tests.models.test_local_algorithms import problem_of
from tests.oracle import Problem, Vector, batches, contents, federation_of, played, sample_gradient, tiny

RATE = 0.1
STEPS = 3
ALPHA = 0.2


def config_of(algorithm: Any, **changes: Any) -> dict[str, Any]:
    """Six rounds of half of the clients, without clipping and noise, in double precision."""
    training = {"learning_rate": RATE, "steps": STEPS, "batch_size": 12, "participation": 0.5, "algorithm": algorithm}
    server = {"clip_norm": 1e9, "noise_std": 0.0}
    wanted = {"dtype": "float64", "rounds": 6, "attack": "none", "training": training, "server": server}
    return tiny(certificates=[], **wanted) | changes


def slope(problem: Problem, model: Vector, rows: list[int]) -> Vector:
    """The gradient of the mean loss of a batch."""
    found = [sample_gradient(problem, model, problem.x[row], int(problem.y[row])) for row in rows]
    return np.asarray(np.mean(found, axis=0))


def shares_of(problem: Problem, clients: list[int]) -> Vector:
    """The weights of participants in FedAvg: their shares of the samples."""
    sizes = np.array([len(problem.holdings[client]) for client in clients], float)
    shares: Vector = sizes / sizes.sum()
    return shares


def scaffold(federation: Federation, problem: Problem) -> Iterator[Vector]:
    """Algorithm 1 of Karimireddy et al. (2020) with option II, client by client; the server's rate is 1."""
    model = federation.start.parameters.double().numpy().copy()
    variates = np.zeros((federation.data.clients, len(model)))
    of_server = np.zeros(len(model))
    for number in range(1, 7):
        clients = federation.participation.participants(number).ids.tolist()
        moves, changes = [], []
        for client in clients:
            local = model.copy()
            for rows in batches(problem, client, number, STEPS):
                local = local - RATE * (slope(problem, local, rows) - variates[client] + of_server)
            renewed = variates[client] - of_server + (model - local) / (STEPS * RATE)
            moves.append(local - model)
            changes.append(renewed - variates[client])
            variates[client] = renewed
        of_server = of_server + np.sum(changes, axis=0) / federation.data.clients
        model = model + shares_of(problem, clients) @ np.array(moves)
        yield model


def feddyn(federation: Federation, problem: Problem) -> Iterator[Vector]:
    """Algorithm 1 of Acar et al. (2021), client by client, with its minimisation replaced by a few steps."""
    model = federation.start.parameters.double().numpy().copy()
    slopes = np.zeros((federation.data.clients, len(model)))
    of_server = np.zeros(len(model))
    for number in range(1, 7):
        clients = federation.participation.participants(number).ids.tolist()
        ended = []
        for client in clients:
            local = model.copy()
            for rows in batches(problem, client, number, STEPS):
                local = local - RATE * (slope(problem, local, rows) - slopes[client] + ALPHA * (local - model))
            slopes[client] -= ALPHA * (local - model)
            ended.append(local)
        mean = shares_of(problem, clients) @ np.array(ended)
        of_server = of_server - ALPHA * len(clients) / federation.data.clients * (mean - model)
        model = mean - of_server / ALPHA
        yield model


def test_scaffold_follows_its_paper() -> None:
    federation = federation_of(config_of("scaffold"))
    expected = list(scaffold(federation, problem_of(federation)))
    for line, model in zip(played(federation), expected, strict=True):
        np.testing.assert_allclose(line.aggregate.numpy(), model, rtol=0, atol=1e-12)


def test_feddyn_follows_its_paper() -> None:
    server = {"clip_norm": 1e9, "noise_std": 0.0, "optimiser": {"type": "feddyn", "participation": 0.5}}
    federation = federation_of(config_of({"type": "feddyn", "alpha": ALPHA}, server=server))
    expected = list(feddyn(federation, problem_of(federation)))
    for line, model in zip(played(federation), expected, strict=True):
        np.testing.assert_allclose(line.aggregate.numpy(), model, rtol=0, atol=1e-12)


class Stop(Tracker):
    """Ends the process after round 3, once."""

    @hookimpl
    def crfl_round_finished(self, record: Any) -> None:
        if record.round == 3 and not STOPPED:
            STOPPED.append(record.round)
            raise KeyboardInterrupt


STOPPED: list[int] = []


@pytest.mark.parametrize("groups", [None, {"count": 3}], ids=["alone", "groups"])
def test_a_resumed_run_equals_one_that_never_stopped(groups: Any, tmp_path: Path) -> None:
    plugins: dict[str, type[Plugin]] = {"stop": Stop}
    storage = {"figures": [], "checkpoint_seconds": 0}
    changes = {} if groups is None else {"groups": groups}
    config = config_of("scaffold", trackers=["stop"], storage=storage, **changes)
    STOPPED.append(0)
    whole = crfl_core.run(config, plugins=plugins, out=tmp_path / "whole")
    STOPPED.clear()
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, plugins=plugins, out=tmp_path / "halves")
    halves = crfl_core.resume(tmp_path / "halves", plugins=plugins)
    assert contents(whole.path) == contents(halves.path)


def final(engine: Any, path: Path, **plugins: type[Plugin]) -> torch.Tensor:
    """The model of a run in some engine, with an attack in round 2."""
    attack = {"type": "pgd", "clients": [0, 1], "rounds": [2], "radius": 1.0}
    training = {"learning_rate": RATE, "steps": STEPS, "batch_size": 12, "algorithm": "scaffold"}
    config = config_of("scaffold", engine=engine, attack=attack, training=training)
    return crfl_core.run(config, out=path, plugins=plugins).parameters


def test_every_engine_carries_what_clients_keep(tmp_path: Path) -> None:
    local = final({"type": "local", "threads": 1, "chunk_clients": 3}, tmp_path / "local")
    apart = final({"type": "processes", "chunk_clients": 3}, tmp_path / "apart", processes=ProcessEngine)
    assert torch.equal(local, apart)
    stacked = final({"type": "stacked", "models": 2, "place": 1}, tmp_path / "stacked")
    torch.testing.assert_close(stacked, local, rtol=0, atol=1e-10)


class Forgetting(Engine):
    """Returns the updates, and loses the memory."""

    _job: Job | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        self._job = job

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        assert self._job is not None
        for part in task.parts():
            trained = self._job.train(task, part)
            yield LocalUpdates(trained.part, trained.updates, trained.measurements)


def test_an_engine_that_loses_the_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginFailure, match="the engine must return the memory of each participant"):
        final("forgetting", tmp_path / "run", forgetting=Forgetting)


def test_groups_do_not_see_what_clients_of_others_keep() -> None:
    """An attack on one group leaves the models of all others as they are, bit for bit, in all later rounds."""
    attack = {"type": "sign-flip", "clients": [0], "rounds": {"first": 1}, "scale": 5.0}
    models = []
    for one in ("none", attack):
        federation = federation_of(config_of("scaffold", groups={"count": 4}, attack=one))
        hit = next(number for number, group in enumerate(federation.participation.members) if 0 in group)
        models.append(final_models(federation))
    same = [bool(torch.equal(*pair)) for pair in zip(*models, strict=True)]
    assert same == [group != hit for group in range(4)]


def final_models(federation: Federation) -> list[torch.Tensor]:
    """The last model of every group."""
    from crfl_core.training import rounds
    from crfl_core.training.session import Session

    session = Session.of(federation, Path("nowhere"))
    with session.open_engine():
        *_, last = rounds.play_rounds(session, rounds.initial_progress(federation))
    return [outcome.clipped for outcome in last]


def test_certificates_that_hide_a_round_behind_noise_refuse(tmp_path: Path) -> None:
    run = crfl_core.run(config_of("scaffold", certificates=["postprocess"]), out=tmp_path / "run")
    assert "postprocess" in run.metrics.refused
    check = assumption_checks.check_plugin_memory(run.ledger, 3)
    assert (check.status, check.measured) == ("failed", "clients keep variate from round to round")
    assert assumption_checks.check_plugin_memory(run.ledger, 6).status == "held"


class Exploding(StatefulAlgorithm):
    """Keeps what no number can hold in even clients, the clients' ids in others, and shows both in its updates."""

    remembers: ClassVar[tuple[str, ...]] = ("kept",)

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        return StepDirection(step.memory["kept"])

    def remember(self, finished: LocalRound) -> State:
        ids = torch.tensor(finished.ids).to(finished.start)[:, None]
        return {"kept": torch.where(ids % 2 == 0, torch.inf, finished.memory["kept"] + ids)}


def test_what_is_not_finite_is_not_kept_and_ids_are_those_of_the_clients() -> None:
    training = {"learning_rate": RATE, "steps": STEPS, "batch_size": 12, "algorithm": "exploding"}
    federation = federation_of(config_of("exploding", training=training, rounds=3), {"exploding": Exploding})
    kept = played(federation)[-1].outcome.after.memory["kept"][0, :, 0]
    assert kept.tolist() == [0.0, 3.0, 0.0, 9.0, 0.0, 15.0, 0.0, 21.0]


def test_remote_clients_are_refused_before_training() -> None:
    partition = {"type": "remote", "clients": 2, "samples": [20, 20]}
    with pytest.raises(ConfigError, match="'scaffold' keeps vectors of each client, which remote clients do not send"):
        federation_of(config_of("scaffold", partition=partition))
