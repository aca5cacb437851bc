"""Files of a federation: what is written for whom, and what is said of wrong ones."""

from __future__ import annotations

import shutil
import socket
import stat
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from crfl_flower import server_app
from crfl_flower.client_app import read_node_file, specification_for_nodes
from crfl_flower.federation_setup import write_federation
from crfl_flower.keys import read_client_keys
from crfl_flower.launch import explain_refusal, join, serve
from crfl_flower.messages import RegistrationRequest
from crfl_flower.processes import find_free_port, read_log_tail
from crfl_flower.server_app import FederatedRun, load_settings
from flwr.proto.node_pb2 import NodeInfo
from typer.testing import CliRunner

from crfl_core.cli.app import app
from crfl_core.errors import RunError, StoreError
from crfl_core.extend import ConfigError, Data, DataError, Domain
from tests.flower.support import experiment, federated, founded, honest


def test_every_node_gets_its_share_and_no_other(tmp_path: Path) -> None:
    config = experiment(tmp_path / "e")
    files = write_federation(tmp_path / "fed", config, "fl.example.org:9000", ())
    assert [file.parent.name for file in files] == ["node-0", "node-1", "node-2", "node-3"]
    everything = np.load(tmp_path / "e" / "digits.npz")
    owner = np.load(tmp_path / "e" / "owners.npz")["client"]
    for client, file in enumerate(files):
        own = np.load(file.parent / "samples.npz")
        assert np.array_equal(own["x"], everything["x"][owner == client])
        assert read_node_file(file).server == "fl.example.org:9000"
        assert stat.S_IMODE((file.parent / "node.key").stat().st_mode) == 0o600
    tree = tomllib.loads((tmp_path / "fed/server/config.toml").read_text())
    assert tree["engine"]["address"] == "0.0.0.0:9000"
    assert tree["partition"] == {"type": "remote", "clients": 4, "max_samples": 21}
    assert len(read_client_keys(tmp_path / "fed/server")) == 4


def test_a_first_try_has_a_seed_that_cannot_be_guessed(tmp_path: Path) -> None:
    seeds = []
    for name in ("one", "two"):
        write_federation(tmp_path / name, None, "127.0.0.1:9092", ())
        tree = tomllib.loads((tmp_path / name / "server/config.toml").read_text())
        seeds += [tree["seed"], tree["seeds"]["batches"]]
    assert len(set(seeds)) == 4


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    done = CliRunner().invoke(app, ["federation", "init", str(tmp_path)])
    assert done.exit_code != 0
    with pytest.raises(StoreError, match="is not empty"):
        write_federation(tmp_path, None, "127.0.0.1:9092", ())


def test_every_node_needs_a_key_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no node has a key there: copy the \.pub file"):
        read_client_keys(tmp_path)
    write_federation(tmp_path / "fed", None, "127.0.0.1:9092", ())
    nodes = tmp_path / "fed/server/nodes"
    shutil.copy(nodes / "node-0.pub", nodes / "node-9.pub")
    with pytest.raises(StoreError, match=r"node-9\.pub: is also the key of node-0\.pub"):
        read_client_keys(tmp_path / "fed/server")
    (nodes / "node-9.pub").write_text("no key")
    with pytest.raises(StoreError, match=r"is not a public key: make one with `ssh-keygen"):
        read_client_keys(tmp_path / "fed/server")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('server = "nowhere"\n[dataset]\ntype = "digits"', r"node\.toml: server: "),
        ('server = "a:1"', r"node\.toml: dataset: is missing"),
        ("server = ", r"node\.toml: is not TOML"),
        ('server = "a:1"\nsecret = 1\n[dataset]\ntype = "digits"', r"node\.toml: secret: "),
    ],
)
def test_what_is_wrong_with_a_node_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_node_file(tmp_path / "node.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"type": "local"}}, "nodes are trained by 'flower'"),
        ({"partition": {"type": "iid", "clients": 4}}, "samples of nodes are 'remote'"),
        ({"partition": {"type": "remote", "clients": 5}}, "is 5, and 4 nodes have a key"),
    ],
)
def test_a_config_must_be_that_of_a_federation(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = founded(tmp_path / "fed", experiment(tmp_path / "e"))
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | changes))
    with pytest.raises(ConfigError, match=message):
        load_settings(path, ())


