"""The engine `ray` on a real cluster of two nodes: the bits of `local`, wherever work is done."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_engines.ray.engine import Ray
from crfl_engines.ray.worker import SentCount, SentTask, Worker, local_versions, receive_updates

import crfl_core
from crfl_core.extend import (
    ConfigError,
    CountingTask,
    CrflError,
    LocalUpdates,
    NoisyModels,
    PartialCount,
    PluginError,
    RunError,
    Streams,
    TrainingTask,
)
from crfl_core.runs.attack import attack_certificates
from crfl_core.testing import check_plugin
from crfl_core.training.local_training import LocalTraining
from tests.engines.test_engines import task_of
from tests.oracle import OTHER_ENGINE, POISON, contents, federation_of, tiny
from tests.ray_nodes import Nodes, ray_or_skip

pytestmark = pytest.mark.ray
ray = ray_or_skip()

EVERYTHING = tiny(
    dataset={"type": "synthetic", "train_samples": 300, "test_samples": 1100, "features": 12, "classes": 4},
    attack=POISON,
    certificates=[
        {"type": "pathwise-smoothed", "method": "monte-carlo"},
        {"type": "tail", "continuations": 12, "selection": 4},
    ],
    storage={"checkpoint_seconds": 0, "figures": []},
)
"""A run with poison, continuations, and votes on test sets of several blocks."""
LOCAL = {"type": "local", "threads": 1, "chunk_clients": 3}


def test_runs_continuations_and_votes_have_the_bits_of_the_local_engine(two_nodes: Nodes, tmp_path: Path) -> None:
    local = crfl_core.run(EVERYTHING | {"engine": LOCAL}, out=tmp_path / "local")
    asked: list[str] = []
    original = Ray.count_votes

    def count_votes(self: Ray, task: CountingTask) -> Any:
        asked.append(task.test_set)
        return original(self, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ray, "count_votes", count_votes)
        apart = crfl_core.run(EVERYTHING | {"engine": two_nodes.engine()}, out=tmp_path / "apart")
    assert {*asked} == {"clean", "backdoored"}
    one, two = contents(local.path), contents(apart.path)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == OTHER_ENGINE


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clients_of_one_group_change_no_bit_of_another(two_nodes: Nodes, tmp_path: Path, dtype: str) -> None:
    config = tiny(
        rounds=2,
        dtype=dtype,
        groups={"count": 3},
        model={"type": "mlp", "hidden": [5]},
        training={"learning_rate": 0.3, "steps": 4, "batch_size": 1},
        aggregation=["rfa"],
        attack="none",
        certificates=["group-vote"],
    )
    attack = {"type": "pgd", "clients": [0], "rounds": [1, 2], "poisoned_per_batch": 1, "scale": 1e30, "steps": 9}
    clean, attacked = (
        crfl_core.run(config | {"attack": attack, "engine": two_nodes.engine()}, out=tmp_path / str(number))
        for number, attack in enumerate(("none", attack))
    )
    here = crfl_core.run(config | {"attack": attack, "engine": LOCAL}, out=tmp_path / "here")
    assert torch.equal(attacked.parameters, here.parameters)
    assert attacked.ledger.facts.groups is not None
    same = [torch.equal(one, other) for one, other in zip(clean.parameters, attacked.parameters, strict=True)]
    assert same == [0 not in members for members in attacked.ledger.facts.groups.members]


def test_a_run_of_several_machines_is_attacked_in_this_process(two_nodes: Nodes, tmp_path: Path) -> None:
    dataset = {"type": "digits", "train_samples": 900, "test_samples": 60}
    training = {"learning_rate": 0.5, "epochs": 1, "batch_size": 7}  # of which bits depend on the cut into parts
    changes = {"dataset": dataset, "partition": {"type": "iid", "clients": 24}, "training": training}
    config = tiny(groups={"count": 6}, engine=two_nodes.engine(), certificates=["group-vote"], attack="none", **changes)
    report = attack_certificates(crfl_core.run(config, out=tmp_path / "run"), replays=1)
    assert report.certified > 10
    assert report.flipped == 0


def test_the_engine_keeps_what_engines_promise(two_nodes: Nodes) -> None:
    engine = Ray(address=two_nodes.address, workers=1, chunk_clients=4).with_name("ray")
    assert [result for result in check_plugin(engine) if result.status != "passed"] == []


def test_workers_are_on_both_nodes_and_open_the_job_once(two_nodes: Nodes) -> None:
    federation = federation_of(tiny())
    engine = Ray(address=two_nodes.address, workers=2, chunk_clients=1)
    engine.open(LocalTraining(federation))
    try:
        for number in (1, 2, 3):
            assert sorted(part.part.start for part in engine.train(task_of(federation, number))) == list(range(8))
        processes = [int(worker.place.rpartition(" ")[2]) for worker in engine._pool._workers]
        parents = {re.search(r"^PPid:\s*(\d+)", Path(f"/proc/{one}/status").read_text(), re.M)[1] for one in processes}  # type: ignore[index]
        assert len(parents) == 2  # every node has a process that starts its workers
    finally:
        engine.close()


def test_participants_are_sent_again_only_if_they_change(two_nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[object] = []
    original = ray.put

    def noted(value: object) -> object:
        put.append(value)
        return original(value)

    monkeypatch.setattr(ray, "put", noted)
    federation = federation_of(tiny())
    engine = Ray(address=two_nodes.address, workers=1)
    engine.open(LocalTraining(federation))
    try:
        for number in (1, 2, 3):
            list(engine.train(task_of(federation, number)))
    finally:
        engine.close()
    assert [type(value) for value in put if not isinstance(value, str)] == [SentTask, dict, SentTask, SentTask]


def test_too_few_workers_are_an_error_after_the_deadline(two_nodes: Nodes, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(
        RunError, match=r"\d of 5 workers were there within 8 s, and the cluster has 2 nodes with 2 CPUs"
    ):
        crfl_core.run(tiny(engine=two_nodes.engine(workers=5, deadline=8)), out=tmp_path / "run")
    assert time.monotonic() - started < 60


def test_what_goes_wrong_in_a_worker_reads_as_if_it_had_gone_wrong_here(two_nodes: Nodes) -> None:
    federation = federation_of(tiny())

    class Elsewhere(LocalTraining):
        """A job whose data are not on the other machines."""

        @property
        def specification(self) -> str:
            return super().specification.replace('type = "digits"', 'type = "arrays"\npath = "/nowhere.npz"')

    engine = Ray(address=two_nodes.address, workers=1)
    engine.open(Elsewhere(federation))
    try:
        with pytest.raises(CrflError, match=r"/nowhere\.npz") as caught:
            list(engine.train(task_of(federation)))
    finally:
        engine.close()
    assert "Traceback" not in str(caught.value)


def test_a_cluster_that_is_in_use_is_left_as_it_is(two_nodes: Nodes, tmp_path: Path) -> None:
    """Also by a second run in the process; another cluster is refused meanwhile."""
    ray.init(address=two_nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        crfl_core.run(tiny(engine=two_nodes.engine(workers=1, address="auto")), out=tmp_path / "run")
        assert ray.is_initialized()
        with pytest.raises(ConfigError, match=r"engine\.address: this process already works with the Ray cluster at"):
            crfl_core.run(tiny(engine=two_nodes.engine(address="127.0.0.1:1")), out=tmp_path / "other")
    finally:
        ray.shutdown()


def test_an_address_without_an_answer_is_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        ConfigError, match=rf"engine\.address: no server answers at 127\.0\.0\.1:{port} .*ray start --head"
    ):
        crfl_core.run(tiny(engine={"type": "ray", "address": f"127.0.0.1:{port}"}), out=tmp_path / "run")


@pytest.mark.parametrize("says", [b"", b"220 mail.example.org ready\r\n"], ids=["nothing", "something else"])
def test_an_address_of_another_server_is_a_sentence(
    tmp_path: Path, says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would wait for minutes."""
    monkeypatch.setattr("crfl_engines.ray.cluster.ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(says)
            time.sleep(2)
            connection.close()

        answering = threading.Thread(target=answer)
        answering.start()
        expected = "the server at .* is not Ray" if says else "no server answers at .* \\(timed out\\)"
        with pytest.raises(ConfigError, match=rf"engine\.address: {expected}"):
            crfl_core.run(tiny(engine={"type": "ray", "address": address}), out=tmp_path / "run")
        answering.join()


@pytest.mark.parametrize("address", ["somewhere", "http://here:1", "a:b", "ray://here:10001", ""])
def test_an_address_that_is_none_is_refused_with_the_config(address: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.address"):
        crfl_core.load_config(tiny(engine={"type": "ray", "address": address}))


def test_a_cluster_that_does_not_start_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(RunError, match=r"Ray did not start on this machine \(The current node timed out"):
        crfl_core.run(tiny(engine={"type": "ray", "address": "local"}), out=tmp_path / "run")


def test_without_ray_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PluginError, match=re.escape('Ray is not here: `pip install "crfl[ray]"`')):
        crfl_core.run(tiny(engine={"type": "ray"}), out=tmp_path / "run")


def test_a_worker_refuses_work_of_another_version() -> None:
    with pytest.raises(RunError, match=r"has torch .*, and the run was started with 0\.1: install the same"):
        Worker().open("", local_versions() | {"torch": "0.1"})


def test_what_travels_arrives_as_it_was() -> None:
    federation = federation_of(tiny())
    job, task = LocalTraining(federation), task_of(federation)
    state = {"pattern": torch.arange(3.0)}
    memory = {"variate": torch.rand(1, len(task.clients), 3)}
    mean = {"variate": torch.rand(1, 1, 3)}
    origins = torch.rand(1, 1, 3)
    sent = SentTask.from_task(TrainingTask(2, task.starts, task.clients, True, state, memory, mean, origins))
    arrived = sent.to_task(vars(task.clients))
    assert torch.equal(arrived.starts, task.starts)
    assert arrived.attack_state is not None
    assert torch.equal(arrived.attack_state["pattern"], state["pattern"])
    assert torch.equal(arrived.memory["variate"], memory["variate"])
    assert torch.equal(arrived.mean["variate"], mean["variate"])
    assert arrived.origins is not None
    assert torch.equal(arrived.origins, origins)
    assert SentTask.from_task(task).to_task(vars(task.clients)).origins is None
    worker = Worker()
    worker.open(job.specification, local_versions())
    answer = worker.train(SentTask.from_task(task), vars(task.clients), slice(2, 5))[1]
    trained: LocalUpdates = receive_updates(slice(2, 5), answer)
    expected = job.train(task, slice(2, 5))
    assert torch.equal(trained.updates, expected.updates)
    for name, column in vars(expected.measurements).items():
        np.testing.assert_array_equal(getattr(trained.measurements, name), column)
    models = torch.randn(1, federation.model.layout.size, generator=torch.Generator().manual_seed(0))
    votes = CountingTask("clean", 60, NoisyModels(models, 20, 0.1, Streams(3)))
    counted: PartialCount = job.count_votes(votes, slice(0, 60))
    np.testing.assert_array_equal(worker.count(SentCount.from_task(votes), slice(0, 60))[1], counted.counts)
