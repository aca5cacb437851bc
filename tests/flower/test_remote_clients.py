"""A server that never sees data: what is counted, what is declared, and what must be stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_datasets.partitioners.remote import Remote

import crfl_core
from crfl_core import load_config
from crfl_core.extend import ConfigError, OptionError, Streams, remote_rows
from crfl_core.records.inputs import is_local
from tests.flower.support import experiment, federated, founded, honest
from tests.oracle import federation_of

SERVER: dict[str, Any] = {
    "rounds": 2,
    "device": "cpu",
    "dataset": {"type": "digits", "train_samples": 100, "test_samples": 20},
    "partition": {"type": "remote", "clients": 3, "samples": [10, 2_000_000_000, 30], "max_samples": 1_000_000_000},
    "threat": {"clients": 1, "rounds": "every"},
}


def test_rows_that_are_elsewhere_are_counted_and_take_no_memory() -> None:
    rows = remote_rows(10**15)
    assert len(rows) == 10**15
    assert not is_local(rows)
    assert is_local(np.arange(3))


def test_the_server_has_test_samples_and_no_others() -> None:
    federation = federation_of(SERVER)
    assert len(federation.data.x) == len(federation.features) == 0
    assert len(federation.test_sets["clean"].labels) == 20
    assert federation.facts.samples == (10, 10**9, 30)
    assert federation.facts.measured is False
    assert federation.facts.partition_digest is None


def test_norms_are_the_declared_bound() -> None:
    facts = federation_of(SERVER).facts
    assert set(facts.input_norms) == {facts.input_norm_bound} == {8.0}


def test_what_the_server_reserves_is_its_own() -> None:
    federation = federation_of(SERVER | {"reserve": {"root": 10}})
    assert len(federation.reserve["root"].labels) == 10
    assert federation.facts.samples == (10, 10**9, 30)


@pytest.mark.parametrize("missing", ["clients", "rounds"])
def test_a_threat_must_be_stated(missing: str) -> None:
    threat = {key: value for key, value in SERVER["threat"].items() if key != missing}
    with pytest.raises(ConfigError, match="is missing: the server cannot observe what remote clients do") as raised:
        federation_of(SERVER | {"threat": threat})
    assert raised.value.key == f"threat.{missing}"


def test_no_remote_client_is_made_to_attack() -> None:
    with pytest.raises(ConfigError, match="clients that are elsewhere are not simulated"):
        federation_of(SERVER | {"attack": {"type": "sign-flip"}})


def test_no_client_counts_before_all_have_registered() -> None:
    with pytest.raises(ConfigError, match="is missing: start with `crfl federation serve`"):
        federation_of(SERVER | {"partition": {"type": "remote", "clients": 3}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": (5,), "clients": 2}, "samples: found 1 numbers for 2 clients"),
        ({"samples": (5, 5), "clients": 2, "client": 2}, "client: found 2, but clients are 0..1"),
        ({"samples": (5, 5), "clients": 2, "client": 1}, "client 1 registered 5 samples, and 8 are here"),
    ],
)
def test_a_node_holds_what_it_registered(options: dict[str, Any], message: str) -> None:
    data = load_config({"dataset": {"type": "digits", "train_samples": 8}}).config.dataset.load()
    with pytest.raises(OptionError, match=message):
        Remote(**options).split(data, Streams(0))


def test_a_node_has_its_own_rows_and_counts_those_of_others() -> None:
    data = load_config({"dataset": {"type": "digits", "train_samples": 8}}).config.dataset.load()
    rows = Remote(clients=3, samples=(100, 9, 7), max_samples=8, client=1).split(data, Streams(0))
    assert [len(each) for each in rows] == [8, 8, 7]
    assert rows[1].tolist() == list(range(8))
    assert [is_local(each) for each in rows] == [False, True, False]


def test_the_audit_declares_what_could_not_be_measured(tmp_path: Path) -> None:
    fed = federated(founded(tmp_path / "fed", experiment(tmp_path / "e")), [honest] * 4, tmp_path / "run")
    checks = {check.name: check for audit in fed.audits for check in audit.checks}
    assert checks["input norms"].status == "declared"
    followed = checks["honest clients follow the protocol"]
    assert followed.status == "declared"
    assert "4 clients registered 84 samples within [0, 1] before round 1" in followed.measured
    assert "who answers in time does not depend on the attackers" in followed.measured
    assert fed.metrics.partition.classes == ("not known here",)
    assert fed.metrics.partition.sizes == fed.ledger.facts.samples


def test_a_run_with_data_declares_no_such_thing() -> None:
    config = {key: value for key, value in SERVER.items() if key != "partition"}
    facts = federation_of(config | {"partition": {"type": "iid", "clients": 2}}).facts
    assert facts.measured


def test_without_nodes_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    config = founded(tmp_path / "fed", experiment(tmp_path / "e"))
    with pytest.raises(ConfigError, match="trains on nodes that join: start it with `crfl federation serve`"):
        crfl_core.run(config, overrides=["partition.samples=[21,21,21,21]"], out=tmp_path / "run")