def test_no_node_joins_for_a_run_that_is_finished(tmp_path: Path) -> None:
    path = founded(tmp_path / "fed", experiment(tmp_path / "e"))
    finished = federated(path, [honest] * 4, tmp_path / "run")
    with pytest.raises(StoreError, match="holds a finished run: name another directory with --out"):
        serve(path, finished.path, (), (), print)
    assert not (tmp_path / "fed/server/superlink.log").exists()


def test_nodes_are_told_no_seed_but_that_of_batches(tmp_path: Path) -> None:
    tree = tomllib.loads(founded(tmp_path / "fed", experiment(tmp_path / "e")).read_text())
    told = tomllib.loads(specification_for_nodes(tomli_w.dumps(tree)))
    assert told["seeds"] == {"batches": 11}
    assert not {"seed", "dataset", "engine", "votes", "reserve"} & told.keys()
    with pytest.raises(ConfigError, match="nodes receive it and must not learn `seed`"):
        specification_for_nodes(tomli_w.dumps(tree | {"seeds": {"noise": 1}}))
    with pytest.raises(ConfigError, match="cannot be rebuilt by nodes"):
        specification_for_nodes(tomli_w.dumps(tree | {"reserve": {"curator": 10}}))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"x": np.zeros((3, 5), np.float32)}, "features 5"),
        ({"class_names": ("a", "c")}, "classes"),
        ({"domain": Domain(0.0, 2.0)}, "domain"),
    ],
)
def test_a_node_does_not_register_samples_of_another_kind(changes: dict[str, Any], what: str) -> None:
    x, y = np.zeros((3, 4), np.float32), np.zeros(3, np.int64)
    ours = Data(x, y, x, y, Domain(0.0, 1.0), ("a", "b"))
    question = RegistrationRequest.for_client(ours, 0, "token", 2)
    assert question.build_reply(ours).config_records["answer"]["samples"] == 2
    with pytest.raises(DataError, match=f"samples of this node have {what}"):
        question.build_reply(Data(**(vars(ours) | changes)))


def test_only_the_owner_reads_what_is_written_for_a_federation(tmp_path: Path) -> None:
    write_federation(tmp_path / "fed", None, "127.0.0.1:9092", ())
    written = [tmp_path / "fed", *(tmp_path / "fed").rglob("*")]
    assert [path for path in written if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert len(written) > 20


def test_an_experiments_seed_stays_its_own_unless_it_is_asked_for(tmp_path: Path) -> None:
    config = experiment(tmp_path / "e", seeds={"batches": 11, "noise": 3, "votes": 5, "initial": 2})
    write_federation(tmp_path / "secret", config, "127.0.0.1:9092", ())
    tree = tomllib.loads((tmp_path / "secret/server/config.toml").read_text())
    assert tree["seed"] != 7
    assert tree["seeds"] == {"batches": 11, "initial": 2}
    write_federation(tmp_path / "same", config, "127.0.0.1:9092", ["seed=7"])
    tree = tomllib.loads((tmp_path / "same/server/config.toml").read_text())
    assert (tree["seed"], tree["seeds"]["noise"]) == (7, 3)


def test_no_reply_decides_about_the_others_by_default(tmp_path: Path) -> None:
    write_federation(tmp_path / "fed", None, "127.0.0.1:9092", ())
    path = tmp_path / "fed/server/config.toml"
    tree = tomllib.loads(path.read_text())
    assert tree["engine"].keys() == {"type", "folder", "address"}
    path.write_text(tomli_w.dumps(tree | {"engine": tree["engine"] | {"min_replies": 2}}))
    with pytest.raises(ConfigError, match=r"engine\.min_replies"):
        load_settings(path, ())


@pytest.mark.parametrize("name", ["node-0/node.key", "server/server.key", "server/config.toml"])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    path = founded(tmp_path / "fed", experiment(tmp_path / "e"), f"127.0.0.1:{find_free_port()}")
    (tmp_path / "fed" / name).chmod(0o644)
    start = (
        partial(join, tmp_path / "fed/node-0/node.toml", print)
        if name.startswith("node")
        else partial(serve, path, tmp_path / "run", (), (), print)
    )
    with pytest.raises(StoreError, match=rf"{name}: holds a secret, and its mode 644 .*: chmod 600 .*{name}"):
        start()


def test_a_second_server_says_that_the_first_one_is_there(tmp_path: Path) -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        path = founded(tmp_path / "fed", experiment(tmp_path / "e"), f"127.0.0.1:{port}")
        with pytest.raises(RunError, match=rf"engine.address: .*:{port}: address already in use: stop the other"):
            serve(path, tmp_path / "run", (), (), print)


def test_a_revoked_client_keeps_its_place(tmp_path: Path) -> None:
    path = founded(tmp_path / "fed", experiment(tmp_path / "e"))
    nodes = tmp_path / "fed/server/nodes"
    keys = read_client_keys(tmp_path / "fed/server")
    (nodes / "node-1.pub").rename(nodes / "node-1.revoked")
    assert read_client_keys(tmp_path / "fed/server") == [keys[0], None, *keys[2:]]
    load_settings(path, ())
    shutil.copy(nodes / "node-1.revoked", nodes / "node-1.pub")
    with pytest.raises(StoreError, match=r"node-1\.(pub|revoked): node-1\.(pub|revoked) is there, too"):
        read_client_keys(tmp_path / "fed/server")
    (nodes / "node-1.pub").unlink()
    (nodes / "node-1.revoked").unlink()
    with pytest.raises(ConfigError, match=r"to revoke one, rename its file to \*\.revoked, which keeps its place"):
        load_settings(path, ())


class AbsentNodes:
    """A grid to which the nodes of these keys have come."""

    def __init__(self, keys: list[bytes | None]) -> None:
        self.keys = keys

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=100 + place, public_key=key) for place, key in enumerate(self.keys) if key]


def test_all_nodes_join_before_round_1_and_a_run_resumes_without_those_that_are_away(tmp_path: Path) -> None:
    path = founded(tmp_path / "fed", experiment(tmp_path / "e"), wait=0.01)
    _, engine = load_settings(path, ())
    said: list[str] = []
    federated_run = FederatedRun(path, say=said.append)
    keys = read_client_keys(engine.folder)
    grid: Any = AbsentNodes([keys[0], None, *keys[2:]])
    with pytest.raises(RunError, match=r"the nodes of clients 1 have not joined within 0\.01 s: start them with"):
        federated_run._wait_for_nodes(grid, engine, required=True)
    assert federated_run._wait_for_nodes(grid, engine, required=False) == [100, None, 102, 103]
    assert "continuing without them; they count as zero updates" in said[0]
    (engine.folder / "nodes/node-1.pub").rename(engine.folder / "nodes/node-1.revoked")
    assert federated_run._wait_for_nodes(grid, engine, required=False) == [100, None, 102, 103]
    with pytest.raises(RunError, match="the keys of clients 1 are revoked: before round 1, delete their files"):
        federated_run._wait_for_nodes(grid, engine, required=True)


def test_a_run_that_ended_early_says_how_it_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = founded(tmp_path / "fed", experiment(tmp_path / "e"))
    _, engine = load_settings(path, ())
    federated_run = FederatedRun(path, tmp_path / "run", nodes=[100, 101, 102, 103])

    def fail(*_: Any, **__: Any) -> None:
        error = RunError("an error in round 2")
        error.add_note(f"resume with `crfl run {tmp_path / 'run'}`")
        raise error

    monkeypatch.setattr(server_app, "run", fail)
    monkeypatch.setattr(server_app, "read_registered_samples", lambda _: [21] * 4)
    grid: Any = AbsentNodes(read_client_keys(engine.folder))
    with pytest.raises(RunError) as raised:
        federated_run.play(grid)
    assert raised.value.__notes__ == [f"resume with `crfl federation serve {path} --out {tmp_path / 'run'}`"]


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("ERROR: Client error '410 Gone' for url 'https://server:9092'", "does not know the key of this node: copy"),
        ("[code: 2004] Failed to activate SuperNode.", "counts this node as connected, because another process"),
        ("[Errno 111] Connection refused", "cannot be reached"),
        ("Server error '503 Service Unavailable'", "is starting"),
        ("Client error '409 Conflict' for url", "has another clock than this node"),
        ("anything", "is not available: anything"),
    ],
)
def test_a_node_says_why_the_server_refuses_it(words: str, meaning: str) -> None:
    assert explain_refusal(words).startswith(meaning)


def test_what_a_log_says_is_printed_without_codes_of_terminals(tmp_path: Path) -> None:
    log = tmp_path / "supernode.log"
    log.write_text("\x1b[91mERROR\x1b[0m: the server says \x1b]0;title\x07\x9b2J\n")
    assert read_log_tail(log) == f"ERROR: the server says ?]0;title??2J (all of it in {log})"
